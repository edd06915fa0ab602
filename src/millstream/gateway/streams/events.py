"""One stream of server-sent events: a topic's records from some positions on, first on its own, then at the tail."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from millstream.gateway.consumers.records import RecordView
from millstream.gateway.http.answers import json_bytes
from millstream.gateway.streams.positions import Id, Positions, find_ends, spelled
from millstream.gateway.streams.tail import TROUBLE_S, Chunk, StreamTools, Tail, Tails, chunk_of
from millstream.raw_client import TopicPartition, WireError

HEARTBEAT_S = 15.0
_RETRY_MS = 1_000
_PAUSE_S = 1.0
_OUTSIDE_S = 2.0
"""How long is waited for a broker to say that there is no such offset, which it does at once."""


class TopicStream:
    """`events` are bytes to be sent as they are; nothing is fetched before the last ones were taken."""

    def __init__(
        self,
        tools: StreamTools,
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
        event_id = Id({place.partition: 0 for place, _ in chunk.records} | positions)
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
        return b": heartbeat\nid: " + spelled(self._positions).encode() + b"\n\n"

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
