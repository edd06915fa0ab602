"""A log and a quorum-state file in memory, with what survives a crash: flushed records, snapshots and saved state."""

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.node.consensus.raft.log import (
    ControlRecord,
    CorruptFetchError,
    KRaftVersionRecord,
    LeaderChangeRecord,
    PlacedControlRecord,
    QuorumState,
    VotersRecord,
)
from millstream.node.consensus.raft.messages import LogPosition

Value = str | ControlRecord


@dataclass(frozen=True)
class Entry:
    epoch: int
    value: Value


class MemoryLog:
    """One record per batch; a fetch brings at most three, so that followers take several fetches to catch up."""

    def __init__(self) -> None:
        self.start = LogPosition(0, 0)
        self.entries: list[Entry] = []
        self.flushed_offset = 0
        self.snapshots: dict[LogPosition, list[tuple[int, Entry]]] = {}
        self._receiving: tuple[LogPosition, bytearray] | None = None

    @property
    def end(self) -> LogPosition:
        epoch = self.entries[-1].epoch if self.entries else self.start.epoch
        return LogPosition(self.start.offset + len(self.entries), epoch)

    @property
    def latest_snapshot(self) -> LogPosition | None:
        return max(self.snapshots, key=lambda snapshot: snapshot.offset, default=None)

    def entry(self, offset: int) -> Entry:
        return self.entries[offset - self.start.offset]

    def end_of_epoch(self, epoch: int) -> LogPosition:
        found = self.start
        for place, entry in enumerate(self.entries):
            if entry.epoch > epoch:
                break
            found = LogPosition(self.start.offset + place + 1, entry.epoch)
        return found

    def control_records(self) -> Iterable[PlacedControlRecord]:
        if self.start.offset:
            yield from self._snapshot_control(self.start)
        for place, entry in enumerate(self.entries):
            if isinstance(entry.value, KRaftVersionRecord | VotersRecord):
                yield PlacedControlRecord(self.start.offset + place, entry.value)

    def _snapshot_control(self, snapshot: LogPosition) -> list[PlacedControlRecord]:
        latest: dict[type, ControlRecord] = {}
        for _, entry in self.snapshots[snapshot]:
            if isinstance(entry.value, KRaftVersionRecord | VotersRecord):
                latest[type(entry.value)] = entry.value
        return [PlacedControlRecord(snapshot.offset - 1, record) for record in latest.values()]

    def append_control(self, epoch: int, records: Sequence[ControlRecord], now_ms: int) -> int:
        first = self.end.offset
        self.entries += [Entry(epoch, record) for record in records]
        return first

    def append_records(self, epoch: int, records: Any, now_ms: int) -> int:
        self.entries += [Entry(epoch, record) for record in records]
        return self.end.offset - 1

    def append_fetched(self, records: bytes) -> Sequence[PlacedControlRecord]:
        first, entries = pickle.loads(records)
        if first != self.end.offset:
            raise CorruptFetchError
        self.entries += entries
        return [
            PlacedControlRecord(first + place, entry.value)
            for place, entry in enumerate(entries)
            if isinstance(entry.value, KRaftVersionRecord | VotersRecord | LeaderChangeRecord)
        ]

    def read(self, offset: int, max_bytes: int, *, below: int) -> bytes:
        place = offset - self.start.offset
        entries = self.entries[place : min(place + 3, below - self.start.offset)]
        return pickle.dumps((offset, entries)) if entries else b""

    def truncate_to(self, end_offset: int) -> None:
        assert self.start.offset <= end_offset
        del self.entries[end_offset - self.start.offset :]
        self.flushed_offset = min(self.flushed_offset, end_offset)

    def flush(self, to: int | None = None) -> None:
        self.flushed_offset = self.end.offset if to is None else min(to, self.end.offset)

    def read_snapshot(self, snapshot: LogPosition, position: int, max_bytes: int) -> tuple[int, bytes] | None:
        if snapshot not in self.snapshots:
            return None
        whole = pickle.dumps(self.snapshots[snapshot])
        return len(whole), whole[position : position + max(1, len(whole) // 3)]

    def begin_snapshot(self, snapshot: LogPosition) -> int:
        self._receiving = (snapshot, bytearray())
        return 0

    def write_snapshot(self, position: int, chunk: bytes) -> None:
        assert self._receiving is not None and len(self._receiving[1]) == position
        self._receiving[1].extend(chunk)

    def install_snapshot(self) -> Sequence[PlacedControlRecord]:
        assert self._receiving is not None
        snapshot, content = self._receiving
        self._receiving = None
        self.snapshots[snapshot] = pickle.loads(bytes(content))
        self.start, self.entries, self.flushed_offset = snapshot, [], snapshot.offset
        return self._snapshot_control(snapshot)

    def take_snapshot(self, end_offset: int) -> None:
        """What a driver does: a snapshot of everything below `end_offset`, which is committed; the log begins there."""
        before = self.snapshots[self.start] if self.start.offset else []
        kept = self.entries[: end_offset - self.start.offset]
        snapshot = LogPosition(end_offset, kept[-1].epoch)
        self.snapshots[snapshot] = [*before, *((self.start.offset + i, entry) for i, entry in enumerate(kept))]
        del self.entries[: end_offset - self.start.offset]
        self.start = snapshot
        self.flushed_offset = max(self.flushed_offset, end_offset)

    def all_entries(self) -> list[Entry]:
        """Everything from offset 0, whether in the snapshot or in the log."""
        before = [entry for _, entry in self.snapshots[self.start]] if self.start.offset else []
        return [*before, *self.entries]

    def crash(self) -> None:
        """Unflushed records and half-received snapshots are lost."""
        del self.entries[max(0, self.flushed_offset - self.start.offset) :]
        self._receiving = None


@dataclass
class MemoryStore:
    saved: QuorumState | None = None
    saves: list[QuorumState] = field(default_factory=list)

    def load(self) -> QuorumState | None:
        return self.saved

    def save(self, state: QuorumState) -> None:
        assert self.saved is None or state.epoch >= self.saved.epoch, "epochs never go back"
        if self.saved is not None and state.epoch == self.saved.epoch and self.saved.voted is not None:
            assert state.voted == self.saved.voted, "one vote per epoch"
        self.saved = state
        self.saves.append(state)
