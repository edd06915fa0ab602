"""TODO: json_schema."""
