"""Turns of the event loop: watches long ones, and lets long work run in slices.

A turn that takes long delays all other requests. Each is counted, and logged with the API and the client
(rate-limited).
`Turnstile` queues slices of long work: one runs in each turn, the oldest first. So ten connections with long requests
take no more of a turn than one."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from millstream.common.prometheus import Histogram
from millstream.node.server.limits import LogThrottle
from millstream.node.server.service import Peer

LONG_TURN_SECONDS = 0.05
_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_log = logging.getLogger("millstream.turns")
_log.addFilter(LogThrottle())
T = TypeVar("T")


class TurnWatch:
    def __init__(self, now: Callable[[], float]) -> None:
        """`now` returns the time in seconds; in the simulator a turn takes no time."""
        self.now = now
        self.long_turns: dict[str, Histogram] = {}
        """Durations by API."""

    def expect(self, api: str) -> None:
        """Adds an API before it has had a long turn."""
        self.long_turns.setdefault(api, Histogram(_BOUNDS))

    def ended(self, begun: float, api: str, peer: Peer) -> None:
        """Called at the end of a turn that handled a request."""
        seconds = self.now() - begun
        if seconds > LONG_TURN_SECONDS:
            self.expect(api)
            self.long_turns[api].observe(seconds)
            _log.warning(
                "long_turn api=%s peer=%s:%d client_id=%s ms=%d: nothing else was served meanwhile",
                api, peer.host, peer.port, peer.client_id, seconds * 1000,
            )  # fmt: skip

    def over(self, coroutine: Coroutine[Any, Any, T], api: str, peer: Peer) -> Coroutine[Any, Any, T]:
        """The coroutine, with each of its turns watched."""
        return _Watched(coroutine, self, api, peer)


class _Watched(Coroutine[Any, Any, T]):
    """Delegates to a coroutine, and measures each step."""

    __slots__ = ("_api", "_coroutine", "_peer", "_watch")

    def __init__(self, coroutine: Coroutine[Any, Any, T], watch: TurnWatch, api: str, peer: Peer) -> None:
        self._coroutine = coroutine
        self._watch = watch
        self._api = api
        self._peer = peer

    def send(self, value: Any) -> Any:
        begun = self._watch.now()
        try:
            return self._coroutine.send(value)
        finally:
            self._watch.ended(begun, self._api, self._peer)

    def throw(self, *error: Any) -> Any:
        begun = self._watch.now()
        try:
            return self._coroutine.throw(*error)
        finally:
            self._watch.ended(begun, self._api, self._peer)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()


class Turnstile:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.passed = 0
        """Number of slices that ran; for tests and metrics."""

    async def next_turn(self) -> None:
        """Returns in a later turn of the loop, after earlier waiters."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        if len(self._waiting) == 1:
            loop.call_soon(self._release)
        await mine

    def _release(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if first.cancelled():
                self._waiting.popleft()
                continue
            first.set_result(None)
            self._waiting.popleft()
            self.passed += 1
            break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._release)

    async def through(self, steps: "Generator[None, None, T]") -> T:
        """Runs a generator, one step in each turn; returns its result."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.next_turn()
