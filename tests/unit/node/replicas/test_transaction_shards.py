"""The shards of transactions on real logs: loaded while they are led, tried again if that fails, then given up."""

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
from millstream.formats.model.identifiers import ProducerIdentity, TopicPartition
from millstream.node.coordination import runtime as coordinator_runtime
from millstream.node.environment import Environment
from millstream.node.metadata.image import PartitionState
from millstream.node.metadata.topic_names import TRANSACTION_STATE_TOPIC
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.runtime.disk import RealDisk
from millstream.node.runtime.real_environment import SystemClock
from millstream.node.server.network import SocketNetwork
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.transactions.coordinator import TransactionShards, shard_of
from millstream.node.transactions.core.transaction import ProducerStart
from tests.unit.node.coordination.transaction_run import partition
from tests.waiting import TIMEOUT_SECONDS, until_async

AT = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
TOPIC_ID = UUID(int=4)
CLIENT = ProducerIdentity(7, 0)


def led(epoch: int) -> PartitionState:
    return PartitionState(replicas=(1,), isr=(1,), leader=1, leader_epoch=epoch, partition_epoch=epoch)


class World:
    """One partition of the state topic, and the shards of a broker that leads it."""

    def __init__(self, root: Path) -> None:
        self.logs = LogDirectory(RealDisk(), str(root))
        self.clock = SystemClock()
        self.logs.start(self.clock.now_ms())
        self.decided: list[tuple[int, str]] = []

    def begin(self) -> TransactionShards:
        loop = asyncio.get_running_loop()

        def offload(function: Callable[[], Any]) -> "asyncio.Future[Any]":
            return loop.run_in_executor(None, function)

        environment = Environment(self.clock, loop, offload, random.Random(1), SocketNetwork(loop))
        table = PartitionTable()
        replicas: Any = SimpleNamespace(node_id=1)
        self.partition = Partition(AT, TOPIC_ID, self._open, environment, replicas)
        self.partition.become_leader(led(0))
        table.add(self.partition)
        image = SimpleNamespace(features={"transaction.version": 2})
        view: Any = SimpleNamespace(image=image, config=load_broker_config(), node_id=1)
        shards = TransactionShards(view, table, environment)
        shards.on_decided = lambda runtime, decided: self.decided.append(
            (runtime.leader_epoch, decided.transactional_id)
        )
        return shards

    def _open(self) -> Any:
        now_ms = self.clock.now_ms()
        if AT in self.logs.partitions:
            return self.logs.open(AT, LogConfig(), now_ms)
        return self.logs.create(AT, TOPIC_ID, LogConfig(), now_ms)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.logs.close(0)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, TIMEOUT_SECONDS))


async def decide(shards: TransactionShards, name: str) -> None:
    runtime = await shards.loaded(0)
    shard = shard_of(runtime)
    start = ProducerStart(transactional_id=name, timeout_ms=1000, new_producer_id=CLIENT.producer_id)
    await runtime.run(lambda now_ms: shard.start_producer(start, now_ms))
    await runtime.run(lambda now_ms: shard.add_partitions(name, CLIENT, [partition("t")], 2, now_ms))
    await runtime.run(lambda now_ms: shard.end(name, CLIENT, True, 2, now_ms))


async def until(check: Callable[[], bool]) -> None:
    await until_async(check)


def test_each_leader_epoch_hears_of_what_is_decided(world: World) -> None:
    async def story() -> None:
        shards = world.begin()
        await decide(shards, "tx")
        first = await shards.loaded(0)
        world.partition.become_leader(led(3))
        shards.start()
        await until(lambda: len(world.decided) == 2)
        assert world.decided == [(0, "tx"), (3, "tx")]
        assert first.is_closed
        with pytest.raises(KafkaError) as refused:
            await first.run(lambda now_ms: pytest.fail("it runs"))
        assert refused.value.code == ErrorCode.NOT_COORDINATOR
        shards.close()

    run(story())


def test_what_is_decided_is_found_after_a_start_without_a_request(world: World) -> None:
    async def before() -> None:
        shards = world.begin()
        await decide(shards, "tx")
        shards.close()

    async def after() -> None:
        shards = world.begin()
        shards.start()
        await until(lambda: len(world.decided) == 2)
        shards.close()

    run(before())
    world.logs.close(0)
    world.logs = LogDirectory(RealDisk(), world.logs.root)
    world.logs.start(world.clock.now_ms())
    run(after())


@pytest.mark.plain
def test_a_shard_that_cannot_be_loaded_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_runtime, "_LOAD_RETRY_SECONDS", 0.01)

    async def story() -> None:
        shards = world.begin()
        await decide(shards, "tx")
        world.partition.become_leader(led(1))
        log = world.partition.log
        failures = 3
        read = log.read

        def failing(*arguments: Any, **options: Any) -> Any:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk does not respond")
            return read(*arguments, **options)

        monkeypatch.setattr(type(log), "read", lambda self, *a, **o: failing(*a, **o))
        shards.start()
        await until(lambda: len(world.decided) == 2)
        assert failures < 0
        shards.close()

    run(story())
