"""Machines with several brokers: replicas are on different machines, and the death of a machine costs one of them."""

from collections import Counter
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.admin.balance import BrokerSlot, PartitionLoad, plan_balance, plan_drain
from millstream.formats.model.identifiers import BrokerId
from millstream.node.metadata.partitions import machine_count, place_replicas
from millstream.node.metadata.reassignment import grow_internal_topics
from millstream.node.metadata.topics import NewTopic, create_topics, internal_topic
from tests.unit.node.metadata.cluster import Cluster, introduction


class Spot(NamedTuple):
    id: int
    rack: str | None
    machine: str | None


@st.composite
def machines(draw: st.DrawFn) -> list[Spot]:
    """Up to five machines with up to three brokers each; each machine is in one zone."""
    spots: list[Spot] = []
    for machine in range(draw(st.integers(1, 5))):
        zone = draw(st.sampled_from(["a", "b", "c", None]))
        processes = draw(st.integers(1, 3))
        spots += [Spot(machine + 1 + 1000 * process, zone, f"machine-{machine + 1}") for process in range(processes)]
    return spots


def cluster_of(spots: list[Spot], *settings: str) -> Cluster:
    cluster = Cluster(0, *settings)
    for spot in spots:
        cluster.add(introduction(spot.id, rack=spot.rack, machine_id=spot.machine))
    return cluster


@given(machines(), st.integers(1, 4), st.integers(1, 40), st.integers())
def test_replicas_are_on_as_many_machines_and_zones_as_there_are(
    spots: list[Spot], factor: int, partitions: int, seed: int
) -> None:
    factor = min(factor, len(spots))
    placed = place_replicas(cluster_of(spots).image, partitions, factor, Random(seed))
    machine = {spot.id: spot.machine for spot in spots}
    zone = {spot.id: spot.rack for spot in spots}
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({machine[number] for number in replicas}) == min(factor, len(set(machine.values())))
        assert len({zone[number] for number in replicas}) == min(factor, len(set(zone.values())))
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(spot.id, 0) for spot in spots) <= 1


def test_a_machine_is_not_shared_for_the_sake_of_a_zone() -> None:
    spots = [Spot(1, "a", "m1"), Spot(1001, "a", "m1"), *(Spot(n, "b", f"m{n}") for n in (2, 3, 4))]
    for replicas in place_replicas(cluster_of(spots).image, 20, 4, Random(3)):
        assert {1, 1001}.isdisjoint(replicas) or len({1, 1001} & set(replicas)) == 1


@given(machines(), st.integers(1, 4), st.integers(0, 30), st.integers())
def test_balance_spreads_over_machines_and_costs_no_zone(
    spots: list[Spot], factor: int, partitions: int, seed: int
) -> None:
    random = Random(seed)
    factor = min(factor, len(spots))
    slots = [BrokerSlot(id=spot.id, rack=spot.rack, machine=spot.machine) for spot in spots]
    place = {slot.id: slot.place for slot in slots}
    loads = [
        PartitionLoad(topic="t", partition=n, replicas=tuple(random.sample(sorted(place), factor)), size_bytes=n)
        for n in range(partitions)
    ]
    moved = {each.partition: each.replicas for each in plan_balance(slots, loads)}
    machine_total, zone_total = len({p.machine for p in place.values()}), len({p.zone for p in place.values()})
    held: Counter[int] = Counter()
    for load in loads:
        replicas = moved.get(load.partition, load.replicas)
        held.update(replicas)
        assert len(set(replicas)) == factor
        assert len({place[n].machine for n in replicas}) == min(factor, machine_total)
        assert len({place[n].zone for n in replicas}) == min(factor, zone_total)
    assert not plan_balance(
        slots,
        [
            PartitionLoad(
                topic="t", partition=load.partition, replicas=moved.get(load.partition, load.replicas),
                size_bytes=load.size_bytes,
            )
            for load in loads
        ],
    )  # fmt: skip


@given(machines(), st.integers(1, 3), st.integers(1, 30), st.integers())
def test_a_machine_is_drained_as_a_whole(spots: list[Spot], factor: int, partitions: int, seed: int) -> None:
    slots = [BrokerSlot(id=spot.id, rack=spot.rack, machine=spot.machine) for spot in spots]
    place = {slot.id: slot.place for slot in slots}
    machine_total = len({p.machine for p in place.values()})
    leaving = [spot.id for spot in spots if spot.machine == "machine-1"]
    factor = min(factor, machine_total - 1)
    if factor < 1:
        return
    placed = place_replicas(cluster_of(spots).image, partitions, factor, Random(seed))
    loads = [PartitionLoad(topic="t", partition=n, replicas=replicas) for n, replicas in enumerate(placed)]
    moved = {each.partition: each.replicas for each in plan_drain(slots, loads, *leaving)}
    for load in loads:
        replicas = moved.get(load.partition, load.replicas)
        assert not set(leaving) & set(replicas)
        assert len({place[n].machine for n in replicas}) == factor


@given(st.integers(3, 4), st.integers(1, 3), st.integers(1, 20), st.integers())
def test_no_partition_goes_below_its_minimum_when_a_machine_dies(
    machine_total: int, processes: int, partitions: int, seed: int
) -> None:
    spots = [Spot(m + 1000 * p, None, f"machine-{m}") for m in range(1, machine_total + 1) for p in range(processes)]
    cluster = cluster_of(spots, "min.insync.replicas=2", "default.replication.factor=3")
    cluster.random = Random(seed)
    cluster.create(NewTopic(name="a", partition_count=partitions))
    dead = Random(seed).randint(1, machine_total)
    cluster.fence(*(spot.id for spot in spots if spot.machine == f"machine-{dead}"))
    for number in range(partitions):
        state = cluster.partition("a", number)
        assert len(state.isr) >= 2 and state.leader in state.isr


def test_internal_topics_have_one_replica_for_each_machine() -> None:
    one = [Spot(1, None, None), Spot(1001, None, "machine-1"), Spot(2001, None, "machine-1")]
    cluster = cluster_of(one)
    topic = internal_topic("__consumer_offsets", cluster.image, 4, 3, {})
    assert topic.replication_factor == 1
    cluster.create(topic)
    assert not grow_internal_topics(cluster.image, cluster.config).records
    cluster.add(introduction(2))
    cluster.add(introduction(1002, machine_id="machine-2"))
    cluster.take(grow_internal_topics(cluster.image, cluster.config))
    for state in cluster.image.topics[topic.name].partitions:  # type: ignore[index]
        assert machine_count(cluster.image, state.replicas) == len(state.replicas) == 2


def test_a_broker_that_names_no_machine_is_one_of_its_own() -> None:
    cluster = cluster_of([Spot(1, None, None), Spot(2, None, None), Spot(1001, None, "machine-1")])
    assert machine_count(cluster.image) == 2
    assert cluster.image.brokers[BrokerId(1)].machine == cluster.image.brokers[BrokerId(1001)].machine


@pytest.mark.parametrize(("factor", "shared"), [(1, False), (2, True)])
def test_a_new_topic_says_on_how_many_machines_it_is(factor: int, shared: bool) -> None:
    cluster = cluster_of([Spot(1, None, None), Spot(1001, None, "machine-1")])
    topic = NewTopic(name="a", partition_count=3, replication_factor=factor)
    (result,) = create_topics(cluster.image, [topic], cluster.config, Random(1)).results
    assert (result.machines < result.replication_factor) is shared
