"""Pipelines as files: read, checked, drawn, and run on Spark."""
