"""The watch over turns of the event loop, with a clock of the test's own."""

import asyncio
import inspect
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from millstream.node.server.long_requests import TurnWatch
from millstream.node.server.service import Peer

PEER = Peer("10.0.0.9", 1234, "PLAINTEXT", client_id="slow")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_long_turns_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watch = TurnWatch(clock)
    watch.expect("produce")
    with caplog.at_level(logging.WARNING, "millstream.turns"):
        clock.now = 0.04
        watch.ended(0.0, "produce", PEER)
        assert not caplog.records and watch.long_turns["produce"].count == 0
        clock.now = 0.3
        watch.ended(0.0, "metadata", PEER)
    assert watch.long_turns["metadata"].count == 1
    assert watch.long_turns["metadata"].total == pytest.approx(0.3)
    (line,) = caplog.messages
    assert "api=metadata" in line and "peer=10.0.0.9:1234" in line and "ms=300" in line


def test_each_step_of_a_coroutine_is_a_turn() -> None:
    clock = Clock()
    watch = TurnWatch(clock)

    async def handler() -> str:
        clock.now += 0.04
        await asyncio.sleep(0)
        clock.now += 0.04
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            clock.now += 0.2
            return "cancelled"
        return "not cancelled"

    async def scene() -> str:
        task = asyncio.ensure_future(watch.over(handler(), "slow", PEER))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert watch.long_turns == {}
        task.cancel()
        return await task

    assert asyncio.run(scene()) == "cancelled"
    assert watch.long_turns["slow"].count == 1
    assert watch.long_turns["slow"].total == pytest.approx(0.2)


def test_errors_pass_through_and_what_never_began_is_closed() -> None:
    watch = TurnWatch(Clock())

    async def fails() -> None:
        raise ValueError("as it was")

    async def scene() -> None:
        with pytest.raises(ValueError, match="as it was"):
            await asyncio.ensure_future(watch.over(fails(), "any", PEER))
        never = asyncio.ensure_future(watch.over(fails(), "any", PEER))
        never.cancel()
        with pytest.raises(asyncio.CancelledError):
            await never

    asyncio.run(scene())


def test_what_a_coroutine_would_have_awaited_is_closed_with_it() -> None:
    """A node that ends before the first step of a task: nothing awaits the handler's coroutine."""
    watch = TurnWatch(Clock())

    async def handler() -> None:
        raise AssertionError("it must not run")

    async def response(awaited: "Coroutine[Any, Any, None]") -> None:
        await awaited

    def watched(inner: "Coroutine[Any, Any, None]") -> "Coroutine[Any, Any, None]":
        return watch.over(response(inner), "any", PEER, inner)

    async def scene() -> None:
        cancelled = handler()
        never = asyncio.ensure_future(watched(cancelled))
        never.cancel()
        with pytest.raises(asyncio.CancelledError):
            await never
        assert inspect.getcoroutinestate(cancelled) == inspect.CORO_CLOSED
        closed = handler()
        watched(closed).close()
        assert inspect.getcoroutinestate(closed) == inspect.CORO_CLOSED

    asyncio.run(scene())


def test_a_handler_that_was_interrupted_is_not_closed_twice() -> None:
    watch = TurnWatch(Clock())
    ends = []

    async def handler() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("handler")

    async def response(awaited: "Coroutine[Any, Any, None]") -> None:
        await awaited

    async def scene() -> None:
        inner = handler()
        task = asyncio.ensure_future(watch.over(response(inner), "any", PEER, inner))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())
    assert ends == ["handler"]
