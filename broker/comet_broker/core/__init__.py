"""Decisions without I/O, clocks or chance."""
