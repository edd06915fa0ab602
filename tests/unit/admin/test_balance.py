"""Plans to even out and to empty brokers: what must move, and no more."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.admin.balance import (
    BrokerSlot,
    PartitionLoad,
    PlannedReassignment,
    plan_assignment,
    plan_balance,
    plan_drain,
)
from millstream.formats.model.errors import ErrorCode, KafkaError


def places(count: int, *racks: str) -> list[BrokerSlot]:
    return [BrokerSlot(id=number, rack=racks[number % len(racks)] if racks else None) for number in range(1, count + 1)]


def after(partitions: Sequence[PartitionLoad], plan: Sequence[PlannedReassignment]) -> list[PartitionLoad]:
    moved = {(each.topic, each.partition): each.replicas for each in plan}
    assert len(moved) == len(plan)
    return [
        PartitionLoad(
            topic=each.topic,
            partition=each.partition,
            replicas=moved.get((each.topic, each.partition), each.replicas),
            size_bytes=each.size_bytes,
            internal=each.internal,
        )
        for each in partitions
    ]


def counts(partitions: Sequence[PartitionLoad], brokers: Sequence[BrokerSlot]) -> list[int]:
    held = Counter(broker for each in partitions for broker in each.replicas)
    return [held[broker.id] for broker in brokers]


def leads(partitions: Sequence[PartitionLoad], brokers: Sequence[BrokerSlot]) -> list[int]:
    led = Counter(each.replicas[0] for each in partitions)
    return [led[broker.id] for broker in brokers]


def bytes_held(partitions: Sequence[PartitionLoad], broker: int) -> int:
    return sum(each.size_bytes for each in partitions if broker in each.replicas)


def random_load(random: Random, brokers: int, count: int, factor: int, size: int = 0) -> list[PartitionLoad]:
    return [
        PartitionLoad(
            topic="t",
            partition=number,
            replicas=tuple(random.sample(range(1, brokers + 1), factor)),
            size_bytes=random.randint(0, size),
        )
        for number in range(count)
    ]


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 40), st.integers())
def test_everything_is_even_and_no_replica_moves_without_need(
    broker_count: int, factor: int, partition_count: int, seed: int
) -> None:
    brokers = places(broker_count)
    factor = min(factor, broker_count)
    load = random_load(Random(seed), broker_count, partition_count, factor)
    plan = plan_balance(brokers, load)
    evened = after(load, plan)
    for old, new in zip(load, evened, strict=True):
        assert len(new.replicas) == len(set(new.replicas)) == len(old.replicas)
    before, now = counts(load, brokers), counts(evened, brokers)
    assert max(now) - min(now) <= 1
    led = leads(evened, brokers)
    assert max(led) - min(led) <= 1
    low, rest = divmod(sum(before), broker_count)
    high = low + bool(rest)
    least = max(sum(max(0, each - high) for each in before), sum(max(0, low - each) for each in before))
    moved = sum(len(set(new.replicas) - set(old.replicas)) for old, new in zip(load, evened, strict=True))
    assert moved == least
    assert plan_balance(brokers, evened) == []


@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 40), st.integers())
def test_racks_are_respected(broker_count: int, factor: int, partition_count: int, seed: int) -> None:
    brokers = places(broker_count, "a", "b", "c")
    racks = {broker.id: broker.rack for broker in brokers}
    factor = min(factor, broker_count)
    load = random_load(Random(seed), broker_count, partition_count, factor, size=100)
    evened = after(load, plan_balance(brokers, load))
    for each in evened:
        assert len(set(each.replicas)) == factor
        assert len({racks[broker] for broker in each.replicas}) == min(factor, len(set(racks.values())))


@given(st.integers(2, 6), st.integers(10, 60), st.integers())
@example(3, 60, 40101)
def test_bytes_come_nearer(broker_count: int, partition_count: int, seed: int) -> None:
    brokers = places(broker_count)
    load = random_load(Random(seed), broker_count, partition_count, 2, size=1000)
    evened = after(load, plan_balance(brokers, load))
    now = counts(evened, brokers)
    assert max(now) - min(now) <= 1
    held = [bytes_held(evened, broker.id) for broker in brokers]
    largest = max(each.size_bytes for each in load)
    assert max(held) - min(held) <= max(0.1 * sum(held) / broker_count, largest)


def test_an_empty_broker_gets_its_share_and_nothing_else_moves() -> None:
    load = [
        PartitionLoad(topic="t", partition=number, replicas=(1 + number % 3, 1 + (number + 1) % 3), size_bytes=10)
        for number in range(12)
    ]
    plan = plan_balance(places(4), load)
    moved = [each for each in plan if each.moved_bytes]
    assert len(moved) == 6
    assert all(4 in each.replicas and each.moved_bytes == 10 for each in moved)
    assert counts(after(load, plan), places(4)) == [6, 6, 6, 6]
    assert leads(after(load, plan), places(4)) == [3, 3, 3, 3]


def test_leaders_are_passed_on_by_those_in_between() -> None:
    load = [
        PartitionLoad(topic="t", partition=number, replicas=replicas)
        for number, replicas in enumerate([(1, 2), (1, 2), (2, 3), (3, 1)])
    ]
    load += [
        PartitionLoad(topic="u", partition=0, replicas=(1, 2)),
        PartitionLoad(topic="u", partition=1, replicas=(2, 3)),
    ]
    plan = plan_balance(places(3), load)
    led = leads(after(load, plan), places(3))
    assert max(led) - min(led) <= 1


def test_brokers_that_are_not_named_keep_what_they_have() -> None:
    load = [PartitionLoad(topic="t", partition=number, replicas=(9, 1)) for number in range(6)]
    evened = after(load, plan_balance(places(3), load))
    assert all(9 in each.replicas for each in evened)
    assert counts(evened, places(3)) == [2, 2, 2]
    assert plan_balance([], load) == []


@given(st.integers(2, 6), st.integers(1, 3), st.integers(0, 40), st.integers(), st.booleans())
def test_a_broker_is_emptied(broker_count: int, factor: int, partition_count: int, seed: int, racks: bool) -> None:
    brokers = places(broker_count, "a", "b") if racks else places(broker_count)
    factor = min(factor, broker_count - 1)
    load = random_load(Random(seed), broker_count, partition_count, factor, size=100)
    plan = plan_drain(brokers, load, 1)
    drained = after(load, plan)
    for old, new in zip(load, drained, strict=True):
        assert 1 not in new.replicas
        assert len(set(new.replicas)) == factor
        if 1 not in old.replicas:
            assert new == old
        else:
            assert len(set(new.replicas) - set(old.replicas)) == 1
            if racks:
                known = {broker.id: broker.rack for broker in brokers}
                left = {known[broker] for broker in new.replicas}
                possible = {known[broker.id] for broker in brokers if broker.id != 1}
                assert len(left) >= min(len({known[broker] for broker in old.replicas}), len(possible))


def test_too_few_would_be_left() -> None:
    load = [PartitionLoad(topic="t", partition=0, replicas=(1, 2, 3))]
    with pytest.raises(KafkaError, match=r"t-0 has 3 replica\(s\), and only 2") as refused:
        plan_drain(places(3), load, 3)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_internal_topics_do_with_fewer() -> None:
    load = [PartitionLoad(topic="t", partition=0, replicas=(3, 1, 2), internal=True)]
    (only,) = plan_drain(places(3), load, 3)
    assert sorted(only.replicas) == [1, 2]
    assert only.moved_bytes == 0
    with pytest.raises(KafkaError):
        plan_drain(places(1), [PartitionLoad(topic="t", partition=0, replicas=(1,), internal=True)], 1)


@given(st.integers(0, 5), st.integers(1, 3), st.integers(1, 20), st.integers())
def test_chosen_partitions_are_placed_on_the_targets_and_others_stay(
    first_id: int, factor: int, partition_count: int, seed: int
) -> None:
    random = Random(seed)
    brokers = [BrokerSlot(id=number, rack=random.choice("ab")) for number in range(first_id, first_id + 6)]
    ids = [each.id for each in brokers]
    load = [
        PartitionLoad(topic="t", partition=number, replicas=tuple(random.sample(ids, random.randint(1, 4))))
        for number in range(partition_count)
    ]
    chosen = random.sample(range(partition_count), random.randint(1, partition_count))
    targets = random.sample(ids, random.randint(factor, 6))
    placed = after(load, plan_assignment(brokers, load, chosen, targets, factor))
    for index, (old, new) in enumerate(zip(load, placed, strict=True)):
        if index not in chosen:
            assert new == old
            continue
        assert len(set(new.replicas)) == len(new.replicas) == factor
        assert set(new.replicas) <= set(targets)
        kept = set(old.replicas) & set(targets)
        assert len(set(new.replicas) & set(old.replicas)) == min(len(kept), factor), "nothing is copied without need"
    resized = after(load, plan_assignment(brokers, load, chosen, None, factor))
    for index in chosen:
        before, now = load[index].replicas, resized[index].replicas
        assert len(set(now)) == factor and now[0] == before[0], "the preferred leader stays"
        assert set(now) <= set(before) or set(before) <= set(now)


def test_a_placement_without_enough_brokers_is_refused() -> None:
    load = [PartitionLoad(topic="t", partition=0, replicas=(1, 2))]
    for targets, factor in (([3], None), ([1, 2], 3), (None, 4)):
        with pytest.raises(KafkaError) as refused:
            plan_assignment(places(3), load, [0], targets, factor)
        assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_the_replica_that_shares_a_zone_goes_first() -> None:
    brokers = places(4, "a", "b")  # 1 and 3 in b, 2 and 4 in a
    load = [PartitionLoad(topic="t", partition=0, replicas=(1, 3, 2))]
    (planned,) = plan_assignment(brokers, load, [0], None, 2)
    assert planned.replicas == (1, 2) and planned.removing == (3,) and planned.adding == ()
