"""The roles of a replica, each with what it keeps, and the table of transitions.

    from         to            when
    any          unattached    a higher epoch is seen, leader unknown
    any          follower      the leader of a higher epoch, or of this one, becomes known
    unattached   prospective   voter: election timeout (at once in a quorum of one)
    follower     prospective   voter: fetch timeout; its leader refuses connections, or says it no longer leads
    follower     unattached    observer: the same
    prospective  candidate     a majority grants the pre-vote; epoch + 1, vote for oneself on disk
    prospective  follower      refused by a majority or timeout, and a leader is known
    prospective  unattached    the same, and none is known
    candidate    leader        a majority grants its vote; LeaderChange record appended
    candidate    prospective   refused (after a pause), or timeout
    leader       resigned      no fetches from a majority for 1.5 fetch timeouts; removed from the voters; shutdown
    resigned     unattached    election timeout

A leader never follows itself, and never leads an epoch twice. "Observer" is no role: it is any replica that is
not in the voter set.
"""

from dataclasses import dataclass, field
from enum import Enum

from millstream.node.consensus.raft.messages import LogPosition
from millstream.node.consensus.raft.voter_set import Endpoint, VoterSet


class Role(Enum):
    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


@dataclass(slots=True)
class Ballot:
    """Votes of one election among the voters it began with."""

    voters: VoterSet
    votes: dict[int, bool] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    """Voters whose address refused the last connection: their process is not there."""

    @property
    def won(self) -> bool:
        return len(self.granting) >= self.voters.majority

    @property
    def lost(self) -> bool:
        refused = len(self.votes) - len(self.granting)
        return len(self.voters) - refused < self.voters.majority

    @property
    def hopeless(self) -> bool:
        """Lost, unless somebody who is gone comes back: most often a split vote that the dead leader cannot decide."""
        expected = [node_id for node_id in self.unanswered if node_id not in self.gone]
        return len(self.granting) + len(expected) < self.voters.majority

    def is_split(self, lost_leader_id: int) -> bool:
        """Whether a voter has refused, and all that may still grant are not enough without the lost leader."""
        expected = [node_id for node_id in self.unanswered if node_id not in self.gone and node_id != lost_leader_id]
        has_refusal = len(self.granting) < len(self.votes)
        return has_refusal and len(self.granting) + len(expected) < self.voters.majority

    @property
    def granting(self) -> tuple[int, ...]:
        return tuple(sorted(node_id for node_id, granted in self.votes.items() if granted))

    @property
    def unanswered(self) -> tuple[int, ...]:
        return tuple(node_id for node_id in self.voters.ids if node_id not in self.votes)


@dataclass(slots=True)
class Unattached:
    """Knows the epoch and no leader."""

    election_ms: int


@dataclass(slots=True)
class Prospective:
    """Asks whether it would be elected, before it troubles anybody with a new epoch."""

    ballot: Ballot
    gives_up_ms: int


@dataclass(slots=True)
class Candidate:
    ballot: Ballot
    gives_up_ms: int
    lost: bool = False
    hurried: bool = False
    """Whether it gives up sooner than usual because the vote is split."""


@dataclass(slots=True)
class ReceivingSnapshot:
    snapshot: LogPosition
    position: int


@dataclass(slots=True)
class Follower:
    leader_id: int
    leader_endpoints: tuple[Endpoint, ...]
    fetch_timeout_ms: int
    """When the leader counts as lost."""
    heard: bool = False
    """The leader answered a fetch, and was not lost since: pre-votes are refused."""
    election_ms: int | None = None
    """The leader is known to be gone: when to ask for votes."""
    receiving: ReceivingSnapshot | None = None
    introduced: bool = False
    """The leader knows our endpoints (UpdateVoter), or there is no need."""


@dataclass(slots=True)
class Resigned:
    until_ms: int
    unacknowledged: list[int]
    preferred: tuple[int, ...]
