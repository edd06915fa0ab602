"""Small parts that all packages share: background tasks, durations and sizes, Prometheus' text format, counting."""
