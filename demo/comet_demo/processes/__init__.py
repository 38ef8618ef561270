"""The demo's processes: start, restart, watch, end."""
