"""Filters at the broker, compaction, and the key-value view."""
