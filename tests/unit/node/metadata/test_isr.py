"""AlterPartition: what a leader may change, and what it is told otherwise."""

from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId, TopicName
from millstream.node.metadata.brokers import begin_controlled_shutdown, unregister_broker
from millstream.node.metadata.elections import IsrChange, alter_partitions
from millstream.node.metadata.partitions import RECOVERED, RECOVERING
from millstream.node.metadata.records import PartitionChangeRecord
from millstream.node.metadata.topics import NewTopic
from tests.unit.node.metadata.cluster import Cluster

ONE = BrokerId(1)


def some_cluster() -> Cluster:
    cluster = Cluster(4)
    cluster.create(NewTopic(name="a", assignments=[(0, (1, 2, 3)), (1, (2, 3, 1))]))
    return cluster


def test_the_isr_shrinks_and_grows() -> None:
    cluster = some_cluster()
    response = cluster.alter_isr(1, 2)
    assert response.state == cluster.partition()
    assert (cluster.partition().isr, cluster.partition().partition_epoch) == ((1, 2), 1)
    assert cluster.alter_isr(1, 2, 3).error is ErrorCode.NONE
    assert (cluster.partition().isr, cluster.partition().partition_epoch) == ((1, 2, 3), 2)
    assert cluster.partition().leader_epoch == 0


def test_an_isr_that_is_as_it_should_be_needs_no_record() -> None:
    cluster = some_cluster()
    before = len(cluster.log)
    assert cluster.alter_isr(1, 2, 3).state == cluster.partition()
    assert len(cluster.log) == before


@pytest.mark.parametrize(
    ("isr", "changes", "code"),
    [
        ((1, 2), {"leader_epoch": 5}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), {"partition_epoch": 5}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ((1, 2), {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ((1, 2), {"broker": 2}, ErrorCode.INVALID_REQUEST),
        ((2, 3), {}, ErrorCode.INVALID_REQUEST),
        ((), {}, ErrorCode.INVALID_REQUEST),
        ((1, 1), {}, ErrorCode.INVALID_REQUEST),
        ((1, 4), {}, ErrorCode.INVALID_REQUEST),
        ((1,), {"leader_recovery_state": RECOVERING}, ErrorCode.INVALID_REQUEST),
        ((1,), {"leader_recovery_state": 7}, ErrorCode.INVALID_REQUEST),
        ((1, 2), {"number": 1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_changes_that_are_refused(isr: tuple[int, ...], changes: dict[str, int], code: ErrorCode) -> None:
    cluster = some_cluster()
    before = cluster.image
    response = cluster.alter_isr(*isr, **({"broker": 1} | changes))  # type: ignore[arg-type]
    assert (response.error, response.state) == (code, None)
    assert response.message
    assert cluster.image.topics == before.topics


def test_replicas_that_cannot_be_in_sync() -> None:
    cluster = some_cluster()
    cluster.fence(2)
    assert cluster.alter_isr(1, 2, 3).error is ErrorCode.INELIGIBLE_REPLICA
    cluster.take(begin_controlled_shutdown(cluster.image, BrokerId(3), cluster.config))
    assert cluster.alter_isr(1, 3).error is ErrorCode.INELIGIBLE_REPLICA
    cluster.take(unregister_broker(cluster.image, BrokerId(3), cluster.config))
    assert cluster.alter_isr(1, 3).error is ErrorCode.INELIGIBLE_REPLICA


def test_the_leader_must_have_seen_this_process_catch_up() -> None:
    cluster = some_cluster()
    old = cluster.image.brokers[BrokerId(2)].epoch
    cluster.restart(2, clean=True)
    leader, state = cluster.image.brokers[ONE], cluster.partition()
    for epoch, code in ((old, ErrorCode.INELIGIBLE_REPLICA), (-1, ErrorCode.NONE)):
        change = IsrChange(
            topic_id=cluster.image.topics[TopicName("a")].id,
            partition=0,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            new_isr=[(1, leader.epoch), (2, epoch)],
        )
        response = alter_partitions(cluster.image, ONE, leader.epoch, [change], cluster.config).results[0]
        assert response.error is code


def test_partitions_that_are_not_there() -> None:
    cluster = some_cluster()
    epoch = cluster.image.brokers[ONE].epoch
    known = cluster.image.topics[TopicName("a")].id
    missing = [
        IsrChange(topic_id=topic_id, partition=number, leader_epoch=0, partition_epoch=0, new_isr=[(1, -1)])
        for topic_id, number in ((UUID(int=5), 0), (known, 2), (known, -1), (known, 0), (known, 0))
    ]
    decision = alter_partitions(cluster.image, ONE, epoch, missing, cluster.config)
    assert [response.error for response in decision.results] == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert len(decision.records) == 1


def test_a_process_that_is_not_the_registered_one() -> None:
    with pytest.raises(KafkaError) as refused:
        alter_partitions(some_cluster().image, ONE, 99, [], Cluster(0).config)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_leader_recovers() -> None:
    cluster = some_cluster()
    topic_id = cluster.image.topics[TopicName("a")].id
    cluster.write(
        [PartitionChangeRecord(partition_id=0, topic_id=topic_id, leader=1, isr=(1,), leader_recovery_state=RECOVERING)]
    )
    assert cluster.alter_isr(1, leader_recovery_state=RECOVERING).error is ErrorCode.NONE
    assert cluster.alter_isr(1, 2, leader_recovery_state=RECOVERING).error is ErrorCode.INVALID_REQUEST
    assert cluster.alter_isr(1, leader_recovery_state=RECOVERED).error is ErrorCode.NONE
    assert cluster.partition().leader_recovery_state == RECOVERED
    assert cluster.alter_isr(1, 2).error is ErrorCode.NONE


def test_an_isr_below_the_minimum_remembers_who_left() -> None:
    cluster = Cluster(3)
    cluster.create(NewTopic(name="a", assignments=[(0, (1, 2, 3))], configs={"min.insync.replicas": "3"}))
    cluster.alter_isr(1, 2)
    assert cluster.partition().eligible_leader_replicas == (3,)
    cluster.alter_isr(1)
    assert cluster.partition().eligible_leader_replicas == (3, 2)
    cluster.alter_isr(1, 2)
    assert cluster.partition().eligible_leader_replicas == (3,)
    cluster.alter_isr(1, 2, 3)
    assert cluster.partition().eligible_leader_replicas == ()
