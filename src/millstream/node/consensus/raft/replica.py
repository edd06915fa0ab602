"""One replica of the quorum: its state, its inputs (time, requests, responses) and its role changes.

What it does in a role is in the role objects (`roles`, `elections`, `follower`, `leader`). The package's docstring says
how a driver uses it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.consensus.raft.elections import Ballot, Candidate, Prospective
from millstream.node.consensus.raft.events import (
    BecameLeader,
    Event,
    HighWatermarkAdvanced,
    LeaderChanged,
    Refused,
    VotersChanged,
)
from millstream.node.consensus.raft.follower import CommittedLostError as CommittedLostError
from millstream.node.consensus.raft.follower import Follower
from millstream.node.consensus.raft.leader import Leader
from millstream.node.consensus.raft.log import LeaderChangeRecord, Membership, QuorumState, QuorumStateStore, RaftLog
from millstream.node.consensus.raft.messages import (
    NO_LEADER,
    AddVoter,
    BeginQuorumEpoch,
    ChangeVotersResponse,
    DescribeQuorumResponse,
    EndQuorumEpoch,
    Fetch,
    FetchResponse,
    FetchSnapshot,
    FetchSnapshotResponse,
    LogPosition,
    Parked,
    Peer,
    PeerResponse,
    QuorumEpochResponse,
    RemoveVoter,
    Send,
    UpdateVoter,
    UpdateVoterResponse,
    Vote,
    VoteResponse,
)
from millstream.node.consensus.raft.outbox import Outbox
from millstream.node.consensus.raft.roles import ReplicaRole, Resigned, Role, Unattached
from millstream.node.consensus.raft.settings import MAX_KRAFT_VERSION, MIN_KRAFT_VERSION, EpochPace, QuorumSettings
from millstream.node.consensus.raft.voter_changes import Refusal, refusal
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterSet

FAR_FUTURE_MS = 1 << 62
_NOT_LEADER: Refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node does not lead the metadata quorum"


class RaftReplica:
    """No input may be called from inside another. Attributes that are not inputs are for the role objects."""

    def __init__(
        self,
        *,
        key: ReplicaKey,
        static_voters: VoterSet,
        bootstrap_servers: tuple[Peer, ...],
        may_vote: bool,
        endpoints: tuple[Endpoint, ...],
        cluster_id: str | None,
        log: RaftLog,
        store: QuorumStateStore,
        settings: QuorumSettings,
        randomness: Random,
        now_ms: int,
    ) -> None:
        """Start from what is on disk.

        `static_voters` (controller.quorum.voters) hold until the log says otherwise; empty where there are only
        `bootstrap_servers` (peers with ids -2, -3, ...). `may_vote` is false for a node without the controller role: it
        always is an observer. `endpoints` are this node's own controller listeners. `key.directory_id` must be given.
        A quorum of one leads once `tick` has been called.
        """
        assert key.directory_id is not None, "a replica knows its own directory"
        self.cluster_id = cluster_id
        """To be set when it becomes known."""
        self.key = key
        self.bootstrap_servers = bootstrap_servers
        self.endpoints = endpoints
        self.log = log
        self.settings = settings
        self.randomness = randomness
        self.membership = Membership(static_voters)
        self.membership.apply(log.control_records())
        self.outbox = Outbox(settings)
        self.events: list[Event] = []
        self.high_watermark = log.start.offset
        """Records below are committed. At start: where the log begins."""
        self.lost_elections = 0
        self.is_stopping = False
        self.leader_heard: tuple[int, int] | None = None
        """The last leader that this replica followed, and when it last responded to a fetch."""
        self.fetch_sent_ms: int | None = None
        """When the last fetch that a leader responded to was sent."""
        self._may_vote = may_vote
        self._store = store
        self._next_token = 0
        self._epoch_pace = EpochPace(now_ms)
        saved = store.load() or QuorumState()
        if log.end.epoch > saved.epoch:
            saved = QuorumState(epoch=log.end.epoch)
        self._role: ReplicaRole
        if saved.leader_id is not None and saved.leader_id != key.id:
            self._state = saved
            self._role = Follower(self, saved.leader_id, (), now_ms)
            self.events.append(LeaderChanged(saved.leader_id, saved.epoch, self.leader_endpoints))
        else:
            # A leader that restarts does not know what its followers hold: it must not lead that epoch again.
            self._state = replace(saved, leader_id=None)
            self._role = Unattached(self, self._election_timeout(now_ms))

    # State

    @property
    def role(self) -> Role:
        return self._role.role

    @property
    def leader(self) -> Leader | None:
        """The role object, if this replica leads."""
        return self._role if isinstance(self._role, Leader) else None

    @property
    def is_leader(self) -> bool:
        return self._role.role is Role.LEADER

    @property
    def is_voter(self) -> bool:
        """Whether this replica is in the voter set in force. Else it is an observer, whatever its role."""
        return self._may_vote and self.voters.has(self.key)

    @property
    def may_campaign(self) -> bool:
        """Whether this replica may request votes: it is a voter, or its removal is not known to be committed.

        A voter whose removal is not committed may be the only one with the longest log, and the others need its records
        before they can elect one of themselves (Raft thesis, 4.2.2).
        """
        voters = self.membership.voters_while_uncommitted(self.high_watermark)
        return self._may_vote and not self.is_stopping and any(voter_set.has(self.key) for voter_set in voters)

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def leader_id(self) -> int | None:
        return self._state.leader_id

    @property
    def leader_endpoints(self) -> tuple[Endpoint, ...]:
        leader_id = self.leader_id
        if leader_id is None:
            return ()
        if leader_id == self.key.id:
            return self.endpoints
        if isinstance(self._role, Follower) and self._role.leader_endpoints:
            return self._role.leader_endpoints
        voter = self.voters.by_id.get(leader_id)
        return voter.endpoints if voter is not None else ()

    def current_as_of_ms(self, now_ms: int) -> int | None:
        """The time up to which this replica surely knew all committed records; None if there is no such time.

        For a follower, when it sent the last fetch that its leader responded to: the response may have waited here,
        unread, while the process did not run. For a leader, when a majority last fetched: without one, another replica
        may lead.
        """
        leader = self.leader
        if leader is not None:
            heard_ms = leader.majority_heard_ms()
            return now_ms if heard_ms is None else heard_ms
        return self.fetch_sent_ms

    @property
    def voters(self) -> VoterSet:
        return self.membership.voters

    @property
    def kraft_version(self) -> int:
        return self.membership.kraft_version

    def voters_at(self, end_offset: int) -> VoterSet:
        """The voter set as of the records below `end_offset`: for the head of a snapshot (kraft.version 1 only)."""
        return self.membership.voters_at(end_offset)

    def kraft_version_at(self, end_offset: int) -> int:
        return self.membership.kraft_version_at(end_offset)

    def other_voters(self) -> list[Voter]:
        return [voter for voter in self.voters if voter.id != self.key.id]

    def as_voter(self) -> Voter:
        return Voter(self.key, self.endpoints, MIN_KRAFT_VERSION, MAX_KRAFT_VERSION)

    @property
    def log_is_flushed(self) -> bool:
        """A fetch acknowledges everything below its offset: none is sent before that is on disk."""
        return self.log.flushed_offset >= self.log.end.offset

    def new_token(self) -> int:
        self._next_token += 1
        return self._next_token

    def raise_high_watermark(self, offset: int) -> bool:
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.events.append(HighWatermarkAdvanced(offset))
        return True

    @contextmanager
    def reporting_voters(self) -> Iterator[None]:
        """Reports the voter set afterwards, if it has changed in between."""
        before = self.voters
        yield
        if self.voters != before:
            self.events.append(VotersChanged(self.voters))

    # Time

    @property
    def next_deadline_ms(self) -> int:
        """When `tick` has to be called at the latest."""
        return min(self._role.deadlines_ms(), default=FAR_FUTURE_MS)

    def tick(self, now_ms: int) -> None:
        """Time has passed. Every input ends with this."""
        for _ in range(8):  # a quorum of one goes from unattached to leader in one tick
            role = self._role
            role.step(now_ms)
            if self._role is role:
                return

    def on_flushed(self, now_ms: int) -> None:
        """`log.flushed_offset` moved."""
        if isinstance(self._role, Leader):
            self._role.advance_high_watermark(now_ms)
        self.tick(now_ms)

    def on_log_trimmed(self) -> None:
        """The driver wrote a snapshot and moved `log.start`."""
        self.membership.forget_before(self.log.start.offset)

    def _election_timeout(self, now_ms: int) -> int:
        timeout_ms = self.settings.election_timeout_ms
        return now_ms + timeout_ms + self.randomness.randrange(max(1, timeout_ms))

    # Role changes

    def _enter(self, role: ReplicaRole, state: QuorumState) -> None:
        """Takes another role. The new epoch, vote and leader are on disk before anything is sent or done in it."""
        assert state.epoch >= self._state.epoch, "epochs never go back"
        before, left = self._state, self._role
        forgets_leader = state.leader_id is None and replace(before, leader_id=None) == state
        if state != before and not forgets_leader:
            self._store.save(state)
        self._state, self._role = state, role
        self.outbox.forget_in_flight()
        left.on_left()
        if (state.leader_id, state.epoch) != (before.leader_id, before.epoch):
            self.events.append(LeaderChanged(state.leader_id, state.epoch, self.leader_endpoints))

    def become_unattached(self, epoch: int, now_ms: int) -> None:
        state = QuorumState(epoch=epoch) if epoch > self.epoch else replace(self._state, leader_id=None)
        self._enter(Unattached(self, self._election_timeout(now_ms)), state)

    def become_prospective(self, now_ms: int) -> None:
        if not self.may_campaign:
            self.become_unattached(self.epoch, now_ms)
            return
        prospective = Prospective(self, self._election_timeout(now_ms))
        self._enter(prospective, self._state)
        prospective.count(now_ms)

    def end_pre_vote(self, now_ms: int) -> None:
        """A majority refused, or the timeout has passed: back to the leader that others may still have, or wait."""
        self.lost_elections += 1
        if self.leader_id is not None:
            self._enter(Follower(self, self.leader_id, (), now_ms), self._state)
        else:
            self._enter(Unattached(self, self._election_timeout(now_ms)), self._state)

    def become_candidate(self, now_ms: int) -> None:
        candidate = Candidate(self, self._election_timeout(now_ms))
        self._enter(candidate, QuorumState(epoch=self.epoch + 1, voted=self.key))
        candidate.count(now_ms)

    def become_leader(self, ballot: Ballot, now_ms: int) -> None:
        leader = Leader(self, now_ms)
        self.lost_elections = 0
        self._enter(leader, replace(self._state, leader_id=self.key.id))
        self.events.append(BecameLeader(leader.epoch, leader.start_offset))
        leader.append_control((LeaderChangeRecord(self.key.id, ballot.voters.ids, ballot.granting),), now_ms)
        leader.lead(now_ms)

    def become_resigned(self, preferred: tuple[int, ...], now_ms: int) -> None:
        """`preferred`: the other voters, best successor first."""
        resigned = Resigned(self, self._election_timeout(now_ms), preferred)
        self._enter(resigned, replace(self._state, leader_id=None))
        resigned.send_end_quorum_epoch(now_ms)

    def _follow(self, leader_id: int, epoch: int, endpoints: tuple[Endpoint, ...], now_ms: int) -> None:
        voted = self._state.voted if epoch == self.epoch else None
        state = QuorumState(epoch=epoch, leader_id=leader_id, voted=voted)
        self._enter(Follower(self, leader_id, endpoints, now_ms), state)

    def _learn(self, leader_id: int, epoch: int, endpoints: tuple[Endpoint, ...], now_ms: int) -> bool:
        """Notes the epoch and leader that another replica knows; whether that changed the role."""
        if epoch < self.epoch:
            return False
        is_new = epoch > self.epoch or self.leader_id is None
        if leader_id != NO_LEADER and leader_id != self.key.id and is_new:
            self._follow(leader_id, epoch, endpoints, now_ms)
            return True
        if epoch > self.epoch:
            self.become_unattached(epoch, now_ms)
            return True
        return False

    # Responses to this replica's requests

    def on_response(self, send: Send, response: PeerResponse, now_ms: int) -> None:
        """The response to a request of this replica. One of an earlier epoch or role has no effect."""
        is_current = self.outbox.is_current(send)
        if response.error in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INCONSISTENT_VOTER_SET):
            self.events.append(Refused(response.error, send.peer.id))
            if is_current:
                self.outbox.failed(send, now_ms)
        elif self._learn(response.leader_id, response.leader_epoch, response.leader_endpoints, now_ms):
            pass  # the request was of another role
        elif is_current:
            if response.error:
                self.outbox.failed(send, now_ms)
            else:
                self.outbox.succeeded(send)
            self._role.on_response(send, response, now_ms)
        self.tick(now_ms)

    def on_request_failed(self, send: Send, *, refused: bool, now_ms: int) -> None:
        """A request got no response. `refused`: the address refused the connection, so the process does not run."""
        if self.outbox.is_current(send):
            self.outbox.failed(send, now_ms)
            self._role.on_request_failed(send, refused=refused, now_ms=now_ms)
        self.tick(now_ms)

    # Requests of other voters

    def vote(self, request: Vote, now_ms: int) -> VoteResponse:
        response = self._vote(request, now_ms)
        self.tick(now_ms)
        return response

    def _vote(self, request: Vote, now_ms: int) -> VoteResponse:
        error = self._voter_only_error(request.cluster_id, request.voter, request.candidate.id, request.epoch, now_ms)
        if request.epoch < 0 or request.log_end.epoch > request.epoch or request.candidate.directory_id is None:
            error = error or ErrorCode.INVALID_REQUEST
        granted = False
        if not error:
            if request.epoch > self.epoch:
                self.become_unattached(request.epoch, now_ms)
            if request.pre_vote:
                granted = not self._role.refuses_pre_votes and self._is_up_to_date(request.log_end)
            else:
                granted = self._grants_vote(request)
            if granted and not request.pre_vote and self._state.voted is None:
                role = Unattached(self, self._election_timeout(now_ms))
                self._enter(role, replace(self._state, voted=request.candidate))
        return VoteResponse(error=error or ErrorCode.NONE, granted=granted, **self._leader_fields())

    def _grants_vote(self, request: Vote) -> bool:
        if self._state.voted is not None:
            return self._state.voted == request.candidate
        return self.leader_id is None and self._is_up_to_date(request.log_end)

    def _is_up_to_date(self, log_end: LogPosition) -> bool:
        own = self.log.end
        return (log_end.epoch, log_end.offset) >= (own.epoch, own.offset)

    def begin_quorum_epoch(self, request: BeginQuorumEpoch, now_ms: int) -> QuorumEpochResponse:
        error = self._voter_only_error(request.cluster_id, request.voter, request.leader_id, request.epoch, now_ms)
        if error is None and request.epoch == self.epoch and self.leader_id not in (None, request.leader_id):
            error = ErrorCode.INVALID_REQUEST
        if error is None:
            is_following = isinstance(self._role, Follower) and request.epoch == self.epoch
            if not is_following:  # also a prospective that had lost this leader, which is alive
                self._follow(request.leader_id, request.epoch, request.leader_endpoints, now_ms)
        self.tick(now_ms)
        return self._quorum_epoch_response(error)

    def end_quorum_epoch(self, request: EndQuorumEpoch, now_ms: int) -> QuorumEpochResponse:
        error = self._voter_only_error(request.cluster_id, self.key, request.leader_id, request.epoch, now_ms)
        if error is None and request.epoch == self.epoch and self.leader_id not in (None, request.leader_id):
            error = ErrorCode.INVALID_REQUEST
        if error is None:
            self._learn(request.leader_id, request.epoch, request.leader_endpoints, now_ms)
            if isinstance(self._role, Follower):
                ids = [candidate.id for candidate in request.preferred_candidates]
                self._role.lose_leader(now_ms, ids.index(self.key.id) if self.key.id in ids else len(ids))
        self.tick(now_ms)
        return self._quorum_epoch_response(error)

    def _quorum_epoch_response(self, error: ErrorCode | None) -> QuorumEpochResponse:
        return QuorumEpochResponse(error=error or ErrorCode.NONE, **self._leader_fields())

    def _voter_only_error(
        self, cluster_id: str | None, voter: ReplicaKey, sender_id: int, epoch: int, now_ms: int
    ) -> ErrorCode | None:
        """Why a request between voters is refused.

        The voter sets of both sides may be behind, so neither side must be in the voter set of the other.
        """
        if self._is_other_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if not self._may_vote or voter.id != self.key.id or voter.directory_id not in (None, self.key.directory_id):
            return ErrorCode.INVALID_VOTER_KEY
        if sender_id == self.key.id:
            return ErrorCode.INCONSISTENT_VOTER_SET
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return None if self._epoch_pace.admits(epoch - self.epoch, now_ms) else ErrorCode.INVALID_REQUEST

    def _is_other_cluster(self, cluster_id: str | None) -> bool:
        return None not in (cluster_id, self.cluster_id) and cluster_id != self.cluster_id

    def _leader_fields(self) -> dict[str, Any]:
        """The leader that this replica knows, as every response names it."""
        return {
            "leader_id": NO_LEADER if self.leader_id is None else self.leader_id,
            "leader_epoch": self.epoch,
            "leader_endpoints": self.leader_endpoints,
        }

    # Requests to the leader

    def fetch(self, request: Fetch, now_ms: int) -> FetchResponse | Parked:
        error = self._leader_only_error(request.cluster_id, request.current_leader_epoch)
        leader = self.leader
        response: FetchResponse | Parked
        if error is not None or leader is None:
            response = self.fetch_response(error or ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            response = leader.fetch(request, now_ms)
        self.tick(now_ms)
        return response

    def fetch_response(
        self,
        error: ErrorCode = ErrorCode.NONE,
        *,
        records: bytes = b"",
        diverging: LogPosition | None = None,
        snapshot: LogPosition | None = None,
    ) -> FetchResponse:
        return FetchResponse(
            error=error,
            **self._leader_fields(),
            high_watermark=self.high_watermark if self.is_leader else -1,
            log_start_offset=self.log.start.offset,
            diverging=diverging,
            snapshot=snapshot,
            records=records,
        )

    def fetch_snapshot(self, request: FetchSnapshot, now_ms: int) -> FetchSnapshotResponse:
        error = self._leader_only_error(request.cluster_id, request.current_leader_epoch)
        size, chunk, leader = 0, b"", self.leader
        if error is None and leader is not None:
            error, size, chunk = leader.read_snapshot(request, now_ms)
        self.tick(now_ms)
        return FetchSnapshotResponse(
            error=error or ErrorCode.NONE,
            **self._leader_fields(),
            snapshot=request.snapshot,
            size=size,
            position=request.position,
            chunk=chunk,
        )

    def update_voter(self, request: UpdateVoter, now_ms: int) -> UpdateVoterResponse | Parked:
        error = self._leader_only_error(request.cluster_id, request.current_leader_epoch)
        leader = self.leader
        response: UpdateVoterResponse | Parked
        if error is not None or leader is None:
            response = self.update_voter_response(error or ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            response = leader.voter_changes.update(request, now_ms)
        self.tick(now_ms)
        return response

    def update_voter_response(self, error: ErrorCode) -> UpdateVoterResponse:
        return UpdateVoterResponse(error=error, **self._leader_fields())

    def _leader_only_error(self, cluster_id: str | None, epoch: int) -> ErrorCode | None:
        if self._is_other_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if epoch >= 0 and epoch != self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        return None if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def cancel(self, token: int) -> None:
        """The sender of a parked request no longer waits."""
        if isinstance(self._role, Leader):
            self._role.cancel(token)

    # Requests of operators and of this node

    def add_voter(self, request: AddVoter, now_ms: int) -> ChangeVotersResponse | Parked:
        leader = self.leader
        if leader is None:
            return refusal(self.operator_error(request.cluster_id) or _NOT_LEADER)
        response = leader.voter_changes.add(request, now_ms + request.timeout_ms, now_ms)
        self.tick(now_ms)
        return response

    def remove_voter(self, request: RemoveVoter, now_ms: int) -> ChangeVotersResponse | Parked:
        leader = self.leader
        if leader is None:
            return refusal(self.operator_error(request.cluster_id) or _NOT_LEADER)
        response = leader.voter_changes.remove(request, now_ms)
        self.tick(now_ms)
        return response

    def operator_error(self, cluster_id: str | None) -> Refusal | None:
        """Why this replica cannot change the voters for an operator."""
        if self._is_other_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {self.cluster_id}, not {cluster_id}"
        if not self.is_leader:
            return _NOT_LEADER
        if self.kraft_version < 1:
            return (
                ErrorCode.UNSUPPORTED_VERSION,
                "voters are static (kraft.version 0): raise the feature kraft.version to 1 first",
            )
        return None

    def describe_quorum(self, now_ms: int) -> DescribeQuorumResponse:
        leader = self.leader
        if leader is not None:
            return leader.describe(now_ms)
        return DescribeQuorumResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, **self._leader_fields())

    def append(self, records: Any, now_ms: int) -> int:
        """As leader, append records (given on to `RaftLog.append_records`); the offset of the last one.

        Raises KafkaError NOT_CONTROLLER when this replica does not lead.
        """
        return self._leading().append(records, now_ms)

    def upgrade_kraft_version(self, version: int, now_ms: int) -> int:
        """As leader, move from static voters to voters in the log (0 to 1): append a KRaftVersion and a Voters record.

        Returns the offset of the last record. Raises KafkaError: NOT_CONTROLLER, INVALID_UPDATE_VERSION (a voter does
        not support it or was not seen yet, or the version would go down), REQUEST_TIMED_OUT (another change is not
        committed yet).
        """
        offset = self._leading().voter_changes.upgrade_kraft_version(version, now_ms)
        self.tick(now_ms)
        return offset

    def _leading(self) -> Leader:
        leader = self.leader
        if leader is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, _NOT_LEADER[1])
        return leader

    def resign(self, now_ms: int) -> None:
        """Gives leadership up, and names the preferred successors; does nothing when not leader."""
        if isinstance(self._role, Leader):
            self._role.resign(now_ms)
            self.tick(now_ms)

    def shutdown(self, now_ms: int) -> None:
        """Stop taking part: resign if leader, and request no votes any more. `EndQuorumEpoch` is in the outbox; the
        driver gives it a moment to be delivered. Parked requests end with NOT_LEADER_OR_FOLLOWER."""
        self.is_stopping = True
        if isinstance(self._role, Prospective | Candidate):
            self.become_unattached(self.epoch, now_ms)
        self.resign(now_ms)

    # Outputs

    def drain_sends(self) -> list[Send]:
        return self.outbox.drain()

    def drain_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events
