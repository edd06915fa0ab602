"""Random lives of a classic group, with clients that behave as real ones do, against what must always hold.

Members join, leave, crash, fall silent and wake up; the coordinator dies and loads its log; partitions are added. At
every step: in one generation no partition has two owners, the leader's assignment forgets none, generations that were
written never come back, and what was committed is there. In the end, when all are left in peace, every member has its
share and every partition one owner.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.coordination.core.state_machine import DeferredResponse
from millstream.node.groups.core.classic.group import ClassicGroup, GroupState
from tests.examples import examples
from tests.unit.node.coordination.shard_run import ShardRun

TOPIC = "t"
SESSION_MS, REBALANCE_MS = 10_000, 30_000
HEARTBEAT_MS = 3000


@dataclass(eq=False)
class Consumer:
    """A client as librdkafka or the Java consumer would be one: one request at a time, errors handled as they do."""

    run: ShardRun
    instance: str | None
    name: str
    member: str = ""
    generation: int = -1
    joining: Any = None
    syncing: Any = None
    owned: frozenset[int] | None = None
    alive: bool = True
    fenced: bool = False
    seen: "list[tuple[int, str, frozenset[int]]]" = field(default_factory=list)

    @property
    def owner(self) -> str:
        """The owner: a static member is the same with every member id."""
        return self.instance or self.member

    def step(self, partitions: int) -> None:
        """The next thing such a client would do."""
        if self.fenced:
            return
        if self.joining is not None:
            self._joined(partitions)
        elif self.syncing is not None:
            self._synced()
        elif self.owned is None:
            self._join()
        else:
            self._heartbeat()

    def _join(self) -> None:
        try:
            self.joining = self.run.join(
                member=self.member,
                instance=self.instance,
                session_ms=SESSION_MS,
                rebalance_ms=REBALANCE_MS,
                client_id=self.name,
            )
        except KafkaError as error:
            self._failed(error.code)

    def _joined(self, partitions: int) -> None:
        response = _settled(self.joining)
        if response is None:
            return
        self.joining = None
        if response["error_code"]:
            self.member = (
                response["member_id"] if response["error_code"] == ErrorCode.MEMBER_ID_REQUIRED else self.member
            )
            self._failed(response["error_code"])
            return
        self.member, self.generation = response["member_id"], response["generation_id"]
        assignments: dict[str, bytes] = {}
        if response["leader"] == self.member and not response.get("skip_assignment"):
            names = sorted(row["member_id"] for row in response["members"])
            for at, name in enumerate(names):
                assignments[name] = bytes(range(at, partitions, len(names)))
        try:
            self.syncing = self.run.sync(self.member, self.generation, assignments, group_instance_id=self.instance)
        except KafkaError as error:
            self._failed(error.code)

    def _synced(self) -> None:
        response = _settled(self.syncing)
        if response is None:
            return
        self.syncing = None
        if response["error_code"]:
            self._failed(response["error_code"])
            return
        self.owned = frozenset(response["assignment"])
        self.seen.append((self.generation, self.owner, self.owned))

    def _heartbeat(self) -> None:
        try:
            self.run.heartbeat(self.member, self.generation, instance=self.instance)
        except KafkaError as error:
            self._failed(error.code)

    def _failed(self, code: int) -> None:
        self.owned = None
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self.fenced = True
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            # Clients keep their member id when only the generation is wrong.
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member = ""
        else:
            assert code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED), ErrorCode(code)


def _settled(response: Any) -> dict[str, Any] | None:
    if isinstance(response, DeferredResponse):
        return response.value
    settled: dict[str, Any] = response
    return settled


class ClassicGroupModel(RuleBasedStateMachine):
    @initialize(delay_ms=st.sampled_from([0, 3000]), seed=st.integers(0, 1000))
    def begin(self, delay_ms: int, seed: int) -> None:
        self.run = ShardRun(seed, group_initial_rebalance_delay_ms=delay_ms)
        self.partitions = 3
        self.run.topics.add(TOPIC, self.partitions)
        self.consumers: list[Consumer] = []
        self.history: list[tuple[int, str, frozenset[int]]] = []
        self.committed: dict[tuple[str, int], int] = {}
        self.next_offset = 0
        self.started = 0
        self.written_generation = 0
        self.checked_records = 0
        for _ in range(2):
            self.start(None)
        self.all_act(5)

    @property
    def group(self) -> ClassicGroup | None:
        group = self.run.shard.groups.get("g")
        return group if isinstance(group, ClassicGroup) else None

    def live(self) -> list[Consumer]:
        return [each for each in self.consumers if each.alive and not each.fenced]

    # What happens

    @precondition(lambda self: len(self.live()) < 6)
    @rule(instance=st.sampled_from([None, None, "one", "two"]))
    def start(self, instance: str | None) -> None:
        self.started += 1
        self.consumers.append(Consumer(self.run, instance, f"c{self.started}"))

    @precondition(lambda self: self.live())
    @rule(data=st.data(), steps=st.integers(1, 6))
    def act(self, data: st.DataObject, steps: int) -> None:
        consumer = data.draw(st.sampled_from(self.live()))
        for _ in range(steps):
            consumer.step(self.partitions)

    @precondition(lambda self: self.live())
    @rule(rounds=st.integers(1, 5))
    def all_act(self, rounds: int) -> None:
        for _ in range(rounds):
            for consumer in self.live():
                consumer.step(self.partitions)
            self.run.advance(1000)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), politely=st.booleans())
    def stop(self, data: st.DataObject, politely: bool) -> None:
        consumer = data.draw(st.sampled_from(self.live()))
        consumer.alive = False
        if politely and consumer.member and consumer.joining is None and consumer.syncing is None:
            self.run.leave((consumer.member, consumer.instance))

    @rule(ms=st.sampled_from([100, 3000, 9000, 31_000]))
    def pass_time(self, ms: int) -> None:
        self.run.advance(ms)

    @rule(compacted=st.booleans())
    def restart_coordinator(self, compacted: bool) -> None:
        if compacted:
            self.run.compact()
            self.checked_records = len(self.run.log)
        self.run.restart()
        for consumer in self.consumers:  # connections are gone, and with them what was asked
            consumer.joining = consumer.syncing = None

    @precondition(lambda self: self.partitions < 8)
    @rule()
    def add_partition(self) -> None:
        self.partitions += 1
        self.run.topics.add(TOPIC, self.partitions)
        self.run.run(lambda shard, now: shard.topics_changed((), now))
        leader = self.group.leader if self.group is not None else None
        for consumer in self.live():  # the leader's client sees it in the metadata and joins again
            if consumer.member == leader and consumer.owned is not None:
                consumer.owned = None

    @precondition(lambda self: any(each.owned for each in self.live()))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from([each for each in self.live() if each.owned]))
        self.next_offset += 1
        wanted = {(TOPIC, partition): self.next_offset for partition in consumer.owned or ()}
        codes = self.run.commit(
            wanted, member=consumer.member, generation=consumer.generation, instance=consumer.instance
        )
        for at, code in codes.items():
            if code == ErrorCode.NONE:
                self.committed[at] = self.next_offset

    # What must hold

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        for consumer in getattr(self, "consumers", ()):
            self.history += consumer.seen
            consumer.seen.clear()
        owners: dict[tuple[int, int], str] = {}
        for generation, owner, owned in getattr(self, "history", ()):
            for partition in owned:
                other = owners.setdefault((generation, partition), owner)
                assert other == owner, f"generation {generation}: {partition} belongs to {owner} and to {other}"

    @invariant()
    def what_was_committed_is_there(self) -> None:
        if hasattr(self, "run"):
            assert self.run.committed() == self.committed

    @invariant()
    def what_is_written_is_whole_and_new(self) -> None:
        if not hasattr(self, "run"):
            return
        for key, value in self.run.log[self.checked_records :]:
            probe = ShardRun()
            probe.shard.live = False
            probe.shard.replay(key, value)
            group = probe.shard.groups.get("g")
            if not isinstance(group, ClassicGroup) or group.is_simple:
                continue
            assert group.generation >= self.written_generation
            self.written_generation = group.generation
            taken = sorted(partition for member in group.members.values() for partition in member.assignment)
            assert taken == list(range(len(taken))), f"assigned twice or forgotten: {taken}"
        self.checked_records = len(self.run.log)

    def teardown(self) -> None:
        """Left in peace, the group finds its order."""
        if not hasattr(self, "run"):
            return
        for _ in range(60):
            for consumer in self.live():
                for _ in range(4):
                    consumer.step(self.partitions)
            self.run.advance(HEARTBEAT_MS // 2)
        self.no_partition_has_two_owners()
        self.what_was_committed_is_there()
        live = self.live()
        if not live:
            assert self.group is None or not self.group.members
            return
        assert self.group is not None and self.group.state is GroupState.STABLE
        assert {each.member for each in live} == set(self.group.members)
        assert {each.generation for each in live} == {self.group.generation}
        owned = sorted(partition for each in live for partition in each.owned or ())
        assert owned == list(range(len(owned))) and len(owned) >= 3


ClassicGroupModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestClassicGroupModel = ClassicGroupModel.TestCase
