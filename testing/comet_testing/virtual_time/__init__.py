"""Virtual time for tests: the event loop, and the functions of `time` on its clock."""
