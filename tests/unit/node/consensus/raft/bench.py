"""One replica on the bench: a test plays its peers and its clock."""

from random import Random
from typing import TypeVar

from millstream.node.consensus.raft.events import Event
from millstream.node.consensus.raft.log import QuorumState
from millstream.node.consensus.raft.messages import (
    BeginQuorumEpoch,
    Fetch,
    FetchResponse,
    LogPosition,
    Parked,
    Peer,
    PeerResponse,
    Send,
    Vote,
    VoteResponse,
)
from millstream.node.consensus.raft.replica import RaftReplica
from millstream.node.consensus.raft.roles import Role
from millstream.node.consensus.raft.settings import QuorumSettings
from millstream.node.consensus.raft.voter_set import ReplicaKey, Voter, VoterSet
from tests.unit.node.consensus.raft.cluster import endpoint_of, key_of
from tests.unit.node.consensus.raft.memory import Entry, MemoryLog, MemoryStore

E = TypeVar("E", bound=Event)
SETTINGS = QuorumSettings()


class Bench:
    """Node 1 of the voters, unless said otherwise. `log_epochs` is what its log holds: one record per epoch named."""

    def __init__(
        self,
        *,
        node_id: int = 1,
        voters: int = 3,
        may_vote: bool = True,
        log_epochs: tuple[int, ...] = (),
        saved: QuorumState | None = None,
        bootstrap: bool = False,
        seed: int = 0,
        log: MemoryLog | None = None,
    ) -> None:
        self.now = 10_000
        self.log = log or MemoryLog()
        if log is None:
            self.log.entries = [Entry(epoch, f"old{place}") for place, epoch in enumerate(log_epochs)]
            self.log.flush()
        self.store = MemoryStore(saved)
        static = VoterSet(tuple(Voter(ReplicaKey(i), endpoint_of(i)) for i in range(1, voters + 1)))
        self.replica = RaftReplica(
            key=key_of(node_id),
            static_voters=VoterSet() if bootstrap else static,
            bootstrap_servers=(Peer(-2, endpoint_of(2)), Peer(-3, endpoint_of(3))) if bootstrap else (),
            may_vote=may_vote,
            endpoints=endpoint_of(node_id),
            cluster_id="c",
            log=self.log,
            store=self.store,
            settings=SETTINGS,
            randomness=Random(seed),
            now_ms=self.now,
        )
        self.replica.tick(self.now)
        self._events: list[Event] = []

    def after(self, ms: int) -> "Bench":
        self.now += ms
        self.replica.tick(self.now)
        return self

    def sends(self, kind: type) -> list[Send]:
        """What was sent since the last look, of one kind."""
        return [send for send in self.replica.drain_sends() if isinstance(send.request, kind)]

    def events(self, kind: type[E]) -> list[E]:
        self._events += self.replica.drain_events()
        found: list[E] = [event for event in self._events if isinstance(event, kind)]
        self._events = [event for event in self._events if not isinstance(event, kind)]
        return found

    def flush(self) -> None:
        self.log.flush()
        self.replica.on_flushed(self.now)

    def respond(self, send: Send, response: PeerResponse) -> None:
        self.replica.on_response(send, response, self.now)

    def grant(self, *, by: tuple[int, ...] = (2,)) -> None:
        """Responses to the votes asked for: granted by some, refused by no one."""
        for send in self.sends(Vote):
            if send.peer.id in by:
                self.respond(send, VoteResponse(leader_epoch=self.replica.epoch, granted=True))

    def elect(self) -> "Bench":
        """Make it leader, with nothing committed in its epoch yet."""
        self.after(2 * SETTINGS.election_timeout_ms)
        assert self.replica.role == Role.PROSPECTIVE
        self.grant()
        assert self.replica.role == Role.CANDIDATE
        self.grant()
        assert self.replica.is_leader
        return self

    def lead(self, *followers: int) -> "Bench":
        """Make it leader, and have its epoch's first record committed."""
        self.elect()
        self.flush()
        for follower in followers or (2,):
            self.fetched(follower)
        return self

    def fetched(
        self,
        node_id: int,
        offset: int | None = None,
        epoch: int | None = None,
        *,
        high_watermark: int | None = None,
        max_wait_ms: int = 0,
        leader_epoch: int | None = None,
        key: ReplicaKey | None = None,
    ) -> FetchResponse | Parked:
        """A fetch by another replica: by default of one that has everything."""
        end = self.log.end
        return self.replica.fetch(
            Fetch(
                cluster_id="c",
                replica=key or key_of(node_id),
                current_leader_epoch=self.replica.epoch if leader_epoch is None else leader_epoch,
                offset=end.offset if offset is None else offset,
                last_fetched_epoch=end.epoch if epoch is None else epoch,
                high_watermark=self.replica.high_watermark if high_watermark is None else high_watermark,
                max_wait_ms=max_wait_ms,
                max_bytes=1000,
            ),
            self.now,
        )

    def asked(
        self,
        epoch: int,
        *,
        candidate: int = 2,
        pre_vote: bool = False,
        log_end: tuple[int, int] | None = None,
        generation: int = 0,
        voter: ReplicaKey | None = None,
        cluster_id: str | None = "c",
    ) -> VoteResponse:
        """Someone asks for this replica's vote: by default with a log as long as its own."""
        return self.replica.vote(
            Vote(
                cluster_id=cluster_id,
                voter=voter or self.replica.key,
                epoch=epoch,
                candidate=key_of(candidate, generation),
                log_end=self.log.end if log_end is None else LogPosition(*log_end),
                pre_vote=pre_vote,
            ),
            self.now,
        )

    def follow(self, leader_id: int = 2, epoch: int = 1) -> Send:
        """Make it a follower that has heard its leader once; its fetch that is under way."""
        self.replica.drain_sends()
        self.replica.begin_quorum_epoch(
            BeginQuorumEpoch(
                cluster_id="c",
                voter=self.replica.key,
                leader_id=leader_id,
                epoch=epoch,
                leader_endpoints=endpoint_of(leader_id),
            ),
            self.now,
        )
        (fetch,) = self.sends(Fetch)
        self.respond(fetch, self.nothing_new())
        (fetch,) = self.sends(Fetch)
        return fetch

    def nothing_new(self, high_watermark: int | None = None) -> FetchResponse:
        return FetchResponse(
            leader_id=self.replica.leader_id or -1,
            leader_epoch=self.replica.epoch,
            high_watermark=self.replica.high_watermark if high_watermark is None else high_watermark,
        )
