"""`comet apply`: topics, rules, roles and quotas from one file, again and again with the same result."""
