"""Streams between clients and this broker: sessions, subscriptions, unary records."""
