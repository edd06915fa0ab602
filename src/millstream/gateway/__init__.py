"""The HTTP gateway: a separate process that uses only the Kafka protocol."""
