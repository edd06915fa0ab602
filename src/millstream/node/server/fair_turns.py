"""Fair turns on the event loop: connections of one tenant cannot keep other tenants waiting.

A *tenant* is a principal, or the address of clients that are not authenticated. While only one tenant has connections,
nothing is scheduled: `is_shared` is false, and connections handle requests as they arrive. Otherwise a tenant may use
the loop directly up to a budget in each period. Its further connections wait in a queue of the tenant, and each turn
of the loop serves every waiting tenant for one share, which its connections use in order. New requests of other tenants
are read between two turns of the loop. So a request waits at most for one share of each busy tenant, and one request
longer, however many connections they have.
"""

from collections import deque
from collections.abc import Callable
from heapq import nlargest

PERIOD_SECONDS = 0.002
BUDGET_SECONDS = 0.0004
"""The time in each period that a tenant may use before its connections have to wait."""
SHARE_SECONDS = 0.00025
"""The time of one turn of a waiting tenant. At least one connection is served in it."""

_ALONE_SECONDS = 60.0
"""A tenant does not wait if no other tenant has sent a request for this time."""


class Tenant:
    __slots__ = ("connections", "is_queued", "name", "period", "spent", "total", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections = 0
        self.waiting: deque[Callable[[], None]] = deque()
        self.is_queued = False
        self.period = -1
        self.spent = 0.0
        """The time that it used in the period, in seconds."""
        self.total = 0.0
        """The time that it used in earlier periods. Counted only while there are several tenants."""


class FairTurns:
    def __init__(self, call_soon: Callable[[Callable[[], None]], object], stopwatch: Callable[[], float]) -> None:
        self._call_soon = call_soon
        self._stopwatch = stopwatch
        self._tenants: dict[str, Tenant] = {}
        self._queue: deque[Tenant] = deque()
        self._is_scheduled = False
        self.is_shared = False
        """Whether several tenants have connections."""
        self._last: Tenant | None = None  # that read a request
        self._last_change = 0.0
        self._turn_ends: float | None = None
        """The end of the turn that is under way."""
        self.waits = 0
        """How often a connection had to wait for its turn."""

    def join(self, name: str) -> Tenant:
        """The tenant of a new connection."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name)
            self.is_shared = len(self._tenants) > 1
        tenant.connections += 1
        return tenant

    def leave(self, tenant: Tenant) -> None:
        """A connection of the tenant has ended."""
        tenant.connections -= 1
        if not tenant.connections:
            del self._tenants[tenant.name]
            self.is_shared = len(self._tenants) > 1

    @property
    def tenants(self) -> int:
        return len(self._tenants)

    def loop_seconds(self, most: int) -> list[tuple[str, float]]:
        """The tenants that used most time of the loop since they connected, while there were several."""
        return nlargest(most, [(each.name, each.total) for each in self._tenants.values()], key=lambda row: row[1])

    def must_wait(self, tenant: Tenant) -> bool:
        """Whether a connection of the tenant has to wait: others of it wait, or its budget is used up."""
        if tenant.is_queued:
            return True
        now = self._stopwatch()
        if tenant is not self._last:
            self._last, self._last_change = tenant, now
        elif now - self._last_change > _ALONE_SECONDS:
            return False
        period = int(now / PERIOD_SECONDS)
        if period != tenant.period:
            tenant.period = period
            tenant.total += tenant.spent
            tenant.spent = 0.0
            return False
        return tenant.spent >= BUDGET_SECONDS

    def deadline(self, tenant: Tenant, begun: float) -> float:
        """When a connection that begins to handle requests lets others go first.

        In a turn, the connections of the tenant share its time: each with a share of its own, the second one could
        double the turn. Outside, it is what is left of the budget.
        """
        if self._turn_ends is not None:
            return self._turn_ends
        left = BUDGET_SECONDS - tenant.spent
        # Without a budget left it is here because it is alone.
        return begun + (min(SHARE_SECONDS, left) if left > 0 else SHARE_SECONDS)

    def wait(self, tenant: Tenant, turn: Callable[[], None]) -> None:
        """Calls `turn` when it is the connection's turn."""
        self.waits += 1
        tenant.waiting.append(turn)
        if not tenant.is_queued:
            tenant.is_queued = True
            self._queue.append(tenant)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._serve)

    def _serve(self) -> None:
        """Gives one share to each waiting tenant. The loop polls its sockets before the next call."""
        self._is_scheduled = False
        stopwatch, queue = self._stopwatch, self._queue
        begun = stopwatch()
        try:
            for _ in range(len(queue)):
                tenant = queue.popleft()
                until = self._turn_ends = begun + SHARE_SECONDS
                # A connection that waits again in its turn is not served twice in one share.
                for _ in range(len(tenant.waiting)):
                    tenant.waiting.popleft()()
                    begun = stopwatch()
                    if begun >= until:
                        break
                if tenant.waiting:
                    queue.append(tenant)
                else:
                    tenant.is_queued = False
        finally:
            self._turn_ends = None
            if queue and not self._is_scheduled:
                self._is_scheduled = True
                self._call_soon(self._serve)
