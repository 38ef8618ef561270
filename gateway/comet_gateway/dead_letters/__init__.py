"""Dead letters: an index for each dead-letter topic, selection, redrive and discard."""
