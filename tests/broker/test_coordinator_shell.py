"""The shell around a state machine, where it goes wrong: it is closed while somebody waits, or cannot be loaded."""

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from millstream.broker.controller import Controller
from millstream.broker.coordinator_shell import CoordinatorShell
from millstream.broker.group_coordinator import GROUP_TOPIC, GroupCoordinator
from millstream.broker.partition import Partition
from millstream.broker.partition_table import PartitionTable
from millstream.config.loading import load_broker_config
from millstream.coordinator.outcome import Outcome, Reply
from millstream.coordinator.timers import Timers
from millstream.environment import Environment
from millstream.model.errors import ErrorCode, KafkaError
from millstream.net.network import SocketNetwork

T = TypeVar("T")


class Clock:
    def now_ms(self) -> int:
        return 1000


def environment() -> Environment:
    loop = asyncio.get_running_loop()

    def offload(function: Callable[[], T]) -> "asyncio.Future[T]":
        return loop.run_in_executor(None, function)

    return Environment(Clock(), loop, offload, random.Random(1), SocketNetwork(loop))


class Nothing:
    """A state machine without a state."""

    def __init__(self) -> None:
        self.timers = Timers()

    def replay(self, key: bytes, value: bytes | None) -> None: ...

    def loaded(self, now_ms: int) -> None: ...


class Log:
    log_start_offset = 0

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures

    def read(self, *args: Any, **options: Any) -> Any:
        self.failures -= 1
        raise OSError("the disk is gone")


class Kept:
    """A partition as far as the shell needs it; empty, unless reading is to fail."""

    topic_partition = "t-0"

    def __init__(self, log: Log) -> None:
        self.log = log

    @property
    def high_watermark(self) -> int:
        return max(0, self.log.failures)


def partition(log: Log) -> Partition:
    return cast(Partition, Kept(log))


def test_who_waits_is_told_when_the_shell_is_closed() -> None:
    async def main() -> None:
        shell = CoordinatorShell(partition(Log()), Nothing(), environment())
        answered, unanswered = Reply[int](), Reply[int]()

        def outcome(reply: Reply[int]) -> Outcome[int]:
            return Outcome(reply)

        waiting = asyncio.ensure_future(shell.run(lambda now_ms: outcome(unanswered)))
        other = asyncio.ensure_future(shell.run(lambda now_ms: outcome(answered)))
        await asyncio.sleep(0.01)
        answered.resolve(5)
        shell.close()
        assert await other == 5
        for late in (waiting, shell.run(lambda now_ms: outcome(answered))):
            with pytest.raises(KafkaError) as caught:
                await late
            assert caught.value.code == ErrorCode.NOT_COORDINATOR

    asyncio.run(main())


def test_a_shard_that_could_not_be_loaded_is_loaded_anew() -> None:
    async def main() -> None:
        log = Log(failures=1)
        image = SimpleNamespace(topics={GROUP_TOPIC: SimpleNamespace(partitions=[None])}, offset=1, configs={})
        controller = cast(Controller, SimpleNamespace(image=image, config=load_broker_config()))
        partitions = cast(PartitionTable, SimpleNamespace(find=lambda topic, index: partition(log)))
        groups = GroupCoordinator(controller, partitions, environment())
        with pytest.raises(KafkaError) as caught:
            await groups.read("g", lambda shard: shard.list_groups())
        assert caught.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await groups.read("g", lambda shard: shard.list_groups()) == []
        groups.close()

    asyncio.run(main())
