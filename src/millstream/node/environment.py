"""What a node needs from outside: clock, event loop, threads, randomness, network.

The simulator has its own implementation.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import field
from typing import Protocol, TypeVar

from millstream.common.lazy_dataclass import dataclass
from millstream.node.server.auditing import Auditor, NoAuditor
from millstream.node.server.channel import Login
from millstream.node.server.network import Network
from millstream.node.storage.object_store import ObjectStore, StoreRates

T = TypeVar("T")
_OPENING_AT_ONCE = 2
"""The number of threads that may open batches at the same time. The others are for disk operations."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in milliseconds, as in the timestamps of records."""
        ...


class Offload(Protocol):
    """Runs a blocking function in a thread."""

    def __call__(self, function: Callable[[], T]) -> "asyncio.Future[T]": ...


@dataclass(frozen=True, slots=True)
class Environment:
    clock: Clock
    loop: asyncio.AbstractEventLoop
    offload: Offload
    randomness: random.Random
    """Not predictable on a real node: ids by which brokers prove themselves come from it."""
    network: Network
    """For listeners, and for connections without encryption."""
    yield_interpreter: Callable[[], None] = lambda: None
    """Called periodically by long computations in threads, so that the event loop gets the interpreter lock."""
    stopwatch: Callable[[], float] | None = None
    """A clock for durations with a higher resolution than the loop's time. None: the loop's time is used."""
    broker_login: Login | None = None
    """How this node authenticates to other brokers; None without SASL."""
    controller_login: Login | None = None
    """How this node authenticates to controllers; None without SASL."""
    auditor: Auditor = field(default_factory=NoAuditor)
    """Records who did what; the audit log of the node, if it is on."""
    to_brokers: Network | None = None
    """The network for connections to the listener between brokers. None: `network`."""
    to_controllers: Network | None = None
    """The same for the listener of controllers."""
    open_store: "Callable[[str, StoreRates], ObjectStore] | None" = None
    """Opens the object store of tiered storage, by its URL."""
    tls_tickets: int = 1
    """The number of session tickets that a client gets, with which it can resume a TLS session."""
    opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_OPENING_AT_ONCE))

    @property
    def broker_network(self) -> Network:
        return self.to_brokers or self.network

    @property
    def controller_network(self) -> Network:
        return self.to_controllers or self.network

    async def open_in_turn(self, function: Callable[[], T]) -> T:
        """Runs a function that opens batches in a thread. At most two run at the same time."""
        async with self.opening:
            return await self.offload(function)
