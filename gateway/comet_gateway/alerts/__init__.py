"""Alerts: rules that this gateway or another one evaluates, and the delivery of what they find."""
