"""The runtime around a state machine: what clients hear and when, on a log that is replicated; where it goes wrong."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from millstream.config.loading import load_broker_config
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.topic_creation import InternalTopics
from millstream.node.coordination.core.state_machine import (
    CoordinatorRecord,
    CoordinatorResult,
    DeferredResponse,
    Timers,
)
from millstream.node.coordination.runtime import CoordinatorRuntime
from millstream.node.environment import Environment
from millstream.node.groups.coordinator import GroupCoordinator
from millstream.node.metadata.image import MetadataDelta
from millstream.node.metadata.topic_names import CONSUMER_OFFSETS_TOPIC
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.server.network import SocketNetwork

pytestmark = pytest.mark.plain  # partitions are simple fakes

T = TypeVar("T")


class Clock:
    def now_ms(self) -> int:
        return 1000


def environment() -> Environment:
    loop = asyncio.get_running_loop()

    def offload(function: Callable[[], T]) -> "asyncio.Future[T]":
        return loop.run_in_executor(None, function)

    return Environment(Clock(), loop, offload, random.Random(1), SocketNetwork(loop))


class Keys:
    """A state machine that knows the keys it was told."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.keys: list[bytes] = []

    def replay(self, key: bytes, value: bytes | None) -> None:
        self.keys.append(key)

    def loaded(self, now_ms: int) -> None: ...


class Log:
    log_start_offset = 0
    recovery_point = 0
    flush_due = False
    config = SimpleNamespace(flush_before_ack=False)

    def __init__(self, failures: int = 0, end: int = 0) -> None:
        self.failures = failures
        self.log_end_offset = max(end, failures)

    def read(self, *args: Any, **options: Any) -> Any:
        self.failures -= 1
        self.log_end_offset = self.failures
        raise OSError("the disk is gone")


class Replicated:
    """A partition as far as the runtime needs it: what is appended is committed when the test says so."""

    topic_partition = "t-0"
    is_leader = True
    is_in_doubt = False

    def __init__(self, log: Log | None = None, *, replicas: int = 1, committed: int | None = None) -> None:
        self.log = log or Log()
        self.leader_epoch = 3
        self.refusal: KafkaError | None = None
        self._replicas = replicas
        self._committed = self.log.log_end_offset if committed is None else committed
        self._waiting: list[tuple[int, Callable[[KafkaError | None], None]]] = []

    @property
    def high_watermark(self) -> int:
        return self.log.log_end_offset if self._replicas == 1 else self._committed

    def check_enough_in_sync(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def append(self, batch: memoryview, now_ms: int) -> None:
        self.log.log_end_offset += 1

    def when_committed(self, offset: int, callback: Callable[[KafkaError | None], None]) -> None:
        if offset <= self.high_watermark:
            callback(None)
        else:
            self._waiting.append((offset, callback))

    def commit(self) -> None:
        self._committed = self.log.log_end_offset
        waiting, self._waiting = self._waiting, []
        for _, callback in waiting:
            callback(None)

    def lose(self) -> None:
        self.is_leader = False
        waiting, self._waiting = self._waiting, []
        for _, callback in waiting:
            callback(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it went"))


def partition(kept: Replicated) -> Partition:
    return cast(Partition, kept)


def runtime_on(kept: Replicated, **options: Any) -> tuple[CoordinatorRuntime, Keys]:
    state = Keys()
    return CoordinatorRuntime(partition(kept), state, environment(), **options), state


def put(key: bytes) -> Callable[[int], CoordinatorResult[bytes]]:
    return lambda now_ms: CoordinatorResult(key, [CoordinatorRecord(key, b"")])


def look(state: Keys) -> Callable[[int], CoordinatorResult[list[bytes]]]:
    return lambda now_ms: CoordinatorResult(list(state.keys))


def story(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def code_of(work: "asyncio.Future[Any] | Coroutine[Any, Any, Any]") -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await work
    return caught.value.code


def test_who_waits_is_told_when_the_runtime_is_closed() -> None:
    async def main() -> None:
        runtime, _ = runtime_on(Replicated())
        resolved, unresolved = DeferredResponse[int](), DeferredResponse[int]()

        def outcome(response: DeferredResponse[int]) -> CoordinatorResult[int]:
            return CoordinatorResult(response)

        waiting = asyncio.ensure_future(runtime.run(lambda now_ms: outcome(unresolved)))
        other = asyncio.ensure_future(runtime.run(lambda now_ms: outcome(resolved)))
        await turns()
        resolved.resolve(5)
        await turns()
        runtime.close()
        assert await other == 5
        for late in (waiting, runtime.run(lambda now_ms: outcome(resolved))):
            assert await code_of(late) == ErrorCode.NOT_COORDINATOR

    story(main)


def test_with_one_replica_nothing_waits() -> None:
    async def main() -> None:
        runtime, state = runtime_on(Replicated())
        await runtime.load()
        assert runtime.run_now(put(b"k")) == b"k"
        assert runtime.is_settled and state.keys == [b"k"]

    story(main)


def test_responses_wait_until_their_state_is_committed() -> None:
    async def main() -> None:
        kept = Replicated(replicas=3)
        runtime, state = runtime_on(kept)
        write = asyncio.ensure_future(runtime.run(put(b"k")))
        await turns()
        read = asyncio.ensure_future(runtime.run(look(state)))

        def refuse(now_ms: int) -> CoordinatorResult[None]:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "it was removed")

        refused = asyncio.ensure_future(runtime.run(refuse))
        await turns()
        assert state.keys == [b"k"]  # the state is ahead, but no one knows
        assert not write.done() and not read.done() and not refused.done() and not runtime.is_settled
        kept.commit()
        assert (await write, await read) == (b"k", [b"k"])
        assert await code_of(refused) == ErrorCode.UNKNOWN_MEMBER_ID
        assert runtime.is_settled

    story(main)


def test_who_may_not_coordinate_any_more_refuses_nothing_for_good() -> None:
    """A coordinator that has lost the controller: another may have given the member, or the producer, what it asks."""

    async def main() -> None:
        kept = Replicated(replicas=3)
        runtime, _ = runtime_on(kept)

        def refuse(code: ErrorCode) -> Callable[[int], CoordinatorResult[None]]:
            def operation(now_ms: int) -> CoordinatorResult[None]:
                raise KafkaError(code, "as this one knows it")

            return operation

        fenced, busy = ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS
        assert await code_of(asyncio.ensure_future(runtime.run(refuse(fenced)))) == fenced
        kept.is_in_doubt = True
        assert await code_of(asyncio.ensure_future(runtime.run(refuse(fenced)))) == ErrorCode.NOT_COORDINATOR
        assert await code_of(asyncio.ensure_future(runtime.run(refuse(busy)))) == busy

    story(main)


def test_a_response_that_another_operation_gives_waits_for_its_records() -> None:
    async def main() -> None:
        kept = Replicated(replicas=3)
        runtime, _ = runtime_on(kept)
        response = DeferredResponse[int]()
        waiting = asyncio.ensure_future(runtime.run(lambda now_ms: CoordinatorResult[int](response)))
        await turns()

        def resolve(now_ms: int) -> CoordinatorResult[None]:
            response.resolve(5)  # before its records are written, as operations do
            return CoordinatorResult(None, [CoordinatorRecord(b"k", b"")])

        other = asyncio.ensure_future(runtime.run(resolve))
        await turns()
        assert not waiting.done() and not other.done()
        kept.commit()
        assert await waiting == 5

    story(main)


def test_what_cannot_be_committed_closes_the_runtime_and_everyone_hears_of_it() -> None:
    async def main() -> None:
        kept = Replicated(replicas=3)
        runtime, state = runtime_on(kept)
        lost: list[str] = []
        outside: list[str] = []
        runtime.on_lost = lambda: lost.append("lost")
        write = asyncio.ensure_future(runtime.run(put(b"k")))
        await turns()
        runtime.when_settled(lambda: outside.append("seen"))
        read = asyncio.ensure_future(runtime.run(look(state)))
        await turns()
        kept.lose()
        for each in (write, read, runtime.run(look(state))):
            assert await code_of(each) == ErrorCode.NOT_COORDINATOR
        assert lost == ["lost"] and not runtime.is_current and outside == []

    story(main)


def test_a_write_of_an_epoch_that_is_over_is_not_made() -> None:
    async def main() -> None:
        kept = Replicated(replicas=3)
        runtime, state = runtime_on(kept)
        await runtime.load()
        kept.leader_epoch += 1  # it led, another did, and it leads again
        assert await code_of(runtime.run(put(b"k"))) == ErrorCode.NOT_COORDINATOR
        assert kept.log.log_end_offset == 0 and state.keys == []

    story(main)


def test_too_few_replicas_refuse_the_write_and_leave_the_state() -> None:
    async def main() -> None:
        kept = Replicated(replicas=3)
        runtime, state = runtime_on(kept)
        kept.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "one of two")
        assert await code_of(runtime.run(put(b"k"))) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await runtime.run(look(state)) == []
        kept.refusal = None
        write = asyncio.ensure_future(runtime.run(put(b"k")))
        await turns()
        kept.commit()
        assert await write == b"k"

    story(main)


def test_a_response_that_takes_too_long_is_given_up_and_the_state_is_kept() -> None:
    async def main() -> None:
        kept = Replicated(replicas=3)
        runtime, state = runtime_on(kept, commit_timeout_ms=lambda: 10)
        assert await code_of(runtime.run(put(b"k"))) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        kept.commit()
        assert await runtime.run(look(state)) == [b"k"]

    story(main)


def test_loading_waits_until_all_that_is_in_the_log_is_committed() -> None:
    async def main() -> None:
        kept = Replicated(Log(end=7), replicas=3, committed=4)
        runtime, _ = runtime_on(kept)
        loading = asyncio.ensure_future(runtime.load())
        await turns()
        assert not loading.done()
        runtime.close()
        assert await code_of(loading) == ErrorCode.NOT_COORDINATOR

    story(main)


class Groups:
    """A coordinator of groups with one partition."""

    def __init__(self, kept: Replicated) -> None:
        self.kept = kept
        image = SimpleNamespace(
            topics={CONSUMER_OFFSETS_TOPIC: SimpleNamespace(partitions=[None])}, offset=1, configs={}
        )
        view = cast(ClusterView, SimpleNamespace(image=image, config=load_broker_config(), node_id=1))
        table = cast(PartitionTable, SimpleNamespace(by_name={CONSUMER_OFFSETS_TOPIC.encode(): {0: partition(kept)}}))
        self.groups = GroupCoordinator(view, table, cast(InternalTopics, None), environment())

    def changed(self) -> None:
        topic: Any = SimpleNamespace(name=CONSUMER_OFFSETS_TOPIC)
        self.groups.follow(MetadataDelta(changed={CONSUMER_OFFSETS_TOPIC: topic}))

    async def list(self) -> list[dict[str, Any]]:
        return await self.groups.read("g", lambda shard: shard.list_groups())


def test_a_shard_that_could_not_be_loaded_is_loaded_again() -> None:
    async def main() -> None:
        world = Groups(Replicated(Log(failures=1)))
        assert await code_of(world.list()) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await world.list() == []
        world.groups.close()

    story(main)


def test_shards_follow_the_leadership() -> None:
    async def main() -> None:
        kept = Replicated()
        world = Groups(kept)
        closed: list[object] = []
        world.groups.on_shard_closed = closed.append
        assert await world.list() == []
        kept.is_leader = False
        assert await code_of(world.list()) == ErrorCode.NOT_COORDINATOR
        world.changed()
        assert len(closed) == 1 and await world.groups.read_all(lambda shard: 1) == []
        kept.is_leader, kept.leader_epoch = True, 5
        world.changed()
        assert await world.list() == []
        kept.leader_epoch = 6
        world.changed()
        assert len(closed) == 2
        assert await world.groups.read_all(lambda shard: 1) == [1]
        world.groups.close()

    story(main)
