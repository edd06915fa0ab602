"""Decisions on brokers, their epochs, and producer ids."""

from uuid import UUID

import pytest

from millstream.metadata.brokers import allocate_producer_ids, begin_new_epochs, register_broker
from millstream.metadata.topics import NewTopic
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import BrokerId, TopicName
from tests.metadata.cluster import Cluster, introduction

ONE = BrokerId(1)


def test_a_broker_introduces_itself() -> None:
    cluster = Cluster(0)
    directory = UUID(int=50)
    decision = register_broker(
        cluster.image, introduction(1, rack="r", log_dirs=(directory,)), broker_epoch=1, fenced=False
    )
    assert decision.results[0].broker_epoch == 1
    cluster.take(decision)
    broker = cluster.image.brokers[ONE]
    assert (broker.epoch, broker.rack, broker.active, broker.log_dirs) == (1, "r", True, (directory,))
    assert (broker.end_points[0].host, broker.end_points[0].port) == ("localhost", 9091)
    cluster.create(NewTopic(name="a"))
    assert cluster.image.topics[TopicName("a")].partitions[0].directories == (directory,)


def test_a_restart_registers_anew() -> None:
    cluster = Cluster(1)
    again = introduction(1, incarnation_id=UUID(int=5))
    cluster.take(register_broker(cluster.image, again, broker_epoch=9, fenced=False))
    assert (cluster.image.brokers[ONE].epoch, cluster.image.brokers[ONE].incarnation_id.int) == (9, 5)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"end_points": ()}, ErrorCode.INVALID_REGISTRATION),
        ({"incarnation_id": UUID(int=5)}, ErrorCode.DUPLICATE_BROKER_REGISTRATION),
    ],
)
def test_brokers_that_are_not_admitted(changes: dict[str, object], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        register_broker(Cluster(1).image, introduction(1, **changes), broker_epoch=9, fenced=False, others_alive=True)
    assert refused.value.code is code


def test_the_same_process_may_register_twice() -> None:
    register_broker(Cluster(1).image, introduction(1), broker_epoch=9, fenced=False, others_alive=True)


def test_after_an_unclean_stop_each_led_partition_has_a_new_epoch() -> None:
    cluster = Cluster(2)
    cluster.create(NewTopic(name="a", partition_count=4))
    before = cluster.image.topics[TopicName("a")].partitions
    cluster.write(list(begin_new_epochs(cluster.image, ONE)))
    for old, new in zip(before, cluster.image.topics[TopicName("a")].partitions, strict=True):
        assert new.leader == old.leader
        assert new.leader_epoch == old.leader_epoch + (old.leader == ONE)


def test_producer_ids_are_handed_out_once() -> None:
    cluster = Cluster(1)
    epoch = cluster.image.brokers[ONE].epoch
    blocks = []
    for _ in range(3):
        decision = allocate_producer_ids(cluster.image, ONE, epoch)
        blocks.append((decision.results[0].first, decision.results[0].size))
        cluster.take(decision)
    assert blocks == [(0, 1000), (1000, 1000), (2000, 1000)]


def test_producer_ids_only_for_brokers_of_now() -> None:
    image = Cluster(1).image
    with pytest.raises(KafkaError) as refused:
        allocate_producer_ids(image, BrokerId(2), 0)
    assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    with pytest.raises(KafkaError) as refused:
        allocate_producer_ids(image, ONE, 77)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH
