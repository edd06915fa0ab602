"""Replicas of one partition on pretended brokers, with a controller and a network that delays, loses and repeats.

The brokers run the real leader and follower of `millstream.node.replicas.core`; the controller here does what
AlterPartition and elections must. Everything is taken from one random generator, so a seed is a run. The promises are
checked all along.
"""

import random
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.replicas.core.follower import FollowerPosition, PartitionFollower, Reaction
from millstream.node.replicas.core.leader import Confirmed, NextStep, PartitionLeader, Proposal
from tests.unit.node.replicas.memory_log import MemoryLog, Record

NOBODY = -1
LAG_MAX_MS = 1000


@dataclass(frozen=True)
class State:
    """The partition, as a metadata record has it."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]


@dataclass(frozen=True)
class FetchResponse:
    asked: FollowerPosition
    error: int = 0
    records: tuple[Record, ...] = ()
    diverging: tuple[int, int] | None = None
    high_watermark: int = -1
    log_start: int = 0


class Broker:
    def __init__(self, node_id: int, model: "ClusterModel") -> None:
        self.id = node_id
        self.model = model
        self.log = MemoryLog()
        self.high_watermark = 0
        self.epoch = 0
        self.is_up = True
        self.seen = 0
        """How many metadata records it has read."""
        self.state: State | None = None
        self.leader: PartitionLeader | None = None
        self.follower: PartitionFollower | None = None
        self.waiting: list[tuple[int, str]] = []
        """Writes that a client waits for: offset and value."""

    # What the leader asks

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return (broker_id, broker_epoch) in self.model.registered_as_seen_by(self)

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in {broker for broker, _ in self.model.registered_as_seen_by(self)}

    def broker_epoch(self) -> int:
        return self.epoch

    def lag_max_ms(self) -> int:
        return LAG_MAX_MS

    def min_in_sync(self) -> int:
        return self.model.min_in_sync

    def own_end(self) -> int:
        return self.log.log_end_offset

    # Metadata

    def learn(self) -> None:
        """Reads one more record of the metadata."""
        if self.seen == len(self.model.metadata):
            return
        self.seen += 1
        state = self.model.metadata[self.seen - 1]
        before, self.state = self.state, state
        now_ms = self.model.now_ms
        if state.leader == self.id:
            if before is not None and self.leader is not None and self.leader.leader_epoch == state.leader_epoch:
                self.leader.updated(
                    replicas=state.replicas, isr=state.isr, partition_epoch=state.partition_epoch, now_ms=now_ms
                )
            else:
                self.waiting.clear()
                self.follower = None
                self.log.begin_epoch(state.leader_epoch)
                self.leader = PartitionLeader(
                    self.id,
                    self.log,
                    self,
                    replicas=state.replicas,
                    isr=state.isr,
                    leader_epoch=state.leader_epoch,
                    partition_epoch=state.partition_epoch,
                    high_watermark=self.high_watermark,
                    now_ms=now_ms,
                )
        else:
            is_new = self.follower is None or self.follower.leader_epoch != state.leader_epoch
            self.leader = None
            self.waiting.clear()
            if state.leader == NOBODY:
                self.follower = None
            elif is_new:
                self.follower = PartitionFollower(self.log, state.leader, state.leader_epoch, self.high_watermark)
        self.look()

    def look(self) -> None:
        """The promises that a broker gives by itself; and writes that are now acknowledged."""
        if self.leader is not None:
            assert self.leader.high_watermark >= self.high_watermark, "the high watermark of a leader went back"
            self.high_watermark = self.leader.high_watermark
            self.model.committed_at(self)
            if not self.leader.is_under_min:
                for offset, value in [each for each in self.waiting if each[0] < self.high_watermark]:
                    self.waiting.remove((offset, value))
                    self.model.acknowledged(offset, value)
        elif self.follower is not None:
            self.high_watermark = self.follower.high_watermark
        assert self.high_watermark <= self.log.log_end_offset

    # Leading

    def produce(self, value: str) -> None:
        if self.leader is None or self.leader.is_under_min:
            return
        offset = self.log.append(self.leader.leader_epoch, value)
        self.waiting.append((offset, value))
        self.leader.appended(self.model.now_ms)
        self.look()

    def serve(self, follower_id: int, follower_epoch: int, asked: FollowerPosition) -> FetchResponse:
        leader = self.leader
        if leader is None:
            return FetchResponse(asked, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if asked.leader_epoch != leader.leader_epoch:
            older = asked.leader_epoch < leader.leader_epoch
            return FetchResponse(asked, ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)
        log = self.log
        try:
            leader.follower(follower_id, follower_epoch)
        except KafkaError as error:
            return FetchResponse(asked, error.code)
        if asked.last_fetched_epoch >= 0:
            epoch, end = log.end_offset_of_epoch(asked.last_fetched_epoch)
            if epoch < 0 or end < 0:
                return FetchResponse(asked, ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < asked.last_fetched_epoch or end < asked.offset:
                return FetchResponse(asked, diverging=(epoch, end), high_watermark=self.high_watermark)
        if not log.log_start_offset <= asked.offset <= log.log_end_offset:
            return FetchResponse(asked, ErrorCode.OFFSET_OUT_OF_RANGE)
        leader.fetched(
            follower_id,
            offset=asked.offset,
            log_start=asked.log_start_offset,
            broker_epoch=follower_epoch,
            now_ms=self.model.now_ms,
        )
        self.look()
        records = log.read(asked.offset, self.model.rng.randrange(1, 5))
        return FetchResponse(asked, 0, tuple(records), None, self.high_watermark, log.log_start_offset)

    # Following

    def take(self, response: FetchResponse, leader: "Broker") -> None:
        follower = self.follower
        if follower is None or not follower.is_current(response.asked):
            return
        before = self.high_watermark
        if response.error:
            range_is_known = leader.leader is not None and leader.leader.leader_epoch == follower.leader_epoch
            if follower.refused(response.error) is Reaction.REQUEST_RANGE and range_is_known:
                follower.leader_range(leader.log.log_start_offset, leader.log.log_end_offset, self.model.now_ms)
        elif response.diverging is not None:
            follower.diverged(*response.diverging)
        else:
            self.log.append_as_follower(response.asked.offset, list(response.records))
            follower.advanced(response.high_watermark, response.log_start)
            self.log.delete_before(min(response.log_start, follower.high_watermark))
        assert follower.high_watermark >= min(before, self.model.safe_end), "something committed was cut off"
        self.look()

    # Bad days

    def crash(self, lost: int) -> None:
        """Goes down; the last `lost` records were not on its disk."""
        self.is_up = False
        self.leader = self.follower = None
        self.waiting.clear()
        self.log.truncate_to(max(self.log.log_end_offset - lost, self.log.log_start_offset))
        self.high_watermark = (
            self.model.rng.randrange(self.log.log_start_offset, min(self.high_watermark, self.log.log_end_offset) + 1)
            if self.high_watermark > self.log.log_start_offset
            else min(self.high_watermark, self.log.log_end_offset)
        )

    def start(self) -> None:
        self.is_up = True
        self.epoch = self.model.register(self)
        # It takes up roles only when it has read of its own registration: what came before may be of its former life.
        self.seen = len(self.model.metadata) - 1


class ClusterModel:
    def __init__(self, seed: int, *, nodes: int = 3, min_in_sync: int = 1) -> None:
        self.rng = random.Random(seed)
        self.min_in_sync = min_in_sync
        self.now_ms = 0
        self.safe_end = 0
        """Everything before it is committed."""
        self.committed: list[Record | None] = []
        self.acked: dict[int, str] = {}
        self.next_value = 0
        self.next_broker_epoch = 1
        replicas = tuple(range(nodes))
        self.active: dict[int, int] = {}
        self.metadata: list[State] = []
        self.registrations: list[frozenset[tuple[int, int]]] = []
        self.brokers = [Broker(node, self) for node in replicas]
        for broker in self.brokers:
            broker.epoch = self.next_broker_epoch
            self.active[broker.id] = broker.epoch
            self.next_broker_epoch += 1
        self._write(State(0, 0, 0, replicas, replicas))
        for broker in self.brokers:
            broker.learn()
        self.proposals: deque[tuple[Broker, Proposal]] = deque()
        self.fetches: list[tuple[Broker, int, Broker, FollowerPosition]] = []
        self.responses: list[tuple[Broker, int, FetchResponse, Broker]] = []

    # The controller

    @property
    def state(self) -> State:
        return self.metadata[-1]

    def _write(self, state: State) -> None:
        if self.metadata and state.leader not in (NOBODY, self.state.leader):
            self.check_new_leader(self.brokers[state.leader])
        self.metadata.append(state)
        self.registrations.append(frozenset(self.active.items()))

    def registered_as_seen_by(self, broker: Broker) -> frozenset[tuple[int, int]]:
        return self.registrations[broker.seen - 1] if broker.seen else frozenset()

    def register(self, broker: Broker) -> int:
        epoch = self.next_broker_epoch
        self.next_broker_epoch += 1
        self.active[broker.id] = epoch
        self._elect(self.state.isr)
        return epoch

    def fence(self, broker: Broker) -> None:
        if self.active.pop(broker.id, None) is None:
            return
        state = self.state
        self._elect(tuple(member for member in state.isr if member != broker.id) or state.isr)

    def _elect(self, isr: tuple[int, ...]) -> None:
        state = replace(self.state, isr=isr)
        leader = state.leader
        if leader not in self.active or leader not in state.isr:
            candidates = [member for member in state.isr if member in self.active]
            leader = self.rng.choice(candidates) if candidates else NOBODY
        self._write(
            replace(
                state,
                leader=leader,
                leader_epoch=state.leader_epoch + (leader != state.leader),
                partition_epoch=state.partition_epoch + 1,
            )
        )

    def move_leader(self) -> None:
        """As for a preferred leader, with everyone alive."""
        state = self.state
        candidates = [member for member in state.isr if member in self.active and member != state.leader]
        if candidates:
            self._write(
                replace(
                    state,
                    leader=self.rng.choice(candidates),
                    leader_epoch=state.leader_epoch + 1,
                    partition_epoch=state.partition_epoch + 1,
                )
            )

    def alter_partition(self, broker: Broker, proposal: Proposal) -> tuple[int, Confirmed | None]:
        state = self.state
        if proposal.leader_epoch != state.leader_epoch or state.leader != broker.id:
            return ErrorCode.FENCED_LEADER_EPOCH, None
        if proposal.partition_epoch != state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION, None
        for member, epoch in proposal.isr:
            if member not in self.active or epoch not in (-1, self.active[member]):
                return ErrorCode.INELIGIBLE_REPLICA, None
        changed = replace(state, isr=proposal.members, partition_epoch=state.partition_epoch + 1)
        self._write(changed)
        return 0, Confirmed(changed.leader_epoch, changed.partition_epoch, changed.isr)

    # The promises

    def committed_at(self, broker: Broker) -> None:
        """What a leader says is committed is so for ever."""
        for offset in range(len(self.committed), broker.high_watermark):
            self.committed.append(broker.log.at(offset))
        for offset in range(broker.log.log_start_offset, broker.high_watermark):
            assert broker.log.at(offset) == self.committed[offset], "two leaders committed different records"
        self.safe_end = max(self.safe_end, broker.high_watermark)

    def acknowledged(self, offset: int, value: str) -> None:
        assert offset not in self.acked, "one offset, two writes"
        self.acked[offset] = value

    def check_new_leader(self, broker: Broker) -> None:
        for offset, value in self.acked.items():
            record = broker.log.at(offset)
            assert record is not None or offset < broker.log.log_start_offset, f"the write at {offset} is lost"
            assert record is None or record[1] == value, f"the write at {offset} is another one"

    # What happens

    def step(self) -> None:
        up = [broker for broker in self.brokers if broker.is_up]
        actions = [self._produce] * 6 + [self._fetch] * 10 + [self._deliver] * 14 + [self._learn] * 8
        actions += [self._time] * 3 + [self._propose] * 3 + [self._controller] * 4
        actions += [self._move, self._fence, self._crash, self._start, self._delete]
        if up or self.brokers:
            self.rng.choice(actions)()

    def _produce(self) -> None:
        broker = self.rng.choice(self.brokers)
        if broker.is_up:
            self.next_value += 1
            broker.produce(f"v{self.next_value}")

    def _fetch(self) -> None:
        broker = self.rng.choice(self.brokers)
        if broker.is_up and broker.follower is not None:
            leader = self.brokers[broker.follower.leader_id]
            self.fetches.append((broker, broker.epoch, leader, broker.follower.position()))

    def _deliver(self) -> None:
        queue: list[Any] = self.rng.choice([self.fetches, self.responses])
        if not queue:
            return
        at = self.rng.randrange(len(queue))
        message = queue[at] if self.rng.random() < 0.05 else queue.pop(at)
        if self.rng.random() < 0.05:
            return
        if queue is self.fetches:
            broker, epoch, leader, position = message
            has_stale_epoch = any(
                member == broker.id and registered > epoch for member, registered in self.registered_as_seen_by(leader)
            )
            if leader.is_up and not has_stale_epoch:
                self.responses.append((broker, epoch, leader.serve(broker.id, epoch, position), leader))
        else:
            broker, epoch, response, leader = message
            if broker.is_up and broker.epoch == epoch:
                broker.take(response, leader)

    def _learn(self) -> None:
        broker = self.rng.choice(self.brokers)
        if broker.is_up:
            broker.learn()

    def _time(self) -> None:
        self.now_ms += self.rng.choice([1, 50, 400])

    def _propose(self) -> None:
        broker = self.rng.choice(self.brokers)
        if broker.is_up and broker.leader is not None:
            proposal = broker.leader.propose(self.now_ms)
            if proposal is not None:
                self.proposals.append((broker, proposal))

    def _controller(self) -> None:
        if not self.proposals:
            return
        broker, proposal = self.proposals.popleft()
        if not broker.is_up or broker.leader is None or broker.leader.leader_epoch != proposal.leader_epoch:
            return
        error, confirmed = self.alter_partition(broker, proposal)
        if self.rng.random() < 0.2:
            self.proposals.append((broker, proposal))  # the response is lost, and it is sent again
            return
        if broker.leader.on_response(proposal, error, confirmed, self.now_ms) is NextStep.SEND_AGAIN:
            self.proposals.append((broker, proposal))
        broker.look()

    def _move(self) -> None:
        if self.rng.random() < 0.3:
            self.move_leader()

    def _fence(self) -> None:
        if self.rng.random() < 0.3:
            self.fence(self.rng.choice(self.brokers))

    def _crash(self) -> None:
        broker = self.rng.choice(self.brokers)
        if broker.is_up and self.rng.random() < 0.3:
            # The last one in sync may die, but must not forget: then nothing could be promised.
            is_last = self.state.isr == (broker.id,)
            broker.crash(0 if is_last else self.rng.randrange(4))
            if not is_last or self.rng.random() < 0.5:
                self.fence(broker)
            elif is_last:
                broker.start()

    def _start(self) -> None:
        for broker in self.brokers:
            if not broker.is_up or broker.id not in self.active:
                broker.crash(0)
                broker.start()
                return

    def _delete(self) -> None:
        broker = self.rng.choice(self.brokers)
        if broker.is_up and broker.leader is not None and self.rng.random() < 0.2:
            start = broker.log.log_start_offset
            if broker.high_watermark > start:
                broker.log.delete_before(self.rng.randrange(start, broker.high_watermark))

    def settle(self) -> None:
        """The faults stop: everyone is up, and everything arrives."""
        for broker in self.brokers:
            if not broker.is_up or broker.id not in self.active:
                if broker.is_up:
                    broker.crash(0)
                broker.start()
        for _ in range(200):
            self.now_ms += 100
            for broker in self.brokers:
                while broker.seen < len(self.metadata):
                    broker.learn()
                if broker.follower is not None:
                    leader = self.brokers[broker.follower.leader_id]
                    position = broker.follower.position()
                    broker.take(leader.serve(broker.id, broker.epoch, position), leader)
                self._propose_now(broker)
            while self.proposals:
                self._controller()

    def _propose_now(self, broker: Broker) -> None:
        if broker.leader is not None:
            proposal = broker.leader.propose(self.now_ms)
            if proposal is not None:
                self.proposals.append((broker, proposal))
