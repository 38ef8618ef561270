"""Records over HTTP: JSON and Arrow forms, merging by timestamp, writing, cursors."""
