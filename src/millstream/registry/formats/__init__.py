"""Avro, JSON Schema and Protobuf: schemas parsed, written canonically, and compared."""
