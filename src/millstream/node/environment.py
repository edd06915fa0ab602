"""What a node needs of the world: time, chance, a network, a way to do slow things elsewhere.

The simulator brings its own.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from millstream.node.server.network import Network

T = TypeVar("T")
_OPENING_AT_ONCE = 2
"""So many threads open batches: the others are for the disk."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time, as records are stamped with."""
        ...


class Offload(Protocol):
    """Runs a function that may block where it does not hold up the event loop."""

    def __call__(self, function: Callable[[], T]) -> "asyncio.Future[T]": ...


@dataclass(frozen=True, slots=True)
class Environment:
    clock: Clock
    loop: asyncio.AbstractEventLoop
    offload: Offload
    randomness: random.Random
    network: Network
    breathe: Callable[[], None] = lambda: None
    """Called now and then by what computes for long in a thread: lets the event loop have the interpreter."""
    stopwatch: Callable[[], float] | None = None
    """Measures how long something takes, finer than the loop's time; left out, that is fine enough."""
    opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_OPENING_AT_ONCE))

    async def open_in_turn(self, function: Callable[[], T]) -> T:
        """Runs a function that opens batches for a client as `offload` does, when it is its turn."""
        async with self.opening:
            return await self.offload(function)
