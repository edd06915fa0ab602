"""Handlers of the APIs of queues."""
