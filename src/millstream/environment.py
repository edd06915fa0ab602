"""What a node needs of the world: time, chance, a network, a way to do slow things elsewhere.

The simulator brings its own.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from millstream.net.network import Network

T = TypeVar("T")


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
