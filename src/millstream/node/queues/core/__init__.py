"""Delivery of records to share groups; pure: records in flight, their states, persisted state."""
