"""Streams groups with random lives: joins, leaves, crashes, slow members, lost responses, restarts, new topics."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.groups.core.streams.group import GroupState, StreamsGroup
from millstream.node.groups.core.streams.tasks import each
from tests.examples import examples
from tests.unit.node.coordination.streams_run import INTERNAL, ROLES, StreamsMember, StreamsRun

SESSION_MS = 45_000


class StreamsGroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.alive: list[StreamsMember] = []
        self.count = 0
        self.last_epochs = (0, 0)
        self.member_epochs: dict[str, int] = {}

    @initialize(
        interval_ms=st.sampled_from([0, 0, 1000]),
        delay_ms=st.sampled_from([0, 3000]),
        standbys=st.integers(0, 2),
        count=st.integers(1, 3),
    )
    def begin(self, interval_ms: int, delay_ms: int, standbys: int, count: int) -> None:
        self.standbys = standbys
        self.run = StreamsRun(
            group_streams_assignment_interval_ms=interval_ms,
            group_streams_initial_rebalance_delay_ms=delay_ms,
            group_streams_num_standby_replicas=standbys,
        )
        self.run.topics.add("words", 3)
        for process in range(count):
            self.join(process=process)

    # Members

    @precondition(lambda self: len(self.alive) < 6)
    @rule(process=st.integers(0, 3))
    def join(self, process: int) -> None:
        self.count += 1
        member = StreamsMember(self.run, f"m{self.count}", f"p{process}")
        member.beat()
        self.alive.append(member)

    @precondition(lambda self: len(self.alive) > 1)
    @rule(data=st.data(), crash=st.booleans())
    def depart(self, data: st.DataObject, crash: bool) -> None:
        member = self.pick(data)
        self.alive.remove(member)
        if not crash and member.id in self.group.members:
            member.leave()

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), revoke=st.booleans(), response_lost=st.booleans())
    def beat(self, data: st.DataObject, revoke: bool, response_lost: bool) -> None:
        self.pick(data).beat(revoke=revoke, response_lost=response_lost)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), rounds=st.integers(1, 3))
    def all_beat_but_one_is_slow(self, data: st.DataObject, rounds: int) -> None:
        slow = self.pick(data)
        for _ in range(rounds):
            for member in self.alive:
                member.beat(revoke=member is not slow)
                self.no_two_clients_process_one_task()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def follow_late(self, data: st.DataObject) -> None:
        self.pick(data).follow()

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

    @rule()
    def grow(self) -> None:
        """All topics together, as an operator would."""
        known = self.run.topics.get("words")
        more = min(6, (0 if known is None else known.partition_count) + 1)
        for name in ("words", *INTERNAL):
            if name == "words" or self.run.topics.get(name) is not None:
                self.run.topics.add(name, more)

    @rule(name=st.sampled_from(("words", *INTERNAL)))
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
    def group(self) -> StreamsGroup:
        group = self.run.shard.groups.get("g")
        return group if isinstance(group, StreamsGroup) else StreamsGroup("g")

    def durable(self) -> tuple[Any, ...]:
        group = self.group
        return (
            *(group.epoch, group.metadata_hash, group.validated_topology_epoch, group.assignment_configs),
            *(group.assignment_epoch, group.assigned_at_ms, group.topology, group.members, group.targets),
            *(group._active, group._restoring),
        )

    def pick(self, data: st.DataObject) -> StreamsMember:
        return data.draw(st.sampled_from(self.alive))

    @invariant()
    def no_task_is_active_at_two_members(self) -> None:
        if not hasattr(self, "run"):
            return
        owners: dict[Any, str] = {}
        for member in self.group.members.values():
            for owned in (member.assigned, member.revoking):
                for task in each(owned.active):
                    assert owners.setdefault(task, member.id) == member.id
        targets = [task for target in self.group.targets.values() for task in each(target.active)]
        assert len(targets) == len(set(targets))
        assert set(self.group.targets) <= set(self.group.members)

    @invariant()
    def no_two_clients_process_one_task(self) -> None:
        if not hasattr(self, "run"):
            return
        # Who was silent for too long is out, and does not know it yet: that is what sessions are for.
        known = [member for member in self.alive if member.id in self.group.members and member.epoch > 0]
        processed = [task for member in known for task in member.active]
        assert len(processed) == len(set(processed))
        for process in {member.process for member in known}:
            held = [
                task for member in known if member.process == process for role in ROLES for task in member.owned[role]
            ]
            assert len(held) == len(set(held)), "a process has one directory for a task"

    @invariant()
    def epochs_only_grow(self) -> None:
        if not hasattr(self, "run"):
            return
        group = self.group
        assert group.assignment_epoch <= group.epoch
        epochs = (group.epoch, group.assignment_epoch)
        assert all(now >= before for now, before in zip(epochs, self.last_epochs, strict=True))
        self.last_epochs = epochs
        for member in group.members.values():
            if member.epoch > 0:
                assert self.member_epochs.get(member.id, 0) <= member.epoch <= group.epoch
                self.member_epochs[member.id] = member.epoch

    def teardown(self) -> None:
        if not hasattr(self, "run"):
            return
        count = 3 if (known := self.run.topics.get("words")) is None else known.partition_count
        for name in ("words", *INTERNAL):
            if name == "words" or self.run.topics.get(name) is not None:
                self.run.topics.add(name, count)
        for _ in range(6):  # those who are gone run out, those who live go on
            self.run.advance(SESSION_MS // 4)
            for member in self.alive:
                member.beat()
        self.run.settle(self.alive)
        self.no_task_is_active_at_two_members()
        if not self.alive:
            assert self.group.is_empty
            return
        assert set(self.group.members) == {member.id for member in self.alive}
        assert self.group.state is GroupState.STABLE
        processed = sorted(task for member in self.alive for task in member.active)
        assert processed == [(name, number) for name in ("0", "1") for number in range(count)]
        standbys = [task for member in self.alive for task in member.standby]
        processes = len({member.process for member in self.alive})
        assert len(standbys) == count * min(self.standbys, processes - 1)


StreamsGroupModel.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, print_blob=True
)
TestStreamsGroupModel = StreamsGroupModel.TestCase
