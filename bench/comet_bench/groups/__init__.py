"""`comet bench groups`: the cost of groups, share groups and transactions."""
