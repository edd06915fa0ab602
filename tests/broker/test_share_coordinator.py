"""The share coordinator and the partitions it keeps state for, on real logs in one process."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from millstream.broker import share_coordinator
from millstream.broker.environment import Environment
from millstream.broker.led_share_partition import LedSharePartition
from millstream.broker.partition import Partition
from millstream.broker.partition_table import PartitionTable
from millstream.broker.share_coordinator import STATE_TOPIC, ShareCoordinator, coordinator_key
from millstream.broker.share_partitions import SharePartitions
from millstream.config.loading import load_broker_config
from millstream.config.log_config import LogConfig
from millstream.coordinator.share.record_state import Acknowledgement, RecordState, StateBatch
from millstream.coordinator.share.share_state import ShareKey
from millstream.metadata.image import ConfigResource, MetadataDelta, ResourceType
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import TopicName, TopicPartition
from millstream.runtime.disk import RealDisk
from millstream.storage.log_directory import LogDirectory
from tests import wire as wires

TOPIC_ID = UUID(int=5)
KEY = ShareKey("g", TOPIC_ID, 0)
ACCEPT = Acknowledgement.ACCEPT


class Clock:
    def __init__(self) -> None:
        self.time_ms = 1_000_000

    def now_ms(self) -> int:
        return self.time_ms


class World:
    """Two topics with one partition each, and everything that share groups need around them."""

    def __init__(self, root: Path) -> None:
        self.logs = LogDirectory(RealDisk(), str(root))
        self.clock = Clock()
        self.logs.start(self.clock.now_ms())
        self.settings: dict[str, str] = {"share.auto.offset.reset": "earliest"}
        self.topic_settings: dict[str, str] = {}

    def begin(self) -> None:
        """A process that has just started: nothing is in memory."""
        loop = asyncio.get_running_loop()

        def offload(function: Callable[[], Any]) -> "asyncio.Future[Any]":
            return loop.run_in_executor(None, function)

        environment = Environment(self.clock, loop, offload, random.Random(1))
        table = PartitionTable()
        for name, topic_id in ((STATE_TOPIC, UUID(int=4)), (TopicName("t"), TOPIC_ID)):
            table.add(Partition(TopicPartition(name, 0), topic_id, 0, self._opener(name, topic_id), environment))
        image = SimpleNamespace(
            topics={STATE_TOPIC: SimpleNamespace(partitions=[0])},
            configs={ConfigResource(ResourceType.GROUP, "g"): self.settings},
            topic_config=lambda name: self.topic_settings,
        )
        controller: Any = SimpleNamespace(image=image, config=load_broker_config())
        self.coordinator = ShareCoordinator(controller, table, environment)
        self.shared = SharePartitions(controller, table, self.coordinator, environment)
        self.state_log = table.find(STATE_TOPIC, 0)
        self.topic = table.find("t", 0)

    def _opener(self, name: TopicName, topic_id: UUID) -> Callable[[], Any]:
        at = TopicPartition(name, 0)
        now_ms = self.clock.now_ms()
        if at in self.logs.partitions:
            return lambda: self.logs.open(at, LogConfig(), now_ms)
        return lambda: self.logs.create(at, topic_id, LogConfig(), now_ms)

    def produce(self, *values: bytes, **options: Any) -> None:
        batch = wires.batch(*values, timestamp=self.clock.now_ms(), **options)
        self.topic.append(memoryview(bytearray(batch)), self.clock.now_ms())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.logs.close(0)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


async def offsets(led: LedSharePartition, member: str = "a") -> list[tuple[int, int]]:
    taken = await led.take(member, 1 << 20, 100, strict=False, at_least_one=True)
    return [] if taken is None else [(each.first, each.last) for each in taken.acquired]


def test_the_log_is_cut_off_behind_a_checkpoint(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_coordinator, "_CHECKPOINT_RECORDS", 40)
    monkeypatch.setattr(share_coordinator, "_CHECKPOINT_BATCH_BYTES", 100)
    keys = [ShareKey("g", TOPIC_ID, index) for index in range(5)]

    async def story() -> None:
        world.begin()
        for key in keys:
            await world.coordinator.initialize(key, 0, 0)
        for start in range(60):
            for key in keys:
                batch = StateBatch(start + 3, start + 4, RecordState.ACKNOWLEDGED, 1)
                await world.coordinator.write(
                    key, state_epoch=0, leader_epoch=0, start_offset=start, complete_count=2, batches=[batch]
                )
        log = world.state_log.log
        assert log.log_end_offset - log.log_start_offset < 60
        before = [await world.coordinator.summary(key) for key in keys]
        world.begin()
        after = [await world.coordinator.summary(key) for key in keys]
        assert [(each.start_offset, each.batches) for each in after if each] == [
            (each.start_offset, each.batches) for each in before if each
        ]
        assert after[0] is not None and after[0].start_offset == 59

    run(story())


def test_what_cannot_be_written_did_not_happen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world.begin()
        world.produce(b"a", b"b")
        led = await world.shared.get(KEY)
        assert await offsets(led) == [(0, 1)]

        async def refuse(*_: object, **__: object) -> None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the disk is full")

        with monkeypatch.context() as broken:
            broken.setattr(world.coordinator, "write", refuse)
            with pytest.raises(KafkaError):
                await led.acknowledge("a", [(0, 1, ACCEPT)])
            assert led.machine.locks == 2
            await led.release("nobody")
        await led.acknowledge("a", [(0, 1, ACCEPT)])
        world.begin()
        assert await offsets(await world.shared.get(KEY)) == []

    run(story())


def test_a_lock_expires_on_time(world: World) -> None:
    world.settings["share.record.lock.duration.ms"] = "15000"

    async def story() -> None:
        world.begin()
        world.produce(b"a")
        led = await world.shared.get(KEY)
        assert await offsets(led) == [(0, 0)]
        assert await offsets(led, "b") == []
        world.clock.time_ms += 15_000
        led._ring()
        await asyncio.sleep(0)
        assert await offsets(led, "b") == [(0, 0)]

    run(story())


def test_only_one_reads_and_the_other_is_told(world: World) -> None:
    async def story() -> None:
        world.begin()
        world.produce(b"a")
        world.produce(b"b")
        led = await world.shared.get(KEY)
        led._reading = True
        assert await offsets(led) == []
        led._reading = False
        woken: list[str] = []

        class Waiter:
            def wake(self) -> None:
                woken.append("again")

        led.waiters.add(Waiter())
        assert await offsets(led) == [(0, 1)]
        assert woken == ["again"]

    run(story())


def test_settings_that_change_how_records_are_looked_at_load_the_partition_anew(world: World) -> None:
    async def story() -> None:
        world.begin()
        world.produce(b"a", b"b")
        led = await world.shared.get(KEY)
        assert await offsets(led) == [(0, 1)]
        changed: Any = SimpleNamespace(
            deleted={}, created={}, changed={}, configs=[ConfigResource(ResourceType.GROUP, "g")]
        )
        delta: MetadataDelta = changed
        world.settings["share.delivery.count.limit"] = "7"
        world.shared.follow(delta)
        assert led.machine.limits.delivery_count == 7 and not led.dropped
        world.settings["share.key.order"] = "true"
        world.shared.follow(delta)
        assert led.dropped
        with pytest.raises(KafkaError):
            await led.acknowledge("a", [(0, 1, ACCEPT)])
        fresh = await world.shared.get(KEY)
        assert await offsets(fresh) == [(0, 1)]  # no keys, no order

    run(story())


def test_reading_on_past_records_that_are_not_due(world: World) -> None:
    world.topic_settings["millstream.delivery.delay.ms"] = "60000"

    async def story() -> None:
        world.begin()
        for _ in range(5):
            world.produce(b"x" * 100_000)
        world.clock.time_ms += 60_000
        for _ in range(5):
            world.produce(b"x" * 100_000)
        led = await world.shared.get(KEY)
        assert await offsets(led) == [(0, 1)]  # as much as is looked at in one go
        assert [await offsets(led) for _ in range(3)] == [[(2, 3)], [(4, 4)], []]
        assert (led.machine.end, led.machine.deferred) == (10, 5)
        world.clock.time_ms += 60_000
        assert await offsets(led) == [(5, 6)]

    run(story())


def test_the_key_of_a_coordinator_is_kafkas() -> None:
    topic_id = UUID("403e31b1-dc41-4ed1-846c-b2df644f8170")
    assert coordinator_key(ShareKey("jg", topic_id, 1)) == "jg:QD4xsdxBTtGEbLLfZE-BcA:1"
