"""`python -m benchmarks.spark`: our source and sink beside Spark's own Kafka connector, on the same topics."""
