"""Schemas of keys and values: the registry's client, and JSON, Avro and Protobuf as typed Arrow columns."""

from typing import TYPE_CHECKING, Any

from millstream.schemas.errors import (
    EncodingError,
    RegistryError,
    RegistryUnreachableError,
    SchemaError,
    SchemaNotFoundError,
)

if TYPE_CHECKING:
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


_CLIENT_NAMES = frozenset(("Reference", "RegisteredSchema", "RegistryAuth", "RegistryClient", "Schema"))


def __getattr__(name: str) -> Any:
    # Imported on first use: formats need pyarrow, the client needs ssl and http, the DDL parser needs neither.
    if name in _CLIENT_NAMES:
        from millstream.schemas import registry_client

        return getattr(registry_client, name)
    if name in __all__:
        from millstream.schemas import formats

        return getattr(formats, name)
    raise AttributeError(f"module 'millstream.schemas' has no attribute {name!r}")
