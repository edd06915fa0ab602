"""Keys and values of records for people: through the registry if they name a schema, else as JSON, text or base64.

What cannot be read is no error but a fact about the record: it comes as base64, with the reason beside it.
"""

import base64
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from millstream.registry.errors import RegistryError
from millstream.registry.payloads import PayloadReader, UnreadablePayloadError, payload_reader
from millstream.registry.registry import Registry
from millstream.schemas import framing

_KEPT = 1_000
_ASK_AGAIN_S = 5.0
"""An id that was not found may be any five bytes: the cluster is not asked about it for every record."""
_MAX_DEPTH = 250
"""Deeper JSON could be read, but not written again."""
_NO_TEXT = bytes(set(range(32)) - set(b"\t\n\r")) + b"\x7f"


@dataclass(frozen=True, slots=True)
class Decoded:
    kind: str
    """null, json, text, binary, avro, json-schema or protobuf."""
    value: Any
    """What JSON can hold; of binary the base64."""
    schema_id: int | None = None
    problem: str | None = None
    """Why the schema that the bytes name was of no use."""


@dataclass(frozen=True, slots=True)
class _Known:
    reader: PayloadReader | None
    problem: str = ""
    until: float = float("inf")


class Decoder:
    """Thread safe. May ask the cluster for a schema that is new, so it is nothing for an event loop."""

    def __init__(self, registry: Registry, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def decode(self, data: bytes | None) -> Decoded:
        if data is None:
            return Decoded("null", None)
        if len(data) >= framing.PREFIX.size and data[0] == framing.MAGIC:
            schema_id, payload = framing.split(data)
            # Ids begin at 1, and a small number of eight bytes begins with zeros.
            return self._through_registry(data, schema_id, payload) if schema_id else in_base64(data)
        return guessed(data)

    def _through_registry(self, data: bytes, schema_id: int, payload: bytes) -> Decoded:
        known = self._schema(schema_id)
        problem = known.problem
        if known.reader is not None:
            try:
                return Decoded(known.reader.kind, known.reader.read(payload), schema_id)
            except UnreadablePayloadError as error:
                problem = f"the record names schema {schema_id}, but does not fit it: {error}"
        return Decoded("binary", base64.b64encode(data).decode(), schema_id, problem)

    def _schema(self, schema_id: int) -> _Known:
        with self._lock:
            known = self._known.get(schema_id)
            if known is not None and known.until > self._clock():
                self._known.move_to_end(schema_id)
                return known
        known = self._look_up(schema_id)
        with self._lock:
            self._known[schema_id] = known
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return known

    def _look_up(self, schema_id: int) -> _Known:
        registry = self._registry
        try:
            stored = registry.fresh(lambda: registry.by_id(schema_id))
            return _Known(payload_reader(stored.type, registry.parser.parse_stored(stored)))
        except (RegistryError, UnreadablePayloadError) as error:
            reason = f"the record begins as if it had schema {schema_id}: {error}"
            return _Known(None, reason, self._clock() + _ASK_AGAIN_S)


def guessed(data: bytes) -> Decoded:
    """By the bytes alone."""
    try:
        return Decoded("json", json_value(data))
    except ValueError:
        pass
    if data.translate(None, _NO_TEXT) == data:
        try:
            return Decoded("text", data.decode())
        except UnicodeDecodeError:
            pass
    return in_base64(data)


def json_value(data: bytes) -> Any:
    """ValueError if it is no JSON, or too deeply nested to be written again."""
    value = orjson.loads(data)
    if data.count(b"[") + data.count(b"{") > _MAX_DEPTH:
        try:
            orjson.dumps(value)
        except orjson.JSONEncodeError:
            raise ValueError("nested too deeply") from None
    return value


def in_base64(data: bytes) -> Decoded:
    return Decoded("binary", base64.b64encode(data).decode())
