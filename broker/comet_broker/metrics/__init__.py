"""Metrics: sampled every second, kept, and shown to Prometheus and to admin clients."""
