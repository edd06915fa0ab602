"""Members of share groups: epochs, assignment, timeouts, and that replaying the records gives the same group."""

from collections.abc import Callable
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.config.loading import load_broker_config
from millstream.formats.model.errors import KafkaError
from millstream.node.coordination.core.state_machine import CoordinatorRecord, FixedTopics
from millstream.node.groups.core.shard import GroupShard
from millstream.node.groups.core.share_group import ShareGroup, assign
from millstream.node.groups.core.share_groups import Partitions

CONFIG = load_broker_config()
SESSION_MS = 45_000


def _settled(outcome: Any, shard: GroupShard, now_ms: int) -> Any:
    return outcome


class Shard:
    """A shard with its log."""

    def __init__(self) -> None:
        self.topics = FixedTopics()
        self.log: list[CoordinatorRecord] = []
        self.told: list[tuple[str, Partitions, Partitions]] = []
        """Of which state was to be made, and which deleted."""
        self.now_ms = 0
        self.shard = self._make()
        self.shard.loaded(0)

    def _make(self) -> GroupShard:
        shard = GroupShard(lambda: CONFIG, self.topics, Random(1))
        shard.share.on_state = lambda group_id, begun, gone: self.told.append((group_id, list(begun), list(gone)))
        return shard

    def run(self, operation: Callable[[GroupShard, int], Any]) -> Any:
        outcome = operation(self.shard, self.now_ms)
        for record in outcome.records:
            self.log.append(record)
            self.shard.replay(*record)
        return outcome.response

    def restart(self) -> None:
        self.shard = self._make()
        for record in self.log:
            self.shard.replay(*record)
        self.shard.loaded(self.now_ms)

    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        while (action := self.shard.timers.take_due(self.now_ms)) is not None:
            outcome = action(self.now_ms)
            if outcome is not None:
                self.run(partial(_settled, outcome))

    def beat(self, member_id: str, epoch: int, topics: tuple[str, ...] | None = None) -> dict[str, Any]:
        request: Any = SimpleNamespace(
            group_id="g", member_id=member_id, member_epoch=epoch, rack_id=None, subscribed_topic_names=topics
        )
        response = self.run(lambda shard, now_ms: shard.share.heartbeat(request, "client", "/host", now_ms))
        return dict(response)

    @property
    def group(self) -> ShareGroup:
        group = self.shard.groups["g"]
        assert isinstance(group, ShareGroup)
        return group


def partitions(response: dict[str, Any]) -> list[int]:
    return [index for row in response["assignment"]["topic_partitions"] for index in row["partitions"]]


@pytest.fixture
def shard() -> Shard:
    made = Shard()
    made.topics.add("t", 4)
    return made


def test_a_member_that_is_silent_loses_its_partitions(shard: Shard) -> None:
    shard.beat("a", 0, ("t",))
    assert len(partitions(shard.beat("b", 0, ("t",)))) == 2
    shard.wait(SESSION_MS - 1)
    shard.beat("a", 1)
    shard.wait(2)
    assert set(shard.group.members) == {"a"}
    response = shard.beat("a", 2)
    assert partitions(response) == [0, 1, 2, 3]


def test_a_response_that_was_lost_is_sent_again(shard: Shard) -> None:
    shard.beat("a", 0, ("t",))
    shard.beat("b", 0, ("t",))
    moved = shard.beat("a", 1)
    assert shard.beat("a", 1)["assignment"] == moved["assignment"]  # it never heard of epoch 2
    with pytest.raises(KafkaError):
        shard.beat("a", 3)


def test_new_partitions_and_topics_are_assigned(shard: Shard) -> None:
    shard.beat("a", 0, ("t", "later"))
    shard.topics.add("later", 1)
    shard.topics.add("t", 5)
    assert len(partitions(shard.beat("a", 1))) == 6


def test_a_session_whose_end_could_not_be_written_ends_later(shard: Shard) -> None:
    shard.beat("a", 0, ("t",))
    shard.now_ms += SESSION_MS
    action = shard.shard.timers.take_due(shard.now_ms)
    assert action is not None
    action(shard.now_ms)  # and nothing is written
    assert "a" in shard.group.members
    shard.wait(SESSION_MS)
    assert "a" not in shard.group.members


def test_state_goes_with_its_topic_and_with_its_group(shard: Shard) -> None:
    shard.beat("a", 0, ("t",))
    gone = shard.topics.get("t")
    assert gone is not None
    all_of_it = [(gone.id, index) for index in range(4)]
    assert shard.told == [("g", all_of_it, [])]
    shard.topics.remove("t")
    shard.run(lambda shard, now_ms: shard.topics_changed({"t"}, now_ms))
    assert shard.told[1:] == [("g", [], all_of_it)]
    other = shard.topics.add("u", 1)
    shard.beat("a", shard.group.members["a"].epoch, ("u",))
    shard.beat("a", -1)
    shard.run(lambda shard, now_ms: shard.delete_group("g", now_ms))
    assert shard.told[2:] == [("g", [(other.id, 0)], []), ("g", [], [(other.id, 0)])]
    assert "g" not in shard.shard.groups
    shard.restart()
    assert "g" not in shard.shard.groups


def test_whoever_coordinates_the_group_next_makes_what_was_not_made(shard: Shard) -> None:
    shard.beat("a", 0, ("t",))
    topic = shard.topics.get("t")
    assert topic is not None
    shard.run(lambda shard, now_ms: shard.share.state_initialized("g", [(topic.id, 0), (topic.id, 2)]))
    assert len(shard.told) == 1
    shard.restart()
    assert shard.told[1:] == [("g", [(topic.id, 1), (topic.id, 3)], [])]
    shard.run(lambda shard, now_ms: shard.share.state_initialized("g", [(topic.id, 1), (topic.id, 3)]))
    shard.restart()
    assert len(shard.told) == 2 and not shard.shard.share.initializing("g")


SUBSCRIPTIONS = st.dictionaries(st.sampled_from("abcdefg"), st.frozensets(st.integers(1, 3), max_size=3), min_size=1)


@given(SUBSCRIPTIONS, st.lists(st.integers(1, 9), min_size=3, max_size=3), SUBSCRIPTIONS)
def test_the_assignor_is_fair_and_sticky(
    before: dict[str, frozenset[int]], counts: list[int], after: dict[str, frozenset[int]]
) -> None:
    sizes = {UUID(int=at + 1): count for at, count in enumerate(counts)}

    def run(members: dict[str, frozenset[int]], current: dict[str, set[tuple[UUID, int]]]) -> Any:
        return assign(
            {name: frozenset(UUID(int=at) for at in topics) for name, topics in members.items()}, sizes, current
        )

    first = run(before, {})
    second = run(after, first)
    assert run(after, second) == second
    for topics, target in ((before, first), (after, second)):
        read = {each for assigned in target.values() for each in assigned}
        wanted = {UUID(int=at) for each in topics.values() for at in each}
        assert read == {(at, index) for at in wanted for index in range(sizes[at])}
        for name, assigned in target.items():
            assert {at for at, _ in assigned} <= {UUID(int=at) for at in topics[name]}
            assert bool(assigned) == bool(topics[name])
        if len(set(topics.values())) == 1 and len(read) >= len(topics):
            sizes_of = [len(assigned) for assigned in target.values()]
            assert max(sizes_of) - min(sizes_of) <= 1
            assert sum(sizes_of) == len(read)


class Lives(RuleBasedStateMachine):
    """Members that come, go, fall silent; topics that grow; restarts in between."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = Shard()
        self.shard.topics.add("t", 2)
        self.shard.topics.add("u", 1)
        self.epochs: dict[str, int] = {}

    def _beat(self, member: str, epoch: int, topics: tuple[str, ...] | None) -> None:
        self.epochs[member] = self.shard.beat(member, epoch, topics)["member_epoch"]

    @rule(member=st.sampled_from("abcd"), topics=st.sampled_from((("t",), ("u",), ("t", "u"))))
    def join(self, member: str, topics: tuple[str, ...]) -> None:
        self._beat(member, 0, topics)

    @precondition(lambda self: self.epochs)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(sorted(self.epochs)))
        try:
            self._beat(member, self.epochs[member], None)
        except KafkaError:
            assert member not in self.shard.group.members
            del self.epochs[member]

    @precondition(lambda self: self.epochs)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(sorted(self.epochs)))
        del self.epochs[member]
        if member in self.shard.group.members:
            self.shard.beat(member, -1)

    @rule(passed_ms=st.integers(1, SESSION_MS))
    def wait(self, passed_ms: int) -> None:
        self.shard.wait(passed_ms)

    @rule(count=st.integers(1, 6))
    def grow(self, count: int) -> None:
        known = self.shard.topics.get("t")
        assert known is not None
        if count > known.partition_count:
            self.shard.topics.add("t", count)

    @rule()
    def restart(self) -> None:
        before = self.shard.shard.groups.get("g")
        self.shard.restart()
        after = self.shard.shard.groups.get("g")
        assert (before is None) == (after is None)
        if isinstance(before, ShareGroup) and isinstance(after, ShareGroup):
            assert (after.epoch, after.members, after.target, after.state_topics) == (
                before.epoch,
                before.members,
                before.target,
                before.state_topics,
            )

    @invariant()
    def everything_subscribed_is_read(self) -> None:
        group = self.shard.shard.groups.get("g")
        if not isinstance(group, ShareGroup):
            return
        assert set(group.target) == set(group.members)
        assert group.assignment_epoch == group.epoch
        assert all(member.epoch <= group.epoch for member in group.members.values())
        read = {each for assigned in group.target.values() for each in assigned}
        for name in {name for member in group.members.values() for name in member.topics}:
            topic = self.shard.topics.get(name)
            assert topic is not None
            assert (topic.id, 0) in read


TestLives = Lives.TestCase
