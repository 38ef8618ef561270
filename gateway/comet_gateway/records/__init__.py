"""Records over HTTP: JSON and Arrow forms, merging by time, writing, cursors."""
