"""Delivery of records to share groups, pure: in-flight records, their states, what is kept of them."""
