"""Handlers of the APIs of transactions and producer ids."""
