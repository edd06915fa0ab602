"""The topology of a streams group and the topics of the cluster: partitions of internal topics, what does not fit."""

import sys
from random import Random
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.coordination.core.state_machine import FixedTopics
from millstream.node.groups.core.streams.topology import (
    MAX_TASKS,
    ConfiguredTopology,
    StatusCode,
    Topology,
    check_topology,
    configure,
    read_topology,
    topic_names_problem,
    topics_of,
)
from tests.unit.node.coordination.streams_run import COUNTS, copartition, heartbeat, subtopology, topic_info, topology


def configured(sent: dict[str, Any], **counts: int) -> ConfiguredTopology:
    topics = FixedTopics()
    for name, count in counts.items():
        topics.add(name.replace("_", "-"), count)
    message = heartbeat(topology=sent).topology
    check_topology(message)
    return configure(read_topology(message), topics)


def status(sent: dict[str, Any], **counts: int) -> tuple[StatusCode, str]:
    found = configured(sent, **counts).status
    assert found is not None
    return found


def test_internal_topics_get_the_partitions_of_the_source() -> None:
    found = configured(COUNTS, words=4)
    assert [(topic.name, topic.partition_count) for topic in found.missing] == [
        ("app-by-word", 4),
        ("app-changelog", 4),
    ]
    assert found.missing[1].configs == {"cleanup.policy": "compact"}
    assert found.missing[0].replication_factor == -1
    assert found.status == (
        StatusCode.MISSING_INTERNAL_TOPICS,
        "Internal topics are missing: app-by-word, app-changelog",
    )
    ready = configured(COUNTS, words=4, app_by_word=4, app_changelog=4)
    assert ready.is_ready
    assert [(each.task_count, each.is_stateful) for each in ready.subtopologies.values()] == [(4, False), (4, True)]


def test_missing_source_topics_are_named() -> None:
    sent = topology(subtopology("0", "a", "b", "c", "d", "words"))
    assert status(sent, words=1) == (
        StatusCode.MISSING_SOURCE_TOPICS,
        "Source topics a, b, c and 1 additional topics are missing.",
    )


def test_an_internal_topic_with_other_partitions() -> None:
    assert status(COUNTS, words=4, app_by_word=4, app_changelog=3) == (
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        "Existing topic app-changelog has different number of partitions: expected 4, found 3",
    )


def test_source_topics_that_must_be_copartitioned() -> None:
    sent = topology(subtopology("0", "a", "b", copartition_groups=[copartition([0, 1])]))
    assert configured(sent, a=3, b=3).is_ready
    assert status(sent, a=3, b=4) == (
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        "Following topics do not have the same number of partitions: [{a=3, b=4}]",
    )


def joined(partitions: int) -> dict[str, Any]:
    """A source topic is joined with a repartition topic of another subtopology."""
    return topology(
        subtopology("0", "a", repartition_sink_topics=["app-r"]),
        subtopology(
            "1",
            "b",
            repartition_source_topics=[topic_info("app-r", partitions)],
            copartition_groups=[copartition([0], [0])],
        ),
    )


def test_a_repartition_topic_follows_the_topic_it_is_joined_with() -> None:
    assert [topic.partition_count for topic in configured(joined(0), a=2, b=5).missing] == [5]
    assert configured(joined(5), a=2, b=5).missing[0].partition_count == 5
    code, detail = status(joined(3), a=2, b=5)
    assert code is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert "[3] of repartition topic [app-r]" in detail


def test_repartition_topics_in_a_row() -> None:
    sent = topology(
        subtopology("2", repartition_source_topics=[topic_info("app-r2")]),
        subtopology("1", repartition_source_topics=[topic_info("app-r1")], repartition_sink_topics=["app-r2"]),
        subtopology("0", "a", repartition_sink_topics=["app-r1"]),
    )
    assert [(topic.name, topic.partition_count) for topic in configured(sent, a=6).missing] == [
        ("app-r1", 6),
        ("app-r2", 6),
    ]


def chain(length: int) -> dict[str, Any]:
    """Each subtopology reads what the one with the next id writes: the worst order there is."""
    rows = [
        subtopology(
            f"{number:05}",
            *(["a"] if number == length - 1 else []),
            repartition_source_topics=[topic_info(f"app-{number}")] if number < length - 1 else [],
            repartition_sink_topics=[f"app-{number - 1}"] if number else [],
        )
        for number in range(length)
    ]
    return topology(*rows)


def test_a_long_chain_of_repartition_topics_costs_no_more_than_its_length() -> None:
    """One heartbeat may name some thousand subtopologies, and the coordinator configures them on the event loop."""

    def work(length: int) -> int:
        made, topics = read_topology(heartbeat(topology=chain(length)).topology), FixedTopics()
        topics.add("a", 6)
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            found = configure(made, topics)
        finally:
            sys.setprofile(None)
        assert {each.partition_count for each in found.missing} == {6} and len(found.missing) == length - 1
        return calls

    assert work(400) < 5 * work(100)


def _counts_in_rounds(made: Topology, given: dict[str, int]) -> dict[str, int] | None:
    """Kafka's way: rounds over all subtopologies, until nothing changes. None if that decides too little."""
    counts = {
        topic.name: topic.partitions for each in made.subtopologies.values() for topic in each.repartition_sources
    }
    counts = {name: count for name, count in counts.items() if count}
    left = [(sink, each) for each in made.subtopologies.values() for sink in each.repartition_sinks]
    left = [(sink, each) for sink, each in left if sink not in counts]
    while left:
        rest = []
        for sink, each in left:
            known = [counts[topic.name] for topic in each.repartition_sources if topic.name in counts]
            known += [given[name] for name in each.source_topics]
            if known:
                counts.setdefault(sink, max(known))
            else:
                rest.append((sink, each))
        if len(rest) == len(left):
            return None
        left = rest
    wanted = {topic.name for each in made.subtopologies.values() for topic in each.repartition_sources}
    return {name: counts[name] for name in wanted} if wanted <= counts.keys() else None


@pytest.mark.parametrize("seed", range(40))
def test_repartition_topics_get_the_partitions_that_kafka_gives_them(seed: int) -> None:
    random = Random(seed)
    given = {"a": 2, "b": 5}
    decided = 0
    for _ in range(50):
        size = random.randint(3, 7)
        names = [f"r{number}" for number in range(size)]
        wishes = {name: random.choice((0, 0, 0, 3)) for name in names}
        rows = [
            subtopology(
                str(number),
                *random.sample(["a", "b"], random.choice((0, 0, 1, 2)) if number else 1),
                repartition_source_topics=[
                    topic_info(name, wishes[name]) for name in random.sample(names, random.randint(1, 2))
                ],
                repartition_sink_topics=random.sample(names, random.randint(1, 3)),
            )
            for number in range(size)
        ]
        sent = topology(*random.sample(rows, size))
        expected = _counts_in_rounds(read_topology(heartbeat(topology=sent).topology), given)
        try:
            found = {each.name: each.partition_count for each in configured(sent, **given).missing}
        except KafkaError:
            assert expected is None
        else:
            assert found == expected
            decided += 1
    assert decided > 5


INVALID: dict[str, dict[str, Any]] = {
    "twice": topology(subtopology("0", "a"), subtopology("0", "b")),
    "undefined partition count": topology(subtopology("0", "a", state_changelog_topics=[topic_info("app-c", 3)])),
    "negative number": topology(subtopology("0", "a", repartition_source_topics=[topic_info("app-r", -1)])),
    "does not have": topology(subtopology("0", "a", copartition_groups=[copartition([1])])),
    "non-negative": topology(subtopology("0", "a"), epoch=-1),
    "loops in the topology": topology(
        subtopology("0", repartition_source_topics=[topic_info("app-r")], repartition_sink_topics=["app-r"])
    ),
    "never used as a sink": topology(subtopology("0", "a", repartition_source_topics=[topic_info("app-r")])),
    "No source topics": topology(subtopology("0")),
}


@pytest.mark.parametrize("problem", INVALID)
def test_topologies_that_no_topics_make_valid(problem: str) -> None:
    with pytest.raises(KafkaError) as refused:
        configured(INVALID[problem], a=1, b=1)
    assert refused.value.code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert problem in (refused.value.message or "")


@pytest.mark.parametrize("repartitioned", [False, True])
def test_an_application_with_too_many_tasks_gets_none(repartitioned: bool) -> None:
    """The numbers are the client's: how many subtopologies, and how many partitions it wishes for."""
    count = MAX_TASKS // 1000

    def sent(count: int) -> dict[str, Any]:
        if not repartitioned:
            return topology(*(subtopology(f"{number}", "a") for number in range(count)))
        wish = [topic_info("app-r", (count - 1) * 1000)]
        return topology(
            subtopology("0", "a", repartition_sink_topics=["app-r"]), subtopology("1", repartition_source_topics=wish)
        )

    fits = configured(sent(count), a=1000)
    assert sum(each.task_count for each in fits.subtopologies.values()) == MAX_TASKS
    code, detail = status(sent(count + 1), a=1000)
    assert code == StatusCode.INCORRECTLY_PARTITIONED_TOPICS and "tasks" in detail
    assert configured(sent(count + 1), a=1000).subtopologies == {}
    assert configured(sent(count + 1), a=1000).missing == ()


def test_names_that_an_application_may_not_use() -> None:
    assert topic_names_problem(["words"]) == ""
    assert "internal topics __consumer_offsets" in topic_names_problem(["words", "__consumer_offsets"])
    assert "a b are not valid" in topic_names_problem(["a b"])
    sent = heartbeat(topology=COUNTS).topology
    assert list(topics_of(sent)) == ["words", "app-by-word", "app-changelog"]


def test_the_record_has_the_topology_as_it_was_sent() -> None:
    message = heartbeat(topology=COUNTS).topology
    made = read_topology(message)
    assert read_topology(heartbeat(topology=made.value()).topology) == made
    assert made.readers == {"words": "0", "app-by-word": "1"}
