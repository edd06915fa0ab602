"""Records to send (`Message`), stored records (`Published`) and records read (`Record`); encoding of their values.

`dict` and `list` are encoded as JSON, `str` as UTF-8, bytes as they are, `None` is a tombstone. Other types are
refused, because consumers could not know how a number or a date was encoded.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from millstream.client.errors import EncodingError

Value: TypeAlias = bytes | bytearray | memoryview | str | dict[str, Any] | list[Any] | None
Key: TypeAlias = bytes | str | None
Headers: TypeAlias = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] | None
Decode: TypeAlias = Literal["bytes", "text", "json"] | Callable[[bytes], Any] | None


def encode_value(value: Value) -> bytes | None:
    """The bytes of a value."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (dict, list)):
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise EncodingError(f"this value cannot be written as JSON: {error}") from error
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise EncodingError(
        f"a record value is bytes, str, dict, list or None, not {type(value).__name__}:"
        " encode it first, for example with str(value)"
    )


def encode_key(key: Key) -> bytes | None:
    """The bytes of a key."""
    if key is None or type(key) is bytes:
        return key
    if isinstance(key, str):
        return key.encode()
    raise EncodingError(f"a record key is bytes, str or None, not {type(key).__name__}: encode it first, e.g. str(key)")


def encode_headers(headers: Headers) -> list[tuple[str, bytes | None]] | None:
    """Headers as ordered pairs; a name may occur several times."""
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    encoded = []
    for name, value in pairs:
        if not (value is None or isinstance(value, (bytes, str))):
            raise EncodingError(f"header {name!r} is bytes, str or None, not {type(value).__name__}")
        encoded.append((name, value.encode() if isinstance(value, str) else value))
    return encoded


def encode_timestamp(timestamp: datetime | int | None) -> int:
    """Milliseconds since 1970, or 0 for "now" (librdkafka's convention)."""
    if timestamp is None:
        return 0
    if isinstance(timestamp, datetime):
        return int(timestamp.timestamp() * 1000)
    return timestamp


def decode_text(raw: bytes | None) -> str | None:
    """UTF-8 text, None for a tombstone."""
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError as error:
        raise EncodingError(f"this value is not UTF-8 text ({error}): read `.raw`") from error


def decode_json(raw: bytes | None) -> Any:
    """The parsed JSON document, None for a tombstone."""
    try:
        return None if raw is None else json.loads(raw)
    except ValueError as error:
        raise EncodingError(f"this value is not JSON ({error}): read `.raw` or `.text()`") from error


def decoder(decode: Decode) -> Callable[[bytes | None], Any] | None:
    """The function for a `decode=` option; None for bytes. Functions are not called for tombstones."""
    if decode is None or decode == "bytes":
        return None
    if decode == "text":
        return decode_text
    if decode == "json":
        return decode_json
    if callable(decode):
        function = decode
        return lambda raw: None if raw is None else function(raw)
    raise EncodingError(f"decode is 'bytes', 'text', 'json' or a function of bytes, not {decode!r}")


V = TypeVar("V")


@dataclass(slots=True)
class Message:
    """A record to publish, with all fields."""

    value: Value
    key: Key = None
    headers: Headers = None
    partition: int | None = None
    timestamp: datetime | int | None = None


class Published(NamedTuple):
    """The partition and offset of a stored record. `offset` is -1 with acks=0."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(slots=True)
class Record(Generic[V]):
    """A record that was read. `value` is `raw`, decoded as the option `decode=` says; without it both are the same."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: V
    raw: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)

    def json(self) -> Any:
        """The value parsed as JSON (None for a tombstone)."""
        return decode_json(self.raw)

    def text(self) -> str | None:
        """The value as UTF-8 text (None for a tombstone)."""
        return decode_text(self.raw)

    def header(self, name: str) -> bytes | None:
        """The last header with this name, or None."""
        return next((value for key, value in reversed(self.headers) if key == name), None)

    @property
    def time(self) -> datetime | None:
        """The timestamp in UTC, None if the record has none."""
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC) if self.timestamp_ms >= 0 else None
