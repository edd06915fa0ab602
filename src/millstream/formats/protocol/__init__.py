"""Kafka's wire protocol as bytes: message schemas and their codecs, the codecs of Produce and Fetch. No sockets."""
