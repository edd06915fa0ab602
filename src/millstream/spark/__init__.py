"""Topics in Spark: the `millstream` source and sink, sessions, and progress in consumer groups."""
