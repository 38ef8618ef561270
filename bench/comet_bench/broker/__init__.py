"""`comet bench`: one broker, beside the machine's own limits."""
