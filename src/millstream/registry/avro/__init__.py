"""TODO: avro."""
