"""The offsets of a stream in Spark's checkpoint: {"topic": {"0": 12}} and a note; and streams that start in a table.

The note (`$millstream`, which cannot be a topic name) has the ids of the topics, so that a recreated topic is detected,
and the start of partitions that are new in a batch, so that a repeated batch is the same. Offsets of spark-sql-kafka,
without a note, can be read too.

`startingOffsets=table:<path>` reads the rows of a table first, and then the topic. The table gives for each partition
the offset at which the topic continues (the seam), so no record is missing or repeated. The note has the version of the
table and the files that a batch has read, so that a repeated batch is the same. The lake package reads tables; it is
passed in as `OpenHistory`.
"""

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from millstream.raw_client import TopicPartition
from millstream.spark.errors import CheckpointError, OptionError


class Unit(Protocol):
    """The part of a table that a task reads."""

    @property
    def rows(self) -> int: ...

    @property
    def bytes(self) -> int: ...


class History(Protocol):
    """A version of a table. Picklable."""

    version: str
    units: list[Any]

    @property
    def seam(self) -> Mapping[tuple[str, int], int]: ...

    def check(self, schema: pa.Schema) -> None: ...

    def read(self, unit: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]: ...


class OpenHistory(Protocol):
    def __call__(
        self, location: str, options: Mapping[str, str], *, version: str | None, topics: frozenset[str]
    ) -> History: ...


@dataclass(frozen=True, slots=True)
class HistoryNote:
    """The position of a query in a table: the batch that ends here has the units from `first` up to `following`."""

    version: str
    topics: tuple[str, ...]
    first: int
    following: int
    count: int

    @property
    def is_done(self) -> bool:
        return self.following >= self.count

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "topics": list(self.topics),
            "first": self.first,
            "next": self.following,
            "units": self.count,
        }

    @classmethod
    def from_json(cls, note: Mapping[str, Any]) -> "HistoryNote":
        return cls(note["version"], tuple(note["topics"]), note["first"], note["next"], note["units"])


@dataclass(frozen=True)
class HistoryPart(InputPartition):
    """One unit of a table, for a task."""

    history: History
    unit: Any

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return self.history.read(self.unit, schema)


class HistoryPlanner:
    """Plans the batches that read from a table. `schema`: the rows of the query."""

    def __init__(
        self, location: str, options: Mapping[str, str], opener: OpenHistory | None, schema: pa.Schema
    ) -> None:
        if opener is None:
            raise OptionError("startingOffsets=table:… works only with format('millstream'); use that format")
        self._location = location
        self._options = options
        self._open = opener
        self._schema = schema
        self._opened: dict[tuple[str, tuple[str, ...]], History] = {}

    def begin(self, topics: Collection[str]) -> tuple[HistoryNote, Mapping[tuple[str, int], int]]:
        """The current version of the table, and the offsets at which the topic continues."""
        wanted = tuple(sorted(topics))
        history = self._open(self._location, self._options, version=None, topics=frozenset(wanted))
        history.check(self._schema)
        self._opened[history.version, wanted] = history
        return HistoryNote(history.version, wanted, 0, 0, len(history.units)), history.seam

    def advance(self, note: HistoryNote, max_rows: int | None, max_bytes: int | None) -> HistoryNote:
        """The next units within the limits, at least one."""
        units = self._history(note).units
        rows = size = 0
        following = note.following
        while following < note.count:
            rows, size = rows + units[following].rows, size + units[following].bytes
            too_much = (max_rows is not None and rows > max_rows) or (max_bytes is not None and size > max_bytes)
            if too_much and following > note.following:
                break
            following += 1
        return replace(note, first=note.following, following=following)

    def parts(self, note: HistoryNote) -> list[HistoryPart]:
        """The tasks of the batch that ends at this note."""
        history = self._history(note)
        alone = copy.copy(history)
        alone.units = []  # a task gets only its own unit
        return [HistoryPart(alone, unit) for unit in history.units[note.first : note.following]]

    def _history(self, note: HistoryNote) -> History:
        key = (note.version, note.topics)
        if key not in self._opened:
            made = self._open(self._location, self._options, version=note.version, topics=frozenset(note.topics))
            if len(made.units) != note.count:
                raise CheckpointError(
                    f"the table at {self._location} had {note.count} files in version {note.version} when the query "
                    f"started, and has {len(made.units)} now: it was vacuumed or replaced. Set a new "
                    "checkpointLocation"
                )
            self._opened[key] = made
        return self._opened[key]


NOTE = "$millstream"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The offset after the last read record of each partition."""

    positions: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    begin: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The start of this batch in partitions that the previous offset does not have."""
    group: str | None = None
    history: HistoryNote | None = None
    """The position in a table, while the query reads one."""

    def to_json(self) -> dict[str, Any]:
        """In a fixed order, because Spark compares offsets as text."""
        note: dict[str, Any] = {}
        if self.topic_ids:
            note["ids"] = {topic: self.topic_ids[topic] for topic in sorted(self.topic_ids)}
        if self.begin:
            note["begin"] = _nested(self.begin)
        if self.group is not None:
            note["group"] = self.group
        if self.history is not None:
            note["history"] = self.history.to_json()
        return _nested(self.positions) | ({NOTE: note} if note else {})

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "StreamOffset":
        """CheckpointError if this is not an offset of a Kafka source."""
        try:
            note = document.get(NOTE, {})
            positions = _flat({topic: each for topic, each in document.items() if topic != NOTE})
            history = HistoryNote.from_json(note["history"]) if "history" in note else None
            return cls(positions, dict(note.get("ids", {})), _flat(note.get("begin", {})), note.get("group"), history)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise CheckpointError(
                f"the checkpoint has {str(document)[:200]!r}, which is not an offset of a topic: it belongs to another "
                "query or source. Set another checkpointLocation"
            ) from None


def positions_of(document: Mapping[str, Any] | None) -> dict[tuple[str, int], int]:
    """Offsets by (topic, partition) from a progress report's parsed startOffset, endOffset or latestOffset."""
    return {
        (each.topic, each.partition): offset
        for each, offset in StreamOffset.from_json(document or {}).positions.items()
    }


def _nested(positions: Mapping[TopicPartition, int]) -> dict[str, Any]:
    nested: dict[str, dict[str, int]] = {}
    for partition in sorted(positions):
        nested.setdefault(partition.topic, {})[str(partition.partition)] = positions[partition]
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in nested.items()
        for partition, offset in partitions.items()
    }
