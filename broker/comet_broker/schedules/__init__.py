"""Schedules: records that the leader of a partition of `__schedules` writes to their topics when they are due."""
