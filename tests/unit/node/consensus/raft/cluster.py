"""A cluster of replicas in memory, in virtual time, with the faults of one seed; checks Raft's promises all along."""

import heapq
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from millstream.node.consensus.raft.events import (
    BecameLeader,
    HighWatermarkAdvanced,
    LostLeadership,
    Refused,
    Responded,
    SnapshotInstalled,
    Truncated,
)
from millstream.node.consensus.raft.log import LeaderChangeRecord
from millstream.node.consensus.raft.messages import (
    AddVoter,
    BeginQuorumEpoch,
    ChangeVotersResponse,
    EndQuorumEpoch,
    Fetch,
    FetchSnapshot,
    Parked,
    PeerRequest,
    RemoveVoter,
    Send,
    UpdateVoter,
    Vote,
)
from millstream.node.consensus.raft.replica import RaftReplica
from millstream.node.consensus.raft.settings import QuorumSettings
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterSet
from tests.unit.node.consensus.raft.memory import Entry, MemoryLog, MemoryStore


@dataclass
class Faults:
    """Chances per message, and the range of delays."""

    loss: float = 0.0
    duplicate: float = 0.0
    max_delay_ms: int = 5
    max_flush_ms: int = 5


def key_of(node_id: int, generation: int = 0) -> ReplicaKey:
    return ReplicaKey(node_id, UUID(int=1000 * (generation + 1) + node_id))


def endpoint_of(node_id: int) -> tuple[Endpoint, ...]:
    return (Endpoint("CONTROLLER", f"node{node_id}", 9093),)


@dataclass
class Node:
    key: ReplicaKey
    log: MemoryLog = field(default_factory=MemoryLog)
    store: MemoryStore = field(default_factory=MemoryStore)
    replica: RaftReplica | None = None
    life: int = 0
    flushing: bool = False
    parked: dict[int, Any] = field(default_factory=dict)
    connections: dict[int, Any] = field(default_factory=dict)
    tick_at: int = -1
    paused_until: int = 0


class Cluster:
    def __init__(self, seed: int, voters: int, observers: int = 0, settings: QuorumSettings | None = None) -> None:
        self.random = Random(seed)
        self.settings = settings or QuorumSettings()
        self.now = 1000
        self.faults = Faults()
        self.cut: set[tuple[int, int]] = set()
        """Directed links that lose everything."""
        self._queue: list[tuple[int, int, Any]] = []
        self._order = 0
        self.static = VoterSet(tuple(Voter(ReplicaKey(i), endpoint_of(i)) for i in range(1, voters + 1)))
        self.nodes = {i: Node(key_of(i)) for i in range(1, voters + observers + 1)}
        self.leaders: dict[int, int] = {}
        self.committed: list[Entry] = []
        self.change_responses: list[ChangeVotersResponse] = []
        self.story: list[str] = []
        self._values = 0
        for node_id in self.nodes:
            self.start(node_id)

    # --- Virtual time ------------------------------------------------------------------------------------------------

    def later(self, delay_ms: int, action: Any) -> None:
        self._order += 1
        heapq.heappush(self._queue, (self.now + delay_ms, self._order, action))

    def run(self, duration_ms: int) -> None:
        until = self.now + duration_ms
        while self._queue and self._queue[0][0] <= until:
            at, _, action = heapq.heappop(self._queue)
            self.now = max(self.now, at)
            action()
        self.now = until

    def run_until(self, condition: Any, limit_ms: int) -> bool:
        until = self.now + limit_ms
        while self.now < until:
            if condition():
                return True
            self.run(10)
        return bool(condition())

    # --- Nodes -------------------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        node = self.nodes[node_id]
        assert node.replica is None
        node.life += 1
        node.flushing = False
        node.tick_at = -1
        node.parked = {}
        node.replica = RaftReplica(
            key=node.key,
            static_voters=self.static,
            bootstrap_servers=(),
            may_vote=True,
            endpoints=endpoint_of(node_id),
            cluster_id=None,
            log=node.log,
            store=node.store,
            settings=self.settings,
            randomness=Random(self.random.random()),
            now_ms=self.now,
        )
        self.say(f"{node_id} starts at {node.log.end}, {node.store.saved}")
        node.replica.tick(self.now)
        self.after(node_id)

    def crash(self, node_id: int) -> None:
        node = self.nodes[node_id]
        self.say(f"{node_id} crashes, {node.log.end} flushed {node.log.flushed_offset}")
        node.replica = None
        node.log.crash()
        for token, broken in list(node.connections.items()):
            if token in node.parked:
                broken()
        node.connections = {}

    def say(self, line: str) -> None:
        self.story.append(f"{self.now} {line}")

    def after(self, node_id: int) -> None:
        """What a driver does after every input."""
        node = self.nodes[node_id]
        replica = node.replica
        assert replica is not None
        for event in replica.drain_events():
            match event:
                case BecameLeader(epoch, _):
                    self.say(f"{node_id} leads {epoch}")
                    assert self.leaders.setdefault(epoch, node_id) == node_id, f"two leaders in epoch {epoch}"
                    self.check_leader_completeness(node)
                case LostLeadership(epoch):
                    self.say(f"{node_id} no longer leads {epoch}")
                case HighWatermarkAdvanced(offset):
                    self.check_committed(node, offset)
                case Truncated(end_offset):
                    self.say(f"{node_id} truncates to {end_offset}")
                case SnapshotInstalled(snapshot):
                    self.say(f"{node_id} installs {snapshot}")
                    self.check_committed(node, snapshot.offset)
                case Responded(token, response):
                    respond = node.parked.pop(token, None)
                    node.connections.pop(token, None)
                    if respond is not None:
                        respond(response)
                case Refused(error, by):
                    raise AssertionError(f"{node_id} refused by {by}: {error.name}")
                case _:
                    pass
        for send in replica.drain_sends():
            self.transmit(node_id, send)
        if node.log.flushed_offset < node.log.end.offset and not node.flushing:
            node.flushing = True
            self.later(self.random.randint(0, self.faults.max_flush_ms), self._flush_of(node_id))
        deadline = max(self.now, replica.next_deadline_ms)
        if node.tick_at < self.now or deadline < node.tick_at:
            node.tick_at = deadline
            self.later(deadline - self.now, self._tick_of(node_id))

    def _flush_of(self, node_id: int) -> Any:
        node = self.nodes[node_id]
        life, end, epochs = node.life, node.log.end.offset, node.log.end.epoch

        def flushed() -> None:
            if node.life != life or node.replica is None:
                return
            node.flushing = False
            # Only what was there when the flush began, and is still the same, counts.
            kept = min(end, node.log.end_of_epoch(epochs).offset)
            if kept > node.log.flushed_offset:
                node.log.flush(kept)
            node.replica.on_flushed(self.now)
            self.after(node_id)

        return flushed

    def _tick_of(self, node_id: int) -> Any:
        node = self.nodes[node_id]
        life = node.life

        def tick() -> None:
            if node.life != life or node.replica is None:
                return
            if self.now < node.paused_until:
                self.later(node.paused_until - self.now, tick)
                return
            node.tick_at = -1
            node.replica.tick(self.now)
            self.after(node_id)
            assert node.replica.next_deadline_ms > self.now, f"{node_id} {node.replica.role} would spin"

        return tick

    # --- Messages ----------------------------------------------------------------------------------------------------

    def transmit(self, source: int, send: Send) -> None:
        target = send.peer.id
        life = self.nodes[source].life

        def fail(refused: bool) -> None:
            node = self.nodes[source]
            if node.life == life and node.replica is not None:
                node.replica.on_request_failed(send, refused=refused, now_ms=self.now)
                self.after(source)

        def responded(response: Any) -> None:
            node = self.nodes[source]
            if node.life == life and node.replica is not None:
                node.replica.on_response(send, response, self.now)
                self.after(source)

        def respond(response: Any) -> None:
            if (target, source) in self.cut or self.chance(self.faults.loss):
                self.later(self.settings.request_timeout_ms, lambda: fail(False))
                return
            for _ in range(2 if self.chance(self.faults.duplicate) else 1):
                self.later(self.delay(), lambda: responded(response))

        def broken() -> None:
            if (target, source) not in self.cut:
                self.later(self.delay(), lambda: fail(False))

        def arrive() -> None:
            node = self.nodes.get(target)
            if node is None or node.replica is None:
                fail(True)
                return
            if self.now < node.paused_until:
                self.later(node.paused_until - self.now, arrive)
                return
            response = self.deliver(node.replica, send.request)
            if isinstance(response, Parked):
                node.parked[response.token] = respond
                node.connections[response.token] = broken
            else:
                respond(response)
            self.after(target)

        if (source, target) in self.cut or self.chance(self.faults.loss):
            self.later(self.settings.request_timeout_ms, lambda: fail(False))
            return
        for _ in range(2 if self.chance(self.faults.duplicate) else 1):
            self.later(self.delay(), arrive)

    def deliver(self, replica: RaftReplica, request: PeerRequest) -> Any:
        match request:
            case Vote():
                return replica.vote(request, self.now)
            case BeginQuorumEpoch():
                return replica.begin_quorum_epoch(request, self.now)
            case EndQuorumEpoch():
                return replica.end_quorum_epoch(request, self.now)
            case Fetch():
                return replica.fetch(request, self.now)
            case FetchSnapshot():
                return replica.fetch_snapshot(request, self.now)
            case UpdateVoter():
                return replica.update_voter(request, self.now)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def delay(self) -> int:
        return self.random.randint(0, self.faults.max_delay_ms)

    # --- What is asked of the cluster --------------------------------------------------------------------------------

    def leader(self) -> int | None:
        """The leader of the highest epoch, if its leadership is committed."""
        leading = [
            (node.replica.epoch, node_id)
            for node_id, node in self.nodes.items()
            if node.replica is not None and node.replica.is_leader
        ]
        return max(leading)[1] if leading else None

    def append(self, count: int = 1) -> bool:
        """Give records to the replica that leads (or believes so)."""
        leading = [i for i, node in self.nodes.items() if node.replica is not None and node.replica.is_leader]
        if not leading:
            return False
        node_id = self.random.choice(leading)
        replica = self.nodes[node_id].replica
        assert replica is not None
        values = [f"v{self._values + i}" for i in range(count)]
        self._values += count
        replica.append(values, self.now)
        self.after(node_id)
        return True

    def snapshot(self, node_id: int) -> None:
        node = self.nodes[node_id]
        if node.replica is not None and node.replica.high_watermark > node.log.start.offset:
            node.log.take_snapshot(node.replica.high_watermark)
            node.replica.on_log_trimmed()
            self.after(node_id)

    def change(self, add: int | None = None, remove: int | None = None) -> Any:
        """Ask the leader for a change of the voters; responses collect in `change_responses`."""
        leader = self.leader()
        if leader is None:
            return None
        node = self.nodes[leader]
        assert node.replica is not None
        if add is not None:
            response = node.replica.add_voter(
                AddVoter(cluster_id=None, voter=self.nodes[add].key, endpoints=endpoint_of(add), timeout_ms=5000),
                self.now,
            )
        else:
            assert remove is not None
            voter = node.replica.voters.by_id.get(remove)
            key = voter.key if voter is not None else ReplicaKey(remove)
            response = node.replica.remove_voter(RemoveVoter(cluster_id=None, voter=key), self.now)
        self.say(f"{leader} is asked to add {add} remove {remove}: {response}")
        if isinstance(response, Parked):
            node.parked[response.token] = self.change_responses.append
        else:
            self.change_responses.append(response)
        self.after(leader)
        return response

    def upgrade(self) -> None:
        """Put the voters into the log."""
        leader = self.leader()
        assert leader is not None
        replica = self.nodes[leader].replica
        assert replica is not None
        replica.upgrade_kraft_version(1, self.now)
        self.after(leader)

    def heal(self) -> None:
        self.cut.clear()
        self.faults = Faults()
        for node_id, node in self.nodes.items():
            node.paused_until = 0
            if node.replica is None:
                self.start(node_id)

    # --- Raft's promises ---------------------------------------------------------------------------------------------

    def check_committed(self, node: Node, offset: int) -> None:
        """State machine safety: what is committed is the same everywhere, and never changes."""
        entries = node.log.all_entries()[:offset]
        assert len(entries) == offset, "committed records that are not there"
        known = min(offset, len(self.committed))
        assert entries[:known] == self.committed[:known], f"{node.key}: committed records changed"
        if offset > len(self.committed):
            self.committed = entries

    def check_leader_completeness(self, node: Node) -> None:
        entries = node.log.all_entries()
        assert entries[: len(self.committed)] == self.committed, f"{node.key}: leads without all that is committed"

    def check_log_matching(self) -> None:
        """If two logs have the same epoch at an offset, they are the same up to there."""
        logs = [node.log.all_entries() for node in self.nodes.values()]
        for place, first in enumerate(logs):
            for second in logs[place + 1 :]:
                shared = min(len(first), len(second))
                same = next((i for i in range(shared - 1, -1, -1) if first[i].epoch == second[i].epoch), -1)
                assert first[: same + 1] == second[: same + 1], "logs differ below a common record"

    def check_leader_change_first(self) -> None:
        """Every epoch in the log opens with its LeaderChange record."""
        epoch = 0
        for entry in self.committed:
            assert entry.epoch >= epoch
            if entry.epoch > epoch:
                assert isinstance(entry.value, LeaderChangeRecord)
                assert entry.value.leader_id == self.leaders[entry.epoch]
                epoch = entry.epoch

    def settled(self) -> bool:
        """One leader, followed by everyone, with everything committed everywhere."""
        leader = self.leader()
        if leader is None:
            return False
        replica = self.nodes[leader].replica
        assert replica is not None
        end = self.nodes[leader].log.end
        return replica.high_watermark == end.offset and all(
            node.replica is not None
            and node.replica.leader_id == leader
            and node.replica.epoch == replica.epoch
            and node.log.end == end
            and node.replica.high_watermark == end.offset
            for node in self.nodes.values()
        )
