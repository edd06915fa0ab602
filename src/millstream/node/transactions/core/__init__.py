"""Transactions, as their coordinator sees them: who produces under which epoch, what is open, what was decided."""
