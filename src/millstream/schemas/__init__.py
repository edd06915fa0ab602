"""Schemas of keys and values: the registry's client, and JSON, Avro and Protobuf as typed Arrow columns."""
