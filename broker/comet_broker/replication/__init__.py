"""Replication of logs from leaders to followers: one stream from each follower to each leader."""
