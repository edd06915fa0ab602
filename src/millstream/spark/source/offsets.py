"""The offsets of a stream as they are in Spark's checkpoint and progress: {"topic": {"0": 12}}, and a note of ours.

The note (`$millstream`, which no topic can be called) says which topics these were by their ids, so that a topic that
was deleted and created anew is not mistaken for the same; and where partitions begin that are new in this batch, so
that a batch is the same when it is run again. Offsets of spark-sql-kafka, which have no note, can be read as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.raw_client import TopicPartition
from millstream.spark.errors import CheckpointError
from millstream.spark.source.history import HistoryNote

NOTE = "$millstream"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Up to where (exclusive) each partition has been read."""

    positions: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    begin: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the batch that ends here begins, for partitions that the offset before it does not have."""
    group: str | None = None
    history: HistoryNote | None = None
    """Where in a table the query is, while it reads one."""

    def to_json(self) -> dict[str, Any]:
        """Always in the same order: Spark compares offsets as text."""
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
        """CheckpointError if this is no offset of a Kafka source."""
        try:
            note = document.get(NOTE, {})
            positions = _flat({topic: each for topic, each in document.items() if topic != NOTE})
            history = HistoryNote.from_json(note["history"]) if "history" in note else None
            return cls(positions, dict(note.get("ids", {})), _flat(note.get("begin", {})), note.get("group"), history)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise CheckpointError(
                f"the checkpoint has {str(document)[:200]!r}, which is no offset of a Kafka topic: it is of another "
                "query or source. Give this query a checkpointLocation of its own"
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
