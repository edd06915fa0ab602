"""Confluent's REST v3: records produced in a stream, one line of answer for each, in order; or as a batch.

A stream is answered while it is still being sent: what was read is on its way to the cluster at once, and as long as
too many records wait for their answer, no more are read.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from anyio import to_thread
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from millstream.gateway.http.answers import JSON, json_answer, json_bytes
from millstream.gateway.http.asked import Asked
from millstream.gateway.http.endpoints import endpoint
from millstream.gateway.http.errors import BadRequestError, error_document
from millstream.gateway.http.json_splitter import BrokenStreamError, split
from millstream.gateway.http.kafka_errors import Trouble, trouble_of
from millstream.gateway.produce.publishing import Outcome
from millstream.gateway.produce.routes import Producing
from millstream.gateway.rest_v3.docs import BATCH_DOC, RECORDS_DOC
from millstream.gateway.rest_v3.record_bodies import PartWriter, Record, Written, read_batch, read_record, to_outgoing
from millstream.gateway.rest_v3.resources import BASE, Links
from millstream.raw_client import WireError
from millstream.registry.errors import RegistryError
from millstream.registry.registry import Registry

logger = logging.getLogger(__name__)
_MAX_WAITING = 1_000
"""Records of one stream that have no answer yet."""
_TOPIC = BASE + "/{cluster_id}/topics/{topic_name}"
_MISSING = "Null input provided. Data is required."


class RecordRoutes:
    def __init__(self, producing: Producing, registry: Registry, links: Callable[[Asked], Links]) -> None:
        self._producing = producing
        self._registry = registry
        self._links = links

    def routes(self) -> list[BaseRoute]:
        return [
            endpoint("POST", f"{_TOPIC}/records", self.stream, doc=RECORDS_DOC, reads_body=False),
            endpoint("POST", f"{_TOPIC}/records:batch", self.batch, doc=BATCH_DOC, reads_body=False),
        ]

    async def _lane(self, asked: Asked) -> "_Lane":
        threads, topic = self._producing.threads, asked.path("topic_name")
        links = await to_thread.run_sync(self._links, asked, limiter=threads)
        partitions = await self._producing.partitions(topic)
        writer = PartWriter(self._registry, self._producing.encoders, topic)
        return _Lane(self._producing, writer, links.cluster_id, topic, partitions, asked.request.scope["path"])

    async def stream(self, asked: Asked) -> Response:
        lane = await self._lane(asked)
        waiting: asyncio.Queue[asyncio.Future[dict[str, Any]] | None] = asyncio.Queue(_MAX_WAITING)
        reader = asyncio.create_task(self._read(asked, lane, waiting))
        first = await waiting.get()
        if first is None:
            await reader
            raise BadRequestError(400, _MISSING)
        return _Lines(_answers(first, waiting, reader))

    async def _read(
        self, asked: Asked, lane: "_Lane", waiting: "asyncio.Queue[asyncio.Future[dict[str, Any]] | None]"
    ) -> None:
        """Until the stream ends, or makes no sense any more."""
        try:
            async for data in split(asked.request.stream(), self._producing.limits.max_body_bytes):
                await waiting.put(await lane.send(data))
        except BrokenStreamError as error:
            await waiting.put(lane.refused(BadRequestError(400, f"{error}; nothing after it was read")))
        except ClientDisconnect:
            pass
        except Exception:  # whoever waits for lines must not wait for ever
            logger.exception("stream_failed topic=%s", asked.path("topic_name"))
            await waiting.put(lane.refused(BadRequestError(500, "this gateway has made a mistake; its log says which")))
        await waiting.put(None)

    async def batch(self, asked: Asked) -> Response:
        lane, limits = await self._lane(asked), self._producing.limits
        successes: list[dict[str, Any]] = []
        failures: list[dict[str, Any]] = []
        whole = self._producing.in_flight.body(asked.request, limits.max_body_bytes, limits.body_timeout_s)
        async with whole as body:
            entries = read_batch(body).entries
            ids = [entry.id for entry in entries]
            if not 0 < len(entries) <= limits.max_records or not all(ids) or len(set(ids)) < len(ids):
                message = f"a batch has from 1 to {limits.max_records} entries, each with an id of its own"
                raise BadRequestError(400, message)
            answers = [await lane.send_record(entry, 0) for entry in entries]
            for entry, answer in zip(entries, answers, strict=True):
                told = {"id": entry.id, **await answer}
                (successes if told["error_code"] == 200 else failures).append(told)
        for told in successes:
            del told["error_code"]
        return json_answer({"successes": successes, "failures": failures}, status=207)


class _Lane:
    """The way of one request's records into one topic."""

    def __init__(
        self, producing: Producing, writer: PartWriter, cluster_id: str, topic: str, partitions: int, path: str
    ) -> None:
        self._producing = producing
        self._writer = writer
        self._cluster_id = cluster_id
        self._topic = topic
        self._partitions = partitions
        self._path = path

    async def send(self, data: bytes) -> "asyncio.Future[dict[str, Any]]":
        try:
            record = read_record(data)
        except BadRequestError as error:
            return self.refused(error)
        return await self.send_record(record, len(data))

    async def send_record(self, record: Record, size: int) -> "asyncio.Future[dict[str, Any]]":
        """On its way when this returns, unless it was refused; the future is its answer."""
        try:
            for part, which in ((record.key, "key"), (record.value, "value")):
                if part is not None and self._writer.needs_schema(part, which):
                    await to_thread.run_sync(self._writer.find, part, which, limiter=self._producing.threads)
            key, value = self._writer.write(record.key, "key"), self._writer.write(record.value, "value")
            if record.partition_id is not None and record.partition_id >= self._partitions:
                raise BadRequestError(404, f"topic {self._topic} has no partition {record.partition_id}", code=40404)
            outgoing = to_outgoing(record, key, value)
            self._producing.in_flight.take(size)
        except (BadRequestError, RegistryError, WireError) as error:
            return self.refused(error)
        outcome = self._producing.publisher.enqueue(self._topic, [outgoing])
        return asyncio.ensure_future(self._answer(outcome, key, value, size))

    async def _answer(
        self, pending: "asyncio.Future[list[Outcome]]", key: Written, value: Written, size: int
    ) -> dict[str, Any]:
        try:
            (outcome,) = await self._producing.publisher.outcome(pending)
        finally:
            self._producing.in_flight.give_back(size)
        if isinstance(outcome, Trouble):
            return error_document(self._path, outcome.code, outcome.message, outcome.hint)
        at = datetime.fromtimestamp(outcome.timestamp / 1000, UTC)
        told: dict[str, Any] = {
            "error_code": 200,
            "cluster_id": self._cluster_id,
            "topic_name": self._topic,
            "partition_id": outcome.partition,
            "offset": outcome.offset,
            "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        if key.told is not None:
            told["key"] = key.told
        if value.told is not None:
            told["value"] = value.told
        return told

    def refused(self, error: BadRequestError | RegistryError | WireError) -> "asyncio.Future[dict[str, Any]]":
        if isinstance(error, WireError):
            found = trouble_of(error)
            document = error_document(self._path, found.code, found.message, found.hint)
        else:
            document = error_document(self._path, error.code, error.message, getattr(error, "hint", ""))
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        future.set_result(document)
        return future


async def _answers(
    first: "asyncio.Future[dict[str, Any]]",
    waiting: "asyncio.Queue[asyncio.Future[dict[str, Any]] | None]",
    reader: "asyncio.Task[None]",
) -> AsyncIterator[bytes]:
    """Lines in the order of the records; those that are known together go out together."""
    pending: asyncio.Future[dict[str, Any]] | None = first
    try:
        while pending is not None:
            lines = [json_bytes(await pending)]
            pending = None
            while not waiting.empty():
                pending = waiting.get_nowait()
                if pending is None or not pending.done():
                    break
                lines.append(json_bytes(pending.result()))
            else:
                yield b"\r\n".join((*lines, b""))
                pending = await waiting.get()
                continue
            yield b"\r\n".join((*lines, b""))
    finally:
        reader.cancel()


class _Lines(Response):
    """Sends while the request is still being read. (Starlette's own streaming answer listens for the caller's leaving,
    and would swallow what of the request is still to come.)"""

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        super().__init__(None, 200, None, JSON)
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for line in self._lines:
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
