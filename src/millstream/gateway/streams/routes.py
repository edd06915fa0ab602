"""`GET /topics/{topic}/stream`: a topic as server-sent events, for `curl -N` and a browser's EventSource.

One stream of server-sent events: a topic's records from some positions on, first on its own, then at the tail.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
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
from millstream.gateway.streams.positions import (
    EventId,
    Positions,
    find_ends,
    find_start,
    format_positions,
    parse_event_id,
    parse_start,
)
from millstream.gateway.streams.tail import TROUBLE_S, Chunk, StreamResources, Tail, Tails, chunk_of
from millstream.raw_client import Cluster, TopicPartition, WireError
from millstream.registry.decoding import Decoder

HEARTBEAT_S = 15.0
_RETRY_MS = 1_000
_PAUSE_S = 1.0
_OUTSIDE_S = 2.0
"""How long is waited for a broker to say that there is no such offset, which it does at once."""


class TopicStream:
    """`events` are bytes to be sent as they are; nothing is fetched before the last ones were taken."""

    def __init__(
        self,
        tools: StreamResources,
        tails: Tails,
        topic: str,
        partitions: tuple[int, ...] | None,
        positions: Positions,
        format_: str,
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
        """What was said of partitions that cannot be read further: each once."""
        self._ended = False

    async def events(self) -> AsyncIterator[bytes]:
        """Begins with an id, so that even a stream that never had an event resumes where it was."""
        yield f"retry: {_RETRY_MS}\n".encode() + self._heartbeat()
        while not self._stopping.is_set():
            before = dict(self._positions)
            async for event in self._on_its_own():
                yield event
            if self._ended:
                break
            tail = self._tails.join(self._topic, self._partitions, self._positions)
            if tail is None:
                if self._positions == before:
                    await asyncio.sleep(_PAUSE_S)
                continue
            try:
                async for event in self._at(tail):
                    yield event
            finally:
                self._tails.leave(self._topic, self._partitions)
            if self._ended:
                break
        if self._ended:
            yield b"event: gone\ndata: " + json_bytes({"message": f"topic {self._topic!r} was deleted"}) + b"\n\n"

    async def _on_its_own(self) -> AsyncIterator[bytes]:
        """Until it has caught up with the ends as they are now."""
        flights = self._tools.flights()
        ends: Positions | None = None
        outside: set[int] = set()
        """Partitions that seem to end before our position, as when a topic was made anew since its id was noted."""
        refused: set[int] = set()
        """Partitions that cannot be read further: the tail tries them again."""
        try:
            while not self._stopping.is_set():
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
                    within_s = _OUTSIDE_S if outside else HEARTBEAT_S
                    landed = await flights.next(behind, within_s, self._stopping, TROUBLE_S)
                    outside = {number for number in outside if landed} - {place.partition for place in landed}
                    chunk = await chunk_of(landed, self._tools, self._positions)
                except WireError as error:
                    yield self._told_trouble(str(error)) or self._heartbeat()
                    if await self._tools.is_gone(self._topic):
                        self._ended = True
                        return
                    await asyncio.sleep(_PAUSE_S)
                    continue
                shown = await self._shown(chunk)
                if shown:
                    yield shown
                refused |= chunk.troubles.keys()
        finally:
            flights.close()

    async def _at(self, tail: Tail) -> AsyncIterator[bytes]:
        """Until it is too far behind."""
        number = tail.first
        while not self._stopping.is_set():
            came = await tail.news(number, HEARTBEAT_S)
            if not came:
                yield self._told_trouble(tail.trouble or "") or self._heartbeat()
                if tail.is_gone:
                    self._ended = True
                    return
                if tail.trouble:
                    await asyncio.sleep(_PAUSE_S)
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
        event_id = EventId({place.partition: 0 for place, _ in chunk.records} | positions)
        notes = [note for note in chunk.notes if _concerns(note, positions.get(note["partition"], 0))]
        for note in notes:
            parts.append(b"event: skipped\ndata: " + json_bytes(note) + b"\n\n")
        for (place, record), data in zip(chunk.records, rows, strict=True):
            if record.offset < positions.get(place.partition, 0):
                continue
            positions[place.partition] = record.offset + 1
            moved = event_id.move(place.partition, record.offset + 1)
            parts.append(b"id: " + moved + b"\ndata: " + data + b"\n\n")
        for number, offset in chunk.after.items():
            positions[number] = max(positions.get(number, 0), offset)
        for note in notes:
            positions[note["partition"]] = note["to"]
        return b"".join(parts)

    def _heartbeat(self) -> bytes:
        """Of no event: only the id is noted, which moves also by what is not shown."""
        return b": heartbeat\nid: " + format_positions(self._positions).encode() + b"\n\n"

    def _told_trouble(self, reason: str) -> bytes:
        """Once for each reason."""
        if reason in ("", self._trouble, *self._unreadable):
            return b""
        self._trouble = reason
        return _trouble_event(reason)


def _trouble_event(reason: str) -> bytes:
    return b"event: trouble\ndata: " + json_bytes({"message": reason}) + b"\n\n"


def _concerns(note: dict[str, Any], position: int) -> bool:
    """Not those who came to the tail when they had read on already behind what was skipped."""
    return bool(position == note["from"] or position < note["to"])


EVENT_STREAM = "text/event-stream"
_CALLS, _READS = 16, 8
_SLOWEST_SEND_S = 60.0
"""A reader that takes nothing for so long is gone, whatever its connection says."""

DOC = Doc(
    tag="Topics",
    summary="A topic's records as server-sent events, as they come",
    description="Each event has a record's JSON as its data, and as its id the positions of all partitions: with "
    "`Last-Event-ID` (which browsers send by themselves) the stream resumes exactly there. A comment is sent every "
    "15 s. Events named `skipped` tell of records that were deleted before they could be read, `trouble` of a cluster "
    "that cannot be read just now; the stream goes on by itself. `gone` is the last one, of a topic that was deleted.",
    parameters=(
        Parameter(
            "from",
            "Where to begin: earliest, latest (the default), an offset, -N for the last N records of each partition, "
            "or a time such as 2026-01-31T12:00:00Z.",
            TEXT,
        ),
        Parameter("partition", "Only this partition; may be given several times.", array(whole("", 0, 2**31 - 1))),
        FORMAT,
        Parameter("Last-Event-ID", "The id of the last event that was seen.", TEXT, place="header"),
        Parameter("last_event_id", "The same, where a header cannot be sent.", TEXT),
    ),
    answer=text("Events."),
    answer_type=EVENT_STREAM,
    errors=(403, 429, 502),
)


def stream_routes(parts: GatewayContext) -> Sequence[BaseRoute]:
    limits = parts.options.limits
    opening = OpeningLimits(limits.max_batch_bytes, limits.max_batch_records)
    routes = StreamRoutes(parts.cluster, Decoder(parts.registry), limits.max_streams, opening)
    parts.lifespans.append(routes.lifespan)
    parts.on_stop.append(routes.stop)
    return [endpoint("GET", "/topics/{topic}/stream", routes.stream, doc=DOC)]


class StreamRoutes:
    def __init__(self, cluster: Cluster, decoder: Decoder, max_open: int, opening: OpeningLimits) -> None:
        self._cluster = cluster
        self._decoder = decoder
        self._max_open = max_open
        self._opening = opening
        self._open = 0
        self._tools: StreamResources | None = None
        self._tails: Tails | None = None
        self._stopping: asyncio.Event | None = None

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        calls, reads = CapacityLimiter(_CALLS), CapacityLimiter(_READS)
        self._tools = StreamResources(self._cluster, calls, reads, lambda: self._open, self._opening)
        self._tails = Tails(self._tools)
        self._stopping = asyncio.Event()
        yield
        self._stopping.set()

    def stop(self) -> None:
        if self._stopping is not None:
            self._stopping.set()

    async def stream(self, asked: ApiRequest) -> Any:
        if asked.request.method != "GET":
            raise ApiError(405, f"a stream is no {asked.request.method}", "send GET")
        if self._open >= self._max_open:
            raise ApiError(
                429,
                f"{self._max_open} streams are open in this gateway, which is as many as it takes",
                "close those that are not needed, or ask again later",
                code=42901,
                headers={"Retry-After": "10"},
            )
        self._open += 1  # at once: while this one asks the cluster, others come
        try:
            return await self._begin(asked)
        except BaseException:
            self.closed()
            raise

    async def _begin(self, asked: ApiRequest) -> "_EventResponse":
        tools, tails, stopping = self._tools, self._tails, self._stopping
        assert tools and tails is not None and stopping, "no requests are served outside of the lifespan"
        topic, format_ = asked.path("topic"), read_format(asked.text("format"))
        seen = asked.request.headers.get("last-event-id", "") or asked.text("last_event_id")
        wanted, start, resumed = (
            _partitions(asked),
            parse_start(asked.text("from")),
            parse_event_id(seen) if seen else None,
        )
        count = await tools.call(partial(self._count, topic))
        missing = [number for number in wanted or () if number >= count]
        if missing:
            raise ApiError(404, f"{topic!r} has no partition {missing[0]}", f"it has 0 to {count - 1}", code=40403)
        numbers = wanted or tuple(range(count))
        # Partitions that the id does not know are newer than it: they are read from their beginning.
        begin = parse_start("earliest") if resumed is not None else start
        found: Positions = await tools.call(partial(find_start, self._cluster, topic, numbers, begin))
        positions = {number: (resumed or {}).get(number, found[number]) for number in numbers}
        view = RecordView(format_, self._decoder)
        stream = TopicStream(tools, tails, topic, wanted, positions, format_, view, stopping)
        return _EventResponse(self, stream, stopping)

    def _count(self, topic: str) -> int:
        info = self._cluster.topics([topic]).get(topic) if topic else None
        if info is None:
            raise ApiError(404, f"there is no topic {topic!r}", "create it first, or look at its name", code=40403)
        return len(info.partitions)

    def closed(self) -> None:
        self._open -= 1


class _EventResponse(Response):
    """Sends events until the caller hangs up, takes none for too long, or the gateway stops."""

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
            asyncio.create_task(_hung_up(receive)),
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
                await asyncio.wait_for(send(message), _SLOWEST_SEND_S)
        finally:
            await events.aclose()  # type: ignore[attr-defined]


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _partitions(asked: ApiRequest) -> tuple[int, ...] | None:
    """None: all of them, also those that are added later."""
    found = set()
    for given in asked.texts("partition"):
        for number in given.split(","):
            if not number.isdecimal() or len(number) > 10:
                raise ApiError(400, f"?partition={given[:60]} is no partition", "give a number from 0 on")
            found.add(int(number))
    return tuple(sorted(found)) or None
