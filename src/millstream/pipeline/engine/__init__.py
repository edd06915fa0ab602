"""Runs pipelines on Spark: a model becomes DataFrames, these become streaming queries, which are watched."""
