"""The roles of a replica: their interface, the table of role changes, and the two small ones, unattached and resigned.

A replica has one role object at a time. It holds the state that exists only in this role, and acts on time and on
responses. The other roles are in `elections`, `follower` and `leader`.

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

A leader never follows itself, and never leads an epoch twice. "Observer" is no role: it is any replica that is not in
the voter set.
"""

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from millstream.node.consensus.raft.messages import (
    EndQuorumEpoch,
    Fetch,
    FetchResponse,
    Peer,
    PeerResponse,
    QuorumEpochResponse,
    Send,
)

if TYPE_CHECKING:
    from millstream.node.consensus.raft.replica import RaftReplica


class Role(Enum):
    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


class ReplicaRole(ABC):
    """What a replica does in one role."""

    role: ClassVar[Role]

    def __init__(self, replica: "RaftReplica") -> None:
        self._replica = replica

    @abstractmethod
    def deadlines_ms(self) -> list[int]:
        """The times at which `step` has something to do."""

    @abstractmethod
    def step(self, now_ms: int) -> None:
        """Does what is due. It may change the role of the replica."""

    def on_response(self, send: Send, response: PeerResponse, now_ms: int) -> None:
        """The response to the latest request of its kind. The outbox has noted success or failure already."""
        if isinstance(response, FetchResponse):
            self._replica.outbox.failed(send, now_ms)  # the peer knew no leader: send it again later

    def on_request_failed(self, send: Send, *, refused: bool, now_ms: int) -> None:
        """The latest request of its kind got no response. `refused`: the address refused the connection."""
        return

    def on_left(self) -> None:
        """The replica has another role now."""
        return

    @property
    def refuses_pre_votes(self) -> bool:
        """Whether a live leader is known."""
        return False

    def _fetch_request(self, wait_ms: int) -> Fetch:
        replica = self._replica
        end = replica.log.end
        return Fetch(
            cluster_id=replica.cluster_id,
            replica=replica.key,
            current_leader_epoch=replica.epoch,
            offset=end.offset,
            last_fetched_epoch=end.epoch,
            high_watermark=replica.high_watermark,
            max_wait_ms=wait_ms,
            max_bytes=replica.settings.fetch_max_bytes,
        )


class Unattached(ReplicaRole):
    """Knows the epoch and no leader: sends fetches to find one, until the election timeout."""

    role = Role.UNATTACHED

    def __init__(self, replica: "RaftReplica", election_ms: int) -> None:
        super().__init__(replica)
        self._election_ms = election_ms

    def deadlines_ms(self) -> list[int]:
        replica = self._replica
        deadlines = []
        if replica.log_is_flushed:
            deadlines += [replica.outbox.ready_ms(peer.id, Fetch) for peer in self._peers()]
        if replica.may_campaign:
            deadlines.append(self._election_ms)
        return deadlines

    def step(self, now_ms: int) -> None:
        replica = self._replica
        is_alone = replica.is_voter and len(replica.voters) == 1
        if replica.may_campaign and (is_alone or now_ms >= self._election_ms):
            replica.become_prospective(now_ms)
            return
        for peer in self._peers():
            if replica.outbox.ready(peer.id, Fetch, now_ms) and replica.log_is_flushed:
                replica.outbox.send(peer, self._fetch_request(wait_ms=0), now_ms)

    def _peers(self) -> list[Peer]:
        """Nodes that may know the leader."""
        replica = self._replica
        peers = [Peer(voter.id, voter.endpoints) for voter in replica.other_voters()]
        return peers if peers and replica.is_voter else [*peers, *replica.bootstrap_servers]


class Resigned(ReplicaRole):
    """Gave leadership up: sends EndQuorumEpoch to the other voters until each has acknowledged it."""

    role = Role.RESIGNED

    def __init__(self, replica: "RaftReplica", until_ms: int, preferred: tuple[int, ...]) -> None:
        """`preferred`: the other voters, best successor first."""
        super().__init__(replica)
        self._until_ms = until_ms
        self._preferred = preferred
        self._unacknowledged = list(preferred)

    def deadlines_ms(self) -> list[int]:
        replica = self._replica
        deadlines = [replica.outbox.ready_ms(node_id, EndQuorumEpoch) for node_id in self._unacknowledged]
        if not replica.is_stopping:
            deadlines.append(self._until_ms)
        return deadlines

    def step(self, now_ms: int) -> None:
        replica = self._replica
        if now_ms >= self._until_ms and not replica.is_stopping:
            replica.become_unattached(replica.epoch, now_ms)
        else:
            self.send_end_quorum_epoch(now_ms)

    def on_response(self, send: Send, response: PeerResponse, now_ms: int) -> None:
        if isinstance(response, QuorumEpochResponse):
            if send.peer.id in self._unacknowledged:
                self._unacknowledged.remove(send.peer.id)
            return
        super().on_response(send, response, now_ms)

    def send_end_quorum_epoch(self, now_ms: int) -> None:
        replica = self._replica
        voters = replica.voters.by_id
        preferred = tuple(voters[node_id].key for node_id in self._preferred if node_id in voters)
        for node_id in self._unacknowledged:
            if node_id in voters and replica.outbox.ready(node_id, EndQuorumEpoch, now_ms):
                request = EndQuorumEpoch(
                    cluster_id=replica.cluster_id,
                    leader_id=replica.key.id,
                    epoch=replica.epoch,
                    preferred_candidates=preferred,
                    leader_endpoints=replica.endpoints,
                )
                replica.outbox.send(Peer(node_id, voters[node_id].endpoints), request, now_ms)
