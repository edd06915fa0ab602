"""Where long work waits between its slices: one slice goes on in each turn of the event loop, the oldest first.

So ten connections with long requests take no more of a turn than one, and everything else is served in between.
"""

import asyncio
from collections import deque
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


class Turnstile:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.passed = 0
        """Slices that have gone on; for tests and metrics."""

    async def next_turn(self) -> None:
        """Returns in a later turn of the loop, when those that came before have had theirs."""
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
        """Runs work that is written as a generator, a step in each turn; its result."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.next_turn()
