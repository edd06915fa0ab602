"""The records a program sends (`Message`), gets back when they are stored (`Published`), and reads (`Record`)."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

from millstream.client.values import Headers, Key, Value, decode_json, decode_text

V = TypeVar("V")


@dataclass(slots=True)
class Message:
    """One record to publish, for `publish_many` when a bare value or a (key, value) pair says too little."""

    value: Value
    key: Key = None
    headers: Headers = None
    partition: int | None = None
    timestamp: datetime | int | None = None


class Published(NamedTuple):
    """Where a record was stored. `offset` is -1 when nothing was asked back (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(slots=True)
class Record(Generic[V]):
    """One record as read. `value` is what the `decode=` option made of `raw`: the same bytes if none was given."""

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
        """The last header of that name, or None."""
        return next((value for key, value in reversed(self.headers) if key == name), None)

    @property
    def time(self) -> datetime | None:
        """The record's timestamp in UTC, None when it has none."""
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC) if self.timestamp_ms >= 0 else None
