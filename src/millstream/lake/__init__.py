"""Topics as lake tables (Parquet, Delta, Iceberg), and tables as topics."""
