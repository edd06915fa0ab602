"""Transactions: the coordinator, markers, verification, produce in transactions, producer ids."""
