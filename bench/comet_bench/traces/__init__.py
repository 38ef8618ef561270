"""The cost of traces with OpenTelemetry."""
