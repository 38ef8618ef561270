"""Consumers: fetching, iteration, replicas, gaps."""
