"""A query of the Messages page: start position, partition and filter, parsed from the form and run as a read.

The text filter searches key, value and headers, ignoring case. The field filter compares a path of the decoded value
(or key) with a value: `order.lines[0].sku = A-17`, `amount >= 100`, `customer ~ smith`, `error != null`.
"""

import contextlib
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import orjson

from millstream.common.quantities import parse_duration
from millstream.console.messages.reading import FoundRecord, Page, Range, RecordReader, RecordTail
from millstream.registry.decoding import Decoded

Decode = Callable[[bytes | None], Decoded]
Step = str | int | None
"""A name, an index, or None for all items of a list."""

ANYWHERE, IN_KEY, IN_VALUE, IN_HEADERS = "anywhere", "key", "value", "headers"
SEARCH_PARTS = (ANYWHERE, IN_KEY, IN_VALUE, IN_HEADERS)
_SCHEMA_MAGIC = b"\x00"
_COMPARISON = re.compile(r"(?P<path>.+?)\s*(?P<sign>!=|>=|<=|=|>|<|~)\s*(?P<wanted>.*)", re.DOTALL)
_PATH_PART = re.compile(
    r"\.?(?:(?P<name>[^.\[\]\"'\s]+)|\[(?P<index>\d+|\*)\]|\[(?P<quote>[\"'])(?P<quoted>.*?)(?P=quote)\])"
)
_LONGEST = 500
_FIELD_HELP = "enter a path, an operator and a value: order.id = 17, amount >= 100, name ~ smith, items[0].sku = 'A'"
_ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class FilterError(ValueError):
    """The text is not a valid comparison. The message shows the syntax."""


@dataclass(frozen=True, slots=True)
class FieldIs:
    """A comparison with the values at a path; true if any of them matches."""

    path: tuple[Step, ...]
    sign: str
    wanted: Any
    """A JSON value if the text is one, else the text."""
    wanted_text: str

    def holds(self, document: Any) -> bool:
        found = list(_at(document, self.path))
        if self.sign == "!=":
            return all(not self._equal(each) for each in found)
        return any(self._compare(each) for each in found)

    def _compare(self, found: Any) -> bool:
        if self.sign == "=":
            return self._equal(found)
        if self.sign == "~":
            return self.wanted_text.casefold() in _text(found).casefold()
        numbers = _is_number(found) and _is_number(self.wanted)
        if numbers or (isinstance(found, str) and isinstance(self.wanted, str)):
            return _ORDERINGS[self.sign](found, self.wanted)
        return False

    def _equal(self, found: Any) -> bool:
        # 17 matches the number and the text "17", because users often do not know the type of an id.
        return bool(found == self.wanted and isinstance(found, bool) == isinstance(self.wanted, bool)) or (
            isinstance(found, str) and found == self.wanted_text
        )


def parse_field(text: str) -> FieldIs | None:
    """Parses a comparison; None for an empty text."""
    if not text.strip():
        return None
    if len(text) > _LONGEST:
        raise FilterError(f"the comparison has {len(text)} characters; the maximum is {_LONGEST}")
    found = _COMPARISON.fullmatch(text.strip())
    if found is None:
        raise FilterError(f"{text.strip()[:60]!r} is not a comparison: {_FIELD_HELP}")
    wanted_text = found["wanted"].strip()
    if len(wanted_text) >= 2 and wanted_text[0] == wanted_text[-1] == "'":
        wanted_text = wanted_text[1:-1]
        wanted: Any = wanted_text
    else:
        try:
            wanted = orjson.loads(wanted_text)
        except ValueError:
            wanted = wanted_text
        if isinstance(wanted, str):
            wanted_text = wanted
    return FieldIs(_parse_path(found["path"]), found["sign"], wanted, wanted_text)


def _parse_path(text: str) -> tuple[Step, ...]:
    path = text.strip()
    path = path.removeprefix("$") if path.startswith(("$.", "$[")) or path == "$" else path
    steps: list[Step] = []
    at = 0
    while at < len(path):
        part = _PATH_PART.match(path, at)
        if part is None:
            raise FilterError(f"{text.strip()[:60]!r} is not a path: {_FIELD_HELP}")
        if part["index"] is not None:
            steps.append(None if part["index"] == "*" else int(part["index"]))
        else:
            steps.append(part["name"] if part["name"] is not None else part["quoted"])
        at = part.end()
    return tuple(steps)


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Whether a record matches. It decodes the record only if the bytes are not enough."""

    decode: Decode
    text: str = ""
    search_in: str = ANYWHERE
    field: FieldIs | None = None
    field_of_key: bool = False

    def __bool__(self) -> bool:
        return bool(self.text or self.field)

    def __call__(self, record: FoundRecord) -> bool:
        if self.text and not any(self._holds_text(part) for part in self._parts(record)):
            return False
        if self.field is None:
            return True
        decoded = self.decode(record.key if self.field_of_key else record.value)
        return decoded.kind != "binary" and self.field.holds(decoded.value)

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


def _at(document: Any, path: tuple[Step, ...]) -> Iterator[Any]:
    if not path:
        yield document
        return
    step, rest = path[0], path[1:]
    if isinstance(step, str):
        if isinstance(document, dict) and step in document:
            yield from _at(document[step], rest)
    elif isinstance(document, list):
        if step is None:
            for each in document:
                yield from _at(each, rest)
        elif step < len(document):
            yield from _at(document[step], rest)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


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
    field: str = ""
    count: int = 50

    @property
    def is_backwards(self) -> bool:
        return self.mode == NEWEST

    def filter(self, decode: Decode) -> RecordFilter | None:
        """The filter; ValueError if the input is not valid."""
        found = RecordFilter(decode, self.text.strip(), self.search_in, parse_field(self.field))
        return found if found else None

    def check(self, zone: tzinfo) -> None:
        """Checks the input before a request is sent: ValueError."""
        parse_field(self.field)
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
