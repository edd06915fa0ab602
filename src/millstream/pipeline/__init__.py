"""Pipelines as YAML files: read, checked, drawn, and run on Spark."""
