"""A topic as a table: the last record of each key, conditions on it, and reads."""
