"""SQL over topics: the records that a query needs become Arrow columns, and DuckDB runs it (ADR 42)."""
