"""Transactions as the coordinator sees them: producers and epochs, open transactions, decided outcomes; pure."""
