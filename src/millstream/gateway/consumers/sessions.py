"""The open consumers of this gateway by group and instance: lookup, limit, and expiry.

Expired consumers are remembered for a while, so that their callers get a precise error."""

import asyncio
import logging
import uuid
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from anyio import CapacityLimiter

from millstream.common.background_tasks import BackgroundTasks
from millstream.formats.records.opening import OpeningLimits
from millstream.gateway.consumers.fetches import fair_share
from millstream.gateway.consumers.session import Session, SessionResources, SessionSettings
from millstream.gateway.http.errors import ApiError
from millstream.gateway.identity.caller import current_caller

DEFAULT_RESET = "earliest"
DEFAULT_IDLE_SECONDS = 300.0
_REMEMBERED = 10_000
_LEAVE_TIMEOUT_SECONDS = 5.0
_CALLS, _HEARTBEATS, _READS = 16, 32, 8

_log = logging.getLogger(__name__)
Name = tuple[str, str, str]
"""Owner, group, instance. The owner is the caller; callers without a name (no credentials) share their consumers."""


class Sessions:
    """Used in the event loop of the gateway, within `lifespan`."""

    def __init__(self, max_open: int, opening: OpeningLimits, max_per_caller: int) -> None:
        """`max_per_caller`: of a caller with a name. Callers without a name share all that are left."""
        self._opening = opening
        self._max_open = max_open
        self._max_per_caller = max_per_caller
        self._by_owner: Counter[str] = Counter()
        self._tools: SessionResources | None = None
        self._open: dict[Name, Session] = {}
        self._by_group: dict[tuple[str, str], dict[str, Session]] = {}
        self._expired: OrderedDict[Name, None] = OrderedDict()
        self._timers: dict[Name, asyncio.TimerHandle] = {}
        self._closing = BackgroundTasks()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self._tools = SessionResources(
            CapacityLimiter(_CALLS),
            CapacityLimiter(_HEARTBEATS),
            CapacityLimiter(_READS),
            self._fetch_bytes,
            self._opening,
        )
        try:
            yield
        finally:
            for timer in self._timers.values():
                timer.cancel()
            goodbyes = [session.close() for session in self._open.values()]
            self._open.clear()
            self._by_group.clear()
            self._by_owner.clear()
            leaving = [asyncio.ensure_future(goodbye) for goodbye in goodbyes] + list(self._closing)
            if leaving:
                await asyncio.wait(leaving, timeout=_LEAVE_TIMEOUT_SECONDS)

    def _fetch_bytes(self) -> int:
        return fair_share(len(self._open))

    def stop_polls(self) -> None:
        """The gateway is stopping: ends waiting polls."""
        for session in self._open.values():
            session.stop()

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Session]:
        """Those of the caller."""
        owner = _owner()
        return [self._open[name] for name in sorted(self._open) if name[0] == owner]

    def of_group(self, group: str) -> list[Session]:
        found = self._by_group.get((_owner(), group), {})
        return [found[instance] for instance in sorted(found)]

    def find(self, group: str, instance: str) -> Session:
        """The consumer with this instance id, or the only one of the group if none is given."""
        inside = self._by_group.get((_owner(), group), {})
        if instance in inside:
            return inside[instance]
        if not instance and len(inside) == 1:
            return next(iter(inside.values()))
        again = f"POST /consumers/{group}/subscribe to open one"
        if not instance and inside:
            raise ApiError(
                409,
                f"group {group!r} has {len(inside)} consumers in this gateway",
                f"select one with ?instance_id=…: {', '.join(sorted(inside)[:5])}",
                code=40906,
            )
        expired = [
            name for name in reversed(self._expired) if name[:2] == (_owner(), group) and instance in ("", name[2])
        ]
        if expired:
            raise ApiError(
                410,
                f"consumer {expired[0][2]!r} of group {group!r} has expired, because it had no requests",
                f"{again}; uncommitted records are delivered again",
                code=41001,
            )
        named = f"consumer {instance!r} of group {group!r}" if instance else f"consumer of group {group!r}"
        raise ApiError(404, f"there is no {named} in this gateway", again, code=40406)

    async def subscribe(
        self, group: str, instance: str, topics: Collection[str], reset: str | None, idle_s: float | None
    ) -> tuple[Session, bool]:
        """Opens a consumer, or changes the topics of an open one. Also returns whether it is new."""
        inside = self._by_group.get((_owner(), group), {})
        if instance in inside or (not instance and inside):
            session = self.find(group, instance)
            if reset not in (None, session.reset):
                raise ApiError(
                    409,
                    f"this consumer has auto_offset_reset {session.reset}",
                    "DELETE it first, or give another instance_id",
                    code=40906,
                )
            await session.subscribe(topics)
            if idle_s is not None:
                session.idle_s = idle_s
                timer = self._timers.pop(_name(session), None)
                if timer is not None:  # there is none while it is being opened
                    timer.cancel()
            self.used(session)
            return session, False
        session = self.open(group, instance, reset, idle_s)
        try:
            await session.subscribe(topics)
        except BaseException:
            self._forget(session)
            self._close_soon(session)
            raise
        self.used(session)
        return session, True

    def open(
        self,
        group: str,
        instance: str,
        reset: str | None,
        idle_s: float | None,
        settings: SessionSettings = SessionSettings(),
    ) -> Session:
        """A new consumer without topics. `used` must follow."""
        if not instance:
            instance = uuid.uuid4().hex[:12]
        if instance in self._by_group.get((_owner(), group), {}):
            raise ApiError(
                409,
                f"consumer {instance!r} of group {group!r} exists in this gateway",
                "DELETE it first, or choose another name",
                code=40908,
            )
        if len(self._open) >= self._max_open:
            raise ApiError(
                429,
                f"{self._max_open} consumers are open in this gateway, which is its limit",
                "DELETE unneeded consumers, or wait until some expire",
                code=42901,
                headers={"Retry-After": "10"},
            )
        connection, owner = current_caller().connection, _owner()
        if owner and self._by_owner[owner] >= self._max_per_caller:
            raise ApiError(
                429,
                f"{owner} has {self._by_owner[owner]} open consumers in this gateway, which is the limit of a caller",
                "DELETE unneeded consumers, or raise --limit max_consumers_per_caller",
                code=42901,
                headers={"Retry-After": "10"},
            )
        assert self._tools is not None, "no requests are served outside of the lifespan"
        session = Session(
            self._tools,
            connection.cluster,
            owner,
            group,
            instance,
            reset or DEFAULT_RESET,
            idle_s or DEFAULT_IDLE_SECONDS,
            settings,
        )
        connection.hold()
        session.on_end = connection.release
        name = _name(session)
        self._open[name] = self._by_group.setdefault((owner, group), {})[instance] = session
        self._by_owner[owner] += 1
        self._expired.pop(name, None)
        return session

    def used(self, session: Session) -> None:
        """Restarts the idle time."""
        session.touch()
        name = _name(session)
        if name in self._open and name not in self._timers:
            self._watch(session)

    async def close(self, session: Session) -> None:
        self._forget(session)
        await session.close()

    def _watch(self, session: Session) -> None:
        """One timer per consumer, which checks at the end of the idle time: requests in between cost nothing."""
        loop = asyncio.get_running_loop()
        name = _name(session)
        self._timers[name] = loop.call_later(session.expires_in_s + 0.01, self._look, session)

    def _look(self, session: Session) -> None:
        name = _name(session)
        if self._open.get(name) is not session:
            return
        if session.expires_in_s > 0:
            self._watch(session)
            return
        _log.info("consumer_expired group=%s instance=%s", *name[1:])
        self._forget(session)
        self._expired[name] = None
        while len(self._expired) > _REMEMBERED:
            self._expired.popitem(last=False)
        self._close_soon(session)

    def _forget(self, session: Session) -> None:
        name = _name(session)
        if self._open.get(name) is not session:
            return
        del self._open[name]
        self._by_owner[session.owner] -= 1
        if not self._by_owner[session.owner]:
            del self._by_owner[session.owner]
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        inside = self._by_group[session.owner, session.group]
        del inside[session.instance]
        if not inside:
            del self._by_group[session.owner, session.group]

    def _close_soon(self, session: Session) -> None:
        self._closing.start(session.close())


def _owner() -> str:
    return current_caller().identity


def _name(session: Session) -> Name:
    return (session.owner, session.group, session.instance)
