"""Internal topics get the replicas they lack when brokers are added."""

from millstream.formats.model.errors import ErrorCode
from millstream.node.metadata.reassignment import grow_internal_topics
from millstream.node.metadata.records import ConfigRecord
from millstream.node.metadata.topics import NewTopic, internal_topic
from tests.unit.node.metadata.cluster import Cluster, introduction

OFFSETS = "__consumer_offsets"


def add(cluster: Cluster, number: int, rack: str | None = None) -> None:
    cluster.add(introduction(number, rack=rack))


def test_internal_topics_follow_the_brokers() -> None:
    cluster = Cluster(1)
    cluster.create(internal_topic(OFFSETS, cluster.image, 6, 3, {}), NewTopic(name="a"))
    assert cluster.partition(OFFSETS).replicas == (1,)
    assert grow_internal_topics(cluster.image, cluster.config).records == ()
    add(cluster, 2)
    add(cluster, 3)
    add(cluster, 4)
    decision = grow_internal_topics(cluster.image, cluster.config)
    assert [response.error for response in decision.results] == [ErrorCode.NONE] * 6
    cluster.take(decision)
    held: dict[int, int] = {}
    preferred: dict[int, int] = {}
    for number in range(6):
        partition = cluster.partition(OFFSETS, number)
        assert partition.leader == 1
        preferred[partition.replicas[0]] = preferred.get(partition.replicas[0], 0) + 1
        assert len(partition.adding_replicas) == 2
        for broker in partition.adding_replicas:
            held[broker] = held.get(broker, 0) + 1
    assert held == {2: 4, 3: 4, 4: 4}
    assert sorted(preferred) == [1, 2, 3, 4] and max(preferred.values()) == 2
    assert cluster.partition("a").replicas == (1,)
    # Under way: nothing more to do.
    assert grow_internal_topics(cluster.image, cluster.config).records == ()
    for number in range(6):
        partition = cluster.partition(OFFSETS, number)
        cluster.alter_isr(*partition.replicas, topic=OFFSETS, number=number)
        assert cluster.partition(OFFSETS, number).adding_replicas == ()
    assert grow_internal_topics(cluster.image, cluster.config).records == ()


def test_only_brokers_that_are_there_count_and_racks_differ() -> None:
    cluster = Cluster(0, "offsets.topic.replication.factor=2")
    add(cluster, 1, "a")
    cluster.create(internal_topic(OFFSETS, cluster.image, 2, 2, {}))
    add(cluster, 2, "a")
    add(cluster, 3, "b")
    cluster.fence(2, 3)
    assert grow_internal_topics(cluster.image, cluster.config).records == ()
    cluster.unfence(2, 3)
    cluster.take(grow_internal_topics(cluster.image, cluster.config))
    assert cluster.partition(OFFSETS, 0).replicas == (1, 3)
    assert cluster.partition(OFFSETS, 1).replicas == (3, 1)


def test_a_cordoned_broker_gets_none() -> None:
    cluster = Cluster(1)
    cluster.create(internal_topic(OFFSETS, cluster.image, 1, 3, {}))
    add(cluster, 2)
    add(cluster, 3)
    cluster.write([ConfigRecord(resource_type=4, resource_name="3", name="cordoned.log.dirs", value="*")])
    cluster.take(grow_internal_topics(cluster.image, cluster.config))
    assert cluster.partition(OFFSETS).replicas == (1, 2)
