"""Kafka's wire as bytes: framing, message schemas, the hand-tuned produce and fetch codecs. No sockets here."""
