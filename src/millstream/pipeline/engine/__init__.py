"""Runs pipelines on Spark: a model becomes DataFrames and streaming queries, which are supervised."""
