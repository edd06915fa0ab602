"""`GET /topics/{topic}/stream`: the records of a topic as server-sent events, for `curl -N` and browsers.

A stream first reads on its own until it has caught up, then it follows the shared tail of the topic.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from anyio import CapacityLimiter
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from millstream.formats.records.opening import OpeningLimits
from millstream.gateway.consumers.bodies import FORMAT, RecordView, read_format
from millstream.gateway.context import GatewayContext
from millstream.gateway.http.errors import ApiError, json_bytes
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import TEXT, Doc, Parameter, array, endpoint, text, whole
from millstream.gateway.identity.caller import Connection, current_caller
from millstream.gateway.identity.missing_acl import Needs
from millstream.gateway.streams.positions import (
    EventId,
    Positions,
    find_ends,
    find_start,
    format_positions,
    parse_event_id,
    parse_start,
)
from millstream.gateway.streams.tail import TROUBLE_SECONDS, Chunk, StreamResources, Tail, Tails, chunk_of
from millstream.raw_client import Cluster, TopicPartition, WireError
from millstream.registry.decoding import Decoder

HEARTBEAT_SECONDS = 15.0
_RETRY_MS = 1_000
_PAUSE_SECONDS = 1.0
_OUTSIDE_SECONDS = 2.0
"""Timeout for a broker to report that an offset does not exist, which it does at once."""


class TopicStream:
    """`events` yields bytes to send. Nothing is fetched before the last events were taken."""

    def __init__(
        self,
        tools: StreamResources,
        tails: Tails,
        topic: str,
        partitions: tuple[int, ...] | None,
        positions: Positions,
        format_: Hashable,
        view: RecordView,
        stopping: asyncio.Event,
    ) -> None:
        self._tools = tools
        self._tails = tails
        self._topic = topic
        self._partitions = partitions
        self._positions = positions
        self._format = format_
        self._view = view
        self._stopping = stopping
        self._trouble = ""
        self._unreadable: set[str] = set()
        """Reasons why partitions cannot be read that were sent already; each is sent once."""
        self._ended = False

    async def events(self) -> AsyncIterator[bytes]:
        """Begins with an id, so that a stream without events can be resumed, too."""
        yield f"retry: {_RETRY_MS}\n".encode() + self._heartbeat()
        while not self._stopping.is_set() and not self._tools.is_revoked:
            before = dict(self._positions)
            async for event in self._catch_up():
                yield event
            if self._ended:
                break
            tail = self._tails.join(self._topic, self._partitions, self._positions)
            if tail is None:
                if self._positions == before:
                    await asyncio.sleep(_PAUSE_SECONDS)
                continue
            try:
                async for event in self._follow(tail):
                    yield event
            finally:
                self._tails.leave(self._topic, self._partitions)
            if self._ended:
                break
        if self._tools.is_revoked:
            yield b"event: revoked\ndata: " + json_bytes({"message": "the cluster refuses the credentials"}) + b"\n\n"
        elif self._ended:
            yield b"event: gone\ndata: " + json_bytes({"message": f"topic {self._topic!r} was deleted"}) + b"\n\n"

    async def _catch_up(self) -> AsyncIterator[bytes]:
        """Reads until it has caught up with the current ends."""
        fetches = self._tools.fetches()
        ends: Positions | None = None
        outside: set[int] = set()
        """Partitions that end before the position, for example because the topic was deleted and created again."""
        refused: set[int] = set()
        """Partitions that cannot be read: the tail tries them again."""
        try:
            while not self._stopping.is_set() and not self._tools.is_revoked:
                try:
                    if ends is None:
                        numbers = sorted(self._positions)
                        ends = await self._tools.call(partial(find_ends, self._tools.cluster, self._topic, numbers))
                        outside = {number for number in numbers if self._positions[number] > ends[number]}
                    behind = {
                        TopicPartition(self._topic, number): offset
                        for number, offset in self._positions.items()
                        if number not in refused and (offset < ends[number] or number in outside)
                    }
                    if not behind:
                        return
                    within_s = _OUTSIDE_SECONDS if outside else HEARTBEAT_SECONDS
                    completed = await fetches.next(behind, within_s, self._stopping, TROUBLE_SECONDS)
                    outside = {number for number in outside if completed} - {
                        partition.partition for partition in completed
                    }
                    chunk = await chunk_of(completed, self._tools, self._positions)
                except WireError as error:
                    yield self._trouble_once(str(error)) or self._heartbeat()
                    if await self._tools.is_gone(self._topic):
                        self._ended = True
                        return
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                shown = await self._shown(chunk)
                if shown:
                    yield shown
                refused |= chunk.troubles.keys()
        finally:
            fetches.close()

    async def _follow(self, tail: Tail) -> AsyncIterator[bytes]:
        """Reads the shared tail until this stream is too far behind."""
        number = tail.first
        while not self._stopping.is_set() and not self._tools.is_revoked:
            came = await tail.news(number, HEARTBEAT_SECONDS)
            if not came:
                yield self._trouble_once(tail.trouble or "") or self._heartbeat()
                if tail.is_gone:
                    self._ended = True
                    return
                if tail.trouble:
                    await asyncio.sleep(_PAUSE_SECONDS)
                continue
            chunk = tail.get(number)
            if chunk is None:
                return
            number += 1
            shown = await self._shown(chunk)
            if shown:
                yield shown

    async def _shown(self, chunk: Chunk) -> bytes:
        if self._format in chunk.shown or not chunk.records:
            rows = chunk.shown.get(self._format, [])
        else:
            rows = await self._tools.call(partial(chunk.show, self._format, self._view))
        positions, parts = self._positions, []
        self._trouble = ""
        for reason in set(chunk.troubles.values()) - self._unreadable:
            self._unreadable.add(reason)
            parts.append(_trouble_event(reason))
        event_id = EventId({partition.partition: 0 for partition, _ in chunk.records} | positions)
        notes = [note for note in chunk.notes if _concerns(note, positions.get(note["partition"], 0))]
        for note in notes:
            parts.append(b"event: skipped\ndata: " + json_bytes(note) + b"\n\n")
        for (partition, record), data in zip(chunk.records, rows, strict=True):
            if record.offset < positions.get(partition.partition, 0):
                continue
            positions[partition.partition] = record.offset + 1
            moved = event_id.move(partition.partition, record.offset + 1)
            parts.append(b"id: " + moved + b"\ndata: " + data + b"\n\n")
        for number, offset in chunk.after.items():
            positions[number] = max(positions.get(number, 0), offset)
        for note in notes:
            positions[note["partition"]] = note["to"]
        return b"".join(parts)

    def _heartbeat(self) -> bytes:
        """A comment with the current id, which also moves past records that are not shown."""
        return b": heartbeat\nid: " + format_positions(self._positions).encode() + b"\n\n"

    def _trouble_once(self, reason: str) -> bytes:
        """An event for a new reason; empty for a reason that was sent."""
        if reason in ("", self._trouble, *self._unreadable):
            return b""
        self._trouble = reason
        return _trouble_event(reason)


def _trouble_event(reason: str) -> bytes:
    return b"event: trouble\ndata: " + json_bytes({"message": reason}) + b"\n\n"


def _concerns(note: dict[str, Any], position: int) -> bool:
    """False for a stream that is already after the skipped records."""
    return bool(position == note["from"] or position < note["to"])


EVENT_STREAM = "text/event-stream"
_CALLS, _READS = 16, 8
_SLOWEST_SEND_SECONDS = 60.0
"""A reader that takes nothing for so long is disconnected."""

DOC = Doc(
    tag="Topics",
    summary="Stream the records of a topic as server-sent events",
    description="The data of an event is a record as JSON; its id has the positions of all partitions. With "
    "`Last-Event-ID` (which browsers send by themselves) the stream continues exactly there. A comment is sent every "
    "15 s. Event `skipped`: records were deleted before they could be read. Event `trouble`: the cluster cannot be "
    "read now; the stream continues by itself. Event `gone`: the topic was deleted, and the stream ends.",
    parameters=(
        Parameter(
            "from",
            "Start position: earliest, latest (the default), an offset, -N for the last N records of each partition, "
            "or a time such as 2026-01-31T12:00:00Z.",
            TEXT,
        ),
        Parameter("partition", "Only this partition; may be repeated.", array(whole("", 0, 2**31 - 1))),
        FORMAT,
        Parameter("Last-Event-ID", "The id of the last event received.", TEXT, place="header"),
        Parameter("last_event_id", "The same as a query parameter.", TEXT),
    ),
    response=text("Server-sent events."),
    response_type=EVENT_STREAM,
    errors=(403, 429, 502),
)


def stream_routes(parts: GatewayContext) -> Sequence[BaseRoute]:
    limits = parts.options.limits
    opening = OpeningLimits(limits.max_batch_bytes, limits.max_batch_records)
    routes = StreamRoutes(Decoder(parts.registry), limits.max_streams, opening)
    parts.lifespans.append(routes.lifespan)
    parts.on_stop.append(routes.stop)
    return [endpoint("GET", "/topics/{topic}/stream", routes.stream, doc=DOC, needs=Needs(topic="Read"))]


class StreamRoutes:
    def __init__(self, decoder: Decoder, max_open: int, opening: OpeningLimits) -> None:
        self._decoder = decoder
        self._max_open = max_open
        self._opening = opening
        self._open = 0
        self._calls: CapacityLimiter | None = None
        self._reads: CapacityLimiter | None = None
        self._stopping: asyncio.Event | None = None

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self._calls, self._reads = CapacityLimiter(_CALLS), CapacityLimiter(_READS)
        self._stopping = asyncio.Event()
        yield
        self._stopping.set()

    def _tails(self, connection: Connection) -> Tails:
        """Those of one caller: another one may not be allowed to read the same."""
        calls, reads = self._calls, self._reads
        assert calls and reads, "no requests are served outside of the lifespan"
        return connection.part(
            Tails, lambda: Tails(StreamResources(connection, calls, reads, lambda: self._open, self._opening))
        )

    def stop(self) -> None:
        if self._stopping is not None:
            self._stopping.set()

    async def stream(self, req: ApiRequest) -> Any:
        if req.request.method != "GET":
            raise ApiError(405, f"a stream is no {req.request.method}", "send GET")
        if self._open >= self._max_open:
            raise ApiError(
                429,
                f"{self._max_open} streams are open in this gateway, which is its limit",
                "close streams that are not needed, or try again later",
                code=42901,
                headers={"Retry-After": "10"},
            )
        self._open += 1  # at once: while this one asks the cluster, others come
        try:
            return await self._begin(req)
        except BaseException:
            self.closed()
            raise

    async def _begin(self, req: ApiRequest) -> "_EventResponse":
        caller, stopping = current_caller(), self._stopping
        assert stopping, "no requests are served outside of the lifespan"
        tails = self._tails(caller.connection)
        tools = tails.tools
        topic, format_ = req.path("topic"), read_format(req.text("format"))
        seen = req.request.headers.get("last-event-id", "") or req.text("last_event_id")
        wanted, start, resumed = (
            _partitions(req),
            parse_start(req.text("from")),
            parse_event_id(seen) if seen else None,
        )
        count = await tools.call(partial(_count, tools.cluster, topic))
        missing = [number for number in wanted or () if number >= count]
        if missing:
            raise ApiError(404, f"{topic!r} has no partition {missing[0]}", f"it has 0 to {count - 1}", code=40403)
        numbers = wanted or tuple(range(count))
        # Partitions that are not in the id are new: they are read from their start.
        begin = parse_start("earliest") if resumed is not None else start
        found: Positions = await tools.call(partial(find_start, tools.cluster, topic, numbers, begin))
        positions = {number: (resumed or {}).get(number, found[number]) for number in numbers}
        mask = caller.mask_of(topic)
        view = RecordView(format_, self._decoder, lambda _: mask)
        stream = TopicStream(tools, tails, topic, wanted, positions, (format_, mask), view, stopping)
        return _EventResponse(self, stream, stopping)

    def closed(self) -> None:
        self._open -= 1


def _count(cluster: Cluster, topic: str) -> int:
    info = cluster.topics([topic]).get(topic) if topic else None
    if info is None:
        raise ApiError(404, f"there is no topic {topic!r}", "create it first, or check its name", code=40403)
    return len(info.partitions)


class _EventResponse(Response):
    """Sends events until the caller disconnects, takes none for too long, or the gateway stops."""

    def __init__(self, routes: StreamRoutes, stream: TopicStream, stopping: asyncio.Event) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(None, 200, headers, f"{EVENT_STREAM}; charset=utf-8")
        del self.headers["content-length"]
        self._routes = routes
        self._stream = stream
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = [
            asyncio.create_task(self._send_all(send)),
            asyncio.create_task(_disconnected(receive)),
            asyncio.create_task(self._stopping.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                tasks[0].cancel()
                await asyncio.wait(tasks[:1])
            if self._stopping.is_set() or (tasks[0].done() and tasks[0].exception() is None):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._routes.closed()
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(ends[0], Exception) and not isinstance(ends[0], TimeoutError):
            raise ends[0]

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        events = self._stream.events()
        try:
            async for event in events:
                message = {"type": "http.response.body", "body": event, "more_body": True}
                await asyncio.wait_for(send(message), _SLOWEST_SEND_SECONDS)
        finally:
            await events.aclose()  # type: ignore[attr-defined]


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _partitions(req: ApiRequest) -> tuple[int, ...] | None:
    """None: all partitions, also those that are added later."""
    found = set()
    for given in req.texts("partition"):
        for number in given.split(","):
            if not number.isdecimal() or len(number) > 10:
                raise ApiError(400, f"?partition={given[:60]} is not a partition", "give a number from 0")
            found.add(int(number))
    return tuple(sorted(found)) or None
