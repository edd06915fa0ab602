"""The role of a follower: it fetches from its leader, makes its log agree with the leader's, receives the leader's
snapshot, and notices when the leader is lost. It is the same for voters and observers.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode
from millstream.node.consensus.raft.events import Refused, SnapshotInstalled, Truncated
from millstream.node.consensus.raft.log import CorruptFetchError, LeaderChangeRecord, PlacedControlRecord
from millstream.node.consensus.raft.messages import (
    Fetch,
    FetchResponse,
    FetchSnapshot,
    FetchSnapshotResponse,
    LogPosition,
    Peer,
    PeerResponse,
    Send,
    UpdateVoter,
    UpdateVoterResponse,
)
from millstream.node.consensus.raft.roles import ReplicaRole, Role
from millstream.node.consensus.raft.settings import MAX_KRAFT_VERSION, MIN_KRAFT_VERSION
from millstream.node.consensus.raft.voter_set import Endpoint

if TYPE_CHECKING:
    from millstream.node.consensus.raft.replica import RaftReplica

_FINAL_UPDATE_ERRORS = (ErrorCode.INVALID_REQUEST, ErrorCode.VOTER_NOT_FOUND)
"""Errors of UpdateVoter that a retry would not change."""


class CommittedLostError(Exception):
    """The leader's log lacks records that this replica knows to be committed: a disk was lost. It cannot continue."""


@dataclass(slots=True)
class ReceivingSnapshot:
    snapshot: LogPosition
    position: int


class Follower(ReplicaRole):
    role = Role.FOLLOWER

    def __init__(
        self, replica: "RaftReplica", leader_id: int, leader_endpoints: tuple[Endpoint, ...], now_ms: int
    ) -> None:
        super().__init__(replica)
        self.leader_id = leader_id
        self.leader_endpoints = leader_endpoints
        self._timeout_ms = now_ms + replica.settings.fetch_timeout_ms
        """When the leader counts as lost."""
        self._has_heard = False
        """Whether the leader responded to a fetch, and was not lost since: then pre-votes are refused."""
        self._election_ms: int | None = None
        """When to request votes, if the leader is known to be gone."""
        self._receiving: ReceivingSnapshot | None = None
        self._has_introduced_itself = False
        """Whether the leader knows this replica's endpoints (UpdateVoter), or refuses to."""

    @property
    def refuses_pre_votes(self) -> bool:
        return self._has_heard

    def deadlines_ms(self) -> list[int]:
        outbox = self._replica.outbox
        deadlines = [self._timeout_ms]
        if self._election_ms is not None:
            deadlines.append(self._election_ms)
        if self._receiving is not None:
            deadlines.append(outbox.ready_ms(self.leader_id, FetchSnapshot))
        elif self._replica.log_is_flushed:
            deadlines.append(outbox.ready_ms(self.leader_id, Fetch))
        if self._has_to_introduce_itself():
            deadlines.append(outbox.ready_ms(self.leader_id, UpdateVoter))
        return deadlines

    def step(self, now_ms: int) -> None:
        is_gone = self._election_ms is not None and now_ms >= self._election_ms
        if is_gone or now_ms >= self._timeout_ms:
            self._replica.become_prospective(now_ms)
        else:
            self._send_requests(now_ms)

    def on_response(self, send: Send, response: PeerResponse, now_ms: int) -> None:
        is_of_leader = send.peer.id == self.leader_id
        if isinstance(response, FetchResponse) and is_of_leader:
            self._on_fetched(send, response, now_ms)
        elif isinstance(response, FetchSnapshotResponse) and is_of_leader:
            self._on_snapshot_fetched(send, response, now_ms)
        elif isinstance(response, UpdateVoterResponse):
            self._has_introduced_itself = not response.error or response.error in _FINAL_UPDATE_ERRORS
        else:
            super().on_response(send, response, now_ms)

    def on_request_failed(self, send: Send, *, refused: bool, now_ms: int) -> None:
        if refused and send.peer.id == self.leader_id:
            self.lose_leader(now_ms)

    def lose_leader(self, now_ms: int, rank: int | None = None) -> None:
        """The leader is known to be gone: the fetch timeout is not waited for. A random delay keeps votes from
        splitting. `rank` is this replica's index among the successors that the leader prefers."""
        settings = self._replica.settings
        self._has_heard = False
        if rank == 0:
            delay_ms = settings.retry_backoff_ms // 2
        else:
            most_ms = settings.refused_election_delay_ms << min(self._replica.lost_elections, 8)
            delay_ms = self._replica.randomness.randrange(max(1, min(most_ms, settings.election_timeout_ms)))
            delay_ms += (rank or 0) * settings.retry_backoff_ms
        if self._election_ms is None or rank == 0:
            self._election_ms = now_ms + delay_ms

    # Requests

    def _send_requests(self, now_ms: int) -> None:
        replica, outbox = self._replica, self._replica.outbox
        leader = Peer(self.leader_id, replica.leader_endpoints)
        receiving = self._receiving
        if receiving is not None:
            if outbox.ready(leader.id, FetchSnapshot, now_ms):
                request = FetchSnapshot(
                    cluster_id=replica.cluster_id,
                    replica=replica.key,
                    current_leader_epoch=replica.epoch,
                    snapshot=receiving.snapshot,
                    position=receiving.position,
                    max_bytes=replica.settings.snapshot_chunk_bytes,
                )
                outbox.send(leader, request, now_ms)
        elif replica.log_is_flushed and outbox.ready(leader.id, Fetch, now_ms):
            wait_ms = replica.settings.fetch_max_wait_ms
            outbox.send(leader, self._fetch_request(wait_ms), now_ms, wait_ms)
        if self._has_to_introduce_itself() and outbox.ready(leader.id, UpdateVoter, now_ms):
            update = UpdateVoter(
                cluster_id=replica.cluster_id,
                current_leader_epoch=replica.epoch,
                voter=replica.key,
                endpoints=replica.endpoints,
                min_kraft_version=MIN_KRAFT_VERSION,
                max_kraft_version=MAX_KRAFT_VERSION,
            )
            outbox.send(leader, update, now_ms)

    def _has_to_introduce_itself(self) -> bool:
        """Whether the voter set has another entry for this voter than its own settings give."""
        replica = self._replica
        if self._has_introduced_itself or not self._has_heard or not replica.is_voter or not replica.endpoints:
            return False
        return replica.kraft_version == 0 or replica.voters.by_id[replica.key.id] != replica.as_voter()

    # Responses

    def _note_heard(self, now_ms: int) -> None:
        self._has_heard = True
        self._timeout_ms = now_ms + self._replica.settings.fetch_timeout_ms
        self._election_ms = None
        self._replica.leader_heard = self.leader_id, now_ms
        self._replica.lost_elections = 0

    def _on_fetched(self, send: Send, response: FetchResponse, now_ms: int) -> None:
        replica, log, request = self._replica, self._replica.log, send.request
        assert isinstance(request, Fetch) and request.offset == log.end.offset, "the log moved under a fetch"
        if response.error:
            if response.error == ErrorCode.NOT_LEADER_OR_FOLLOWER or response.leader_epoch < replica.epoch:
                self.lose_leader(now_ms)
            return
        replica.fetch_sent_ms = send.sent_ms
        self._note_heard(now_ms)
        if response.diverging is not None:
            self._truncate_to_agreement(response.diverging, send, now_ms)
        elif response.snapshot is not None:
            if response.snapshot.offset < max(log.start.offset, replica.high_watermark):
                raise CommittedLostError(
                    f"the leader {send.peer.id} offers snapshot {response.snapshot}, but offsets up to "
                    f"{replica.high_watermark} are committed here"
                )
            self._receiving = ReceivingSnapshot(response.snapshot, log.begin_snapshot(response.snapshot))
        else:
            if response.records:
                try:
                    placed = log.append_fetched(response.records)
                except CorruptFetchError:
                    replica.outbox.failed(send, now_ms)
                    return
                with replica.reporting_voters():
                    replica.membership.apply(placed)
                self._check_static_voters(placed)
            replica.raise_high_watermark(min(response.high_watermark, log.end.offset))

    def _check_static_voters(self, placed: Sequence[PlacedControlRecord]) -> None:
        """Static voters that differ from the leader's make two majorities possible: one of the nodes has to stop."""
        replica = self._replica
        if replica.kraft_version > 0 or not replica.voters or replica.log.end.epoch != replica.epoch:
            return
        elected = [entry.record for entry in placed if isinstance(entry.record, LeaderChangeRecord)]
        if elected and sorted(elected[-1].voters) != list(replica.voters.ids):
            replica.events.append(Refused(ErrorCode.INCONSISTENT_VOTER_SET, self.leader_id))

    def _truncate_to_agreement(self, diverging: LogPosition, send: Send, now_ms: int) -> None:
        """Removes records that the leader does not have: at least down to where both logs' epochs end."""
        replica, log = self._replica, self._replica.log
        own = log.end_of_epoch(diverging.epoch)
        end_offset = min(own.offset, diverging.offset) if own.epoch == diverging.epoch else own.offset
        if min(end_offset, diverging.offset) < replica.high_watermark:
            raise CommittedLostError(
                f"the leader's log ends epoch {diverging.epoch} at {diverging.offset}, but offsets up to "
                f"{replica.high_watermark} are committed here: its disk or this one was replaced"
            )
        if end_offset >= log.end.offset:
            replica.outbox.failed(send, now_ms)
            return
        with replica.reporting_voters():
            log.truncate_to(end_offset)
            replica.membership.truncate_to(end_offset)
            replica.events.append(Truncated(end_offset))

    def _on_snapshot_fetched(self, send: Send, response: FetchSnapshotResponse, now_ms: int) -> None:
        replica, receiving, request = self._replica, self._receiving, send.request
        if receiving is None or not isinstance(request, FetchSnapshot) or request.snapshot != receiving.snapshot:
            return
        if response.error:
            if response.error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
                self._receiving = None  # the leader has a newer one: the next fetch names it
            elif response.error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self.lose_leader(now_ms)
            return
        self._note_heard(now_ms)
        if response.position != receiving.position:
            return
        replica.log.write_snapshot(response.position, response.chunk)
        receiving.position += len(response.chunk)
        if receiving.position < response.size:
            if not response.chunk:
                replica.outbox.failed(send, now_ms)
            return
        self._receiving = None
        try:
            placed = replica.log.install_snapshot()
        except CorruptFetchError:
            replica.outbox.pause(send.peer.id, Fetch, now_ms + replica.settings.election_timeout_ms)
            return
        with replica.reporting_voters():
            replica.membership.replace_by(placed)
            replica.events.append(SnapshotInstalled(receiving.snapshot))
        replica.raise_high_watermark(receiving.snapshot.offset)
