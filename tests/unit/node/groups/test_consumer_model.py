"""Consumer groups with random lives: joins, leaves, crashes, slow members, lost responses, restarts, new topics."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.groups.core.consumer.group import ConsumerGroup, GroupState
from tests.examples import examples
from tests.unit.node.coordination.consumer_run import Consumer, ConsumerRun

NAMES = ("a1", "a2", "b1")
SUBSCRIPTIONS = st.sampled_from(
    [(("a1",), None), (("a1", "a2"), None), (NAMES, None), ((), "a.*"), (("b1",), "a.*"), ((), ".*")]
)
SESSION_MS = 45_000


class ConsumerGroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.alive: list[Consumer] = []
        self.away: list[str] = []
        self.count = 0
        self.last_epochs = (0, 0)
        self.member_epochs: dict[str, int] = {}

    @initialize(
        interval_ms=st.sampled_from([0, 0, 1000]),
        assignor=st.sampled_from(["uniform,range", "range"]),
        count=st.integers(1, 3),
    )
    def begin(self, interval_ms: int, assignor: str, count: int) -> None:
        self.run = ConsumerRun(group_consumer_assignment_interval_ms=interval_ms, group_consumer_assignors=assignor)
        self.run.topics.add("a1", 3)
        for _ in range(count):
            self.join(reads=(("a1", "a2"), None), static=False)

    # Members

    @precondition(lambda self: len(self.alive) < 5)
    @rule(reads=SUBSCRIPTIONS, static=st.booleans())
    def join(self, reads: tuple[tuple[str, ...], str | None], static: bool) -> None:
        self.count += 1
        topics, pattern = reads
        instance = f"i{self.count}" if static else None
        self.enter(self.run.consumer(f"m{self.count}", *topics, pattern=pattern, instance=instance))

    def enter(self, consumer: Consumer) -> None:
        consumer.beat()
        self.alive.append(consumer)

    @precondition(lambda self: len(self.alive) > 1)
    @rule(data=st.data(), how=st.sampled_from(["leave", "crash", "come back later"]))
    def depart(self, data: st.DataObject, how: str) -> None:
        consumer = self.pick(data)
        self.alive.remove(consumer)
        if how == "crash" or consumer.id not in self.group.members:
            return  # it says nothing any more; its session will end it
        if how == "leave" or consumer.instance is None:
            consumer.leave()
        else:
            consumer.leave(-2)
            self.away.append(consumer.instance)

    @precondition(lambda self: self.away)
    @rule(reads=SUBSCRIPTIONS)
    def come_back(self, reads: tuple[tuple[str, ...], str | None]) -> None:
        self.count += 1
        topics, pattern = reads
        instance = self.away.pop()
        self.enter(self.run.consumer(f"m{self.count}", *topics, pattern=pattern, instance=instance))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), revoke=st.booleans(), response_lost=st.booleans())
    def beat(self, data: st.DataObject, revoke: bool, response_lost: bool) -> None:
        self.pick(data).beat(revoke=revoke, response_lost=response_lost)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), rounds=st.integers(1, 3))
    def all_beat_but_one_is_slow(self, data: st.DataObject, rounds: int) -> None:
        slow = self.pick(data)
        for _ in range(rounds):
            for each in self.alive:
                each.beat(revoke=each is not slow)
                self.no_two_clients_read_one_partition()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def follow_late(self, data: st.DataObject) -> None:
        self.pick(data).follow()

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), reads=SUBSCRIPTIONS)
    def subscribe_anew(self, data: st.DataObject, reads: tuple[tuple[str, ...], str | None]) -> None:
        consumer = self.pick(data)
        consumer.topics, consumer.pattern, consumer.must_say = list(reads[0]), reads[1] or "", True

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def beat_that_cannot_be_written(self, data: st.DataObject) -> None:
        self.run.fail_writes = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "disk full")
        try:
            self.pick(data).beat(response_lost=True)
        except KafkaError as error:
            assert error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.run.fail_writes = None

    # The world

    @rule(name=st.sampled_from(NAMES), more=st.integers(1, 3))
    def grow(self, name: str, more: int) -> None:
        known = self.run.topics.get(name)
        self.run.topics.add(name, min(8, (0 if known is None else known.partition_count) + more))

    @rule(name=st.sampled_from(NAMES))
    def delete_topic(self, name: str) -> None:
        if self.run.topics.get(name) is not None:
            self.run.topics.remove(name)

    @rule(ms=st.sampled_from([10, 1000, 10_000, 31_000]))
    def time_passes(self, ms: int) -> None:
        self.run.advance(ms)

    @rule(compacted=st.booleans())
    def restart(self, compacted: bool) -> None:
        before = self.durable()
        if compacted:
            self.run.compact()
        self.run.restart()
        assert self.durable() == before

    # What must hold

    @property
    def group(self) -> ConsumerGroup:
        group = self.run.shard.groups.get("g")
        return group if isinstance(group, ConsumerGroup) else ConsumerGroup("g")

    def durable(self) -> tuple[Any, ...]:
        group = self.group
        return (
            *(group.epoch, group.metadata_hash, group.assignment_epoch, group.assigned_at_ms),
            *(group.members, group.targets, group.patterns, group.static_members, group._owners),
        )

    def pick(self, data: st.DataObject) -> Consumer:
        return data.draw(st.sampled_from(self.alive))

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owners: dict[Any, str] = {}
        for member in self.group.members.values():
            for owned in (member.assigned, member.revoking):
                for topic_id, numbers in owned.items():
                    for number in numbers:
                        assert owners.setdefault((topic_id, number), member.id) == member.id
                        assert self.group.owner_of(topic_id, number) == member.id
        targets = [(t, n) for target in self.group.targets.values() for t, numbers in target.items() for n in numbers]
        assert len(targets) == len(set(targets))
        assert set(self.group.targets) <= set(self.group.members)

    @invariant()
    def no_two_clients_read_one_partition(self) -> None:
        # Who was silent for too long is out, and does not know it yet: that is what sessions are for.
        known = [each for each in self.alive if each.id in self.group.members and each.epoch > 0]
        reading = [(t, n) for each in known for t, numbers in each.owned_ids.items() for n in numbers]
        assert len(reading) == len(set(reading))

    @invariant()
    def epochs_only_grow(self) -> None:
        group = self.group
        assert group.assignment_epoch <= group.epoch
        assert all(now >= before for now, before in zip(self.epochs(), self.last_epochs, strict=True))
        self.last_epochs = self.epochs()
        for member in group.members.values():
            if member.epoch > 0:
                assert self.member_epochs.get(member.id, 0) <= member.epoch <= group.epoch
                self.member_epochs[member.id] = member.epoch

    def epochs(self) -> tuple[int, int]:
        return self.group.epoch, self.group.assignment_epoch

    def teardown(self) -> None:
        if not hasattr(self, "run"):
            return
        for _ in range(5):  # those who are gone run out, those who live go on
            self.run.advance(SESSION_MS // 4)
            for each in self.alive:
                each.beat()
        # Two rounds for giving up and taking over would do; a member may have to say first what it still had.
        self.run.settle(self.alive, rounds=6)
        self.no_partition_has_two_owners()
        if not self.alive:
            assert self.group.is_empty
            return
        assert set(self.group.members) == {each.id for each in self.alive}
        assert self.group.state is GroupState.STABLE
        wanted = set()
        for each in self.alive:
            names = set(each.topics)
            if each.pattern:
                names |= {name for name in self.run.topics.names() if each.pattern == ".*" or name.startswith("a")}
            counts = {name: topic.partition_count for name in names if (topic := self.run.topics.get(name))}
            wanted |= {(name, number) for name, count in counts.items() for number in range(count)}
            assert each.owned <= {(name, number) for name, count in counts.items() for number in range(count)}
        owned = [partition for each in self.alive for partition in each.owned]
        assert len(owned) == len(set(owned))
        assert set(owned) == wanted


TestConsumerGroupModel = pytest.mark.timeout(300)(ConsumerGroupModel.TestCase)
TestConsumerGroupModel.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
