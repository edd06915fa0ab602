"""Finds the consumer groups of Spark queries in a snapshot, and their progress."""

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.admin.groups import CLASSIC
from millstream.console.live.metrics import History
from millstream.console.live.snapshot import Snapshot

_STILL_AFTER_SECONDS = 30.0


_REDRIVE = ".redrive"


@dataclass(frozen=True, slots=True)
class Progress:
    group: str
    pipeline: str
    query: str
    topics: Sequence[str]
    phase: str
    rate: float
    """Records per second, over the last seconds."""
    lag: int
    read: int
    """Sum of the committed offsets."""
    moved_at: float | None


def progress_of(snapshot: Snapshot, history: History) -> list[Progress]:
    found = []
    for group in snapshot.groups.values():
        # A group of consumers that are stopped is of type consumer: it is no query.
        if (
            group.type != CLASSIC
            or group.protocol_type
            or group.members
            or not group.offsets
            or group.name.endswith(_REDRIVE)
        ):
            continue
        moved_at = history.moved_at.get(group.name)
        pipeline, dot, query = group.name.partition(".")
        if not dot and moved_at is None:
            continue
        found.append(
            Progress(
                group.name,
                pipeline,
                query if dot else group.name,
                sorted({topic_partition.topic for topic_partition in group.offsets}),
                _phase(group.lag, moved_at, snapshot.at),
                history.paces.get(group.name, 0.0),
                group.lag,
                sum(group.offsets.values()),
                moved_at,
            )
        )
    return found


def _phase(lag: int, moved_at: float | None, now: float) -> str:
    if moved_at is not None and now - moved_at < _STILL_AFTER_SECONDS:
        return "running"
    if not lag:
        return "caught up"
    return "stalled" if moved_at is not None else "no progress seen"
