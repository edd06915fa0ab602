"""The Queues page, the delivery state of share groups, and their dead letters."""
