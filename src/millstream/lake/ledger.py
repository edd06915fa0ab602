"""The ledger of a table that is kept from a topic: which offsets are in it, with numbers of rows and checksums.

It is in the metadata of the table. Each commit has the ranges of offsets that it added (its `LedgerEntry`). The sums of
all commits, by partition, are kept with the newest version (`LedgerState`), also after old versions have expired. A
commit is made only if its ranges begin where the table ends. So the table itself says where to continue: there is no
checkpoint that could be lost, or be older than the table.

Pure: the tables of `delta_table` and `iceberg_table` keep the numbers, `tables.verification` compares them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

from millstream.lake.errors import LakeError, StaleWriteError
from millstream.lake.row_crc import MASK, RowCrc

PREFIX: Final = "millstream.ledger"
"""Of the names under which tables keep entries and numbers."""
TOPIC_PROPERTY: Final = "millstream.topic"
TOPIC_ID_PROPERTY: Final = "millstream.topic.id"
_SUMMED: Final = ("rows", "dead_letters", "lost", "record_crc", "row_crc")


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of a partition from `begin` to before `end`, and what they became."""

    partition: int
    begin: int
    end: int
    rows: int = 0
    """Records that are rows, or changes of rows."""
    dead_letters: int = 0
    lost: int = 0
    """Offsets that the topic did not have any more when they were to be read."""
    record_crc: int = 0
    """Of all records, dead letters included, as the topic had them: partition, offset, key and value."""
    row_crc: int = 0
    """Of the rows."""

    def followed_by(self, other: "OffsetRange") -> "OffsetRange":
        """Both together. `other` begins where this one ends."""
        sums = {name: (getattr(self, name) + getattr(other, name)) & MASK for name in _SUMMED}
        return replace(self, end=other.end, **sums)

    def without_end(self, other: "OffsetRange") -> "OffsetRange":
        """What is left if `other` is taken from its end."""
        sums = {name: (getattr(self, name) - getattr(other, name)) & MASK for name in _SUMMED}
        return replace(self, end=other.begin, **sums)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one commit adds."""

    topic_id: str
    ranges: tuple[OffsetRange, ...]
    partitions: int
    """Of the topic, when the records were read."""

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "ranges": [list(asdict(each).values()) for each in self.ranges]})

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            document = json.loads(text)
            ranges = tuple(OffsetRange(*each) for each in document["ranges"])
            return cls(document["topic_id"], ranges, document["partitions"])
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(f"the ledger of a commit cannot be read: {error}: {text[:200]}") from error


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The sums of all commits."""

    totals: Mapping[int, OffsetRange] = field(default_factory=dict)
    """By partition."""
    table: RowCrc = field(default_factory=RowCrc)
    """Of all rows in the table."""
    partitions: int = 0
    generation: int = 0
    """How often the topic got more partitions. A key may then be in another partition, with smaller offsets."""

    def end_of(self, partition: int) -> int | None:
        """None: the table has nothing of this partition yet."""
        known = self.totals.get(partition)
        return None if known is None else known.end

    def after(self, entry: LedgerEntry, change: RowCrc) -> "LedgerState":
        """StaleWriteError if the entry does not begin where the table ends."""
        totals = dict(self.totals)
        for each in entry.ranges:
            before = totals.get(each.partition)
            if before is not None and before.end != each.begin:
                raise StaleWriteError(
                    f"partition {each.partition} of the table ends at offset {before.end}, and these rows begin at "
                    f"{each.begin}: another server writes this table too"
                )
            totals[each.partition] = each if before is None else before.followed_by(each)
        return LedgerState(totals, self.table + change, entry.partitions, self.generation_with(entry.partitions))

    def generation_with(self, partitions: int) -> int:
        return self.generation + int(self.partitions not in (0, partitions))

    def to_numbers(self) -> dict[str, int]:
        found = {
            f"{PREFIX}.partitions": self.partitions,
            f"{PREFIX}.generation": self.generation,
            f"{PREFIX}.rows": self.table.rows,
            f"{PREFIX}.crc": self.table.crc,
        }
        for number, each in self.totals.items():
            found |= {f"{PREFIX}.{number}.{name}": value for name, value in asdict(each).items() if name != "partition"}
        return found

    @staticmethod
    def from_numbers(number: Callable[[str], int | None]) -> "LedgerState":
        """`number`: what the table keeps under a name."""
        partitions = number(f"{PREFIX}.partitions")
        if partitions is None:
            return LedgerState()

        def known(name: str) -> int:
            found = number(f"{PREFIX}.{name}")
            if found is None:
                raise LakeError(f"the ledger of the table is not complete: {PREFIX}.{name} is missing")
            return found

        totals = {}
        for each in range(partitions):
            if number(f"{PREFIX}.{each}.end") is not None:
                names = ("begin", "end", *_SUMMED)
                totals[each] = OffsetRange(each, *(known(f"{each}.{name}") for name in names))
        return LedgerState(totals, RowCrc(known("rows"), known("crc")), partitions, known("generation"))


@dataclass(frozen=True, slots=True)
class CommitNote:
    """What a commit keeps in the metadata of the table beside its files."""

    numbers: Mapping[str, int]
    """Kept until a later commit has another one for the name."""
    entry: str
    """Kept with the version."""


@dataclass(frozen=True, slots=True)
class Bookkeeping:
    """Makes the note of a commit on the version of the table that is there just before it."""

    entry: LedgerEntry
    added: RowCrc = field(default_factory=RowCrc)
    """The change of a table to which rows are only added."""

    def note(self, before: LedgerState, change: RowCrc) -> CommitNote:
        after = before.after(self.entry, change)
        changed = {each.partition for each in self.entry.ranges}
        kept = replace(after, totals={number: each for number, each in after.totals.items() if number in changed})
        return CommitNote(kept.to_numbers(), self.entry.to_json())


def listed_ranges(state: LedgerState, entries: Sequence[LedgerEntry]) -> tuple[list[OffsetRange], list[str]]:
    """The ranges of all commits, by partition and offset; and faults of the ledger itself.

    `entries`: of the versions that have not expired, newest first. What is before them is one range for each partition.
    """
    found: list[OffsetRange] = []
    faults: list[str] = []
    for partition, total in sorted(state.totals.items()):
        rest = total
        ranges: list[OffsetRange] = []
        for each in (each for entry in entries for each in entry.ranges if each.partition == partition):
            if each.end != rest.end:
                faults.append(
                    f"partition {partition}: a commit ends at offset {each.end}, and the next one begins at {rest.end}"
                )
            rest = rest.without_end(each)
            ranges.append(each)
        if rest.end > rest.begin:
            ranges.append(rest)
        elif rest.end < rest.begin or rest.rows or rest.row_crc or rest.record_crc:
            faults.append(f"partition {partition}: the sums of the commits are not those of the table")
        found += reversed(ranges)
    return found, faults


def details_of(entry: Any) -> LedgerEntry | None:
    return LedgerEntry.from_json(entry) if isinstance(entry, str) and entry else None
