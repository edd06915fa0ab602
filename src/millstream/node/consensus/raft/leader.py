"""The role of the leader: it serves fetches, computes from them which records are committed, and resigns when a
majority of the voters does not fetch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.consensus.raft.events import Leading, LostLeadership, Responded
from millstream.node.consensus.raft.log import ControlRecord, PlacedControlRecord
from millstream.node.consensus.raft.messages import (
    BeginQuorumEpoch,
    DescribeQuorumResponse,
    Fetch,
    FetchResponse,
    FetchSnapshot,
    LogPosition,
    Parked,
    Peer,
    PeerResponse,
    QuorumEpochResponse,
    ReplicaProgress,
    Send,
)
from millstream.node.consensus.raft.roles import ReplicaRole, Role
from millstream.node.consensus.raft.voter_changes import VoterChanges
from millstream.node.consensus.raft.voter_set import ReplicaKey, Voter

if TYPE_CHECKING:
    from millstream.node.consensus.raft.replica import RaftReplica

FORGET_OBSERVER_MS = 300_000
MAX_REMEMBERED = 1000
"""More replicas are not remembered: the id in a fetch is what its sender says, and each fetch looks through all."""
UNKNOWN = -1


@dataclass(slots=True)
class Progress:
    """The state of one follower or observer, as its fetches show it."""

    key: ReplicaKey
    end_offset: int = UNKNOWN
    last_fetch_ms: int = UNKNOWN
    last_caught_up_ms: int = UNKNOWN
    leader_end_at_last_fetch: int = UNKNOWN
    first_fetch_ms: int = UNKNOWN

    def heard(self, now_ms: int) -> None:
        if self.first_fetch_ms == UNKNOWN:
            self.first_fetch_ms = now_ms
        self.last_fetch_ms = now_ms

    def fetched(self, offset: int, leader_end: int, now_ms: int) -> None:
        if offset >= leader_end:
            self.last_caught_up_ms = now_ms
        elif self.leader_end_at_last_fetch != UNKNOWN and offset >= self.leader_end_at_last_fetch:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.end_offset = offset
        self.heard(now_ms)
        self.leader_end_at_last_fetch = leader_end

    def described(self) -> ReplicaProgress:
        return ReplicaProgress(
            replica=self.key,
            log_end_offset=self.end_offset,
            last_fetch_ms=self.last_fetch_ms,
            last_caught_up_ms=self.last_caught_up_ms,
        )


@dataclass(slots=True)
class ParkedFetch:
    """A fetch that waits for records or for a higher high watermark."""

    request: Fetch
    expires_ms: int


class Leader(ReplicaRole):
    """The role of leader, from election to resignation."""

    role = Role.LEADER
    refuses_pre_votes = True

    def __init__(self, replica: "RaftReplica", now_ms: int) -> None:
        super().__init__(replica)
        self.epoch = replica.epoch
        self.start_offset = replica.log.end.offset
        """Offset of this epoch's LeaderChange record: nothing is committed by counting before it is (Raft, 5.4.2)."""
        self._started_ms = now_ms
        self._check_quorum_ms = replica.settings.fetch_timeout_ms * 3 // 2
        self.is_established = False
        """Whether the LeaderChange record is committed."""
        self.progress: dict[ReplicaKey, Progress] = {}
        self._fetches: dict[int, ParkedFetch] = {}
        self.voter_changes = VoterChanges(self, replica)

    # Time

    def deadlines_ms(self) -> list[int]:
        deadlines = [parked.expires_ms for parked in self._fetches.values()]
        deadlines += self.voter_changes.deadlines_ms()
        resigns_ms = self._resigns_ms()
        if resigns_ms is not None:
            deadlines.append(resigns_ms)
        for voter in self._replica.other_voters():
            ready_ms = self._replica.outbox.ready_ms(voter.id, BeginQuorumEpoch)
            deadlines.append(max(self._silent_ms(voter), ready_ms))
        return deadlines

    def step(self, now_ms: int) -> None:
        resigns_ms = self._resigns_ms()
        if resigns_ms is not None and now_ms >= resigns_ms:
            self.resign(now_ms)
        else:
            self.lead(now_ms)

    def lead(self, now_ms: int) -> None:
        """Sends BeginQuorumEpoch to silent voters, and ends parked requests whose timeout has passed."""
        replica = self._replica
        for voter in replica.other_voters():
            is_silent = self._silent_ms(voter) <= now_ms
            if is_silent and replica.outbox.ready(voter.id, BeginQuorumEpoch, now_ms):
                request = BeginQuorumEpoch(
                    cluster_id=replica.cluster_id,
                    voter=voter.key,
                    leader_id=replica.key.id,
                    epoch=self.epoch,
                    leader_endpoints=replica.endpoints,
                )
                replica.outbox.send(Peer(voter.id, voter.endpoints), request, now_ms)
        self._wake_fetches(now_ms)
        self.voter_changes.expire(now_ms)

    def resign(self, now_ms: int) -> None:
        def end(voter: Voter) -> int:
            progress = self._progress_of(voter)
            return progress.end_offset if progress is not None else UNKNOWN

        successors = sorted(self._replica.other_voters(), key=lambda voter: (-end(voter), voter.id))
        self._replica.become_resigned(tuple(voter.id for voter in successors), now_ms)

    def on_left(self) -> None:
        """Parked requests end: their senders have to find the new leader."""
        replica = self._replica
        replica.events.append(LostLeadership(self.epoch))
        for token in self._fetches:
            response = replica.fetch_response(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            replica.events.append(Responded(token, response))
        self._fetches.clear()
        self.voter_changes.end_all()

    def on_response(self, send: Send, response: PeerResponse, now_ms: int) -> None:
        if isinstance(response, QuorumEpochResponse):
            replica = self._replica
            replica.outbox.pause(send.peer.id, BeginQuorumEpoch, now_ms + replica.settings.fetch_timeout_ms // 2)
            return
        super().on_response(send, response, now_ms)

    def cancel(self, token: int) -> None:
        """The sender of a parked request no longer waits."""
        self._fetches.pop(token, None)
        self.voter_changes.cancel(token)

    # Appending

    def append_control(self, records: Sequence[ControlRecord], now_ms: int) -> int:
        """Appends one control batch; the offset of its last record."""
        replica = self._replica
        offset = replica.log.append_control(self.epoch, records, now_ms)
        with replica.reporting_voters():
            replica.membership.apply(PlacedControlRecord(offset + at, record) for at, record in enumerate(records))
        self._appended(now_ms)
        return offset + len(records) - 1

    def append(self, records: Any, now_ms: int) -> int:
        """Appends records (given on to `RaftLog.append_records`); the offset of the last one."""
        last_offset = self._replica.log.append_records(self.epoch, records, now_ms)
        self._appended(now_ms)
        return last_offset

    def _appended(self, now_ms: int) -> None:
        self._wake_fetches(now_ms)
        self.advance_high_watermark(now_ms)

    def advance_high_watermark(self, now_ms: int) -> None:
        replica = self._replica
        offset = self._majority_end()
        if offset <= self.start_offset or not replica.raise_high_watermark(offset):
            return
        if not self.is_established:
            self.is_established = True
            replica.events.append(Leading(self.epoch, offset))
        self.voter_changes.committed_to(offset)
        self._wake_fetches(now_ms)
        if not replica.is_voter and replica.membership.changed_at < offset:
            self.resign(now_ms)  # this leader was removed from the voters, and that is committed now

    # Fetches

    def fetch(self, request: Fetch, now_ms: int) -> FetchResponse | Parked:
        replica = self._replica
        if request.replica.id < 0:
            if not replica.log.start.offset <= request.offset <= replica.high_watermark:
                return replica.fetch_response(ErrorCode.OFFSET_OUT_OF_RANGE)
        else:
            refusal = self._note_fetch(request, now_ms)
            if refusal is not None:
                return refusal
        ready = self._ready_response(request)
        if ready is not None or request.max_wait_ms <= 0:
            return ready or replica.fetch_response()
        token = replica.new_token()
        self._fetches[token] = ParkedFetch(request, now_ms + request.max_wait_ms)
        return Parked(token)

    def _note_fetch(self, request: Fetch, now_ms: int) -> FetchResponse | None:
        """Notes how far a replica is. Returns a response if its log is not a prefix of this one."""
        replica, log = self._replica, self._replica.log
        if request.offset < 0 or not 0 <= request.last_fetched_epoch <= self.epoch or request.current_leader_epoch < 0:
            return replica.fetch_response(ErrorCode.INVALID_REQUEST)
        if request.replica.id == replica.key.id or (
            replica.kraft_version == 0 and self._is_impostor(request.replica, now_ms)
        ):
            return replica.fetch_response(ErrorCode.INCONSISTENT_VOTER_SET)  # two nodes have one id
        self._forget_gone(now_ms)
        progress = self._remembered(request.replica)
        start, end = log.start, log.end
        if start.offset > 0 or request.offset > 0:
            position = LogPosition(request.offset, request.last_fetched_epoch)
            if start.offset > 0 and (
                position.offset < start.offset
                or (position.offset == start.offset and position.epoch != start.epoch)
                or position.epoch < start.epoch
            ):
                progress.heard(now_ms)
                assert log.latest_snapshot is not None, "a log that does not begin at 0 begins at a snapshot"
                return replica.fetch_response(snapshot=log.latest_snapshot)
            own = log.end_of_epoch(position.epoch)
            if own.epoch != position.epoch or own.offset < position.offset:
                progress.heard(now_ms)
                return replica.fetch_response(diverging=own)
        progress.fetched(request.offset, end.offset, now_ms)
        self.advance_high_watermark(now_ms)
        if replica.leader is self:
            self.voter_changes.admit(request.replica, now_ms)
        return replica.fetch_response(ErrorCode.NOT_LEADER_OR_FOLLOWER) if replica.leader is not self else None

    def _ready_response(self, request: Fetch) -> FetchResponse | None:
        """A response with records or with a higher high watermark, if there is either."""
        replica = self._replica
        below = replica.log.end.offset if request.replica.id >= 0 else replica.high_watermark
        if request.offset < below:
            try:
                max_bytes = max(0, min(request.max_bytes, replica.settings.fetch_max_bytes))
                records = replica.log.read(request.offset, max_bytes, below=below)
            except KafkaError as error:
                if error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                return replica.fetch_response(error.code)  # an append that wakes this fetch was written all the same
            if records:
                return replica.fetch_response(records=records)
        if 0 <= request.high_watermark < replica.high_watermark:
            return replica.fetch_response()
        return None

    def _wake_fetches(self, now_ms: int) -> None:
        replica = self._replica
        for token, parked in list(self._fetches.items()):
            if parked.request.offset < replica.log.start.offset:
                response: FetchResponse | None = replica.fetch_response(ErrorCode.OFFSET_OUT_OF_RANGE)
            else:
                response = self._ready_response(parked.request) or (
                    replica.fetch_response() if parked.expires_ms <= now_ms else None
                )
            if response is not None:
                del self._fetches[token]
                replica.events.append(Responded(token, response))

    def read_snapshot(self, request: FetchSnapshot, now_ms: int) -> tuple[ErrorCode, int, bytes]:
        """(error, size of the snapshot, chunk)"""
        max_bytes = min(request.max_bytes, self._replica.settings.snapshot_chunk_bytes)
        found = self._replica.log.read_snapshot(request.snapshot, request.position, max_bytes)
        if found is None:
            return ErrorCode.SNAPSHOT_NOT_FOUND, 0, b""
        if not 0 <= request.position < max(1, found[0]):
            return ErrorCode.POSITION_OUT_OF_RANGE, 0, b""
        if request.replica.id >= 0:
            self._remembered(request.replica).heard(now_ms)
        return ErrorCode.NONE, *found

    def describe(self, now_ms: int) -> DescribeQuorumResponse:
        replica = self._replica
        self._forget_gone(now_ms)
        own = ReplicaProgress(
            replica=replica.key, log_end_offset=replica.log.end.offset, last_fetch_ms=now_ms, last_caught_up_ms=now_ms
        )
        voters = []
        shown = {replica.key}
        for voter in replica.voters:
            progress = self._progress_of(voter)
            if voter.id == replica.key.id and replica.is_voter:
                voters.append(own)
            elif progress is not None:
                shown.add(progress.key)
                voters.append(progress.described())
            else:
                voters.append(Progress(voter.key).described())
        observers = [progress.described() for key, progress in self.progress.items() if key not in shown]
        if not replica.is_voter:
            observers.append(own)
        return DescribeQuorumResponse(
            leader_id=replica.key.id,
            leader_epoch=replica.epoch,
            leader_endpoints=replica.endpoints,
            high_watermark=replica.high_watermark,
            voters=tuple(voters),
            observers=tuple(sorted(observers, key=lambda progress: progress.replica.id)),
        )

    # How far the voters are

    def _progress_of(self, voter: Voter) -> Progress | None:
        """A static voter names no directory: then the replica that fetched last under its id."""
        if voter.key.directory_id is not None:
            return self.progress.get(voter.key)
        latest = None
        for key, progress in self.progress.items():
            if key.id == voter.key.id and (latest is None or progress.last_fetch_ms > latest.last_fetch_ms):
                latest = progress
        return latest

    def _remembered(self, key: ReplicaKey) -> Progress:
        progress = self.progress.get(key)
        if progress is None:
            progress = Progress(key)
            if len(self.progress) < MAX_REMEMBERED or any(voter.key == key for voter in self._replica.voters):
                self.progress[key] = progress
        return progress

    def _is_impostor(self, key: ReplicaKey, now_ms: int) -> bool:
        """Two live nodes have one static id: an older one still fetches after this one came. This one has to stop."""
        own = self.progress.get(key)
        return own is not None and any(
            other.key.id == key.id
            and other.key != key
            and other.first_fetch_ms < own.first_fetch_ms < other.last_fetch_ms
            and other.last_fetch_ms >= now_ms - self._replica.settings.fetch_timeout_ms
            for other in self.progress.values()
        )

    def _majority_end(self) -> int:
        """The offset up to which a majority of the voters has the log on disk."""
        replica, voters = self._replica, self._replica.voters
        ends = []
        for voter in voters:
            progress = self._progress_of(voter)
            is_own = voters.has(replica.key) and voter.id == replica.key.id
            ends.append(
                replica.log.flushed_offset if is_own else progress.end_offset if progress is not None else UNKNOWN
            )
        ends.sort(reverse=True)
        return ends[voters.majority - 1] if ends else UNKNOWN

    def _resigns_ms(self) -> int | None:
        """When a majority has been silent for too long; None when this replica alone is a majority."""
        heard_ms = self.majority_heard_ms()
        return None if heard_ms is None else heard_ms + self._check_quorum_ms

    def majority_heard_ms(self) -> int | None:
        """Since when a majority, this replica included, has fetched; None when this replica alone is a majority."""
        key, voters = self._replica.key, self._replica.voters
        needed = voters.majority - (1 if voters.has(key) else 0)
        if needed <= 0:
            return None
        heard = []
        for voter in voters:
            if voter.id == key.id and voters.has(key):
                continue
            progress = self._progress_of(voter)
            heard.append(max(self._started_ms, progress.last_fetch_ms if progress is not None else UNKNOWN))
        heard.sort(reverse=True)
        return heard[needed - 1]

    def _silent_ms(self, voter: Voter) -> int:
        """When a voter counts as silent: at once until its first fetch."""
        progress = self._progress_of(voter)
        if progress is None or progress.last_fetch_ms < 0:
            return 0
        return progress.last_fetch_ms + self._replica.settings.fetch_timeout_ms

    def known_directories(self) -> dict[int, UUID]:
        """The directory each node showed in its latest fetch."""
        latest: dict[int, Progress] = {}
        for progress in self.progress.values():
            seen = latest.get(progress.key.id)
            if seen is None or progress.last_fetch_ms >= seen.last_fetch_ms:
                latest[progress.key.id] = progress
        known = {node_id: progress.key.directory_id for node_id, progress in latest.items()}
        known[self._replica.key.id] = self._replica.key.directory_id
        return {node_id: directory for node_id, directory in known.items() if directory is not None}

    def _forget_gone(self, now_ms: int) -> None:
        gone_ms = now_ms - FORGET_OBSERVER_MS
        gone = [key for key, progress in self.progress.items() if progress.last_fetch_ms < gone_ms]
        if gone:
            voters = [self._progress_of(voter) for voter in self._replica.voters]
            for key in gone:
                if not any(progress is self.progress[key] for progress in voters):
                    del self.progress[key]
