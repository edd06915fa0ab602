"""Elections: the ballot, and the roles that request votes. A prospective requests pre-votes, a candidate votes."""

from abc import ABC, abstractmethod
from dataclasses import field
from typing import TYPE_CHECKING

from millstream.common.lazy_dataclass import dataclass
from millstream.node.consensus.raft.messages import Peer, PeerResponse, Send, Vote, VoteResponse
from millstream.node.consensus.raft.roles import ReplicaRole, Role
from millstream.node.consensus.raft.voter_set import VoterSet

if TYPE_CHECKING:
    from millstream.node.consensus.raft.replica import RaftReplica

ELECTION_BACKOFF_MS = 50


@dataclass(slots=True)
class Ballot:
    """Votes of one election among the voters it began with."""

    voters: VoterSet
    votes: dict[int, bool] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    """Voters whose address refused the last connection: their process does not run."""

    @property
    def is_won(self) -> bool:
        return len(self.granting) >= self.voters.majority

    @property
    def is_lost(self) -> bool:
        refused = len(self.votes) - len(self.granting)
        return len(self.voters) - refused < self.voters.majority

    @property
    def is_lost_without_gone(self) -> bool:
        """Whether the election is lost, unless an offline voter returns. Most often the votes are split, and the failed
        leader cannot vote."""
        expected = [node_id for node_id in self.missing if node_id not in self.gone]
        return len(self.granting) + len(expected) < self.voters.majority

    def is_split(self, lost_leader_id: int) -> bool:
        """Whether a voter has refused, and all that may still grant are not enough without the lost leader."""
        expected = [node_id for node_id in self.missing if node_id not in self.gone and node_id != lost_leader_id]
        has_refusal = len(self.granting) < len(self.votes)
        return has_refusal and len(self.granting) + len(expected) < self.voters.majority

    @property
    def granting(self) -> tuple[int, ...]:
        return tuple(sorted(node_id for node_id, granted in self.votes.items() if granted))

    @property
    def missing(self) -> tuple[int, ...]:
        """Voters without a vote so far."""
        return tuple(node_id for node_id in self.voters.ids if node_id not in self.votes)


class _Campaign(ReplicaRole, ABC):
    """Requests votes, until the ballot is decided or the timeout has passed."""

    is_pre_vote: bool

    def __init__(self, replica: "RaftReplica", ends_ms: int) -> None:
        super().__init__(replica)
        self.ballot = Ballot(replica.voters, {replica.key.id: True} if replica.is_voter else {})
        self._ends_ms = ends_ms

    def deadlines_ms(self) -> list[int]:
        return [self._ends_ms, *(self._replica.outbox.ready_ms(node_id, Vote) for node_id in self.ballot.missing)]

    def on_response(self, send: Send, response: PeerResponse, now_ms: int) -> None:
        if isinstance(response, VoteResponse):
            self.ballot.votes[send.peer.id] = response.granted and not response.error
            self.count(now_ms)
            return
        super().on_response(send, response, now_ms)

    @abstractmethod
    def count(self, now_ms: int) -> None:
        """Counts the votes, and acts on the result."""

    def _request_votes(self, now_ms: int) -> None:
        replica = self._replica
        for node_id in self.ballot.missing:
            if replica.outbox.ready(node_id, Vote, now_ms):
                voter = self.ballot.voters.by_id[node_id]
                request = Vote(
                    cluster_id=replica.cluster_id,
                    voter=voter.key,
                    epoch=replica.epoch,
                    candidate=replica.key,
                    log_end=replica.log.end,
                    pre_vote=self.is_pre_vote,
                )
                replica.outbox.send(Peer(node_id, voter.endpoints), request, now_ms)


class Prospective(_Campaign):
    """Requests pre-votes: would a majority elect it? Nothing changes on the other replicas."""

    role = Role.PROSPECTIVE
    is_pre_vote = True

    def step(self, now_ms: int) -> None:
        if now_ms >= self._ends_ms:
            self._replica.end_pre_vote(now_ms)
        else:
            self._request_votes(now_ms)

    def count(self, now_ms: int) -> None:
        if self.ballot.is_won:
            self._replica.become_candidate(now_ms)
        elif self.ballot.is_lost:
            self._replica.end_pre_vote(now_ms)
        else:
            self._request_votes(now_ms)


class Candidate(_Campaign):
    """Requests votes in a new epoch, in which it has voted for itself."""

    role = Role.CANDIDATE
    is_pre_vote = False

    def __init__(self, replica: "RaftReplica", ends_ms: int) -> None:
        super().__init__(replica, ends_ms)
        self._is_lost = False
        self._ends_early = False
        """Whether the timeout was shortened because the vote is split."""

    def deadlines_ms(self) -> list[int]:
        return [self._ends_ms] if self._is_lost else super().deadlines_ms()

    def step(self, now_ms: int) -> None:
        if now_ms >= self._ends_ms:
            self._replica.become_prospective(now_ms)
        elif not self._is_lost:
            self._request_votes(now_ms)

    def count(self, now_ms: int) -> None:
        if self.ballot.is_won:
            self._replica.become_leader(self.ballot, now_ms)
        elif self.ballot.is_lost_without_gone:
            if not self._is_lost:
                self._is_lost = True
                self._ends_ms = now_ms + self._backoff_ms()
        else:
            self._request_votes(now_ms)
            self._end_early_if_split(now_ms)

    def on_request_failed(self, send: Send, *, refused: bool, now_ms: int) -> None:
        if refused:
            self.ballot.gone.add(send.peer.id)
            self.count(now_ms)

    def _end_early_if_split(self, now_ms: int) -> None:
        """Only the lost leader could decide a split vote. It may hang, so the timeout for its vote is shorter."""
        leader_heard = self._replica.leader_heard
        if self._ends_early or leader_heard is None or not self.ballot.is_split(leader_heard[0]):
            return
        self._ends_early = True
        self._ends_ms = min(self._ends_ms, now_ms + self._backoff_ms())

    def _backoff_ms(self) -> int:
        replica = self._replica
        replica.lost_elections += 1
        most_ms = min(replica.settings.election_backoff_max_ms, ELECTION_BACKOFF_MS << min(replica.lost_elections, 10))
        return replica.randomness.randrange(max(1, most_ms)) + 1
