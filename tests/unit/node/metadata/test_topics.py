"""Decisions on topics: Kafka's codes, and sentences that say what to do."""

from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName
from millstream.node.metadata.topic_names import INTERNAL_TOPICS
from millstream.node.metadata.topics import (
    NewPartitions,
    NewTopic,
    TopicReference,
    create_partitions,
    create_topics,
    delete_topics,
    find_topic,
    internal_topic,
)
from tests.unit.node.metadata.cluster import Cluster


def refused(cluster: Cluster, topic: NewTopic) -> tuple[ErrorCode, str]:
    decision = create_topics(cluster.image, [topic], cluster.config, cluster.random)
    assert decision.records == ()
    (result,) = decision.results
    assert result.message is not None
    return result.error, result.message


def test_a_topic_by_default() -> None:
    cluster = Cluster(1, "num.partitions=3")
    (result,) = create_topics(cluster.image, [NewTopic(name="orders")], cluster.config, cluster.random).results
    assert (result.error, result.message, result.name) == (ErrorCode.NONE, None, "orders")
    assert (result.partition_count, result.replication_factor) == (3, 1)
    assert result.topic_id.version == 4


def test_a_topic_with_everything() -> None:
    cluster = Cluster(3)
    assert cluster.create(
        NewTopic(name="orders", partition_count=6, replication_factor=2, configs={"retention.ms": "60000"})
    ) == [ErrorCode.NONE]
    topic = cluster.image.topics[TopicName("orders")]
    assert (len(topic.partitions), topic.replication_factor) == (6, 2)
    assert cluster.image.topic_config("orders") == {"retention.ms": "60000"}


def test_replicas_that_a_person_chose() -> None:
    cluster = Cluster(3)
    assert cluster.create(NewTopic(name="a", assignments=[(1, [3, 1]), (0, [2, 3])])) == [ErrorCode.NONE]
    assert [each.replicas for each in cluster.image.topics[TopicName("a")].partitions] == [(2, 3), (3, 1)]


def test_validate_only_changes_nothing_but_gets_the_same_response() -> None:
    cluster = Cluster()
    topics = [NewTopic(name="a"), NewTopic(name="b b")]
    decision = create_topics(cluster.image, topics, cluster.config, cluster.random, validate_only=True)
    assert decision.records == ()
    assert [result.error for result in decision.results] == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert decision.results[0].partition_count == 1


def test_one_topic_that_cannot_be_does_not_hinder_the_others() -> None:
    cluster = Cluster()
    assert cluster.create(NewTopic(name=""), NewTopic(name="good")) == [
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NONE,
    ]
    assert list(cluster.image.topics) == ["good"]


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "a/b", "\u00fc", "a\n", "a\x00"])
def test_names_that_no_topic_may_have(name: str) -> None:
    code, message = refused(Cluster(), NewTopic(name=name))
    assert code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert message.startswith("Topic name is invalid: ")


@pytest.mark.parametrize("name", ["a", "A-b.c_9", "a" * 249, "...", "__consumer_offsets"])
def test_names_that_a_topic_may_have(name: str) -> None:
    assert Cluster().create(NewTopic(name=name)) == [ErrorCode.NONE]


def test_names_that_are_taken() -> None:
    cluster = Cluster()
    cluster.create(NewTopic(name="a.b"))
    assert refused(cluster, NewTopic(name="a.b")) == (ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a.b' already exists.")
    code, message = refused(cluster, NewTopic(name="a_b"))
    assert code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "collides with existing topic 'a.b'" in message
    assert cluster.create(NewTopic(name="c.d"), NewTopic(name="c_d")) == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert cluster.create(NewTopic(name="e"), NewTopic(name="e")) == [ErrorCode.INVALID_REQUEST] * 2
    cluster.take(delete_topics(cluster.image, [TopicReference(name="a.b")], cluster.config))
    assert cluster.create(NewTopic(name="a_b")) == [ErrorCode.NONE]


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (NewTopic(name="__cluster_metadata"), ErrorCode.INVALID_REQUEST, "prohibited"),
        (NewTopic(name="a", partition_count=0), ErrorCode.INVALID_PARTITIONS, "must be 1 or more"),
        (NewTopic(name="a", partition_count=-2), ErrorCode.INVALID_PARTITIONS, "must be 1 or more"),
        (NewTopic(name="a", partition_count=10_001), ErrorCode.POLICY_VIOLATION, "Excessively large number"),
        (NewTopic(name="a", replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR, "must be 1 or more"),
        (NewTopic(name="a", replication_factor=3), ErrorCode.INVALID_REPLICATION_FACTOR, "at most 2"),
        (NewTopic(name="a", configs={"x.y": "1"}), ErrorCode.INVALID_CONFIG, "unknown topic setting x.y"),
        (NewTopic(name="a", configs={"retention.ms": "x"}), ErrorCode.INVALID_CONFIG, "retention.ms=x is not allowed"),
        (NewTopic(name="a", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG, "Null value"),
        (
            NewTopic(name="a", assignments=[(0, [1])], partition_count=1),
            ErrorCode.INVALID_REQUEST,
            "number of partitions was not set to -1",
        ),
        (
            NewTopic(name="a", assignments=[(0, [1])], replication_factor=1),
            ErrorCode.INVALID_REQUEST,
            "replication factor was not set to -1",
        ),
        (NewTopic(name="a", assignments=[(0, [])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "empty"),
        (NewTopic(name="a", assignments=[(0, [1, 1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "more than once"),
        (NewTopic(name="a", assignments=[(0, [7])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no such broker"),
        (
            NewTopic(name="a", assignments=[(0, [1]), (1, [1, 2])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "not consistent",
        ),
        (NewTopic(name="a", assignments=[(0, [1]), (0, [2])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "multiple"),
        (NewTopic(name="a", assignments=[(1, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "consecutive 0-based"),
    ],
)
def test_wrong_topics_are_refused(topic: NewTopic, code: ErrorCode, message: str) -> None:
    found = refused(Cluster(2), topic)
    assert found[0] is code
    assert message in found[1]


def test_deletion_by_name_and_by_id() -> None:
    cluster = Cluster()
    cluster.create(NewTopic(name="a", configs={"retention.ms": "1"}), NewTopic(name="b"), NewTopic(name="c"))
    b = cluster.image.topics[TopicName("b")]
    decision = delete_topics(cluster.image, [TopicReference(name="a"), TopicReference(topic_id=b.id)], cluster.config)
    assert [(each.name, each.error) for each in decision.results] == [("a", ErrorCode.NONE), ("b", ErrorCode.NONE)]
    cluster.take(decision)
    assert list(cluster.image.topics) == ["c"]
    assert cluster.image.configs == {}


@pytest.mark.parametrize(
    ("references", "code"),
    [
        ([TopicReference(name="x")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([TopicReference(topic_id=UUID(int=5))], ErrorCode.UNKNOWN_TOPIC_ID),
        ([TopicReference(name="a", topic_id=UUID(int=5))], ErrorCode.INVALID_REQUEST),
        ([TopicReference()], ErrorCode.INVALID_REQUEST),
        ([TopicReference(name="a"), TopicReference(name="a")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_wrong_deletions_are_refused(references: list[TopicReference], code: ErrorCode) -> None:
    cluster = Cluster()
    cluster.create(NewTopic(name="a"))
    decision = delete_topics(cluster.image, references, cluster.config)
    assert decision.records == ()
    assert {each.error for each in decision.results} == {code}
    assert all(each.message for each in decision.results)


def test_a_topic_is_deleted_once_even_if_named_both_ways() -> None:
    cluster = Cluster()
    cluster.create(NewTopic(name="a"))
    both = [TopicReference(name="a"), TopicReference(topic_id=cluster.image.topics[TopicName("a")].id)]
    decision = delete_topics(cluster.image, both, cluster.config)
    assert len(decision.records) == 1
    assert [each.error for each in decision.results] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def test_deletion_can_be_switched_off() -> None:
    cluster = Cluster(1, "delete.topic.enable=false")
    cluster.create(NewTopic(name="a"))
    (result,) = delete_topics(cluster.image, [TopicReference(name="a")], cluster.config).results
    assert result.error is ErrorCode.TOPIC_DELETION_DISABLED
    assert result.message is not None and "delete.topic.enable=false" in result.message


def test_a_topic_gets_more_partitions() -> None:
    cluster = Cluster(2)
    cluster.create(NewTopic(name="a", partition_count=2, replication_factor=2))
    old = cluster.image.topics[TopicName("a")]
    requests = [NewPartitions(name="a", count=5)]
    cluster.take(create_partitions(cluster.image, requests, cluster.config, cluster.random))
    new = cluster.image.topics[TopicName("a")]
    assert new.id == old.id
    assert len(new.partitions) == 5
    assert new.partitions[:2] == old.partitions
    assert all(len(each.replicas) == 2 for each in new.partitions)
    chosen = [NewPartitions(name="a", count=6, assignments=[[2, 1]])]
    cluster.take(create_partitions(cluster.image, chosen, cluster.config, cluster.random))
    assert cluster.image.topics[TopicName("a")].partitions[5].replicas == (2, 1)


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (NewPartitions(name="x", count=2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "does not exist"),
        (NewPartitions(name="a", count=2), ErrorCode.INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
        (NewPartitions(name="a", count=1), ErrorCode.INVALID_PARTITIONS, "would not be an increase"),
        (NewPartitions(name="a", count=-1), ErrorCode.INVALID_PARTITIONS, "would not be an increase"),
        (NewPartitions(name="a", count=1 << 30), ErrorCode.POLICY_VIOLATION, "more than the limit of 10000"),
        (NewPartitions(name="a", count=4, assignments=[[1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "add 2 additional"),
        (NewPartitions(name="a", count=3, assignments=[[1, 2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "consistent"),
        (NewPartitions(name="a", count=3, assignments=[[9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no such broker"),
    ],
)
def test_wrong_partition_counts_are_refused(request_: NewPartitions, code: ErrorCode, message: str) -> None:
    cluster = Cluster(2)
    cluster.create(NewTopic(name="a", partition_count=2))
    decision = create_partitions(cluster.image, [request_], cluster.config, cluster.random)
    assert decision.records == ()
    (result,) = decision.results
    assert result.error is code
    assert result.message is not None and message in result.message


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_internal_topics_keep_their_partitions(name: str) -> None:
    cluster = Cluster()
    cluster.create(internal_topic(name, cluster.image, 50, 1, {}))
    more = [NewPartitions(name=name, count=51)]
    decision = create_partitions(cluster.image, more, cluster.config, cluster.random)
    assert decision.records == ()
    (result,) = decision.results
    assert result.error is ErrorCode.INVALID_REQUEST
    assert result.message is not None and "cannot be changed" in result.message


def test_partitions_asked_for_twice_or_only_checked() -> None:
    cluster = Cluster()
    cluster.create(NewTopic(name="a"))
    twice = [NewPartitions(name="a", count=2)] * 2
    results = create_partitions(cluster.image, twice, cluster.config, cluster.random).results
    assert [each.error for each in results] == [ErrorCode.INVALID_REQUEST] * 2
    checked = create_partitions(cluster.image, twice[:1], cluster.config, cluster.random, validate_only=True)
    assert checked.records == () and checked.results[0].error is ErrorCode.NONE


def test_many_topics_in_one_request_are_bounded_together() -> None:
    cluster = Cluster(1, "millstream.max.partitions.per.topic=9000")
    topics = [NewTopic(name=name, partition_count=4000) for name in "abc"]
    assert cluster.create(*topics) == [ErrorCode.POLICY_VIOLATION] * 3
    negative = NewTopic(name="n", partition_count=-(1 << 31))
    assert cluster.create(*topics, negative) == [ErrorCode.POLICY_VIOLATION] * 4
    assert cluster.create(*topics[:2]) == [ErrorCode.NONE] * 2
    assert refused(cluster, NewTopic(name="d", partition_count=9001))[0] is ErrorCode.POLICY_VIOLATION
    more = [NewPartitions(name=name, count=9000) for name in "ab"]
    results = create_partitions(cluster.image, more, cluster.config, cluster.random).results
    assert [each.error for each in results] == [ErrorCode.NONE, ErrorCode.NONE]
    assert cluster.create(NewTopic(name="c", partition_count=1000)) == [ErrorCode.NONE]
    more.append(NewPartitions(name="c", count=9000))
    results = create_partitions(cluster.image, more, cluster.config, cluster.random).results
    assert [each.error for each in results] == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]


def test_a_topic_that_the_cluster_makes_for_itself() -> None:
    cluster = Cluster(2)
    topic = internal_topic("__consumer_offsets", cluster.image, 50, 3, {"cleanup.policy": "compact"})
    assert cluster.create(topic) == [ErrorCode.NONE]
    made = cluster.image.topics[TopicName("__consumer_offsets")]
    assert (len(made.partitions), made.replication_factor) == (50, 2)


def test_the_same_seed_decides_the_same() -> None:
    first, second = Cluster(3), Cluster(3)
    for cluster in (first, second):
        cluster.create(NewTopic(name="a", partition_count=7, replication_factor=3))
    assert first.log == second.log


def test_finding_a_topic_that_is_not_there() -> None:
    with pytest.raises(KafkaError):
        find_topic(Cluster().image, TopicReference(name="a"))
