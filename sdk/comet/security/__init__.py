"""Certificates of brokers and clients, made by an authority in a folder."""
