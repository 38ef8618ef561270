"""The gRPC face of the broker: thin."""
