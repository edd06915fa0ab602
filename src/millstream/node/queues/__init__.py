"""Queues (share groups, KIP-932): delivery of records, its state, dead letters."""
