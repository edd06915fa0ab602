"""Decisions go through the quorum, one on top of the other, and get a response when they are in force."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from millstream.config.broker_config import BrokerConfig
from millstream.config.loading import load_broker_config
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicId, TopicName
from millstream.node.controller.active_controller import MAX_BATCH_RECORDS, cut_into_batches
from millstream.node.controller.topic_handlers import _in_parts
from millstream.node.metadata.image import MetadataImage, ResourceType
from millstream.node.metadata.records import (
    ConfigRecord,
    Decision,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from millstream.node.metadata.topics import NewTopic
from tests.unit.node.controller.bench import CLUSTER_ID, Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def set_topic_default(value: str) -> Any:
    def decide(image: MetadataImage, config: BrokerConfig, randomness: Any) -> Decision[str]:
        before = image.default_broker_config.get("num.partitions", "none")
        record = ConfigRecord(resource_type=ResourceType.BROKER, resource_name="", name="num.partitions", value=value)
        return Decision((record,), (before,))

    return decide


def test_the_first_leader_gives_the_cluster_its_id(bench: Bench) -> None:
    assert bench.image.cluster_id == CLUSTER_ID
    assert "metadata.version" in bench.image.features
    written = len(bench.quorum.log)
    bench.quorum.epoch = 2
    bench.controller.leading(2)
    assert len(bench.quorum.log) == written


def test_decisions_see_the_ones_before_them_although_nothing_is_committed(bench: Bench) -> None:
    bench.quorum.commits = False

    async def both() -> None:
        first = asyncio.ensure_future(bench.controller.decide(set_topic_default("3")))
        second = asyncio.ensure_future(bench.controller.decide(set_topic_default("4")))
        await asyncio.sleep(0)
        assert not first.done() and not second.done()
        assert "num.partitions" not in bench.image.default_broker_config
        bench.quorum.commit()
        assert await first == ("none",)
        assert await second == ("3",)

    bench.run(both())
    assert bench.image.default_broker_config["num.partitions"] == "4"


def test_what_rests_on_uncommitted_decisions_waits_for_them(bench: Bench) -> None:
    bench.quorum.commits = False

    async def both() -> None:
        writing = asyncio.ensure_future(bench.controller.decide(set_topic_default("3")))
        await asyncio.sleep(0)
        reading = asyncio.ensure_future(bench.controller.read())
        await asyncio.sleep(1)
        assert not reading.done()
        bench.quorum.commit()
        assert (await reading).default_broker_config["num.partitions"] == "3"
        await writing

    bench.run(both())


def test_settings_follow_the_metadata(bench: Bench) -> None:
    bench.run(bench.controller.decide(set_topic_default("7")))
    assert bench.controller.config.values["num.partitions"] == 7


def test_a_lost_lead_fails_what_waits_and_drops_what_was_decided(bench: Bench) -> None:
    bench.quorum.commits = False

    async def lose() -> None:
        waiting = asyncio.ensure_future(bench.controller.decide(set_topic_default("3")))
        await asyncio.sleep(0)
        bench.quorum.is_leader = False
        bench.controller.no_longer_leading()
        with pytest.raises(KafkaError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
        with pytest.raises(KafkaError):
            await bench.controller.decide(set_topic_default("4"))

    bench.run(lose())
    bench.quorum.batches.clear()
    bench.quorum.is_leader = bench.quorum.commits = True
    bench.quorum.epoch = 3
    bench.controller.leading(3)
    assert bench.run(bench.controller.decide(set_topic_default("5"))) == ("none",)


@pytest.mark.parametrize("kept", [True, False])
def test_a_waiting_decision_gets_the_result_of_the_next_leader(kept: bool, bench: Bench) -> None:
    bench.quorum.commits = False

    async def lose() -> None:
        waiting = asyncio.ensure_future(bench.controller.decide(set_topic_default("3")))
        await asyncio.sleep(0)
        bench.quorum.is_leader = False
        bench.controller.no_longer_leading()
        await asyncio.sleep(0.5)
        if not kept:
            bench.quorum.epoch = 2  # what the next leader wrote in its place
        bench.quorum.commit()
        if kept:
            assert await waiting == ("none",)
        else:
            with pytest.raises(KafkaError) as caught:
                await waiting
            assert caught.value.code is ErrorCode.NOT_CONTROLLER

    bench.run(lose())


def test_many_topics_are_created_in_parts() -> None:
    """Ten thousand partitions in one decision would keep the leader from leading; a name that comes twice is in one."""
    config = load_broker_config()
    topics = [NewTopic(name=f"t{number}", partition_count=200) for number in range(10)]
    assert [len(part) for part in _in_parts(topics, config)] == [2, 2, 2, 2, 2]
    parts = [[topic.name for topic in part] for part in _in_parts([*topics, topics[0]], config)]
    assert parts == [["t0", "t0"], ["t1", "t2"], ["t3", "t4"], ["t5", "t6"], ["t7", "t8"], ["t9"]]
    small = [NewTopic(name=f"t{number}", partition_count=1) for number in range(60)]
    assert [len(part) for part in _in_parts(small, config)] == [20, 20, 20]
    assert _in_parts([], config) == [[]]


def test_a_controller_whose_epoch_is_over_decides_nothing(bench: Bench) -> None:
    written = len(bench.quorum.log)
    bench.quorum.epoch = 2  # the quorum has moved on, and has not said so yet
    with pytest.raises(KafkaError) as caught:
        bench.run(bench.controller.decide(set_topic_default("3")))
    assert caught.value.code is ErrorCode.NOT_CONTROLLER
    assert len(bench.quorum.log) == written


def topic_records(number: int, partitions: int) -> list[MetadataRecord]:
    topic_id = TopicId(UUID(int=number + 100))
    rows = [
        PartitionRecord(partition_id=each, topic_id=topic_id, replicas=(1,), isr=(1,), leader=1)
        for each in range(partitions)
    ]
    return [TopicRecord(name=TopicName(f"t{number}"), topic_id=topic_id), *rows]


def test_large_decisions_are_cut_but_never_within_a_topic() -> None:
    records = [record for number in range(30) for record in topic_records(number, 999)]
    batches = list(cut_into_batches(records))
    assert [record for batch in batches for record in batch] == records
    assert len(batches) == 3
    for batch in batches:
        assert isinstance(batch[0], TopicRecord)
        assert len(batch) <= MAX_BATCH_RECORDS
    whole = topic_records(1, MAX_BATCH_RECORDS + 5)
    assert [len(batch) for batch in cut_into_batches([*whole, *topic_records(2, 1)])] == [len(whole), 2]


def test_elections_are_cut_anywhere_and_long_values_by_size() -> None:
    changes = [
        PartitionChangeRecord(partition_id=each, topic_id=TopicId(UUID(int=9)), leader=1) for each in range(25_000)
    ]
    assert [len(batch) for batch in cut_into_batches(changes)] == [10_000, 10_000, 5_000]
    long = ConfigRecord(resource_type=2, resource_name="t", name="n", value="v" * (2 << 20))
    assert [len(batch) for batch in cut_into_batches([NoOpRecord(), long, long, long])] == [2, 1, 1]
