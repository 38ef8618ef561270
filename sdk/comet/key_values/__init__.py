"""A topic as a table of keys: the last value of each."""
