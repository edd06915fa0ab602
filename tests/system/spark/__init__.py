"""Topics in Spark: source and sink, in one small session."""
