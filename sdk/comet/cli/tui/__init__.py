"""`comet tui`: topics, groups and brokers, live in a terminal."""
