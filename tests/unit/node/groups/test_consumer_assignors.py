"""The assignors as properties: complete, even, sticky, near."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.node.groups.core.consumer.group import Target
from millstream.node.groups.core.consumer.rebalance import (
    ASSIGNORS,
    MemberSpec,
    TopicSpec,
    assign_range,
    assign_uniform,
)

Partition = tuple[UUID, int]


def topic_id(number: int) -> UUID:
    return UUID(int=number + 1)


def topics_of(*counts: int, racks: Sequence[str] = ()) -> dict[UUID, TopicSpec]:
    """Topics with so many partitions; partition n lies in rack n modulo the number of racks."""
    return {
        topic_id(number): TopicSpec(count, [frozenset({racks[n % len(racks)]} if racks else ()) for n in range(count)])
        for number, count in enumerate(counts)
    }


def spec(name: str, topics: frozenset[UUID], current: Target | None = None, rack: str | None = None) -> MemberSpec:
    return MemberSpec(name, None, rack, topics, current or {})


def partitions(target: Target) -> set[Partition]:
    return {(topic, number) for topic, numbers in target.items() for number in numbers}


def check_complete(
    members: Sequence[MemberSpec], topics: Mapping[UUID, TopicSpec], result: Mapping[str, Target]
) -> None:
    """Everyone is told something, each partition that is read has one owner, who reads it."""
    assert list(result) == [member.id for member in members]
    given = Counter(partition for target in result.values() for partition in partitions(target))
    read = frozenset().union(*(member.topics for member in members))
    assert given == Counter((topic, number) for topic in read for number in range(topics[topic].partition_count))
    for member in members:
        assert set(result[member.id]) <= member.topics


@dataclass
class Case:
    members: list[MemberSpec]
    topics: dict[UUID, TopicSpec]


@st.composite
def cases(draw: st.DrawFn, *, alike: bool) -> Case:
    racks = draw(st.sampled_from([(), ("a",), ("a", "b"), ("a", "b", "c")]))
    topics = topics_of(*draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)), racks=racks)
    every = frozenset(topics)
    members = []
    # What members have: disjoint, as it always is, but of topics that may be gone or shrunk since.
    loose = [(topic, n) for topic in (*topics, topic_id(99)) for n in range(12)]
    owners = draw(st.lists(st.integers(-1, 7), min_size=len(loose), max_size=len(loose)))
    for index in range(draw(st.integers(1, 7))):
        current: dict[UUID, frozenset[int]] = {}
        for (topic, n), owner in zip(loose, owners, strict=True):
            if owner == index:
                current[topic] = current.get(topic, frozenset()) | {n}
        read = every if alike else frozenset(draw(st.sets(st.sampled_from(sorted(every)))))
        rack = draw(st.sampled_from([None, "a", "b"]))
        members.append(spec(f"m{index}", read, current, rack))
    return Case(members, topics)


@given(st.sampled_from(sorted(ASSIGNORS)), st.one_of(cases(alike=True), cases(alike=False)))
def test_each_partition_has_one_owner_that_reads_it(assignor: str, case: Case) -> None:
    check_complete(case.members, case.topics, ASSIGNORS[assignor](case.members, case.topics))


@given(st.sampled_from(sorted(ASSIGNORS)), st.one_of(cases(alike=True), cases(alike=False)))
def test_a_second_look_moves_nothing(assignor: str, case: Case) -> None:
    first = ASSIGNORS[assignor](case.members, case.topics)
    again = [member._replace(current=first[member.id]) for member in case.members]
    assert ASSIGNORS[assignor](again, case.topics) == first


@given(cases(alike=True))
def test_uniform_is_even_within_one_and_moves_as_little_as_it_can(case: Case) -> None:
    result = assign_uniform(case.members, case.topics)
    sizes = [len(partitions(result[member.id])) for member in case.members]
    assert max(sizes) - min(sizes) <= 1
    valid = {(t, n) for t, topic in case.topics.items() for n in range(topic.partition_count)}
    had = [partitions(member.current) & valid for member in case.members]
    least, more = divmod(sum(sizes), len(sizes))
    # The best there is: everyone keeps up to its share, and of those who have more, as many as may have one more.
    could_keep = sum(min(len(each), least) for each in had) + min(more, sum(len(each) > least for each in had))
    kept = sum(len(each & partitions(result[m.id])) for each, m in zip(had, case.members, strict=True))
    assert kept == could_keep


@given(cases(alike=False))
def test_uniform_with_different_topics_cannot_be_improved_by_one_move(case: Case) -> None:
    result = assign_uniform(case.members, case.topics)
    sizes = {member.id: len(partitions(result[member.id])) for member in case.members}
    for giver in case.members:
        for taker in case.members:
            if any(result[giver.id].get(topic) for topic in taker.topics):
                assert sizes[giver.id] - sizes[taker.id] <= 1


def test_uniform_leaves_members_alone_when_one_joins_or_leaves() -> None:
    topics = topics_of(12)
    read = frozenset(topics)
    three = assign_uniform([spec(name, read) for name in "abc"], topics)
    four = assign_uniform([spec(name, read, three.get(name)) for name in "abcd"], topics)
    for name in "abc":
        assert partitions(four[name]) < partitions(three[name])
    two = assign_uniform([spec(name, read, three[name]) for name in "ac"], topics)
    for name in "ac":
        assert partitions(two[name]) > partitions(three[name])


def test_uniform_spreads_the_partitions_of_each_topic() -> None:
    topics = topics_of(4, 4, 4)
    result = assign_uniform([spec(name, frozenset(topics)) for name in "ab"], topics)
    assert all(len(result[name][topic]) == 2 for name in "ab" for topic in topics)


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
def test_members_read_near_by_where_they_can(assignor: str) -> None:
    topics = topics_of(6, 6, racks=("x", "y", "z"))
    members = [spec(f"m{rack}", frozenset(topics), rack=rack) for rack in "zxy"]
    result = ASSIGNORS[assignor](members, topics)
    check_complete(members, topics, result)
    for member in members:
        for topic, number in partitions(result[member.id]):
            assert member.rack in topics[topic].racks[number]


def test_uniform_gives_up_distant_partitions_first() -> None:
    topics = topics_of(4, racks=("x", "y"))
    read = frozenset(topics)
    everything = {topic_id(0): frozenset(range(4))}
    result = assign_uniform([spec("a", read, everything, "y"), spec("b", read, None, "x")], topics)
    assert result == {"a": {topic_id(0): frozenset({1, 3})}, "b": {topic_id(0): frozenset({0, 2})}}


def test_range_gives_consecutive_partitions_and_the_same_of_topics_alike() -> None:
    topics = topics_of(7, 7, 2)
    result = assign_range([spec(name, frozenset(topics)) for name in "bca"], topics)
    assert [sorted(result[name][topic_id(0)]) for name in "abc"] == [[0, 1, 2], [3, 4], [5, 6]]
    assert all(result[name][topic_id(0)] == result[name][topic_id(1)] for name in "abc")
    assert [sorted(result[name].get(topic_id(2), ())) for name in "abc"] == [[0], [1], []]


def test_range_keeps_the_place_of_static_members() -> None:
    topics = topics_of(4)
    read = frozenset(topics)

    def assigned(first_id: str) -> dict[str | None, Target]:
        members = [MemberSpec("b", None, None, read, {}), MemberSpec(first_id, "instance", None, read, {})]
        result = assign_range(members, topics)
        return {member.instance_id: result[member.id] for member in members}

    assert assigned("a") == assigned("z")


def test_no_one_to_assign_to() -> None:
    assert assign_uniform([], topics_of(3)) == assign_range([], topics_of(3)) == {}


def test_many_partitions_and_members() -> None:
    topics = topics_of(*[100] * 10)
    read = frozenset(topics)
    members = [spec(f"m{n}", read) for n in range(100)]
    result = assign_uniform(members, topics)
    members = [spec(f"m{n}", read, result.get(f"m{n}")) for n in range(1, 101)]
    check_complete(members, topics, assign_uniform(members, topics))
    mixed = [spec(m.id, frozenset(list(topics)[n % 5 :]), m.current) for n, m in enumerate(members)]
    check_complete(mixed, topics, assign_uniform(mixed, topics))


def test_a_large_topic_is_levelled_in_time_that_grows_with_its_partitions() -> None:
    """The coordinator assigns on the event loop; a topic may have thousands of partitions."""

    def work(count: int) -> int:
        topics = topics_of(count, 1)
        large, small = topics
        had = {large: frozenset(range(count))}
        members = [spec("alone", frozenset({large}), had), spec("joins", frozenset({large, small}))]
        calls = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(note)
        try:
            result = assign_uniform(members, topics)
        finally:
            sys.setprofile(None)
        check_complete(members, topics, result)
        assert abs(len(partitions(result["alone"])) - len(partitions(result["joins"]))) <= 1
        return calls

    assert work(1200) < 5 * work(300)
