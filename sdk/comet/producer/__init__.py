"""Producers: accumulator, sender, partitioner, idempotence, transactions."""
