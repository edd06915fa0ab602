"""Kafka's record batches: header, records, compression, checks. No I/O."""
