"""Transactions: the coordinator, markers, producer ids."""
