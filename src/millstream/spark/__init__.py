"""Topics in Spark: the `millstream` source and sink, sessions, and progress as consumer groups show it."""
