"""Schemas of keys and values: the registry's client, and JSON, Avro and Protobuf as typed Arrow columns."""

from typing import TYPE_CHECKING, Any

from millstream.schemas.errors import (
    EncodingError,
    RegistryError,
    RegistryUnreachableError,
    SchemaError,
    SchemaNotFoundError,
)
from millstream.schemas.registry_client import Reference, RegisteredSchema, RegistryAuth, RegistryClient, Schema

if TYPE_CHECKING:
    from millstream.schemas.formats import FORMATS, OPTIONS, Format, make_format

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


def __getattr__(name: str) -> Any:
    # Loaded on first use: the formats need pyarrow, which the client does without.
    if name in __all__:
        from millstream.schemas import formats

        return getattr(formats, name)
    raise AttributeError(f"module 'millstream.schemas' has no attribute {name!r}")
