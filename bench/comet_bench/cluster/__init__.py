"""`comet bench cluster`: three brokers beside one, and failover."""
