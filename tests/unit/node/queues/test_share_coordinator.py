"""The share coordinator and the partitions it keeps state for, on real logs in one process."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from millstream.config.loading import load_broker_config
from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.records.batch import seal
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import Record, build_batch
from millstream.node.coordination.runtime import CoordinatorRuntime
from millstream.node.environment import Environment
from millstream.node.metadata.image import ConfigResource, MetadataDelta, PartitionState, ResourceType
from millstream.node.metadata.topic_names import SHARE_GROUP_STATE_TOPIC
from millstream.node.queues import coordinator as share_coordinator
from millstream.node.queues import dead_letters
from millstream.node.queues.coordinator import ShareCoordinator, StoredState, coordinator_key
from millstream.node.queues.core.runs import Acknowledgement, DeadLetter, RecordState, StateBatch
from millstream.node.queues.core.state import UNINITIALIZED, ShareKey
from millstream.node.queues.dead_letters import DeadLetters
from millstream.node.queues.fetch import ShareFetchHandlers
from millstream.node.queues.leader import SharePartitionLeader
from millstream.node.queues.partitions import SharePartitions
from millstream.node.queues.persister import SharePersister
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.runtime.disk import RealDisk
from millstream.node.server.network import SocketNetwork
from millstream.node.server.service import Peer
from millstream.node.storage.log.directory import LogDirectory
from tests import wire as wires

TOPIC_ID = UUID(int=5)
KEY = ShareKey("g", TOPIC_ID, 0)
ACCEPT = Acknowledgement.ACCEPT
LED_HERE = PartitionState(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)


class Clock:
    def __init__(self) -> None:
        self.time_ms = 1_000_000

    def now_ms(self) -> int:
        return self.time_ms


class Persister(SharePersister):
    """Also does what the group's coordinator does before anyone reads: there is state."""

    async def read(self, key: ShareKey, leader_epoch: int) -> StoredState:
        if await self.summary(key) is None:
            await self.initialize(key, 0, UNINITIALIZED)
        return await super().read(key, leader_epoch)


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

        environment = self.environment = Environment(self.clock, loop, offload, random.Random(1), SocketNetwork(loop))
        table = PartitionTable()
        replicas: Any = SimpleNamespace(node_id=1)
        for name, topic_id in ((SHARE_GROUP_STATE_TOPIC, UUID(int=4)), (TopicName("t"), TOPIC_ID)):
            at = TopicPartition(name, 0)
            partition = Partition(at, topic_id, self._opener(name, topic_id), environment, replicas)
            partition.become_leader(LED_HERE)
            table.add(partition)
        image = SimpleNamespace(
            topics={SHARE_GROUP_STATE_TOPIC: SimpleNamespace(partitions=[LED_HERE])},
            configs={ConfigResource(ResourceType.GROUP, "g"): self.settings},
            topic_config=lambda name: self.topic_settings,
        )
        view: Any = SimpleNamespace(image=image, config=load_broker_config(), node_id=1)
        nobody: Any = None
        self.coordinator = ShareCoordinator(view, table, nobody, environment)
        persister = Persister(view, self.coordinator, nobody, environment)
        letters = DeadLetters(view, nobody, nobody, environment)
        self.shared = SharePartitions(view, table, persister, letters, environment)
        self.state_log = table.find(SHARE_GROUP_STATE_TOPIC, 0)
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


async def offsets(led: SharePartitionLeader, member: str = "a") -> list[tuple[int, int]]:
    taken = await led.acquire(member, 1 << 20, 100, strict=False, at_least_one=True)
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
        flushed = asyncio.Event()
        world.state_log.when_flushed(log.log_end_offset, lambda error: flushed.set())
        await flushed.wait()
        assert log.log_end_offset - log.log_start_offset < 60
        before = [await world.coordinator.summary(key) for key in keys]
        world.begin()
        after = [await world.coordinator.summary(key) for key in keys]
        assert [(each.start_offset, each.batches) for each in after if each] == [
            (each.start_offset, each.batches) for each in before if each
        ]
        assert after[0] is not None and after[0].start_offset == 59

    run(story())


@pytest.mark.plain
def test_the_log_is_cut_off_only_when_the_snapshots_are_on_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_coordinator, "_CHECKPOINT_RECORDS", 5)
    waiting: list[Callable[[KafkaError | None], None]] = []
    monkeypatch.setattr(Partition, "when_flushed", lambda self, offset, callback: waiting.append(callback))

    async def story() -> None:
        world.begin()
        for start in range(8):
            await world.coordinator.initialize(KEY, 0, start)
        log = world.state_log.log
        assert len(waiting) == 1 and log.log_start_offset == 0
        waiting[0](KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full"))
        assert log.log_start_offset == 0
        waiting[0](None)
        assert log.log_start_offset > 0

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
        world.clock.time_ms += 20_000  # more than enough: the time of the locks goes on by itself, too
        led._timer_due()
        await asyncio.sleep(0)
        assert await offsets(led, "b") == [(0, 0)]

    run(story())


def test_what_is_decided_when_a_lock_expires_does_not_undo_what_is_said_meanwhile(world: World) -> None:
    async def story() -> None:
        world.begin()
        world.produce(b"a", b"b")
        led = await world.shared.get(KEY)
        assert (await led.acquire("a", 1 << 20, 1, strict=True, at_least_one=True)) is not None
        assert await offsets(led, "b") == [(1, 1)]
        world.clock.time_ms += 20_000
        await led.acknowledge("a", [(0, 0, Acknowledgement.RENEW)])
        world.clock.time_ms += 10_000
        expired = led.machine.expire(world.clock.now_ms())  # decided before the next, written after it
        await led.acknowledge("a", [(0, 0, ACCEPT)])
        await led._persist_or_log(expired)
        world.begin()
        assert await offsets(await world.shared.get(KEY)) == [(1, 1)]

    run(story())


@pytest.mark.plain
def test_a_state_that_could_not_be_loaded_is_loaded_when_it_is_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        world.begin()
        await world.coordinator.initialize(KEY, 0, 7)
        world.begin()

        async def fail(*_: object) -> None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is away")

        with monkeypatch.context() as broken:
            broken.setattr(CoordinatorRuntime, "_load", fail)
            with pytest.raises(KafkaError) as refused:
                await world.coordinator.summary(KEY)
            assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        state = await world.coordinator.summary(KEY)
        assert state is not None and state.start_offset == 7

    run(story())


def test_letters_are_sent_until_they_arrive_and_only_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "_RETRY_SECONDS", ())
    monkeypatch.setattr(dead_letters, "_LAST_RETRY_SECONDS", 0.0)
    world.settings["errors.deadletterqueue.topic.name"] = "dlq.t"
    sent: list[int] = []
    told: list[int] = []

    async def story() -> None:
        world.begin()
        world.produce(b"a")
        led = await world.shared.get(KEY)
        assert await offsets(led) == [(0, 0)]
        tries = iter(range(100))

        async def send_part(self: object, sender: object, topic: str, copy: bool, letter: DeadLetter, at: int) -> int:
            if next(tries) < 12:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
            sent.append(at)
            return letter.last + 1

        buried = led.dead_letter_written

        async def busy(letter: DeadLetter) -> None:
            told.append(letter.first)
            if len(told) < 3:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the disk is full")
            await buried(letter)

        monkeypatch.setattr(dead_letters.DeadLetters, "_send_part", send_part)
        monkeypatch.setattr(led, "dead_letter_written", busy)
        await led.acknowledge("a", [(0, 0, Acknowledgement.REJECT)])
        for _ in range(100):
            await asyncio.sleep(0)
        assert (sent, told, led.machine.start) == ([0], [0, 0, 0], 1)

    run(story())


def test_a_record_that_cannot_be_read_is_told_of_without_a_copy(world: World) -> None:
    async def story() -> None:
        world.begin()
        damaged = build_batch([Record(b"k", b"v" * 100, (), world.clock.now_ms())] * 2, codec=Codec.GZIP)
        damaged[70:] = b"\0" * (len(damaged) - 70)
        seal(damaged, 0, len(damaged))
        world.topic.append(memoryview(damaged), world.clock.now_ms())
        world.produce(b"fine")
        found = await world.shared._dead_letters._originals(world.topic, 0, 2)
        assert {offset: None if each is None else each.value for offset, each in found.items()} == {
            0: None,
            1: None,
            2: b"fine",
        }

    run(story())


def test_what_is_acquired_for_a_connection_that_is_gone_is_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        world.begin()
        world.produce(b"a")
        handlers = ShareFetchHandlers(
            world.shared, world.environment, 1, lambda brokers, listener: [], session_slots=5, max_bytes=1 << 20
        )
        led = await world.shared.get(KEY)
        take, peer = led.acquire, Peer("127.0.0.1", 1, "PLAINTEXT")

        async def slow(*values: Any, **options: Any) -> Any:
            peer.close()
            for _ in range(5):
                await asyncio.sleep(0)
            return await take(*values, **options)

        partition = SimpleNamespace(partition_index=0, acknowledgement_batches=[])
        request: Any = SimpleNamespace(
            group_id="g",
            member_id="a",
            share_session_epoch=0,
            topics=[SimpleNamespace(topic_id=TOPIC_ID, partitions=[partition])],
            forgotten_topics_data=[],
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=10,
            share_acquire_mode=0,
            is_renew_ack=False,
        )
        context: Any = SimpleNamespace(peer=peer)
        with monkeypatch.context() as patched:
            patched.setattr(led, "acquire", slow)
            await handlers.share_fetch(request, context)
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


def test_settings_that_change_how_records_are_looked_at_load_the_partition_again(world: World) -> None:
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
