"""Replicas that move between brokers of one machine by rename: the metadata follows, once, and nothing is lost."""

from uuid import UUID

import pytest

from millstream.formats.model.identifiers import BrokerId, TopicName
from millstream.node.metadata.brokers import register_broker
from millstream.node.metadata.handover import AdoptedReplica, refused, still_assigned
from millstream.node.metadata.topics import NewTopic
from tests.unit.node.metadata.cluster import Cluster, introduction

DISKS = {1: UUID(int=71), 2: UUID(int=72), 3: UUID(int=73), 1001: UUID(int=74)}
MACHINES = {1001: "machine-1"}
"""Broker 1 has the same machine: it names none."""


def machine(*numbers: int, factor: int = 1) -> Cluster:
    cluster = Cluster(0)
    for number in numbers:
        cluster.add(introduction(number, log_dirs=(DISKS[number],), machine_id=MACHINES.get(number)))
    cluster.create(
        NewTopic(name="a", assignments=[(0, [1]), (1, [1])])
        if factor == 1
        else NewTopic(name="a", assignments=[(0, list(numbers[:factor]))])
    )
    return cluster


def adopted(cluster: Cluster, number: int = 0, *, clean: bool = True, former: int = 1) -> AdoptedReplica:
    return AdoptedReplica(
        topic_id=cluster.image.topics[TopicName("a")].id,
        partition=number,
        from_broker=BrokerId(former),
        from_directory=DISKS[former],
        from_epoch=cluster.image.brokers[BrokerId(former)].epoch if clean else -1,
    )


def register(cluster: Cluster, number: int, *replicas: AdoptedReplica, **changes: object) -> None:
    request = introduction(
        number,
        incarnation_id=UUID(int=9000 + len(cluster.log)),
        log_dirs=(DISKS[number],),
        machine_id=MACHINES.get(number),
        adopted=replicas,
        **changes,
    )
    cluster.take(register_broker(cluster.image, request, cluster.config, next_offset=len(cluster.log)))


@pytest.mark.parametrize("clean", [True, False])
def test_a_new_broker_takes_over_the_only_replica(clean: bool) -> None:
    cluster = machine(1)
    before = cluster.partition("a", 0)
    cluster.fence(1)
    register(cluster, 1001, adopted(cluster, 0, clean=clean))
    state = cluster.partition("a", 0)
    assert state.replicas == (1001,)
    assert state.directories == (DISKS[1001],)
    assert state.leader == -1
    assert state.leader_epoch > before.leader_epoch
    cluster.unfence(1001)
    state = cluster.partition("a", 0)
    assert (state.leader, state.isr) == (1001, (1001,))
    assert cluster.partition("a", 1).replicas == (1,)


def test_replicas_are_handed_over_once() -> None:
    cluster = machine(1)
    cluster.fence(1)
    replica = adopted(cluster)
    register(cluster, 1001, replica)
    first = cluster.partition("a", 0)
    register(cluster, 1001, replica, previous_broker_epoch=cluster.image.brokers[BrokerId(1001)].epoch)
    assert cluster.partition("a", 0) == first


def test_the_former_broker_may_register_first() -> None:
    cluster = machine(1)
    replica = adopted(cluster)
    cluster.restart(1, clean=True, unfence=False, disk=DISKS[1])
    given = [(replica.topic_id, replica.partition)]
    assert still_assigned(cluster.image, 1, given)
    register(cluster, 1001, replica)
    assert not still_assigned(cluster.image, 1, given)
    cluster.unfence(1001)
    state = cluster.partition("a", 0)
    assert (state.leader, state.leader_recovery_state) == (1001, 0)


def test_replicas_on_other_machines_go_on() -> None:
    cluster = machine(1, 2, 3, factor=3)
    cluster.fence(1)
    register(cluster, 1001, adopted(cluster))
    state = cluster.partition("a", 0)
    assert state.replicas == (1001, 2, 3)
    assert state.isr == (2, 3) and state.leader in (2, 3)


@pytest.mark.parametrize(
    "wrong", [{"from_directory": UUID(int=1234)}, {"from_broker": BrokerId(2)}, {"topic_id": UUID(int=5)}]
)
def test_only_a_broker_with_the_disk_on_the_same_machine_takes_over(wrong: dict[str, object]) -> None:
    cluster = machine(1, 2)
    good = adopted(cluster)
    values = {name: getattr(good, name) for name in ("topic_id", "partition", "from_broker", "from_directory")}
    bad = AdoptedReplica(**(values | wrong))
    register(cluster, 1001, bad)
    assert cluster.partition("a", 0).replicas == (1,)
    assert refused(cluster.image, 1001, [good]) == ["a-0"]


def test_a_second_replica_on_the_machine_is_dropped_if_the_other_one_is_complete() -> None:
    cluster = machine(1, 1001, factor=2)
    replica = adopted(cluster, former=1001)
    cluster.fence(1001)
    register(cluster, 1, replica, previous_broker_epoch=cluster.image.brokers[BrokerId(1)].epoch, retired=(1001,))
    state = cluster.partition("a", 0)
    assert state.replicas == (1,)
    assert BrokerId(1001) not in cluster.image.brokers
    cluster.unfence(1)
    assert (cluster.partition("a", 0).leader, cluster.partition("a", 0).isr) == (1, (1,))


def test_a_second_replica_stays_if_the_other_one_is_behind() -> None:
    cluster = machine(1, 1001, factor=2)
    cluster.alter_isr(1001, broker=cluster.partition("a", 0).leader) if cluster.partition("a", 0).leader == 1001 else (
        cluster.fence(1)
    )
    replica = adopted(cluster, former=1001)
    cluster.unfence(1)
    assert cluster.partition("a", 0).isr == (1001,)
    register(cluster, 1, replica, retired=(1001,))
    assert cluster.partition("a", 0).replicas == (1, 1001)
    assert BrokerId(1001) in cluster.image.brokers


def test_a_retired_broker_is_unregistered_with_its_last_replica() -> None:
    cluster = machine(1)
    cluster.add(introduction(1001, log_dirs=(DISKS[1001],), machine_id=MACHINES[1001]))
    cluster.create(NewTopic(name="b", assignments=[(0, [1001])]))
    register(cluster, 1, retired=(1001, 1, 77))
    assert BrokerId(1001) in cluster.image.brokers
    topic = cluster.image.topics[TopicName("b")].id
    replica = AdoptedReplica(
        topic_id=topic, partition=0, from_broker=BrokerId(1001), from_directory=DISKS[1001], from_epoch=-1
    )
    register(cluster, 1, replica, retired=(1001,))
    assert set(cluster.image.brokers) == {1}
    cluster.unfence(1)
    assert cluster.partition("b", 0).leader == 1
