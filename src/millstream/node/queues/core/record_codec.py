"""Bytes of the records that share groups are kept in: Kafka's formats, from `share.schema`."""

import struct
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from millstream.formats.protocol.primitives import Cursor
from millstream.formats.protocol.schema import Message, Schema, split_entries
from millstream.node.coordination.core.outcome import CoordinatorRecord

_INT16 = struct.Struct(">h")
_VERSION = 0


@cache
def _entries() -> dict[tuple[str, str], str]:
    return split_entries(files("millstream.node.queues.core").joinpath("share.schema").read_text())


@cache
def _schema(kind: str, name: str) -> Schema:
    return Schema(_entries()[kind, name])


@cache
def _names() -> dict[int, str]:
    return {_schema(*entry).api_key: entry[1] for entry in _entries() if entry[0] == "key"}


def encode(name: str, key: Mapping[str, Any], value: Mapping[str, Any] | None) -> CoordinatorRecord:
    """A record of the type `name`; without a value it deletes what it is about."""
    schema = _schema("key", name)
    encoded_key = _INT16.pack(schema.api_key) + schema.encode(key, _VERSION)
    if value is None:
        return CoordinatorRecord(encoded_key, None)
    return CoordinatorRecord(encoded_key, _INT16.pack(_VERSION) + _schema("value", name).encode(value, _VERSION))


def decode(key: bytes, value: bytes | None) -> tuple[str, Message, Message | None] | None:
    """Name, key and value; None for a type or version that is not known here."""
    (number,) = _INT16.unpack_from(key)
    name = _names().get(number)
    if name is None:
        return None
    decoded_key = _schema("key", name).read(Cursor(key, _INT16.size, len(key)), _VERSION)
    if value is None:
        return name, decoded_key, None
    (version,) = _INT16.unpack_from(value)
    if version != _VERSION:
        return None
    return name, decoded_key, _schema("value", name).read(Cursor(value, _INT16.size, len(value)), version)
