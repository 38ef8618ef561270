"""Records as Python values, and their columns as Arrow."""
