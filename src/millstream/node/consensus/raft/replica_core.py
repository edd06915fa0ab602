"""What all roles of a replica share: its state, how it changes roles, and what it takes others' requests for."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from millstream.formats.model.errors import ErrorCode
from millstream.node.consensus.raft.events import (
    Event,
    HighWatermarkAdvanced,
    LeaderChanged,
    LostLeadership,
    VotersChanged,
)
from millstream.node.consensus.raft.leadership import Leadership
from millstream.node.consensus.raft.log import Membership, PlacedControlRecord, QuorumState, QuorumStateStore, RaftLog
from millstream.node.consensus.raft.messages import NO_LEADER, Peer
from millstream.node.consensus.raft.outbox import Outbox
from millstream.node.consensus.raft.roles import Candidate, Follower, Prospective, Resigned, Role, Unattached
from millstream.node.consensus.raft.settings import EpochPace, QuorumSettings
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterSet

MIN_KRAFT_VERSION = 0
MAX_KRAFT_VERSION = 1

_ROLES: dict[type, Role] = {
    Unattached: Role.UNATTACHED,
    Prospective: Role.PROSPECTIVE,
    Candidate: Role.CANDIDATE,
    Leadership: Role.LEADER,
    Follower: Role.FOLLOWER,
    Resigned: Role.RESIGNED,
}


class ReplicaCore(ABC):
    """State and transitions; the roles themselves are in the classes that build on this one, up to `RaftReplica`."""

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
        self._epoch_pace = EpochPace(now_ms)
        self._leader_heard: tuple[int, int] | None = None
        """The last leader that this replica followed, and when it last responded."""
        self._fetch_answered_ms: int | None = None
        """When the last fetch that a leader responded to was sent."""
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
    def leader_heard(self) -> tuple[int, int] | None:
        """The last leader that this replica followed, and when it last responded to a fetch."""
        return self._leader_heard

    def current_as_of_ms(self, now_ms: int) -> int | None:
        """Until when this replica knows that it had heard of all that was committed; None if it never did.

        For a follower, when it sent the last fetch that its leader responded to: the response may have waited here,
        unread, while the process did not run. For a leader, when a majority last fetched: without one, another may
        lead.
        """
        lead = self._role
        if isinstance(lead, Leadership):
            heard_ms = lead.majority_heard_ms(self.voters)
            return now_ms if heard_ms is None else heard_ms
        return self._fetch_answered_ms

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

    @abstractmethod
    def tick(self, now_ms: int) -> None:
        """Time has passed; every input ends with this, so that whatever became due is done."""

    @abstractmethod
    def _refuse_parked(self, lead: Leadership) -> None:
        """This replica no longer leads: whoever waits has to ask somebody else."""

    # --- Changing roles

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
        """A voter may, and so may one whose removal is not known to be committed: it may be the only one with the
        longest log, and the others need what it has before they can elect one of themselves (Raft thesis, 4.2.2)."""
        voters = self._membership.voters_while_uncommitted(self._high_watermark)
        return self._may_vote and not self._stopping and any(voter_set.has(self._key) for voter_set in voters)

    @property
    def _log_is_flushed(self) -> bool:
        """A fetch acknowledges everything below its offset: none is sent before that is on disk."""
        return self._log.flushed_offset >= self._log.end.offset

    def _election_timeout(self, now_ms: int) -> int:
        timeout_ms = self._settings.election_timeout_ms
        return now_ms + timeout_ms + self._randomness.randrange(max(1, timeout_ms))

    def _other_voters(self) -> list[Voter]:
        return [voter for voter in self.voters if voter.id != self._key.id]

    def _as_voter(self) -> Voter:
        return Voter(self._key, self._endpoints, MIN_KRAFT_VERSION, MAX_KRAFT_VERSION)

    # --- The log and the voters in it

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

    # --- Whose requests are taken

    def _voter_only_error(
        self, cluster_id: str | None, voter: ReplicaKey, sender_id: int, epoch: int, now_ms: int
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
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return None if self._epoch_pace.admits(epoch - self.epoch, now_ms) else ErrorCode.INVALID_REQUEST

    def _is_other_cluster(self, cluster_id: str | None) -> bool:
        return None not in (cluster_id, self.cluster_id) and cluster_id != self.cluster_id

    @property
    def _told_leader_id(self) -> int:
        return NO_LEADER if self.leader_id is None else self.leader_id

    def _leader_only_error(self, cluster_id: str | None, epoch: int) -> ErrorCode | None:
        if self._is_other_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if epoch >= 0 and epoch != self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        return None if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
