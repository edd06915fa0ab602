"""The log, its snapshots and the quorum-state file as raft needs them, and the voters that the log names.

The driver implements the protocols; raft does not look into the bytes. All calls return at once. Writes may be in a
cache: `flushed_offset` says how far they are on disk. Only `QuorumStateStore.save` must be durable when it returns.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from millstream.common.lazy_dataclass import dataclass
from millstream.node.consensus.raft.messages import LogPosition
from millstream.node.consensus.raft.voter_set import OffsetHistory, ReplicaKey, VoterSet


@dataclass(frozen=True, slots=True)
class LeaderChangeRecord:
    """First record of every epoch."""

    leader_id: int
    voters: tuple[int, ...]
    granting_voters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KRaftVersionRecord:
    """0: static voters from the settings; 1: the voter set is in the log."""

    version: int


@dataclass(frozen=True, slots=True)
class VotersRecord:
    """The whole voter set from here on."""

    voters: VoterSet


ControlRecord = LeaderChangeRecord | KRaftVersionRecord | VotersRecord


@dataclass(frozen=True, slots=True)
class PlacedControlRecord:
    """A control record and its offset. Those of a snapshot count as being at the snapshot's last offset (end - 1)."""

    offset: int
    record: ControlRecord


class RaftLog(Protocol):
    """The replicated log. It begins at offset 0 or where one of its snapshots ends (`start`)."""

    @property
    def start(self) -> LogPosition:
        """Where the log begins: (0, 0), or the id of the snapshot it begins at."""

    @property
    def end(self) -> LogPosition:
        """The next offset, and the epoch of the last record (that of `start` when the log is empty)."""

    @property
    def flushed_offset(self) -> int:
        """Everything below is on disk. Never above `end.offset`: truncation lowers it, and a flush begun before a
        truncation raises it no further than what was kept."""

    @property
    def latest_snapshot(self) -> LogPosition | None:
        """The newest complete snapshot."""

    def end_of_epoch(self, epoch: int) -> LogPosition:
        """The largest epoch in the log that is not above `epoch`, and the offset after its last record.

        `start` when `epoch` is below everything in the log; `end` when it is at or above the last epoch.
        """

    def control_records(self) -> Iterable[PlacedControlRecord]:
        """KRaftVersion and Voters records in the order of the log, those of the snapshot at `start` first. LeaderChange
        records may be left out. Read once, when the replica starts."""

    def append_control(self, epoch: int, records: Sequence[ControlRecord], now_ms: int) -> int:
        """Append one control batch as leader; the offset of its first record."""

    def append_records(self, epoch: int, records: Any, now_ms: int) -> int:
        """Append the records given to `RaftReplica.append`, as leader; the offset of the last record. Their form is up
        to the driver; the log adds offsets and the epoch."""

    def append_fetched(self, records: bytes) -> Sequence[PlacedControlRecord]:
        """Append whole batches fetched from the leader, which begin at `end.offset`, in the form of `read`; the
        control records among them. Raises `CorruptFetchError`, having appended nothing, when they do not fit."""

    def read(self, offset: int, max_bytes: int, *, below: int) -> bytes:
        """Whole batches from `offset` on that end at or below `below`; at least one if there is one, however large."""

    def truncate_to(self, end_offset: int) -> None:
        """Drop the records at and past `end_offset`."""

    def read_snapshot(self, snapshot: LogPosition, position: int, max_bytes: int) -> tuple[int, bytes] | None:
        """Size of a snapshot and a chunk of it; None when there is no such snapshot."""

    def begin_snapshot(self, snapshot: LogPosition) -> int:
        """Start to receive a snapshot; the position to continue from (0, unless a part of it was kept)."""

    def write_snapshot(self, position: int, chunk: bytes) -> None:
        """Append a chunk to the snapshot being received."""

    def install_snapshot(self) -> Sequence[PlacedControlRecord]:
        """The snapshot is complete: put it on disk, and replace the whole log by it (`start` == `end` == its id); its
        KRaftVersion and Voters records. Raises `CorruptFetchError` when it is damaged."""


class CorruptFetchError(Exception):
    """The records of the leader cannot be appended; they are dropped and fetched again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumState:
    """The state of elections that must survive a restart."""

    epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None


class QuorumStateStore(Protocol):
    """The quorum-state file."""

    def load(self) -> QuorumState | None:
        """The state that was saved last; None on an empty disk."""

    def save(self, state: QuorumState) -> None:
        """Durable when it returns: the response to a vote is sent right after."""


class Membership:
    """The voter set and kraft.version in force: those in the log, or before any record the static voters."""

    def __init__(self, static_voters: VoterSet) -> None:
        self._static = static_voters
        self._voters = OffsetHistory(static_voters)
        self._versions = OffsetHistory(0)

    @property
    def voters(self) -> VoterSet:
        return self._voters.latest

    @property
    def kraft_version(self) -> int:
        return self._versions.latest

    @property
    def changed_at(self) -> int:
        """Offset of the latest record that changes the voters: the next change has to wait until it is committed."""
        return max(self._voters.latest_offset, self._versions.latest_offset)

    def voters_while_uncommitted(self, high_watermark: int) -> tuple[VoterSet, ...]:
        """The set in force, and the one before it unless the change is known to be committed."""
        if self._voters.latest_offset < high_watermark:
            return (self._voters.latest,)
        return self._voters.latest, self._voters.at(self._voters.latest_offset)

    def voters_at(self, end_offset: int) -> VoterSet:
        return self._voters.at(end_offset)

    def kraft_version_at(self, end_offset: int) -> int:
        return self._versions.at(end_offset)

    def apply(self, placed: Iterable[PlacedControlRecord]) -> None:
        for entry in placed:
            match entry.record:
                case VotersRecord(voters):
                    self._voters.add(entry.offset, voters)
                case KRaftVersionRecord(version):
                    self._versions.add(entry.offset, version)
                case _:
                    pass

    def truncate_to(self, end_offset: int) -> None:
        self._voters.truncate_to(end_offset)
        self._versions.truncate_to(end_offset)

    def replace_by(self, placed: Iterable[PlacedControlRecord]) -> None:
        """A snapshot replaced the log."""
        self._voters = OffsetHistory(self._static)
        self._versions = OffsetHistory(0)
        self.apply(placed)

    def forget_before(self, start_offset: int) -> None:
        self._voters.forget_before(start_offset)
        self._versions.forget_before(start_offset)
