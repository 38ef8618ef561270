"""The Admin service: topics, cluster, metrics, recovery, resuming."""
