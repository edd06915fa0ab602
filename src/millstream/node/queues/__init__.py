"""Queues (share groups, KIP-932): share-partition leaders, share state, dead letters."""
