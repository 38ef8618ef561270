"""The gateway's clients of the brokers, its cache of topics, readiness, and transfers of leadership."""
