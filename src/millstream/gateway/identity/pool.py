"""Connections of callers to the cluster: one for each credential, verified by the cluster, bounded in number and time.

A credential is verified by a new connection to the cluster, at first use and then again after `identity_cache_s`: a
user that was removed, or whose password was changed, is refused within this time, also for its open streams. The cache
key is a salted hash of the whole credential, so a wrong password never finds the connection of a right one. Connections
that are unused are closed after `caller_idle_s`; when there are too many, the one that was unused for the longest time
goes first.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from anyio import CapacityLimiter, to_thread

from millstream.common.background_tasks import BackgroundTasks
from millstream.gateway.http.configuration import Limits
from millstream.gateway.http.errors import UNREACHABLE_HINT, ApiError
from millstream.gateway.identity.caller import Connection
from millstream.gateway.identity.credentials import Credential
from millstream.raw_client import Cluster, ErrorCode, RefusedError, SetupError, WireError

_VERIFYING = 16
_CLOSING = 8
_SWEEP_SECONDS = 1.0
_UNKNOWN_USER = frozenset({ErrorCode.SASL_AUTHENTICATION_FAILED})
_log = logging.getLogger("millstream.gateway.callers")


class RefusedCredentialError(Exception):
    """The cluster does not accept the credential. The text has no secrets."""


@dataclass(slots=True)
class _Entry:
    credential: Credential
    connection: Connection
    verified_until: float
    used_at: float
    verifying: "asyncio.Task[None] | None" = None


class CallerPool:
    """Used in the event loop, within `lifespan`."""

    def __init__(
        self,
        bootstrap: str,
        settings: Mapping[str, str],
        limits: Limits,
        *,
        client_id: str,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bootstrap = bootstrap
        self._settings = dict(settings)
        self._limits = limits
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._clock = clock
        self._salt = os.urandom(32)
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        """By salted hash; the least recently used first."""
        self._opening: dict[bytes, asyncio.Task[_Entry]] = {}
        self._verifying = CapacityLimiter(_VERIFYING)
        self._closers = CapacityLimiter(_CLOSING)
        self._background = BackgroundTasks()
        self._sweeping: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self._sweeping = asyncio.create_task(self._sweep_forever())
        try:
            yield
        finally:
            self._sweeping.cancel()
            for task in self._opening.values():
                task.cancel()
            entries, self._entries = list(self._entries.values()), OrderedDict()
            async with asyncio.TaskGroup() as group:
                for entry in entries:
                    group.create_task(self._close(entry))

    def __len__(self) -> int:
        return len(self._entries)

    def knows(self, credential: Credential) -> bool:
        """Whether the credential was verified a short time ago: then no connection attempt is needed."""
        entry = self._entries.get(credential.digest(self._salt))
        return entry is not None and entry.verified_until > self._clock()

    async def connection(self, credential: Credential) -> Connection:
        """The connection of this caller. RefusedCredentialError if the cluster refuses it, ApiError if it cannot be
        reached or if too many callers are connected."""
        key = credential.digest(self._salt)
        entry = self._entries.get(key)
        if entry is None:
            task = self._opening.get(key)
            if task is None:
                task = self._opening[key] = asyncio.create_task(self._open(key, credential))
            entry = await asyncio.shield(task)
        elif entry.verified_until <= self._clock():
            await self._verify_again(key, entry)
        if key in self._entries:
            self._entries.move_to_end(key)
        entry.used_at = self._clock()
        return entry.connection

    async def _open(self, key: bytes, credential: Credential) -> _Entry:
        try:
            cluster = await to_thread.run_sync(self._verified, credential, limiter=self._verifying)
            now = self._clock()
            entry = _Entry(credential, Connection(cluster), now + self._limits.identity_cache_s, now)
            try:
                self._make_room()
            except BaseException:
                cluster.close()
                raise
            self._entries[key] = entry
            return entry
        finally:
            self._opening.pop(key, None)

    def _make_room(self) -> None:
        while len(self._entries) >= self._limits.max_callers:
            unused = next((key for key, entry in self._entries.items() if not entry.connection.holders), None)
            if unused is None:
                raise ApiError(
                    503,
                    f"{self._limits.max_callers} callers are connected, which is the limit of this gateway",
                    "retry in a moment, or raise --limit max_callers",
                    code=50304,
                    headers={"Retry-After": "5"},
                )
            self._background.start(self._close(self._entries.pop(unused)))

    async def _verify_again(self, key: bytes, entry: _Entry) -> None:
        """Requests of one caller share one verification."""
        if entry.verifying is None:
            entry.verifying = asyncio.create_task(self._renew(key, entry))
        await asyncio.shield(entry.verifying)

    async def _renew(self, key: bytes, entry: _Entry) -> None:
        try:
            probe = await to_thread.run_sync(self._verified, entry.credential, limiter=self._verifying)
            probe.close()
            entry.verified_until = self._clock() + self._limits.identity_cache_s
        except RefusedCredentialError:
            _log.warning("caller_revoked user=%r", entry.credential.name)
            if self._entries.get(key) is entry:
                del self._entries[key]
            entry.connection.is_closed = True
            entry.connection.cluster.close()  # at once: open streams and consumers end
            self._background.start(self._close(entry))
            raise
        finally:
            entry.verifying = None

    def _verified(self, credential: Credential) -> Cluster:
        """A client whose first connection was accepted. Blocks."""
        cluster = Cluster(
            self._bootstrap,
            credential.settings(self._settings),
            client_id=self._client_id,
            timeout_s=self._timeout_s,
        )
        try:
            cluster.brokers()
        except RefusedError as error:
            cluster.close()
            if error.code in _UNKNOWN_USER:
                raise RefusedCredentialError("the cluster refuses the credentials") from None
            raise
        except SetupError as error:
            cluster.close()
            _log.warning("caller_not_connected mechanism=%s reason=%s", credential.mechanism, error)
            if "the broker offers" in str(error):
                raise RefusedCredentialError(f"the cluster does not accept {credential.mechanism}") from None
            raise ApiError(
                503, "the gateway cannot connect to the cluster for its callers", "see the gateway's log", code=50305
            ) from None
        except WireError:
            cluster.close()
            raise
        return cluster

    # Idle and revoked callers

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.sweep()

    def sweep(self) -> None:
        """Closes what is unused, and verifies again what is in use for longer than a verification lasts."""
        now = self._clock()
        for key, entry in list(self._entries.items()):
            if entry.connection.holders:
                entry.used_at = now
                if entry.verified_until <= now and entry.verifying is None:
                    self._background.start(self._verify_in_background(key, entry))
            elif now - entry.used_at > self._limits.caller_idle_s:
                del self._entries[key]
                self._background.start(self._close(entry))

    async def _verify_in_background(self, key: bytes, entry: _Entry) -> None:
        try:
            await self._verify_again(key, entry)
        except (RefusedCredentialError, ApiError):
            pass
        except WireError as error:  # the cluster cannot be reached: nothing can be read then, either
            entry.verified_until = self._clock() + min(5.0, self._limits.identity_cache_s)
            _log.info("caller_not_verified reason=%s hint=%s", error, UNREACHABLE_HINT)

    async def _close(self, entry: _Entry) -> None:
        with contextlib.suppress(Exception):
            await to_thread.run_sync(entry.connection.close, limiter=self._closers)
