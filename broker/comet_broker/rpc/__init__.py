"""The gRPC service of the broker."""
