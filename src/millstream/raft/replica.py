"""One replica of the quorum: elections, following and leading. Pure; see the room's docstring for how a driver uses it.

The roles and the table of their transitions are in `roles`; what a leader keeps is in `leadership`.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from millstream.model.errors import ErrorCode, KafkaError
from millstream.raft.events import (
    Answered,
    BecameLeader,
    Event,
    HighWatermarkAdvanced,
    LeaderChanged,
    Leading,
    LostLeadership,
    Refused,
    SnapshotInstalled,
    Truncated,
    VotersChanged,
)
from millstream.raft.leadership import Leadership, ParkedChange, ParkedFetch
from millstream.raft.log import (
    ControlRecord,
    CorruptFetchError,
    KRaftVersionRecord,
    LeaderChangeRecord,
    PlacedControlRecord,
    QuorumState,
    QuorumStateStore,
    RaftLog,
    VotersRecord,
)
from millstream.raft.membership import Membership
from millstream.raft.messages import (
    NO_LEADER,
    AddVoter,
    BeginQuorumEpoch,
    ChangeVotersAnswer,
    DescribeQuorumAnswer,
    EndQuorumEpoch,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    FetchSnapshotAnswer,
    LogPosition,
    Parked,
    Peer,
    PeerAnswer,
    QuorumEpochAnswer,
    RemoveVoter,
    ReplicaProgress,
    Send,
    UpdateVoter,
    UpdateVoterAnswer,
    Vote,
    VoteAnswer,
)
from millstream.raft.outbox import Outbox
from millstream.raft.roles import (
    Ballot,
    Candidate,
    Follower,
    Prospective,
    ReceivingSnapshot,
    Resigned,
    Role,
    Unattached,
)
from millstream.raft.settings import QuorumSettings
from millstream.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterSet

MIN_KRAFT_VERSION = 0
MAX_KRAFT_VERSION = 1
ELECTION_BACKOFF_MS = 50
FAR_FUTURE_MS = 1 << 62

_ROLES: dict[type, Role] = {
    Unattached: Role.UNATTACHED,
    Prospective: Role.PROSPECTIVE,
    Candidate: Role.CANDIDATE,
    Leadership: Role.LEADER,
    Follower: Role.FOLLOWER,
    Resigned: Role.RESIGNED,
}


class CommittedLostError(Exception):
    """The leader's log lacks what this replica knows to be committed: somebody lost a disk. There is no safe way to go on."""


class RaftReplica:
    """See the room's docstring for how a driver uses this. No method may be called from inside another."""

    cluster_id: str | None
    """Set it when it becomes known."""

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
        is an observer for ever. `endpoints` are this node's own controller listeners. `key.directory_id` must be given.
        A quorum of one leads once `tick` has been called.
        """
        assert key.directory_id is not None, "a replica knows its own directory"
        self.cluster_id = cluster_id
        self._key = key
        self._bootstrap_servers = bootstrap_servers
        self._may_vote = may_vote
        self._endpoints = endpoints
        self._log = log
        self._store = store
        self._settings = settings
        self._randomness = randomness
        self._membership = Membership(static_voters)
        self._membership.apply(log.control_records())
        self._outbox = Outbox(settings)
        self._events: list[Event] = []
        self._next_token = 0
        self._lost_elections = 0
        self._stopping = False
        self._high_watermark = log.start.offset
        saved = store.load() or QuorumState()
        if log.end.epoch > saved.epoch:
            saved = QuorumState(epoch=log.end.epoch)
        self._role: Unattached | Prospective | Candidate | Leadership | Follower | Resigned
        if saved.leader_id is not None and saved.leader_id != key.id:
            self._state = saved
            self._role = self._follower_of(saved.leader_id, (), now_ms)
            self._events.append(LeaderChanged(saved.leader_id, saved.epoch, self.leader_endpoints))
        else:
            # A leader that restarts has forgotten what its followers hold: it must not lead that epoch again.
            self._state = replace(saved, leader_id=None)
            self._role = Unattached(self._election_timeout(now_ms))

    # --- What a driver may look at -----------------------------------------------------------------------------------

    @property
    def key(self) -> ReplicaKey:
        return self._key

    @property
    def role(self) -> Role:
        return _ROLES[type(self._role)]

    @property
    def is_leader(self) -> bool:
        return isinstance(self._role, Leadership)

    @property
    def is_voter(self) -> bool:
        """Whether this replica is in the voter set in force. One that is not is an observer, whatever its role."""
        return self._may_vote and self.voters.has(self._key)

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
        if leader_id == self._key.id:
            return self._endpoints
        if isinstance(self._role, Follower) and self._role.leader_endpoints:
            return self._role.leader_endpoints
        voter = self.voters.by_id.get(leader_id)
        return voter.endpoints if voter is not None else ()

    @property
    def high_watermark(self) -> int:
        """Records below are committed. At start: where the log begins."""
        return self._high_watermark

    @property
    def voters(self) -> VoterSet:
        return self._membership.voters

    @property
    def kraft_version(self) -> int:
        return self._membership.kraft_version

    def voters_at(self, end_offset: int) -> VoterSet:
        """The voter set as of the records below `end_offset`: for the head of a snapshot (kraft.version 1 only)."""
        return self._membership.voters_at(end_offset)

    def kraft_version_at(self, end_offset: int) -> int:
        return self._membership.kraft_version_at(end_offset)

    @property
    def next_deadline_ms(self) -> int:
        """When `tick` has to be called at the latest."""
        match self._role:
            case Unattached(election_ms):
                deadlines = []
                if self._log_is_flushed:
                    deadlines += [self._outbox.ready_ms(peer.id, Fetch) for peer in self._peers_to_ask()]
                if self._may_campaign:
                    deadlines.append(election_ms)
            case Prospective(ballot, gives_up_ms) | Candidate(ballot, gives_up_ms):
                deadlines = [gives_up_ms]
                if not ballot.lost:
                    deadlines += [self._outbox.ready_ms(node_id, Vote) for node_id in ballot.unanswered]
            case Follower() as follower:
                deadlines = [follower.fetch_timeout_ms]
                if follower.election_ms is not None:
                    deadlines.append(follower.election_ms)
                if follower.receiving is not None:
                    deadlines.append(self._outbox.ready_ms(follower.leader_id, FetchSnapshot))
                elif self._log_is_flushed:
                    deadlines.append(self._outbox.ready_ms(follower.leader_id, Fetch))
                if self._has_to_introduce_itself(follower):
                    deadlines.append(self._outbox.ready_ms(follower.leader_id, UpdateVoter))
            case Leadership() as lead:
                deadlines = [parked.expires_ms for parked in lead.fetches.values()]
                deadlines += [parked.expires_ms for parked in lead.changes.values()]
                resigns_ms = lead.resigns_ms(self.voters)
                if resigns_ms is not None:
                    deadlines.append(resigns_ms)
                for voter in self._other_voters():
                    deadlines.append(
                        max(self._silent_ms(lead, voter), self._outbox.ready_ms(voter.id, BeginQuorumEpoch))
                    )
            case Resigned() as resigned:
                deadlines = [self._outbox.ready_ms(node_id, EndQuorumEpoch) for node_id in resigned.unacknowledged]
                if not self._stopping:
                    deadlines.append(resigned.until_ms)
        return min(deadlines, default=FAR_FUTURE_MS)

    # --- Time --------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Time has passed."""
        for _ in range(8):  # a quorum of one goes from unattached to leader in one tick
            role = self._role
            self._step(now_ms)
            if self._role is role:
                return

    def _step(self, now_ms: int) -> None:
        match self._role:
            case Unattached(election_ms):
                alone = self.is_voter and len(self.voters) == 1
                if self._may_campaign and (alone or now_ms >= election_ms):
                    self._become_prospective(now_ms)
                else:
                    self._look_for_leader(now_ms)
            case Prospective(_, gives_up_ms):
                if now_ms >= gives_up_ms:
                    self._end_pre_vote(now_ms)
                else:
                    self._ask_for_votes(now_ms)
            case Candidate() as candidate:
                if now_ms >= candidate.gives_up_ms:
                    self._become_prospective(now_ms)
                elif not candidate.lost:
                    self._ask_for_votes(now_ms)
            case Follower() as follower:
                gone = follower.election_ms is not None and now_ms >= follower.election_ms
                if gone or now_ms >= follower.fetch_timeout_ms:
                    self._give_leader_up(now_ms)
                else:
                    self._ask_leader(follower, now_ms)
            case Leadership() as lead:
                resigns_ms = lead.resigns_ms(self.voters)
                if resigns_ms is not None and now_ms >= resigns_ms:
                    self._resign(lead, now_ms)
                else:
                    self._lead(lead, now_ms)
            case Resigned() as resigned:
                if now_ms >= resigned.until_ms and not self._stopping:
                    self._enter(Unattached(self._election_timeout(now_ms)), self._state)
                else:
                    self._say_goodbye(resigned, now_ms)

    def on_flushed(self, now_ms: int) -> None:
        """`log.flushed_offset` moved."""
        if isinstance(self._role, Leadership):
            self._advance_high_watermark(self._role, now_ms)
        self.tick(now_ms)

    def on_log_trimmed(self) -> None:
        """The driver wrote a snapshot and moved `log.start`."""
        self._membership.forget_before(self._log.start.offset)

    # --- Changing roles ----------------------------------------------------------------------------------------------

    def _enter(
        self, role: Unattached | Prospective | Candidate | Leadership | Follower | Resigned, state: QuorumState
    ) -> None:
        """Take another role. What must not be forgotten is on disk before anything is said or done in it."""
        assert state.epoch >= self._state.epoch, "epochs never go back"
        before, left = self._state, self._role
        forgets_leader = state.leader_id is None and replace(before, leader_id=None) == state
        if state != before and not forgets_leader:
            self._store.save(state)
        self._state, self._role = state, role
        self._outbox.forget_in_flight()
        if isinstance(left, Leadership):
            self._events.append(LostLeadership(left.epoch))
            self._refuse_parked(left)
        if (state.leader_id, state.epoch) != (before.leader_id, before.epoch):
            self._events.append(LeaderChanged(state.leader_id, state.epoch, self.leader_endpoints))

    def _become_unattached(self, epoch: int, now_ms: int) -> None:
        state = QuorumState(epoch=epoch) if epoch > self.epoch else replace(self._state, leader_id=None)
        self._enter(Unattached(self._election_timeout(now_ms)), state)

    def _follow(self, leader_id: int, epoch: int, endpoints: tuple[Endpoint, ...], now_ms: int) -> None:
        voted = self._state.voted if epoch == self.epoch else None
        state = QuorumState(epoch=epoch, leader_id=leader_id, voted=voted)
        self._enter(self._follower_of(leader_id, endpoints, now_ms), state)

    def _follower_of(self, leader_id: int, endpoints: tuple[Endpoint, ...], now_ms: int) -> Follower:
        return Follower(leader_id, endpoints, now_ms + self._settings.fetch_timeout_ms)

    def _learn(self, leader_id: int, epoch: int, endpoints: tuple[Endpoint, ...], now_ms: int) -> bool:
        """Somebody told an epoch and perhaps its leader; whether that was news that changed the role."""
        if epoch < self.epoch:
            return False
        news = epoch > self.epoch or self.leader_id is None
        if leader_id != NO_LEADER and leader_id != self._key.id and news:
            self._follow(leader_id, epoch, endpoints, now_ms)
            return True
        if epoch > self.epoch:
            self._become_unattached(epoch, now_ms)
            return True
        return False

    @property
    def _may_campaign(self) -> bool:
        """A voter may, and so may one whose removal is not known to be committed: it may be the only one with the longest
        log, and the others need what it has before they can elect one of themselves (Raft thesis, 4.2.2)."""
        voters = self._membership.voters_while_uncommitted(self._high_watermark)
        return self._may_vote and not self._stopping and any(voter_set.has(self._key) for voter_set in voters)

    @property
    def _log_is_flushed(self) -> bool:
        """A fetch acknowledges everything below its offset: none is sent before that is on disk."""
        return self._log.flushed_offset >= self._log.end.offset

    def _election_timeout(self, now_ms: int) -> int:
        timeout_ms = self._settings.election_timeout_ms
        return now_ms + timeout_ms + self._randomness.randrange(max(1, timeout_ms))

    # --- Elections ---------------------------------------------------------------------------------------------------

    def _become_prospective(self, now_ms: int) -> None:
        if not self._may_campaign:
            self._become_unattached(self.epoch, now_ms)
            return
        ballot = Ballot(self.voters, {self._key.id: True} if self.is_voter else {})
        self._enter(Prospective(ballot, self._election_timeout(now_ms)), self._state)
        self._count(ballot, now_ms)

    def _become_candidate(self, now_ms: int) -> None:
        ballot = Ballot(self.voters, {self._key.id: True} if self.is_voter else {})
        state = QuorumState(epoch=self.epoch + 1, voted=self._key)
        self._enter(Candidate(ballot, self._election_timeout(now_ms)), state)
        self._count(ballot, now_ms)

    def _count(self, ballot: Ballot, now_ms: int) -> None:
        match self._role:
            case Prospective():
                if ballot.won:
                    self._become_candidate(now_ms)
                elif ballot.lost:
                    self._end_pre_vote(now_ms)
                else:
                    self._ask_for_votes(now_ms)
            case Candidate() as candidate:
                if ballot.won:
                    self._become_leader(ballot, now_ms)
                elif ballot.lost:
                    if not candidate.lost:
                        candidate.lost = True
                        candidate.gives_up_ms = now_ms + self._election_backoff()
                else:
                    self._ask_for_votes(now_ms)
            case _:
                raise AssertionError("votes are counted by those who asked for them")

    def _election_backoff(self) -> int:
        self._lost_elections += 1
        most_ms = min(self._settings.election_backoff_max_ms, ELECTION_BACKOFF_MS << min(self._lost_elections, 10))
        return self._randomness.randrange(max(1, most_ms)) + 1

    def _end_pre_vote(self, now_ms: int) -> None:
        """Not wanted: go back to the leader that others may still have, or wait for one."""
        self._lost_elections += 1
        if self.leader_id is not None:
            self._enter(self._follower_of(self.leader_id, (), now_ms), self._state)
        else:
            self._enter(Unattached(self._election_timeout(now_ms)), self._state)

    def _ask_for_votes(self, now_ms: int) -> None:
        role = self._role
        assert isinstance(role, Prospective | Candidate)
        for node_id in role.ballot.unanswered:
            if self._outbox.ready(node_id, Vote, now_ms):
                voter = role.ballot.voters.by_id[node_id]
                request = Vote(
                    cluster_id=self.cluster_id,
                    voter=voter.key,
                    epoch=self.epoch,
                    candidate=self._key,
                    log_end=self._log.end,
                    pre_vote=isinstance(role, Prospective),
                )
                self._outbox.send(Peer(node_id, voter.endpoints), request, now_ms)

    def vote(self, request: Vote, now_ms: int) -> VoteAnswer:
        answer = self._vote(request, now_ms)
        self.tick(now_ms)
        return answer

    def _vote(self, request: Vote, now_ms: int) -> VoteAnswer:
        error = self._voter_only_error(request.cluster_id, request.voter, request.candidate.id, request.epoch)
        if request.epoch < 0 or request.log_end.epoch > request.epoch or request.candidate.directory_id is None:
            error = error or ErrorCode.INVALID_REQUEST
        granted = False
        if not error:
            if request.epoch > self.epoch:
                self._become_unattached(request.epoch, now_ms)
            granted = self._grants_pre_vote(request) if request.pre_vote else self._grants_vote(request)
            if granted and not request.pre_vote and self._state.voted is None:
                self._enter(Unattached(self._election_timeout(now_ms)), replace(self._state, voted=request.candidate))
        return VoteAnswer(
            error=error or ErrorCode.NONE,
            leader_id=self._told_leader_id,
            leader_epoch=self.epoch,
            leader_endpoints=self.leader_endpoints,
            granted=granted,
        )

    def _grants_vote(self, request: Vote) -> bool:
        if self._state.voted is not None:
            return self._state.voted == request.candidate
        return self.leader_id is None and self._is_up_to_date(request.log_end)

    def _grants_pre_vote(self, request: Vote) -> bool:
        match self._role:
            case Leadership():
                return False
            case Follower() as follower if follower.heard:
                return False
            case _:
                return self._is_up_to_date(request.log_end)

    def _is_up_to_date(self, log_end: LogPosition) -> bool:
        own = self._log.end
        return (log_end.epoch, log_end.offset) >= (own.epoch, own.offset)

    def _voter_only_error(
        self, cluster_id: str | None, voter: ReplicaKey, sender_id: int, epoch: int
    ) -> ErrorCode | None:
        """Why a request between voters is refused.

        Neither side need find itself or the other in its own voter set: that may be behind.
        """
        if self._is_other_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if not self._may_vote or voter.id != self._key.id or voter.directory_id not in (None, self._key.directory_id):
            return ErrorCode.INVALID_VOTER_KEY
        if sender_id == self._key.id:
            return ErrorCode.INCONSISTENT_VOTER_SET
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.epoch else None

    def _is_other_cluster(self, cluster_id: str | None) -> bool:
        return None not in (cluster_id, self.cluster_id) and cluster_id != self.cluster_id

    @property
    def _told_leader_id(self) -> int:
        return NO_LEADER if self.leader_id is None else self.leader_id

    def begin_quorum_epoch(self, request: BeginQuorumEpoch, now_ms: int) -> QuorumEpochAnswer:
        error = self._voter_only_error(request.cluster_id, request.voter, request.leader_id, request.epoch)
        if error is None and request.epoch == self.epoch and self.leader_id not in (None, request.leader_id):
            error = ErrorCode.INVALID_REQUEST
        if error is None:
            following = isinstance(self._role, Follower) and request.epoch == self.epoch
            if not following:  # also a prospective that had lost this leader: here it is, alive
                self._follow(request.leader_id, request.epoch, request.leader_endpoints, now_ms)
        self.tick(now_ms)
        return self._quorum_epoch_answer(error)

    def end_quorum_epoch(self, request: EndQuorumEpoch, now_ms: int) -> QuorumEpochAnswer:
        error = self._voter_only_error(request.cluster_id, self._key, request.leader_id, request.epoch)
        if error is None and request.epoch == self.epoch and self.leader_id not in (None, request.leader_id):
            error = ErrorCode.INVALID_REQUEST
        if error is None:
            self._learn(request.leader_id, request.epoch, request.leader_endpoints, now_ms)
            if isinstance(self._role, Follower):
                ids = [candidate.id for candidate in request.preferred_candidates]
                place = ids.index(self._key.id) if self._key.id in ids else len(ids)
                self._lost_leader(self._role, now_ms, place)
        self.tick(now_ms)
        return self._quorum_epoch_answer(error)

    def _quorum_epoch_answer(self, error: ErrorCode | None) -> QuorumEpochAnswer:
        return QuorumEpochAnswer(
            error=error or ErrorCode.NONE,
            leader_id=self._told_leader_id,
            leader_epoch=self.epoch,
            leader_endpoints=self.leader_endpoints,
        )

    # --- Following ---------------------------------------------------------------------------------------------------

    def _peers_to_ask(self) -> list[Peer]:
        """Who may know the leader."""
        peers = [Peer(voter.id, voter.endpoints) for voter in self._other_voters()]
        return peers if peers and self.is_voter else [*peers, *self._bootstrap_servers]

    def _other_voters(self) -> list[Voter]:
        return [voter for voter in self.voters if voter.id != self._key.id]

    def _look_for_leader(self, now_ms: int) -> None:
        for peer in self._peers_to_ask():
            if self._outbox.ready(peer.id, Fetch, now_ms) and self._log_is_flushed:
                self._outbox.send(peer, self._fetch_request(wait_ms=0), now_ms)

    def _fetch_request(self, wait_ms: int) -> Fetch:
        end = self._log.end
        return Fetch(
            cluster_id=self.cluster_id,
            replica=self._key,
            current_leader_epoch=self.epoch,
            offset=end.offset,
            last_fetched_epoch=end.epoch,
            high_watermark=self._high_watermark,
            max_wait_ms=wait_ms,
            max_bytes=self._settings.fetch_max_bytes,
        )

    def _ask_leader(self, follower: Follower, now_ms: int) -> None:
        leader = Peer(follower.leader_id, self.leader_endpoints)
        receiving = follower.receiving
        if receiving is not None:
            if self._outbox.ready(leader.id, FetchSnapshot, now_ms):
                request = FetchSnapshot(
                    cluster_id=self.cluster_id,
                    replica=self._key,
                    current_leader_epoch=self.epoch,
                    snapshot=receiving.snapshot,
                    position=receiving.position,
                    max_bytes=self._settings.snapshot_chunk_bytes,
                )
                self._outbox.send(leader, request, now_ms)
        elif self._log_is_flushed and self._outbox.ready(leader.id, Fetch, now_ms):
            wait_ms = self._settings.fetch_max_wait_ms
            self._outbox.send(leader, self._fetch_request(wait_ms), now_ms, wait_ms)
        if self._has_to_introduce_itself(follower) and self._outbox.ready(leader.id, UpdateVoter, now_ms):
            update = UpdateVoter(
                cluster_id=self.cluster_id,
                current_leader_epoch=self.epoch,
                voter=self._key,
                endpoints=self._endpoints,
                min_kraft_version=MIN_KRAFT_VERSION,
                max_kraft_version=MAX_KRAFT_VERSION,
            )
            self._outbox.send(leader, update, now_ms)

    def _has_to_introduce_itself(self, follower: Follower) -> bool:
        """Whether the voter set says something else of this voter than it would itself."""
        if follower.introduced or not follower.heard or not self.is_voter or not self._endpoints:
            return False
        return self.kraft_version == 0 or self.voters.by_id[self._key.id] != self._as_voter()

    def _as_voter(self) -> Voter:
        return Voter(self._key, self._endpoints, MIN_KRAFT_VERSION, MAX_KRAFT_VERSION)

    def _lost_leader(self, follower: Follower, now_ms: int, place: int | None = None) -> None:
        """The leader is known to be gone: no need to wait for the fetch timeout. A random delay keeps votes from splitting;
        `place` is this replica's place among the successors that the leader prefers."""
        follower.heard = False
        if place == 0:
            delay_ms = self._settings.retry_backoff_ms // 2
        else:
            most_ms = self._settings.refused_election_delay_ms << min(self._lost_elections, 8)
            delay_ms = self._randomness.randrange(max(1, min(most_ms, self._settings.election_timeout_ms)))
            delay_ms += (place or 0) * self._settings.retry_backoff_ms
        election_ms = now_ms + delay_ms
        if follower.election_ms is None or place == 0:
            follower.election_ms = election_ms

    def _give_leader_up(self, now_ms: int) -> None:
        if self._may_campaign:
            self._become_prospective(now_ms)
        else:
            self._become_unattached(self.epoch, now_ms)

    def _heard_leader(self, follower: Follower, now_ms: int) -> None:
        follower.heard = True
        follower.fetch_timeout_ms = now_ms + self._settings.fetch_timeout_ms
        follower.election_ms = None
        self._lost_elections = 0

    def on_response(self, send: Send, answer: PeerAnswer, now_ms: int) -> None:
        """The answer to something this replica sent. A late one, of an earlier epoch or role, does no harm."""
        current = self._outbox.is_current(send)
        if answer.error in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INCONSISTENT_VOTER_SET):
            self._events.append(Refused(answer.error, send.peer.id))
            if current:
                self._outbox.failed(send, now_ms)
        elif self._learn(answer.leader_id, answer.leader_epoch, answer.leader_endpoints, now_ms):
            pass  # whatever was asked was asked in another role
        elif current:
            self._answered(send, answer, now_ms)
        self.tick(now_ms)

    def _answered(self, send: Send, answer: PeerAnswer, now_ms: int) -> None:
        if answer.error:
            self._outbox.failed(send, now_ms)
        else:
            self._outbox.succeeded(send)
        match self._role, answer:
            case ((Prospective(ballot, _) | Candidate(ballot, _)), VoteAnswer()):
                ballot.votes[send.peer.id] = answer.granted and not answer.error
                self._count(ballot, now_ms)
            case Follower() as follower, FetchAnswer() if send.peer.id == follower.leader_id:
                self._fetched(follower, send, answer, now_ms)
            case Follower() as follower, FetchSnapshotAnswer() if send.peer.id == follower.leader_id:
                self._fetched_snapshot(follower, send, answer, now_ms)
            case Follower() as follower, UpdateVoterAnswer():
                follower.introduced = not answer.error or not _worth_retrying(answer.error)
            case Leadership(), QuorumEpochAnswer():
                self._outbox.pause(send.peer.id, BeginQuorumEpoch, now_ms + self._settings.fetch_timeout_ms // 2)
            case Resigned() as resigned, QuorumEpochAnswer():
                if send.peer.id in resigned.unacknowledged:
                    resigned.unacknowledged.remove(send.peer.id)
            case _, FetchAnswer():
                self._outbox.failed(send, now_ms)  # nobody knew a leader: ask again later
            case _:
                pass

    def on_request_failed(self, send: Send, *, refused: bool, now_ms: int) -> None:
        """A request got no answer. `refused`: nobody listens at that address, so the process is gone (not: timed out)."""
        if self._outbox.is_current(send):
            self._outbox.failed(send, now_ms)
            follower = self._role
            if refused and isinstance(follower, Follower) and send.peer.id == follower.leader_id:
                self._lost_leader(follower, now_ms)
        self.tick(now_ms)

    def _fetched(self, follower: Follower, send: Send, answer: FetchAnswer, now_ms: int) -> None:
        request = send.request
        assert isinstance(request, Fetch) and request.offset == self._log.end.offset, "the log moved under a fetch"
        if answer.error:
            if answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER or answer.leader_epoch < self.epoch:
                self._lost_leader(follower, now_ms)
            return
        self._heard_leader(follower, now_ms)
        if answer.diverging is not None:
            self._truncate_to_agreement(answer.diverging, send, now_ms)
        elif answer.snapshot is not None:
            if answer.snapshot.offset < self._log.start.offset or answer.snapshot.offset < self._high_watermark:
                raise CommittedLostError(
                    f"the leader {send.peer.id} offers snapshot {answer.snapshot}, which is behind what is committed here "
                    f"({self._high_watermark})"
                )
            follower.receiving = ReceivingSnapshot(answer.snapshot, self._log.begin_snapshot(answer.snapshot))
        else:
            if answer.records:
                try:
                    self._apply(self._log.append_fetched(answer.records))
                except CorruptFetchError:
                    self._outbox.failed(send, now_ms)
                    return
            self._raise_high_watermark(min(answer.high_watermark, self._log.end.offset))

    def _truncate_to_agreement(self, diverging: LogPosition, send: Send, now_ms: int) -> None:
        """Drop what the leader does not have: at least down to where both logs' epochs end."""
        own = self._log.end_of_epoch(diverging.epoch)
        end_offset = min(own.offset, diverging.offset) if own.epoch == diverging.epoch else own.offset
        if min(end_offset, diverging.offset) < self._high_watermark:
            raise CommittedLostError(
                f"the leader's log ends epoch {diverging.epoch} at {diverging.offset}, below what is committed here "
                f"({self._high_watermark}): its disk or this one is not the one that the cluster knew"
            )
        if end_offset >= self._log.end.offset:
            self._outbox.failed(send, now_ms)
            return
        voters = self.voters
        self._log.truncate_to(end_offset)
        self._membership.truncate_to(end_offset)
        self._events.append(Truncated(end_offset))
        if self.voters != voters:
            self._events.append(VotersChanged(self.voters))

    def _fetched_snapshot(self, follower: Follower, send: Send, answer: FetchSnapshotAnswer, now_ms: int) -> None:
        receiving, request = follower.receiving, send.request
        if receiving is None or not isinstance(request, FetchSnapshot) or request.snapshot != receiving.snapshot:
            return
        if answer.error:
            if answer.error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
                follower.receiving = None  # the leader has a newer one by now: a fetch will say which
            elif answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._lost_leader(follower, now_ms)
            return
        self._heard_leader(follower, now_ms)
        if answer.position != receiving.position:
            return
        self._log.write_snapshot(answer.position, answer.chunk)
        receiving.position += len(answer.chunk)
        if receiving.position < answer.size:
            if not answer.chunk:
                self._outbox.failed(send, now_ms)
            return
        follower.receiving = None
        try:
            placed = self._log.install_snapshot()
        except CorruptFetchError:
            self._outbox.pause(send.peer.id, Fetch, now_ms + self._settings.election_timeout_ms)
            return
        voters = self.voters
        self._membership.replace_by(placed)
        self._events.append(SnapshotInstalled(receiving.snapshot))
        if self.voters != voters:
            self._events.append(VotersChanged(self.voters))
        self._raise_high_watermark(receiving.snapshot.offset)

    def _apply(self, placed: Sequence[PlacedControlRecord]) -> None:
        voters = self.voters
        self._membership.apply(placed)
        if self.voters != voters:
            self._events.append(VotersChanged(self.voters))

    def _raise_high_watermark(self, offset: int) -> bool:
        if offset <= self._high_watermark:
            return False
        self._high_watermark = offset
        self._events.append(HighWatermarkAdvanced(offset))
        return True

    # --- Leading -----------------------------------------------------------------------------------------------------

    def _become_leader(self, ballot: Ballot, now_ms: int) -> None:
        lead = Leadership(
            me=self._key,
            epoch=self.epoch,
            start_offset=self._log.end.offset,
            started_ms=now_ms,
            check_quorum_ms=self._settings.fetch_timeout_ms * 3 // 2,
        )
        self._lost_elections = 0
        self._enter(lead, replace(self._state, leader_id=self._key.id))
        self._events.append(BecameLeader(lead.epoch, lead.start_offset))
        record = LeaderChangeRecord(self._key.id, ballot.voters.ids, ballot.granting)
        self._append_control(lead, (record,), now_ms)
        self._lead(lead, now_ms)

    def _append_control(self, lead: Leadership, records: Sequence[ControlRecord], now_ms: int) -> int:
        """Append one control batch; the offset of its last record."""
        offset = self._log.append_control(lead.epoch, records, now_ms)
        self._apply([PlacedControlRecord(offset + place, record) for place, record in enumerate(records)])
        self._appended(lead, now_ms)
        return offset + len(records) - 1

    def append(self, records: Any, now_ms: int) -> int:
        """As leader, append records (given on to `RaftLog.append_records`); the offset of the last one.

        Raises KafkaError NOT_CONTROLLER when this replica does not lead.
        """
        lead = self._role
        if not isinstance(lead, Leadership):
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this node does not lead the metadata quorum")
        last_offset = self._log.append_records(lead.epoch, records, now_ms)
        self._appended(lead, now_ms)
        return last_offset

    def _appended(self, lead: Leadership, now_ms: int) -> None:
        self._wake_fetches(lead, now_ms)
        self._advance_high_watermark(lead, now_ms)

    def _advance_high_watermark(self, lead: Leadership, now_ms: int) -> None:
        offset = lead.majority_end(self.voters, self._log.flushed_offset)
        if offset <= lead.start_offset or not self._raise_high_watermark(offset):
            return
        if not lead.announced:
            lead.announced = True
            self._events.append(Leading(lead.epoch, offset))
        for token in [token for token, change in lead.changes.items() if change.offset < offset]:
            self._events.append(Answered(token, lead.changes.pop(token).committed))
        self._wake_fetches(lead, now_ms)
        if not self.is_voter and self._membership.changed_at < offset:
            self._resign(lead, now_ms)  # this leader was voted out, and that is committed now

    def _lead(self, lead: Leadership, now_ms: int) -> None:
        """What a leader does as time passes: introduce itself to silent voters, and let no parked request wait for ever."""
        for voter in self._other_voters():
            silent = self._silent_ms(lead, voter) <= now_ms
            if silent and self._outbox.ready(voter.id, BeginQuorumEpoch, now_ms):
                request = BeginQuorumEpoch(
                    cluster_id=self.cluster_id,
                    voter=voter.key,
                    leader_id=self._key.id,
                    epoch=lead.epoch,
                    leader_endpoints=self._endpoints,
                )
                self._outbox.send(Peer(voter.id, voter.endpoints), request, now_ms)
        self._wake_fetches(lead, now_ms)
        for token in [token for token, change in lead.changes.items() if change.expires_ms <= now_ms]:
            self._events.append(Answered(token, lead.changes.pop(token).timed_out))

    def _silent_ms(self, lead: Leadership, voter: Voter) -> int:
        """When a voter counts as silent: at once until its first fetch."""
        heard_ms = lead.silent_since_ms(voter)
        return 0 if heard_ms < 0 else heard_ms + self._settings.fetch_timeout_ms

    def _leader_only_error(self, cluster_id: str | None, epoch: int) -> ErrorCode | None:
        if self._is_other_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if epoch >= 0 and epoch != self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        return None if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def fetch(self, request: Fetch, now_ms: int) -> FetchAnswer | Parked:
        answer = self._fetch(request, now_ms)
        self.tick(now_ms)
        return answer

    def _fetch(self, request: Fetch, now_ms: int) -> FetchAnswer | Parked:
        error = self._leader_only_error(request.cluster_id, request.current_leader_epoch)
        lead = self._role
        if error is not None or not isinstance(lead, Leadership):
            return self._fetch_answer(error or ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if request.replica.id < 0:
            if not self._log.start.offset <= request.offset <= self._high_watermark:
                return self._fetch_answer(ErrorCode.OFFSET_OUT_OF_RANGE)
        else:
            refusal = self._note_fetch(lead, request, now_ms)
            if refusal is not None:
                return refusal
        ready = self._ready_answer(request)
        if ready is not None or request.max_wait_ms <= 0:
            return ready or self._fetch_answer()
        self._next_token += 1
        lead.fetches[self._next_token] = ParkedFetch(request, now_ms + request.max_wait_ms)
        return Parked(self._next_token)

    def _note_fetch(self, lead: Leadership, request: Fetch, now_ms: int) -> FetchAnswer | None:
        """Learn from a replica's fetch how far it is; an answer at once when its log is not the beginning of this one."""
        if request.offset < 0 or not 0 <= request.last_fetched_epoch <= lead.epoch or request.current_leader_epoch < 0:
            return self._fetch_answer(ErrorCode.INVALID_REQUEST)
        static = self.kraft_version == 0
        if request.replica.id == self._key.id or (
            static and lead.is_impostor(request.replica, now_ms, self._settings.fetch_timeout_ms)
        ):
            return self._fetch_answer(ErrorCode.INCONSISTENT_VOTER_SET)  # two nodes have one id
        progress = lead.of(request.replica)
        start, end = self._log.start, self._log.end
        at_beginning = start.offset == 0 and request.offset == 0
        if not at_beginning:
            position = LogPosition(request.offset, request.last_fetched_epoch)
            if start.offset > 0 and (
                position.offset < start.offset
                or (position.offset == start.offset and position.epoch != start.epoch)
                or position.epoch < start.epoch
            ):
                progress.heard(now_ms)
                assert self._log.latest_snapshot is not None, "a log that does not begin at 0 begins at a snapshot"
                return self._fetch_answer(snapshot=self._log.latest_snapshot)
            own = self._log.end_of_epoch(position.epoch)
            if own.epoch != position.epoch or own.offset < position.offset:
                progress.heard(now_ms)
                return self._fetch_answer(diverging=own)
        progress.fetched(request.offset, end.offset, now_ms)
        lead.forget_gone(self.voters, now_ms)
        self._advance_high_watermark(lead, now_ms)
        return self._fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER) if self._role is not lead else None

    def _ready_answer(self, request: Fetch) -> FetchAnswer | None:
        """What there is to tell now: records, or a higher watermark."""
        below = self._log.end.offset if request.replica.id >= 0 else self._high_watermark
        if request.offset < below:
            records = self._log.read(request.offset, request.max_bytes, below=below)
            if records:
                return self._fetch_answer(records=records)
        if 0 <= request.high_watermark < self._high_watermark:
            return self._fetch_answer()
        return None

    def _fetch_answer(
        self,
        error: ErrorCode = ErrorCode.NONE,
        *,
        records: bytes = b"",
        diverging: LogPosition | None = None,
        snapshot: LogPosition | None = None,
    ) -> FetchAnswer:
        return FetchAnswer(
            error=error,
            leader_id=self._told_leader_id,
            leader_epoch=self.epoch,
            leader_endpoints=self.leader_endpoints,
            high_watermark=self._high_watermark if self.is_leader else -1,
            log_start_offset=self._log.start.offset,
            diverging=diverging,
            snapshot=snapshot,
            records=records,
        )

    def _wake_fetches(self, lead: Leadership, now_ms: int) -> None:
        for token, parked in list(lead.fetches.items()):
            if parked.request.offset < self._log.start.offset:
                answer: FetchAnswer | None = self._fetch_answer(ErrorCode.OFFSET_OUT_OF_RANGE)
            else:
                answer = self._ready_answer(parked.request) or (
                    self._fetch_answer() if parked.expires_ms <= now_ms else None
                )
            if answer is not None:
                del lead.fetches[token]
                self._events.append(Answered(token, answer))

    def cancel(self, token: int) -> None:
        """Whoever waited for a parked request is gone."""
        if isinstance(self._role, Leadership):
            self._role.fetches.pop(token, None)
            self._role.changes.pop(token, None)

    def _refuse_parked(self, lead: Leadership) -> None:
        """This replica no longer leads: whoever waits has to ask somebody else."""
        for token in lead.fetches:
            self._events.append(Answered(token, self._fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
        for token, change in lead.changes.items():
            self._events.append(Answered(token, change.deposed))
        lead.fetches.clear()
        lead.changes.clear()

    def fetch_snapshot(self, request: FetchSnapshot, now_ms: int) -> FetchSnapshotAnswer:
        error = self._leader_only_error(request.cluster_id, request.current_leader_epoch)
        size, chunk = 0, b""
        if error is None:
            found = self._log.read_snapshot(request.snapshot, request.position, request.max_bytes)
            if found is None:
                error = ErrorCode.SNAPSHOT_NOT_FOUND
            elif not 0 <= request.position < max(1, found[0]):
                error = ErrorCode.POSITION_OUT_OF_RANGE
            else:
                size, chunk = found
        lead = self._role
        if error is None and isinstance(lead, Leadership) and request.replica.id >= 0:
            lead.of(request.replica).heard(now_ms)
        self.tick(now_ms)
        return FetchSnapshotAnswer(
            error=error or ErrorCode.NONE,
            leader_id=self._told_leader_id,
            leader_epoch=self.epoch,
            leader_endpoints=self.leader_endpoints,
            snapshot=request.snapshot,
            size=size,
            position=request.position,
            chunk=chunk,
        )

    def describe_quorum(self, now_ms: int) -> DescribeQuorumAnswer:
        lead = self._role
        if not isinstance(lead, Leadership):
            return DescribeQuorumAnswer(
                error=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                leader_id=self._told_leader_id,
                leader_epoch=self.epoch,
                leader_endpoints=self.leader_endpoints,
            )
        lead.forget_gone(self.voters, now_ms)
        own = ReplicaProgress(
            replica=self._key, log_end_offset=self._log.end.offset, last_fetch_ms=now_ms, last_caught_up_ms=now_ms
        )
        described = []
        shown = {self._key}
        for voter in self.voters:
            progress = lead.of_voter(voter)
            if voter.id == self._key.id and self.is_voter:
                described.append(own)
            elif progress is not None:
                shown.add(progress.key)
                described.append(progress.described())
            else:
                described.append(
                    ReplicaProgress(replica=voter.key, log_end_offset=-1, last_fetch_ms=-1, last_caught_up_ms=-1)
                )
        observers = [progress.described() for key, progress in lead.progress.items() if key not in shown]
        if not self.is_voter:
            observers.append(own)
        return DescribeQuorumAnswer(
            leader_id=self._key.id,
            leader_epoch=self.epoch,
            leader_endpoints=self._endpoints,
            high_watermark=self._high_watermark,
            voters=tuple(described),
            observers=tuple(sorted(observers, key=lambda progress: progress.replica.id)),
        )

    # --- Changing the voters -----------------------------------------------------------------------------------------

    def _change_error(self, lead: Leadership) -> tuple[ErrorCode, str] | None:
        """Why the voters cannot change now: one change at a time, and none before this epoch has committed something."""
        if not lead.announced:
            return ErrorCode.REQUEST_TIMED_OUT, "the new leader has not committed anything yet; try again"
        if self._membership.changed_at >= self._high_watermark:
            return ErrorCode.REQUEST_TIMED_OUT, "another change of the voters is not committed yet; try again"
        return None

    def _change_voters(self, lead: Leadership, voters: VoterSet, timeout_ms: int, now_ms: int) -> Parked:
        self._next_token += 1
        token = self._next_token
        change = ParkedChange(
            offset=self._log.end.offset,
            expires_ms=now_ms + timeout_ms,
            committed=ChangeVotersAnswer(),
            timed_out=ChangeVotersAnswer(
                error=ErrorCode.REQUEST_TIMED_OUT, message="the change was appended, but not committed in time"
            ),
            deposed=ChangeVotersAnswer(
                error=ErrorCode.NOT_LEADER_OR_FOLLOWER, message="leadership was lost before the change was committed"
            ),
        )
        lead.changes[token] = change
        self._append_control(lead, (VotersRecord(voters),), now_ms)
        return Parked(token)

    def add_voter(self, request: AddVoter, now_ms: int) -> ChangeVotersAnswer | Parked:
        answer = self._add_voter(request, now_ms)
        self.tick(now_ms)
        return answer

    def _add_voter(self, request: AddVoter, now_ms: int) -> ChangeVotersAnswer | Parked:
        lead = self._role
        error = self._operator_error(request.cluster_id)
        if error is not None or not isinstance(lead, Leadership):
            return _refusal(error or (ErrorCode.NOT_LEADER_OR_FOLLOWER, "not the leader"))
        key = request.voter
        if key.id < 0 or key.directory_id is None or not request.endpoints:
            return _refusal((ErrorCode.INVALID_REQUEST, "a voter needs an id, a directory id and an endpoint"))
        error = self._change_error(lead)
        if error is not None:
            return _refusal(error)
        if key.id in self.voters.by_id:
            known = self.voters.by_id[key.id].key
            return _refusal((ErrorCode.DUPLICATE_VOTER, f"node {key.id} is a voter already, as {known}"))
        if not request.min_kraft_version <= self.kraft_version <= request.max_kraft_version:
            return _refusal((ErrorCode.INVALID_REQUEST, f"node {key.id} cannot do kraft.version {self.kraft_version}"))
        progress = lead.progress.get(key)
        fetches = progress is not None and progress.last_fetch_ms >= now_ms - 2 * self._settings.fetch_timeout_ms
        if progress is None or not fetches or progress.last_caught_up_ms < 0:
            return _refusal((ErrorCode.REQUEST_TIMED_OUT, f"node {key} does not follow the leader yet; try again"))
        if progress.last_caught_up_ms < now_ms - self._settings.add_voter_lag_ms:
            return _refusal((ErrorCode.REQUEST_TIMED_OUT, f"node {key} is too far behind the leader; try again"))
        voter = Voter(key, request.endpoints, request.min_kraft_version, request.max_kraft_version)
        if request.ack_when_committed:
            return self._change_voters(lead, self.voters.with_voter(voter), request.timeout_ms, now_ms)
        self._append_control(lead, (VotersRecord(self.voters.with_voter(voter)),), now_ms)
        return ChangeVotersAnswer()

    def remove_voter(self, request: RemoveVoter, now_ms: int) -> ChangeVotersAnswer | Parked:
        answer = self._remove_voter(request, now_ms)
        self.tick(now_ms)
        return answer

    def _remove_voter(self, request: RemoveVoter, now_ms: int) -> ChangeVotersAnswer | Parked:
        lead = self._role
        error = self._operator_error(request.cluster_id)
        if error is not None or not isinstance(lead, Leadership):
            return _refusal(error or (ErrorCode.NOT_LEADER_OR_FOLLOWER, "not the leader"))
        error = self._change_error(lead)
        if error is not None:
            return _refusal(error)
        voter = self.voters.by_id.get(request.voter.id)
        if voter is None or voter.key != request.voter:
            return _refusal((ErrorCode.VOTER_NOT_FOUND, f"node {request.voter} is not a voter"))
        if len(self.voters) == 1:
            return _refusal((ErrorCode.VOTER_NOT_FOUND, "the last voter cannot be removed"))
        return self._change_voters(lead, self.voters.without(voter.id), request.timeout_ms, now_ms)

    def _operator_error(self, cluster_id: str | None) -> tuple[ErrorCode, str] | None:
        if self._is_other_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {self.cluster_id}, not {cluster_id}"
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node does not lead the metadata quorum"
        if self.kraft_version < 1:
            return (
                ErrorCode.UNSUPPORTED_VERSION,
                "voters are static (kraft.version 0): raise the feature kraft.version to 1 first",
            )
        return None

    def update_voter(self, request: UpdateVoter, now_ms: int) -> UpdateVoterAnswer | Parked:
        answer = self._update_voter(request, now_ms)
        self.tick(now_ms)
        return answer

    def _update_voter(self, request: UpdateVoter, now_ms: int) -> UpdateVoterAnswer | Parked:
        lead = self._role
        error = self._leader_only_error(request.cluster_id, request.current_leader_epoch)
        if error is not None or not isinstance(lead, Leadership):
            return self._update_answer(error or ErrorCode.NOT_LEADER_OR_FOLLOWER)
        key = request.voter
        updated = Voter(key, request.endpoints, request.min_kraft_version, request.max_kraft_version)
        if key.directory_id is None or not request.endpoints:
            return self._update_answer(ErrorCode.INVALID_REQUEST)
        if not request.min_kraft_version <= self.kraft_version <= request.max_kraft_version:
            return self._update_answer(ErrorCode.INVALID_REQUEST)
        if not self.voters.has(key):
            return self._update_answer(ErrorCode.VOTER_NOT_FOUND)
        if self.kraft_version == 0:
            lead.introduced[key.id] = updated
            return self._update_answer(ErrorCode.NONE)
        if self.voters.by_id[key.id] == updated:
            return self._update_answer(ErrorCode.NONE)
        if self._change_error(lead) is not None:
            return self._update_answer(ErrorCode.REQUEST_TIMED_OUT)
        self._next_token += 1
        token = self._next_token
        lead.changes[token] = ParkedChange(
            offset=self._log.end.offset,
            expires_ms=now_ms + self._settings.request_timeout_ms,
            committed=self._update_answer(ErrorCode.NONE),
            timed_out=self._update_answer(ErrorCode.REQUEST_TIMED_OUT),
            deposed=UpdateVoterAnswer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_epoch=self.epoch),
        )
        self._append_control(lead, (VotersRecord(self.voters.with_voter(updated)),), now_ms)
        return Parked(token)

    def _update_answer(self, error: ErrorCode) -> UpdateVoterAnswer:
        return UpdateVoterAnswer(
            error=error,
            leader_id=self._told_leader_id,
            leader_epoch=self.epoch,
            leader_endpoints=self.leader_endpoints,
        )

    def upgrade_kraft_version(self, version: int, now_ms: int) -> int:
        """As leader, move from static voters to voters in the log (0 to 1): append a KRaftVersion and a Voters record.

        Returns the offset of the last record. Raises KafkaError: NOT_CONTROLLER, INVALID_UPDATE_VERSION (a voter cannot
        do it, has not shown its directory yet, or the version would go down), REQUEST_TIMED_OUT (a change is under way).
        """
        lead = self._role
        if not isinstance(lead, Leadership):
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this node does not lead the metadata quorum")
        if version == self.kraft_version:
            return self._membership.changed_at
        if not self.kraft_version < version <= MAX_KRAFT_VERSION:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"kraft.version can go from {self.kraft_version} to at most {MAX_KRAFT_VERSION}, not to {version}",
            )
        error = self._change_error(lead)
        if error is not None:
            raise KafkaError(*error)
        introduced = {**lead.introduced, self._key.id: self._as_voter()}
        voters = []
        for voter in self.voters.with_directories(lead.known_directories()):
            known = introduced.get(voter.id)
            if voter.key.directory_id is None or known is None or known.key != voter.key:
                raise KafkaError(
                    ErrorCode.INVALID_UPDATE_VERSION,
                    f"voter {voter.id} has not introduced itself to the leader: all voters have to run for this upgrade",
                )
            if not known.min_kraft_version <= version <= known.max_kraft_version:
                raise KafkaError(
                    ErrorCode.INVALID_UPDATE_VERSION, f"voter {voter.id} cannot do kraft.version {version}"
                )
            voters.append(replace(known, endpoints=known.endpoints or voter.endpoints))
        records = (KRaftVersionRecord(version), VotersRecord(VoterSet(tuple(voters))))
        last_offset = self._append_control(lead, records, now_ms)
        self.tick(now_ms)
        return last_offset

    # --- Going -------------------------------------------------------------------------------------------------------

    def resign(self, now_ms: int) -> None:
        """Give leadership up, telling the others whom we would prefer; does nothing when not leader."""
        if isinstance(self._role, Leadership):
            self._resign(self._role, now_ms)
            self.tick(now_ms)

    def shutdown(self, now_ms: int) -> None:
        """Stop taking part: resign if leader, never ask for votes again. `EndQuorumEpoch` is in the outbox; the driver
        gives it a moment to be delivered. Parked requests are answered NOT_LEADER_OR_FOLLOWER."""
        self._stopping = True
        if isinstance(self._role, Prospective | Candidate):
            self._become_unattached(self.epoch, now_ms)
        self.resign(now_ms)

    def _resign(self, lead: Leadership, now_ms: int) -> None:
        preferred = tuple(voter.id for voter in lead.preferred_successors(self.voters))
        resigned = Resigned(self._election_timeout(now_ms), list(preferred), preferred)
        self._enter(resigned, replace(self._state, leader_id=None))
        self._say_goodbye(resigned, now_ms)

    def _say_goodbye(self, resigned: Resigned, now_ms: int) -> None:
        voters = self.voters.by_id
        preferred = tuple(voters[node_id].key for node_id in resigned.preferred if node_id in voters)
        for node_id in resigned.unacknowledged:
            if node_id in voters and self._outbox.ready(node_id, EndQuorumEpoch, now_ms):
                request = EndQuorumEpoch(
                    cluster_id=self.cluster_id,
                    leader_id=self._key.id,
                    epoch=self.epoch,
                    preferred_candidates=preferred,
                    leader_endpoints=self._endpoints,
                )
                self._outbox.send(Peer(node_id, voters[node_id].endpoints), request, now_ms)

    # --- Outputs -----------------------------------------------------------------------------------------------------

    def drain_sends(self) -> list[Send]:
        return self._outbox.drain()

    def drain_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _refusal(error: tuple[ErrorCode, str]) -> ChangeVotersAnswer:
    return ChangeVotersAnswer(error=error[0], message=error[1])


def _worth_retrying(error: ErrorCode) -> bool:
    return error not in (ErrorCode.INVALID_REQUEST, ErrorCode.VOTER_NOT_FOUND)


def static_voters(addresses: dict[int, tuple[str, int]], listener_name: str) -> VoterSet:
    """The voters of `controller.quorum.voters`."""
    return VoterSet(
        tuple(
            Voter(ReplicaKey(node_id), (Endpoint(listener_name, host, port),))
            for node_id, (host, port) in sorted(addresses.items())
        )
    )
