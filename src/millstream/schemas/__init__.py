"""Schemas of keys and values: the registry's client, and JSON, Avro and Protobuf as typed Arrow columns."""

from millstream.schemas.errors import (
    EncodingError,
    RegistryError,
    RegistryUnreachableError,
    SchemaError,
    SchemaNotFoundError,
)
from millstream.schemas.formats import FORMATS, OPTIONS, Format, make_format
from millstream.schemas.registry_client import Reference, RegisteredSchema, RegistryAuth, RegistryClient, Schema

__all__ = [
    "FORMATS",
    "OPTIONS",
    "EncodingError",
    "Format",
    "Reference",
    "RegisteredSchema",
    "RegistryAuth",
    "RegistryClient",
    "RegistryError",
    "RegistryUnreachableError",
    "Schema",
    "SchemaError",
    "SchemaNotFoundError",
    "make_format",
]
