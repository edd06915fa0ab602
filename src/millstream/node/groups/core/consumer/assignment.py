"""Partitions of topics by topic id, in the forms that targets, members and messages have them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from millstream.formats.protocol.schema import Message

Target = Mapping[UUID, frozenset[int]]
"""What a member should own."""
Owned = Mapping[UUID, Mapping[int, int]]
"""What a member owns: for each partition the assignment epoch in which it was given to the member."""


def target_rows(target: Mapping[UUID, Iterable[int]]) -> list[dict[str, Any]]:
    return [{"topic_id": topic_id, "partitions": sorted(numbers)} for topic_id, numbers in target.items()]


def read_target(rows: Sequence[Message]) -> dict[UUID, frozenset[int]]:
    return {row.topic_id: frozenset(row.partitions) for row in rows if row.partitions}


def owned_rows(owned: Owned) -> list[dict[str, Any]]:
    """As the record of a member's assignment has them: epochs beside the partitions."""
    rows = []
    for topic_id, epochs in owned.items():
        partitions = sorted(epochs)
        row = {"topic_id": topic_id, "partitions": partitions, "assignment_epochs": [epochs[p] for p in partitions]}
        rows.append(row)
    return rows


def read_owned(rows: Sequence[Message], unknown_epoch: int) -> dict[UUID, dict[int, int]]:
    """Records of before Kafka 4.3 have no epochs; then the member's own is the best that can be said."""
    owned = {}
    for row in rows:
        epochs = row.assignment_epochs
        if epochs is None or len(epochs) != len(row.partitions):
            epochs = [unknown_epoch] * len(row.partitions)
        if row.partitions:
            owned[row.topic_id] = dict(zip(row.partitions, epochs, strict=True))
    return owned
