"""Partitions on this broker: replicas, leadership, flushing, deletion, lookups."""
