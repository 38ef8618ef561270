"""Coordinators: groups, their positions, and transactions, kept in the metadata store."""
