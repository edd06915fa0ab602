"""The rate limits of the object store, on a clock that moves when a thread sleeps."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millstream.node.runtime.object_store import UNLIMITED, LoopDelay, Pace, ReadPauses
from millstream.node.storage.object_store import StoreError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_rate_is_kept() -> None:
    clock = Clock()
    pace = Pace(lambda: 1000, clock=clock, sleep=clock.sleep)
    for _ in range(100):
        pace.take(500)
    assert clock.now == pytest.approx(49.5), "50,000 bytes at 1,000 a second; the last 500 go at once"


def test_what_was_not_used_counts_for_a_second_at_most() -> None:
    clock = Clock()
    pace = Pace(lambda: 1000, clock=clock, sleep=clock.sleep)
    clock.now = 3600.0
    for _ in range(4):
        pace.take(1000)
    assert clock.now == pytest.approx(3602.0)


def test_a_rate_that_is_raised_counts_at_once() -> None:
    clock = Clock()
    # A byte a second, until a thread has slept once.
    pace = Pace(lambda: 1 if clock.now == 0 else 10**6, clock=clock, sleep=clock.sleep)
    pace.take(4 << 20)
    pace.take(1)
    assert clock.now < 10, "and not after the 48 days of one byte a second"


def test_without_a_limit_nothing_waits() -> None:
    clock = Clock()
    pace = Pace(lambda: UNLIMITED, clock=clock, sleep=clock.sleep)
    for _ in range(10):
        pace.take(1 << 40)
    assert clock.now == 0


def test_a_closed_store_releases_those_who_wait() -> None:
    clock = Clock()
    pace = Pace(lambda: 1, lambda: clock.now > 5, clock=clock, sleep=clock.sleep)
    pace.take(1 << 20)
    with pytest.raises(StoreError, match="closed"):
        pace.take(1)


class Timers:
    """The timers of an event loop, which runs them late."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, action: Callable[[], None]) -> Any:
        entry = due, action
        self.waiting.append(entry)
        return SimpleNamespace(cancel=lambda: self.waiting.remove(entry))

    def run(self, late_s: float) -> None:
        due, action = self.waiting.pop()
        self.now = due + late_s
        action()


def test_copies_give_way_while_the_event_loop_is_late() -> None:
    timers = Timers()
    delay = LoopDelay(cast(Any, timers))
    assert not timers.waiting, "nothing is measured without a copy"
    with delay:
        with delay:
            timers.run(late_s=0.001)
            assert delay.pause_s == 0, "a loop at rest"
            timers.run(late_s=0.006)
            assert 0.1 < delay.pause_s < 0.2
            timers.run(late_s=1.0)
            assert delay.pause_s == 0.2, "a copy never stands still"
        for _ in range(100):
            timers.run(late_s=0.0)
        assert delay.pause_s == 0
    assert not timers.waiting and delay.pause_s == 0


def test_reads_give_way_to_producers_while_the_event_loop_is_late() -> None:
    timers, clock = Timers(), Clock()
    delay = LoopDelay(cast(Any, timers))
    produce = SimpleNamespace(is_going_on=True)
    is_closed = SimpleNamespace(now=False)
    pauses = ReadPauses(delay, lambda: produce.is_going_on, lambda: is_closed.now, clock.sleep)
    with delay:
        timers.run(late_s=0.001)
        pauses.take()
        assert clock.now == 0, "a loop at rest"
        timers.run(late_s=1.0)
        for _ in range(10):
            pauses.take()
        assert clock.now == pytest.approx(1.0), "ten ranges of 4 MiB in a second"
        produce.is_going_on = False
        pauses.take()
        assert clock.now == pytest.approx(1.0), "nobody waits: the reader itself keeps the loop busy"
        produce.is_going_on, is_closed.now = True, True
        pauses.take()
        assert clock.now == pytest.approx(1.0), "a stop is not delayed"
