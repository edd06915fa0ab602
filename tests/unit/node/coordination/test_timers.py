"""Deadlines: in order, each once, and those that were moved or cancelled take no room for long."""

from functools import partial

from millstream.node.coordination.core.state_machine import CoordinatorResult, Timers


def nothing(now_ms: int) -> CoordinatorResult[None] | None:
    return None


def ring(rung: list[str], key: str, now_ms: int) -> None:
    rung.append(key)


def test_what_is_due_comes_in_order_and_once() -> None:
    timers = Timers()
    rung: list[str] = []
    for key, deadline_ms in (("b", 20), ("a", 10), ("c", 30)):
        timers.set(key, deadline_ms, partial(ring, rung, key))
    timers.set("b", 5, partial(ring, rung, "b moved"))
    timers.cancel("c")
    while (action := timers.take_due(25)) is not None:
        action(25)
    assert rung == ["b moved", "a"]
    assert timers.next_deadline_ms is None


def test_moved_and_cancelled_deadlines_take_no_room() -> None:
    timers = Timers()
    timers.set("soon", 1, nothing)
    for number in range(10_000):
        timers.set("far", 1_000_000 + number, nothing)
        timers.set(("passing", number), 1_000_000, nothing)
        timers.cancel(("passing", number))
    assert len(timers._heap) < 200
    assert timers.next_deadline_ms == 1
    assert timers.take_due(1) is not None and timers.take_due(1_009_998) is None
    assert timers.take_due(1_009_999) is not None and timers.next_deadline_ms is None
