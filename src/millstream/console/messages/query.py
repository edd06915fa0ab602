"""A query of the Messages page: start position, partition and filter, parsed from the form and run as a read.

The text filter searches key, value and headers, ignoring case. The expression filter is in `expressions`.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import orjson

from millstream.common.quantities import parse_duration
from millstream.console.messages.expressions import Expression
from millstream.console.messages.reading import FoundRecord, Page, Range, RecordReader, RecordTail
from millstream.registry.decoding import Decoded

Decode = Callable[[bytes | None], Decoded]

ANYWHERE, IN_KEY, IN_VALUE, IN_HEADERS = "anywhere", "key", "value", "headers"
SEARCH_PARTS = (ANYWHERE, IN_KEY, IN_VALUE, IN_HEADERS)
_SCHEMA_MAGIC = b"\x00"


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Whether a record matches. It decodes the record only if the bytes are not enough."""

    decode: Decode
    text: str = ""
    search_in: str = ANYWHERE
    expression: Expression | None = None
    topic: str = ""

    def __bool__(self) -> bool:
        return bool(self.text or self.expression)

    def __call__(self, record: FoundRecord) -> bool:
        if self.text and not any(self._holds_text(part) for part in self._parts(record)):
            return False
        if self.expression is None:
            return True
        return self.expression.holds(self.topic, record, self.decode(record.key), self.decode(record.value))

    def _parts(self, record: FoundRecord) -> Iterator[bytes | None]:
        if self.search_in in (ANYWHERE, IN_KEY):
            yield record.key
        if self.search_in in (ANYWHERE, IN_VALUE):
            yield record.value
        if self.search_in in (ANYWHERE, IN_HEADERS):
            for name, value in record.headers:
                yield name.encode("utf-8", "surrogateescape")
                yield value

    def _holds_text(self, data: bytes | None) -> bool:
        if not data:
            return False
        wanted = self.text
        if wanted.isascii():
            if wanted.lower().encode() in data.lower():
                return True
        elif wanted.casefold() in data.decode("utf-8", "replace").casefold():
            return True
        if data.startswith(_SCHEMA_MAGIC):
            decoded = self.decode(data)
            return decoded.kind != "binary" and wanted.casefold() in _text(decoded.value).casefold()
        return False


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS, default=str).decode()


_HELP = "enter a time such as 2026-01-31 12:00, a time of day such as 12:00, @milliseconds, or an age such as 5m, 2h"


class PositionError(ValueError):
    """The text is not a valid position. The message shows the syntax."""


def parse_offset(text: str) -> int:
    digits = text.strip().replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise PositionError(f"{text.strip()[:40]!r} is not an offset: enter a whole number, 0 or higher")
    return int(digits)


def parse_moment(text: str, zone: tzinfo, now: datetime) -> int:
    """Milliseconds since 1970. Times without a zone are in `zone`; ages are relative to `now`."""
    text = text.strip()
    with contextlib.suppress(ValueError, OverflowError):
        return _milliseconds(now - parse_duration(text.removesuffix(" ago")))
    try:
        if re.fullmatch(r"@\d{1,15}", text):
            return int(text[1:])
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
            hour, minute, second = ([int(part) for part in text.split(":")] + [0])[:3]
            today = now.astimezone(zone).replace(hour=hour, minute=minute, second=second, microsecond=0)
            return _milliseconds(today if today <= now else today - timedelta(days=1))
        moment = datetime.fromisoformat(text)
        return _milliseconds(moment if moment.tzinfo else moment.replace(tzinfo=zone))
    except (ValueError, OverflowError):
        raise PositionError(f"{text[:40]!r} is not a time: {_HELP}") from None


def shown_moment(timestamp_ms: int, zone: tzinfo) -> str:
    """The timestamp of a record in `zone`, with milliseconds; a dash if it has none."""
    if timestamp_ms < 0:
        return "–"
    try:
        moment = (_EPOCH + timedelta(milliseconds=timestamp_ms)).astimezone(zone)
    except OverflowError:
        return f"@{timestamp_ms}"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _milliseconds(moment: datetime) -> int:
    return max(0, (moment.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1))


NEWEST, OLDEST, OFFSET, TIME, LIVE = "newest", "oldest", "offset", "time", "live"
MODES = {NEWEST: "Newest", OLDEST: "Oldest", OFFSET: "From offset", TIME: "From time", LIVE: "Live"}


@dataclass(frozen=True, slots=True)
class Query:
    topic: str
    mode: str = NEWEST
    at: str = ""
    """The offset or time as entered."""
    partition: int | None = None
    text: str = ""
    search_in: str = ANYWHERE
    expression: Expression | None = None
    count: int = 50

    @property
    def is_backwards(self) -> bool:
        return self.mode == NEWEST

    def filter(self, decode: Decode) -> RecordFilter | None:
        found = RecordFilter(decode, self.text.strip(), self.search_in, self.expression, self.topic)
        return found if found else None

    def check(self, zone: tzinfo) -> None:
        """Checks the input before a request is sent: ValueError."""
        if self.mode == OFFSET:
            parse_offset(self.at)
        if self.mode == TIME:
            parse_moment(self.at, zone, datetime.now(UTC))

    @property
    def _partitions(self) -> list[int] | None:
        return None if self.partition is None else [self.partition]


def first_page(reader: RecordReader, query: Query, decode: Decode, zone: tzinfo) -> tuple[Page, dict[int, Range]]:
    """The first page, and the ranges of the next one."""
    ranges = reader.ranges(query.topic, query._partitions)
    if query.mode == OFFSET:
        offset = parse_offset(query.at)
        ranges = {index: Range(min(max(span.start, offset), span.end), span.end) for index, span in ranges.items()}
    elif query.mode == TIME:
        starts = reader.starts_at(query.topic, parse_moment(query.at, zone, datetime.now(UTC)), ranges)
        ranges = {index: Range(starts[index], span.end) for index, span in ranges.items()}
    return next_page(reader, query, decode, ranges)


def next_page(
    reader: RecordReader, query: Query, decode: Decode, ranges: dict[int, Range]
) -> tuple[Page, dict[int, Range]]:
    read = reader.backwards if query.is_backwards else reader.forwards
    page = read(query.topic, ranges, query.count, query.filter(decode))
    rest = {
        index: Range(span.start, page.following[index])
        if query.is_backwards
        else Range(page.following[index], span.end)
        for index, span in ranges.items()
    }
    return page, rest


def tail(reader: RecordReader, query: Query, decode: Decode) -> RecordTail:
    return RecordTail(reader, query.topic, query._partitions, query.filter(decode))
