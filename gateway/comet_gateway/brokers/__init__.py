"""The gateway's clients of the brokers, and what it knows of the cluster."""
