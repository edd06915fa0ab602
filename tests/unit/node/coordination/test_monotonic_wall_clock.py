"""Time for sessions and locks, under a clock that is set."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millstream.node.coordination.core.state_machine import CoordinatorResult, Timers
from millstream.node.coordination.runtime import CoordinatorRuntime, MonotonicWallClock
from millstream.node.environment import Environment
from millstream.node.replicas.partition import Partition
from tests.waiting import TIMEOUT_SECONDS

HOUR_MS = 3_600_000


class Clock:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.set_by_ms = 10**12

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000) + self.set_by_ms


def clock_and_environment(loop: asyncio.AbstractEventLoop) -> tuple[Clock, Environment]:
    clock = Clock(loop)
    return clock, Environment(clock, loop, cast(Any, None), random.Random(1), cast(Any, None))


def test_it_follows_the_clock_forward_and_does_not_go_back() -> None:
    now = [5.0]
    loop = cast(asyncio.AbstractEventLoop, SimpleNamespace(time=lambda: now[0]))
    clock, environment = clock_and_environment(loop)
    time = MonotonicWallClock(environment)
    begun = time.now_ms()
    assert begun == clock.now_ms()
    now[0] += 2
    assert time.now_ms() == begun + 2000
    clock.set_by_ms -= HOUR_MS
    now[0] += 2
    assert time.now_ms() == begun + 4000
    clock.set_by_ms += 2 * HOUR_MS
    assert time.now_ms() == begun + 4000 + HOUR_MS == clock.now_ms()


class Sleeper:
    """A state machine with one timer."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.rang = asyncio.Event()

    def replay(self, key: bytes, value: bytes | None) -> None:
        return

    def loaded(self, now_ms: int) -> None:
        self.timers.set("session", now_ms + 200, self._ring)

    def _ring(self, now_ms: int) -> CoordinatorResult[None]:
        self.rang.set()
        return CoordinatorResult(None)


@pytest.mark.plain
def test_a_session_ends_although_the_clock_is_set_back_meanwhile() -> None:
    async def main() -> None:
        clock, environment = clock_and_environment(asyncio.get_running_loop())
        log = SimpleNamespace(log_start_offset=0, log_end_offset=0, recovery_point=0)
        partition = SimpleNamespace(leader_epoch=1, is_leader=True, log=log, high_watermark=0, topic_partition="t-0")
        state = Sleeper()
        runtime = CoordinatorRuntime(cast(Partition, partition), state, environment)
        await runtime.load()
        clock.set_by_ms -= HOUR_MS
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await state.rang.wait()
        runtime.close()

    asyncio.run(main())
