"""What the messages page is asked for, and the answer: fields of a form turned into one read of a topic."""

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from millstream.console.messages.matching import ANYWHERE, Decode, RecordFilter, parse_field
from millstream.console.messages.position import parse_moment, parse_offset
from millstream.console.messages.reading import Page, Range, RecordReader
from millstream.console.messages.tail import RecordTail

NEWEST, OLDEST, OFFSET, TIME, LIVE = "newest", "oldest", "offset", "time", "live"
MODES = {NEWEST: "Newest", OLDEST: "Oldest", OFFSET: "From offset", TIME: "From time", LIVE: "Live"}


@dataclass(frozen=True, slots=True)
class Question:
    topic: str
    mode: str = NEWEST
    at: str = ""
    """The offset or time, as it was typed."""
    partition: int | None = None
    text: str = ""
    place: str = ANYWHERE
    field: str = ""
    count: int = 50

    @property
    def is_backwards(self) -> bool:
        return self.mode == NEWEST

    def filter(self, decode: Decode) -> RecordFilter | None:
        """ValueError says what was typed wrong."""
        found = RecordFilter(decode, self.text.strip(), self.place, parse_field(self.field))
        return found if found else None

    def check(self, zone: tzinfo) -> None:
        """ValueError says what was typed wrong, before anything is asked."""
        parse_field(self.field)
        if self.mode == OFFSET:
            parse_offset(self.at)
        if self.mode == TIME:
            parse_moment(self.at, zone, datetime.now(UTC))

    @property
    def _partitions(self) -> list[int] | None:
        return None if self.partition is None else [self.partition]


def first_page(reader: RecordReader, question: Question, decode: Decode, zone: tzinfo) -> tuple[Page, dict[int, Range]]:
    """The page, and the ranges that the next one goes on from."""
    ranges = reader.ranges(question.topic, question._partitions)
    if question.mode == OFFSET:
        offset = parse_offset(question.at)
        ranges = {index: Range(min(max(span.start, offset), span.end), span.end) for index, span in ranges.items()}
    elif question.mode == TIME:
        starts = reader.starts_at(question.topic, parse_moment(question.at, zone, datetime.now(UTC)), ranges)
        ranges = {index: Range(starts[index], span.end) for index, span in ranges.items()}
    return next_page(reader, question, decode, ranges)


def next_page(
    reader: RecordReader, question: Question, decode: Decode, ranges: dict[int, Range]
) -> tuple[Page, dict[int, Range]]:
    read = reader.backwards if question.is_backwards else reader.forwards
    page = read(question.topic, ranges, question.count, question.filter(decode))
    rest = {
        index: Range(span.start, page.following[index])
        if question.is_backwards
        else Range(page.following[index], span.end)
        for index, span in ranges.items()
    }
    return page, rest


def tail(reader: RecordReader, question: Question, decode: Decode) -> RecordTail:
    return RecordTail(reader, question.topic, question._partitions, question.filter(decode))
