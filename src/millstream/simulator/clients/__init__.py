"""Simulated clients: producers, consumers, transactions, group members and an administrator."""
