"""Partitioners: Java's choice for cool keys, salting, and keys that are hot for a while."""

import random
from collections import Counter

import pytest
from confluent_kafka import Producer

import millstream
from millstream.client import Client, HotKeyPartitioner, Message, MillstreamError, SaltingPartitioner
from millstream.client.partitioners import ANY_PARTITION, java_partition, librdkafka_partition, murmur2
from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS

# From Kafka's own UtilsTest.
JAVA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("key", "expected"), JAVA_HASHES.items())
def test_murmur2_is_that_of_java(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


def test_salting_spreads_only_what_it_is_told_to() -> None:
    partitioner = SaltingPartitioner({"big": 3, b"one": 1})
    home = java_partition(b"big", 12)
    assert partitioner.partitions_of("big", 12) == [home, (home + 1) % 12, (home + 2) % 12]
    assert Counter(partitioner(b"big", 12) for _ in range(300)) == dict.fromkeys(
        partitioner.partitions_of("big", 12), 100
    )
    for key in (b"one", b"small", b""):
        assert {partitioner(key, 12) for _ in range(9)} == {java_partition(key, 12)}
        assert partitioner.partitions_of(key, 12) == [java_partition(key, 12)]
    assert partitioner(None, 12) == ANY_PARTITION


def test_salting_over_more_partitions_than_there_are() -> None:
    partitioner = SaltingPartitioner(["big"], spread=50, home=librdkafka_partition)
    assert {partitioner("big", 4) for _ in range(8)} == {0, 1, 2, 3}
    assert sorted(partitioner.partitions_of("big", 4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("wrong", [{"a": 0}, ["a"], "a"])
def test_salting_refuses_wrong_values(wrong: object) -> None:
    with pytest.raises(MillstreamError):
        SaltingPartitioner(wrong)  # type: ignore[arg-type]


def test_a_key_is_spread_while_it_is_hot() -> None:
    clock = Clock()
    partitioner = HotKeyPartitioner(max_records_per_second=100, half_life_s=10, clock=clock)

    def stream(key: bytes, per_second: int, seconds: int) -> list[int]:
        chosen = []
        for _ in range(per_second * seconds):
            clock.now_s += 1 / per_second
            chosen.append(partitioner(key, 6))
        return chosen

    home = java_partition(b"k", 6)
    assert set(stream(b"k", 90, 100)) == {home}  # below the threshold, however long
    warming = stream(b"k", 200, 20)
    assert warming[0] == home
    assert partitioner.hot_keys() == [b"k"]
    assert Counter(warming[-60:]) == dict.fromkeys(range(6), 10)
    assert len(set(stream(b"k", 80, 60))) == 6  # between cool and hot it stays as it is
    cooling = stream(b"k", 40, 100)
    assert cooling[-1] == home
    assert partitioner.hot_keys() == []


def test_a_key_may_be_hot_by_its_bytes() -> None:
    clock = Clock()
    partitioner = HotKeyPartitioner(max_bytes_per_second=1_000_000, half_life_s=1, clock=clock)
    chosen = set()
    for _ in range(100):
        clock.now_s += 0.1
        chosen.add(partitioner(b"fat", 4, 400_000))
        assert partitioner(b"thin", 4, 100) == java_partition(b"thin", 4)
    assert chosen == {0, 1, 2, 3}
    assert partitioner.hot_keys() == [b"fat"]
    clock.now_s += 60  # silence cools, too
    assert partitioner.hot_keys() == []
    assert partitioner(b"fat", 4, 100) == java_partition(b"fat", 4)


def test_cold_keys_among_very_many_are_never_taken_for_hot() -> None:
    clock = Clock()
    partitioner = HotKeyPartitioner(max_records_per_second=50, half_life_s=5, capacity=20, clock=clock)
    chance = random.Random(5)
    for _ in range(20_000):  # 1,000 a second, half of them of one key
        clock.now_s += 0.001
        if chance.random() < 0.5:
            partitioner(b"hot", 8)
        else:
            key = b"cold-%d" % chance.randrange(100_000)
            assert partitioner(key, 8) == java_partition(key, 8)
    assert partitioner.hot_keys() == [b"hot"]


@pytest.mark.parametrize(
    "wrong", [{}, {"max_records_per_second": 0}, {"max_records_per_second": 1, "cool_at": 2}]
)  # fmt: skip
def test_hot_keys_refuse_wrong_values(wrong: dict[str, float]) -> None:
    with pytest.raises(MillstreamError):
        HotKeyPartitioner(**wrong)  # type: ignore[arg-type]


def test_publishing_with_a_partitioner(client: Client) -> None:
    client.create_topic("salted", 6, exist_ok=True)
    salting = SaltingPartitioner({"big": 3})
    stored = [client.publish("salted", {"n": n}, key="big", partitioner=salting).partition for n in range(3)]
    assert stored == salting.partitions_of("big", 6)
    assert client.publish("salted", "x", key="small", partitioner=salting).partition == java_partition(b"small", 6)
    assert client.publish("salted", "x", key="small", partition=1, partitioner=salting).partition == 1
    sent = client.publish_many(
        "salted", [*(("big", f"{n}") for n in range(300)), b"no key", Message("m", "small")], partitioner=salting
    )
    assert sent == 302
    counts = Counter(record.partition for record in client.consume("salted") if record.key == b"big")
    assert counts == dict.fromkeys(salting.partitions_of("big", 6), 101)
    with pytest.raises(MillstreamError, match="partition 9 of 6"):
        client.publish("salted", "x", partitioner=lambda key, count, size=0: 9)


async def _publish_async(bootstrap: str, partitioner: SaltingPartitioner) -> list[int]:
    async with millstream.connect_async(bootstrap, timeout=TIMEOUT_SECONDS) as client:
        await client.create_topic("salted-async", 6)
        one = await client.publish("salted-async", "v", key="big", partitioner=partitioner)
        await client.publish_many("salted-async", [("big", "v")] * 5, partitioner=partitioner)
        return [one.partition, *[record.partition async for record in client.consume("salted-async")]]


def test_publishing_with_a_partitioner_async(millstream_broker: EmbeddedBroker) -> None:
    import asyncio

    salting = SaltingPartitioner({"big": 2})
    partitions = asyncio.run(_publish_async(millstream_broker.bootstrap_servers, salting))
    assert partitions[0] == java_partition(b"big", 6)
    assert Counter(partitions[1:]) == dict.fromkeys(salting.partitions_of("big", 6), 3)


def test_a_producer_of_confluent_kafka_and_java_agree(millstream_broker: EmbeddedBroker, client: Client) -> None:
    """librdkafka's `murmur2` is tested against Java's; ours is here tested against it."""
    client.create_topic("agreed", 7, exist_ok=True)
    producer = Producer({"bootstrap.servers": millstream_broker.bootstrap_servers, "partitioner": "murmur2"})
    partitioner = HotKeyPartitioner(max_records_per_second=1000)
    keys = [random.Random(n).randbytes(n % 23 + 1) for n in range(100)]
    for key in keys:
        producer.produce("agreed", b"theirs", key)
        producer.produce("agreed", b"ours", key, partition=partitioner(key, 7, 4))
    producer.flush(TIMEOUT_SECONDS)
    places: dict[bytes | None, set[int]] = {}
    for record in client.consume("agreed"):
        places.setdefault(record.key, set()).add(record.partition)
    assert {len(partitions) for partitions in places.values()} == {1}
