"""Spark and Millstream as clusters of processes, and what dies in them."""
