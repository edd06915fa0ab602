"""The audit log: events in a bounded queue, written in the background to a topic and to a file.

A request never waits for it. When the queue is full, new events are dropped; they are counted, logged, and the next
event that is written has their number (`dropped_before`). Events that a topic did not accept are written again later.

The file is opened for each write, so it can be moved at any time; it is renamed to `FILE.1` at its maximum size.
"""

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import protection
from millstream.formats.model.access_control import AclOperation, AclResourceType
from millstream.formats.model.errors import KafkaError
from millstream.node.environment import Environment
from millstream.node.security.core.audit_events import (
    encoded,
    errors_of,
    event,
    gateway_event,
    request_document,
    result_of,
)
from millstream.node.server.service import Peer

_BATCH_EVENTS = 200
_GATHER_SECONDS = 0.1
"""Events are gathered for this time, so that a burst is one batch."""
_RETRY_SECONDS = 1.0
ADMINISTRATION = "administration"
_RESERVED_PART = 4
"""One in so many places of the queue is for administration alone: any client can cause failed logins and denials, and
must not hide with them what it changes."""
_log = logging.getLogger("millstream.audit")

WriteBatch = Callable[[list[bytes]], Awaitable[None]]


class AuditLog:
    """The Auditor of a node (`node/server/auditing.py`)."""

    def __init__(self, config: Callable[[], BrokerConfig], environment: Environment) -> None:
        """`config` returns the present settings, with the dynamic ones."""
        self._config = config
        self._environment = environment
        self._queue: deque[bytes] = deque()
        self._write_batch: WriteBatch | None = None
        self._wakes: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._reported = 0
        self.recorded = 0
        self.dropped = 0
        """Events that were lost because the queue was full."""
        self.refresh()

    def refresh(self) -> None:
        """Reads the setting again: it may have changed at run time."""
        self.is_enabled = self._config()[protection.MILLSTREAM_AUDIT_ENABLE]

    @property
    def samples_data(self) -> bool:
        config = self._config()
        return config[protection.MILLSTREAM_AUDIT_ENABLE] and config[protection.MILLSTREAM_AUDIT_DATA_SAMPLE] > 0

    def write_to(self, write_batch: WriteBatch) -> None:
        """From now on, batches of events go to this function too. It raises KafkaError if it should be tried again."""
        self._write_batch = write_batch
        self._wake(0.0)

    def close(self) -> None:
        """Ends the background work. Events that wait go to the file, if there is one; otherwise they are lost."""
        if self._wakes is not None:
            self._wakes.cancel()
        if self._task is not None:
            self._task.cancel()
        path = self._config()[protection.MILLSTREAM_AUDIT_FILE]
        if path and self._queue:
            with contextlib.suppress(OSError):
                _append(path, self._queue, self._config()[protection.MILLSTREAM_AUDIT_FILE_MAX_BYTES])
        self._queue.clear()

    # Auditor

    def authentication(self, peer: Peer, mechanism: str, *, succeeded: bool, name: str = "", reason: str = "") -> None:
        if self.is_enabled and (not succeeded or self._is_sampled()):
            self._record(
                "authentication",
                "success" if succeeded else "failure",
                peer,
                mechanism=mechanism,
                name=name,
                reason=reason,
            )

    def denied(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str, api: str = "") -> None:
        if self.is_enabled:
            resource_name = {"resource_type": resource.name, "resource_name": name}
            self._record("authorization", "denied", peer, operation=operation.name, **resource_name, api=api)

    def data_access(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str) -> None:
        if self.samples_data and self._is_sampled():
            resource_name = {"resource_type": resource.name, "resource_name": name}
            self._record("data_access", "allowed", peer, operation=operation.name, **resource_name)

    def administration(self, peer: Peer, api: str, request: Any, response: Any) -> None:
        if not self.is_enabled:
            return
        try:
            errors = errors_of(response)
            name = "".join(word.capitalize() for word in api.split("_"))
            self._record(
                ADMINISTRATION, result_of(errors), peer, api=name, request=request_document(request), errors=errors
            )
        except Exception:  # the response is what the client waits for
            _log.exception("event_not_recorded api=%s", api)

    def report(self, peer: Peer, documents: Sequence[Mapping[str, Any]]) -> int:
        if not self.is_enabled:
            return len(documents)
        for number, document in enumerate(documents):
            if not self._has_room(document["kind"]):
                return number  # the gateway has a queue too, and repeats the others
            self._append(gateway_event(document, peer, self._config().node_id))
        return len(documents)

    def _is_sampled(self) -> bool:
        return self._environment.randomness.random() < self._config()[protection.MILLSTREAM_AUDIT_DATA_SAMPLE]

    # The queue

    def _record(self, kind: str, result: str, peer: Peer, **more: Any) -> None:
        if not self._has_room(kind):
            self.dropped += 1
            return
        self._append(event(kind, result, peer, self._config().node_id, self._environment.clock.now_ms(), **more))

    def _has_room(self, kind: str) -> bool:
        room = self._config()[protection.MILLSTREAM_AUDIT_QUEUE_EVENTS]
        return len(self._queue) < (room if kind == ADMINISTRATION else room - room // _RESERVED_PART)

    def _append(self, document: dict[str, Any]) -> None:
        config = self._config()
        if self.dropped > self._reported:
            document["dropped_before"] = self.dropped - self._reported
            _log.warning("events_dropped count=%d total=%d", self.dropped - self._reported, self.dropped)
            self._reported = self.dropped
        self.recorded += 1
        if not config.is_broker and not config[protection.MILLSTREAM_AUDIT_FILE]:
            _log.info("event document=%s", encoded(document).decode())  # a controller has no topics
            return
        self._queue.append(encoded(document))
        self._wake(_GATHER_SECONDS)

    def _wake(self, delay_s: float) -> None:
        has_sink = self._write_batch is not None or self._config()[protection.MILLSTREAM_AUDIT_FILE]
        if self._queue and has_sink and self._wakes is None and self._task is None:
            self._wakes = self._environment.loop.call_later(delay_s, self._begin)

    def _begin(self) -> None:
        self._wakes = None
        self._task = self._environment.loop.create_task(self._drain())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.warning("events_not_written waiting=%d error=%s", len(self._queue), error)
        self._wake(_GATHER_SECONDS if error is None else _RETRY_SECONDS)

    async def _drain(self) -> None:
        path = self._config()[protection.MILLSTREAM_AUDIT_FILE]
        while self._queue and (self._write_batch is not None or path):
            batch = [self._queue.popleft() for _ in range(min(_BATCH_EVENTS, len(self._queue)))]
            try:
                if self._write_batch is not None:
                    await self._write_batch(batch)
            except (KafkaError, OSError, asyncio.CancelledError):
                self._queue.extendleft(reversed(batch))
                raise
            if path:
                await self._append_to_file(path, batch)

    async def _append_to_file(self, path: str, batch: list[bytes]) -> None:
        limit = self._config()[protection.MILLSTREAM_AUDIT_FILE_MAX_BYTES]
        try:
            await self._environment.offload(lambda: _append(path, batch, limit))
        except OSError as error:  # the topic has the events
            _log.error("file_not_written file=%s error=%s", path, error)


def _append(path: str, lines: Iterable[bytes], limit: int) -> None:
    data = b"".join(line + b"\n" for line in lines)
    if limit and os.path.exists(path) and os.path.getsize(path) + len(data) > limit:
        os.replace(path, f"{path}.1")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "ab") as file:
        file.write(data)
