"""The rate limits of the object store, on a clock that moves when a thread sleeps."""

import pytest

from millstream.node.runtime.object_store import UNLIMITED, Pace
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
