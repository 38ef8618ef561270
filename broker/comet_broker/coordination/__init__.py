"""Coordinators: groups, their offsets, and transactions, kept in the metadata store."""
