"""Administration: topics, groups, cluster, history."""
