"""The table of quotes on a terminal."""
