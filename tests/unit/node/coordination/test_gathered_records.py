"""Operations whose records are gathered: one batch for a turn of the event loop, and nobody sees the difference."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker
from millstream.formats.records.batch import HEADER_SIZE
from millstream.formats.records.record import read_batches
from millstream.node.coordination.core.state_machine import CoordinatorRecord
from millstream.node.coordination.runtime import CoordinatorRuntime
from tests.unit.node.cluster.test_coordinator_shell import (
    Keys,
    Replicated,
    code_of,
    environment,
    look,
    partition,
    put,
    story,
    turns,
)

pytestmark = pytest.mark.plain  # partitions are simple fakes

SMALL = 1 << 10


class Batches(Replicated):
    """A partition that remembers the keys of each batch, and refuses batches above a size."""

    def __init__(self, *, most_bytes: int = 1 << 30, **options: Any) -> None:
        super().__init__(**options)
        self.appended: list[Any] = []
        self.most_bytes = most_bytes

    def append(self, batch: memoryview, now_ms: int) -> None:
        if len(batch) > self.most_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "too large")
        super().append(batch, now_ms)
        self.appended += [[record.key for record in records] for _, records in read_batches(batch)]

    def append_marker(self, marker: Marker, now_ms: int) -> None:
        self.log.log_end_offset += 1
        self.appended.append(marker)


class Gathering:
    """A runtime, and what the callers of `gather` hear: the key, with the error code if there is one."""

    def __init__(self, kept: Batches, **options: Any) -> None:
        self.kept = kept
        self.state = Keys()
        self.runtime = CoordinatorRuntime(partition(kept), self.state, environment(), **options)
        self.heard: dict[bytes, ErrorCode] = {}
        self.order: list[bytes] = []

    def gather(self, *keys: bytes, value: bytes = b"") -> None:
        for key in keys:
            self.runtime.gather([CoordinatorRecord(key, value)], self._hearing(key))

    def _hearing(self, key: bytes) -> Callable[[KafkaError | None], None]:
        def heard(error: KafkaError | None) -> None:
            assert key not in self.heard
            self.heard[key] = ErrorCode.NONE if error is None else error.code
            self.order.append(key)

        return heard


def test_one_batch_for_all_of_a_turn() -> None:
    async def main() -> None:
        world = Gathering(Batches())
        await world.runtime.load()
        world.gather(b"a", b"b", b"c")
        assert world.kept.appended == [] and world.state.keys == [] and world.heard == {}
        await turns()
        assert world.kept.appended == [[b"a", b"b", b"c"]] and world.state.keys == [b"a", b"b", b"c"]
        assert world.heard == dict.fromkeys((b"a", b"b", b"c"), ErrorCode.NONE)
        assert world.order == [b"c", b"b", b"a"]  # a connection sends all responses with its first one
        world.gather(b"d")
        await turns()
        assert world.kept.appended[1:] == [[b"d"]]

    story(main)


def test_what_looks_at_the_state_comes_after_what_was_gathered() -> None:
    async def main() -> None:
        world = Gathering(Batches())
        await world.runtime.load()
        world.gather(b"a")
        assert world.runtime.run_now(look(world.state)) == [b"a"]
        world.gather(b"b")
        assert world.runtime.run_now(put(b"c")) == b"c"
        world.gather(b"d")
        await world.runtime.end_transaction(marker := Marker(7, 3, 1, True, 2))
        world.gather(b"e")
        due: list[list[bytes]] = []

        def action(now_ms: int) -> None:
            due.append(list(world.state.keys))

        world.state.timers.set("due", 0, action)
        world.runtime._run_due_timers()
        assert due == [[b"a", b"b", b"c", b"d", b"e"]]
        assert world.kept.appended == [[b"a"], [b"b"], [b"c"], [b"d"], marker, [b"e"]]
        await turns()
        assert len(world.kept.appended) == 6 and set(world.heard.values()) == {ErrorCode.NONE}

    story(main)


def test_a_batch_has_a_limit() -> None:
    async def main() -> None:
        world = Gathering(Batches())
        await world.runtime.load()
        keys = [b"%d" % number for number in range(1001)]
        world.gather(*keys)
        await turns()
        assert [len(batch) for batch in world.kept.appended] == [500, 500, 1]
        assert [key for batch in world.kept.appended for key in batch] == keys == world.state.keys
        world.kept.appended.clear()
        world.gather(*(b"large%d" % number for number in range(5)), value=bytes(30_000))
        await turns()
        assert [len(batch) for batch in world.kept.appended] == [2, 2, 1]

    story(main)


def test_only_what_is_too_large_for_the_log_is_refused() -> None:
    async def main() -> None:
        world = Gathering(Batches(most_bytes=HEADER_SIZE + SMALL))
        await world.runtime.load()
        world.gather(b"a")
        world.gather(b"b", value=bytes(2 * SMALL))
        world.gather(b"c")
        await turns()
        assert world.kept.appended == [[b"a"], [b"c"]] and world.state.keys == [b"a", b"c"]
        assert world.heard == {
            b"a": ErrorCode.NONE,
            b"b": ErrorCode.UNKNOWN_SERVER_ERROR,
            b"c": ErrorCode.NONE,
        }

    story(main)


def test_what_a_response_leads_to_comes_after_all_that_was_gathered() -> None:
    """A connection that was full reads its next requests when a response is ready."""

    async def main(most_bytes: int, expected: list[list[bytes]]) -> None:
        world = Gathering(Batches(most_bytes=most_bytes))
        await world.runtime.load()

        def read_on(error: KafkaError | None) -> None:
            world.gather(b"d")
            world.runtime.run_now(put(b"e"))

        world.runtime.gather([CoordinatorRecord(b"a", b"")], read_on)
        world.gather(b"b", value=bytes(2 * SMALL))
        world.gather(b"c")
        await turns()
        assert world.kept.appended == expected

    story(lambda: main(1 << 30, [[b"a", b"b", b"c"], [b"d"], [b"e"]]))
    story(lambda: main(HEADER_SIZE + SMALL, [[b"a"], [b"c"], [b"d"], [b"e"]]))


def test_responses_wait_until_the_batch_is_committed() -> None:
    async def main() -> None:
        world = Gathering(Batches(replicas=3))
        await world.runtime.load()
        world.gather(b"a", b"b")
        await turns()
        assert world.state.keys == [b"a", b"b"] and world.heard == {} and not world.runtime.is_settled
        world.kept.commit()
        await turns()
        assert world.heard == {b"a": ErrorCode.NONE, b"b": ErrorCode.NONE}

    story(main)


def test_too_few_replicas_refuse_all_and_leave_the_state() -> None:
    async def main() -> None:
        world = Gathering(Batches(replicas=3))
        await world.runtime.load()
        world.kept.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "one of two")
        world.gather(b"a", b"b")
        await turns()
        assert world.state.keys == [] == world.kept.appended
        assert world.heard == dict.fromkeys((b"a", b"b"), ErrorCode.COORDINATOR_NOT_AVAILABLE)

    story(main)


def test_leadership_that_is_lost_refuses_all() -> None:
    async def main() -> None:
        world = Gathering(Batches(replicas=3))
        await world.runtime.load()
        world.gather(b"a")
        await turns()
        world.kept.lose()  # appended, and now it cannot be committed here
        await turns()
        assert world.heard == {b"a": ErrorCode.NOT_COORDINATOR} and not world.runtime.is_current
        other = Gathering(Batches(replicas=3))
        await other.runtime.load()
        other.gather(b"b")
        other.kept.leader_epoch += 1
        await turns()
        assert other.heard == {b"b": ErrorCode.NOT_COORDINATOR} and other.kept.appended == []

    story(main)


def test_a_runtime_that_is_closed_writes_nothing_more() -> None:
    async def main() -> None:
        world = Gathering(Batches())
        await world.runtime.load()
        world.gather(b"a", b"b")
        world.runtime.close()
        assert world.heard == dict.fromkeys((b"a", b"b"), ErrorCode.NOT_COORDINATOR)
        await turns()
        assert world.kept.appended == []
        assert await code_of(world.runtime.run(look(world.state))) == ErrorCode.NOT_COORDINATOR

    story(main)


def test_a_commit_that_takes_too_long_is_given_up() -> None:
    async def main() -> None:
        world = Gathering(Batches(replicas=3), commit_timeout_ms=lambda: 10)
        await world.runtime.load()
        heard = asyncio.get_running_loop().create_future()
        world.runtime.gather([CoordinatorRecord(b"a", b"")], heard.set_result)
        error = await heard
        assert error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.kept.commit()
        assert await world.runtime.run(look(world.state)) == [b"a"]

    story(main)
