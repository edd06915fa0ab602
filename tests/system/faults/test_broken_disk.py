"""A disk that fails under one broker of a cluster: others take over what it can no longer do."""

from uuid import UUID

from millstream.config.topic_config import LogConfig
from millstream.formats.model.identifiers import BrokerId, TopicName, TopicPartition
from millstream.node.broker.broker import Broker
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.simulator.cluster import Cluster


def test_a_broker_whose_log_takes_no_more_writes_leaves_the_cluster_to_the_others() -> None:
    """It led its partitions, and stood in their in-sync sets, without ever taking a record again."""
    complaints: list[object] = []
    cluster = Cluster("7", ["broker,controller"] * 3, report_error=lambda name, context: complaints.append(context))
    cluster.start()
    try:
        _run(cluster, 10)
        node = cluster.node(2)
        assert node is not None and node.broker is not None and not cluster.exits
        epoch = node.broker.view.broker_epoch
        _some_log(node.broker).fail("fsync failed")
        _run(cluster, 5)
        assert [(number, "fsync failed" in str(error)) for number, error in cluster.exits] == [(2, True)]
        _run(cluster, 10)
        again = cluster.node(2)
        assert again is not node and again is not None and again.broker is not None
        assert again.broker.view.image.brokers[BrokerId(2)].active and again.broker.view.broker_epoch > epoch
    finally:
        cluster.close()
    assert not complaints


def test_a_broker_that_is_alone_stays_and_serves_what_it_can() -> None:
    cluster = Cluster("7", ["broker,controller"], report_error=lambda name, context: None)
    cluster.start()
    try:
        _run(cluster, 5)
        node = cluster.node(1)
        assert node is not None and node.broker is not None
        _some_log(node.broker).fail("fsync failed")
        _run(cluster, 5)
        assert cluster.node(1) is node and not cluster.exits
    finally:
        cluster.close()


def _run(cluster: Cluster, seconds: float) -> None:
    cluster.scheduler.run(until=cluster.scheduler.now + seconds)


def _some_log(broker: Broker) -> PartitionLog:
    return broker.logs.create(TopicPartition(TopicName("orders"), 0), UUID(int=7), LogConfig(), 0)
