"""Search and export: a bounded scan of a topic with a filter."""
