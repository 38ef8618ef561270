"""The client of a cluster: connections, metadata, retries, coordinators."""
