"""Exactly once from a Spark query into a topic, proven: at precise points, and at random under kill -9."""
