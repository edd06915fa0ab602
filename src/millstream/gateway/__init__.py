"""HTTP beside the broker: a process of its own that speaks only the Kafka wire."""
