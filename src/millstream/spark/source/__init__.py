"""Reading topics from Spark."""
