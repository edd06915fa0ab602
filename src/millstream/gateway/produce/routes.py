"""Produce routes: `POST /topics/{topic}/messages`, its batch, and `POST /v1/topics/{topic}/produce`.

Bodies of active requests are counted, so that memory has a bound. The number of partitions of a topic is cached.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypedDict

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from millstream.access.roles import Role
from millstream.formats.model.errors import ErrorCode
from millstream.gateway.context import GatewayContext, caller_registry
from millstream.gateway.http.configuration import Limits
from millstream.gateway.http.errors import ApiError, error_document, json_response
from millstream.gateway.http.request import ApiRequest, body_pieces
from millstream.gateway.http.routes import endpoint, explained
from millstream.gateway.identity.caller import current_caller
from millstream.gateway.identity.missing_acl import Needs
from millstream.gateway.produce.bodies import (
    BATCH,
    ONE,
    RECORDS,
    Encode,
    Form,
    Message,
    Messages,
    Records,
    outgoing,
    read_records,
)
from millstream.gateway.produce.conditional import append_if, etag, expected_end, partition_of
from millstream.gateway.produce.publisher import Outcome, OutgoingRecord, Publisher, Stored
from millstream.raw_client import Cluster
from millstream.raw_client.conditional import ConditionalProducer
from millstream.raw_client.errors import error_code, refusal
from millstream.registry.encoding import Encoders, InvalidValueError
from millstream.registry.records import parse_subject

_STEP_BYTES = 64 << 10
"""Step in which a body without Content-Length is counted before it is read."""


class InFlightBytes:
    """Used from one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0

    def take(self, size: int) -> None:
        """429 if it exceeds the limit; otherwise `give_back` must follow."""
        if self._bytes and self._bytes + size > self._max_bytes:
            raise ApiError(
                429,
                f"{self._bytes} bytes of other requests wait to be written",
                "retry in a second",
                code=42901,
                headers={"Retry-After": "1"},
            )
        self._bytes += size

    def give_back(self, size: int) -> None:
        self._bytes -= size

    @asynccontextmanager
    async def body(self, request: Request, max_bytes: int, within_s: float) -> AsyncIterator[bytes]:
        """The whole body, counted from before it is read until the request is done."""
        refusal = ApiError(413, f"the body is larger than {max_bytes} bytes", "send less in one request")
        announced = request.headers.get("content-length", "")
        taken = 0
        try:
            if announced.isdigit():
                if int(announced) > max_bytes:
                    raise refusal
                self.take(int(announced))
                taken = int(announced)
            chunks, size = [], 0
            async for chunk in body_pieces(request, within_s):
                size += len(chunk)
                if size > max_bytes:
                    raise refusal
                if size > taken:
                    more = max(size - taken, _STEP_BYTES)
                    self.take(more)
                    taken += more
                chunks.append(chunk)
            yield b"".join(chunks)
        finally:
            self.give_back(taken)


_CACHED_SECONDS = 30.0
"""How long the number of partitions is cached."""
_CREATION_TIMEOUT_SECONDS = 5.0
"""How long an automatically created topic may take to get a leader."""
_PAUSE_SECONDS = 0.05
_KEPT = 10_000


class _Known(NamedTuple):
    partitions: int
    until: float


class TopicCache:
    """Thread safe. A missing topic is created if the brokers allow it (auto.create.topics.enable)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def known_partitions(self, topic: str) -> int | None:
        """The cached number of partitions, or None. Sends no request."""
        found = self._known.get(topic)
        return found.partitions if found is not None and found.until > time.monotonic() else None

    def partitions(self, topic: str) -> int:
        """The number of partitions, read from the cluster; 404 if there is no such topic."""
        deadline = time.monotonic() + _CREATION_TIMEOUT_SECONDS
        while True:
            count, code = self._read_partitions(topic)
            if count:
                with self._lock:
                    if len(self._known) >= _KEPT:
                        self._known.clear()
                    self._known[topic] = _Known(count, time.monotonic() + _CACHED_SECONDS)
                return count
            if not code.retriable:
                raise refusal(f"topic {topic!r}", code)
            if time.monotonic() > deadline:
                hint = 'create it: POST /topics with {"name": …}'
                raise ApiError(404, f"there is no topic {topic!r}", hint, code=40403)
            time.sleep(_PAUSE_SECONDS)

    def forget(self, topic: str) -> None:
        with self._lock:
            self._known.pop(topic, None)

    def _read_partitions(self, topic: str) -> tuple[int, ErrorCode]:
        response = self._cluster.call("metadata", topics=[{"name": topic}], allow_auto_topic_creation=True)
        (row,) = response.topics
        code = error_code(row.error_code)
        if row.is_internal:
            raise ApiError(403, f"topic {topic!r} is internal", "write to another topic", code=40301)
        return (0 if code is not ErrorCode.NONE else len(row.partitions)), code


_THREADS = 32


class CallerProducer:
    """The producer of one caller, and what it knows of topics: another caller may not be allowed to know it."""

    def __init__(self, cluster: Cluster, limits: Limits) -> None:
        self.topics = TopicCache(cluster)
        self.publisher = Publisher(cluster, limits)
        self.conditional = ConditionalProducer(cluster)
        self.lookups: dict[str, asyncio.Task[int]] = {}

    def close(self) -> None:
        self.publisher.close()


class Producing:
    """Shared by all produce routes: one limit on the bytes in flight, and a producer for each caller."""

    def __init__(self, parts: GatewayContext) -> None:
        limits = parts.options.limits
        self.limits = limits
        self.registry = parts.registry
        self.in_flight = InFlightBytes(limits.max_in_flight_bytes)
        self.encoders = Encoders(parts.registry)
        self.threads = CapacityLimiter(_THREADS)
        """For requests to the cluster, which may block. Other requests have their own threads."""

    def mine(self) -> CallerProducer:
        """The producer of the caller of this request."""
        connection = current_caller().connection
        return connection.part(
            CallerProducer, lambda: CallerProducer(connection.cluster, self.limits), CallerProducer.close
        )

    async def partitions(self, topic: str) -> int:
        """The number of partitions of a topic that the caller wants to write to. Concurrent requests of a caller for
        one topic share one lookup."""
        if not current_caller().may_write(topic):
            raise ApiError(
                403, f"topic {topic!r} has the schemas of the registry", "POST /subjects/SUBJECT/versions", code=40301
            )
        mine = self.mine()
        known = mine.topics.known_partitions(topic)
        if known is not None:
            return known
        lookup = mine.lookups.get(topic)
        if lookup is None:
            lookup = mine.lookups[topic] = asyncio.create_task(self._read_partitions(mine, topic))
        return await asyncio.shield(lookup)

    async def _read_partitions(self, mine: CallerProducer, topic: str) -> int:
        try:
            return await to_thread.run_sync(mine.topics.partitions, topic, limiter=self.threads)
        finally:
            del mine.lookups[topic]

    async def publish(
        self, topic: str, records: Sequence[OutgoingRecord], expected: int | None = None
    ) -> list[Outcome]:
        """Nothing is sent if a record names a partition that does not exist. With `expected`, the records are written
        as one batch if their partition ends there; otherwise it raises 412."""
        mine = self.mine()
        count = await self.partitions(topic)
        for number, record in enumerate(records):
            if record.partition >= count:
                mine.topics.forget(topic)  # it may be new: the next request reads the number again
                raise ApiError(
                    404,
                    f"record {number}: topic {topic!r} has no partition {record.partition}",
                    f"it has partitions 0 to {count - 1}; no record was written",
                    code=40404,
                )
        if expected is not None:
            partition = partition_of(records, count)
            arguments = mine.conditional, topic, partition, records, expected
            return [*await to_thread.run_sync(append_if, *arguments, limiter=self.threads)]
        outcomes = await mine.publisher.publish(topic, records)
        for outcome in outcomes:
            if isinstance(outcome, ApiError) and outcome.status in (403, 404):
                mine.topics.forget(topic)
                break
        return outcomes


class _Producing(TypedDict):
    role: Role
    needs: Needs


PRODUCING: _Producing = {"role": Role.OPERATOR, "needs": Needs(topic="Write", cluster="IdempotentWrite")}
"""Of all routes that produce."""


class ProduceRoutes:
    def __init__(self, producing: Producing) -> None:
        self._producing = producing

    def routes(self) -> list[BaseRoute]:
        return [
            endpoint("POST", "/topics/{topic}/messages", self.one, doc=ONE, reads_body=False, **PRODUCING),
            endpoint("POST", "/topics/{topic}/messages/batch", self.batch, doc=BATCH, reads_body=False, **PRODUCING),
            endpoint("POST", "/v1/topics/{topic}/produce", self.records, doc=RECORDS, reads_body=False, **PRODUCING),
        ]

    async def one(self, req: ApiRequest) -> Response:
        topic, forms = req.path("topic"), _forms(req, Form.TEXT, Form.BASE64)
        async with self._body(req) as body:
            message = read_records(Message, body, *forms)
            (outcome,) = await self._publish(req, topic, [message], forms)
        if isinstance(outcome, ApiError):
            raise outcome
        return json_response({"topic": topic, **outcome._asdict()}, headers=_new_end(req, 1))

    async def batch(self, req: ApiRequest) -> Response:
        topic, forms = req.path("topic"), _forms(req, Form.TEXT, Form.BASE64)
        async with self._body(req) as body:
            outcomes = await self._publish(req, topic, read_records(Messages, body, *forms).messages, forms)
        return _response(req, outcomes, {})

    async def records(self, req: ApiRequest) -> Response:
        topic, forms = req.path("topic"), _forms(req, Form.TEXT, Form.JSON)
        async with self._body(req) as body:
            outcomes = await self._publish(req, topic, read_records(Records, body, *forms).records, forms)
        return _response(req, outcomes, {"topic": topic})

    def _body(self, req: ApiRequest) -> Any:
        limits = self._producing.limits
        return self._producing.in_flight.body(req.request, limits.max_body_bytes, limits.body_timeout_s)

    async def _publish(
        self, req: ApiRequest, topic: str, messages: list[Message[Any, Any]], forms: tuple[Form, Form]
    ) -> list[Outcome]:
        most = self._producing.limits.max_records
        if not 0 < len(messages) <= most:
            raise ApiError(422, f"{len(messages)} records in one request", f"send from 1 to {most}")
        if Form.SCHEMA in forms:
            threads = self._producing.threads
            records = await to_thread.run_sync(self._encoded, req, topic, messages, forms, limiter=threads)
        else:
            records = outgoing(messages, *forms, _no_schema, _no_schema)
        return await self._producing.publish(topic, records, expected_end(req))

    def _encoded(
        self, req: ApiRequest, topic: str, messages: list[Message[Any, Any]], forms: tuple[Form, Form]
    ) -> list[OutgoingRecord]:
        """May send requests to the cluster for the schema, so it runs in a thread."""
        key_of, value_of = (
            self._schema(req, topic, part) if form is Form.SCHEMA else _no_schema
            for part, form in zip(("key", "value"), forms, strict=True)
        )
        return outgoing(messages, *forms, key_of, value_of)

    def _schema(self, req: ApiRequest, topic: str, part: str) -> Encode:
        number = req.number(f"{part}_schema_id", 0)
        encoders, registry = self._producing.encoders, caller_registry(self._producing.registry)
        try:
            if number:
                return encoders.by_id(number, within=registry).encode
            return encoders.version(parse_subject(f"{topic}-{part}"), within=registry).encode
        except InvalidValueError as error:
            raise ApiError(422, str(error), "use another schema") from None


def _no_schema(value: Any) -> bytes:
    raise AssertionError("only the form schema is encoded")


def _forms(req: ApiRequest, key: Form, value: Form) -> tuple[Form, Form]:
    return _form(req, "key_format", key), _form(req, "value_format", value)


def _form(req: ApiRequest, name: str, default: Form) -> Form:
    text = req.text(name)
    if not text:
        return default
    try:
        return Form(text)
    except ValueError:
        raise ApiError(
            400, f"?{name}={text} is unknown", f"give one of {', '.join(form.value for form in Form)}"
        ) from None


def _response(req: ApiRequest, outcomes: Sequence[Outcome], document: dict[str, Any]) -> Response:
    """200 if all records are stored, 207 if some are; if none is, the error of the first."""
    path = req.request.scope["path"]
    offsets: list[dict[str, Any]] = []
    stored = 0
    for outcome in outcomes:
        if isinstance(outcome, Stored):
            stored += 1
            offsets.append({"partition": outcome[0], "offset": outcome[1], "timestamp": outcome[2]})
        else:
            error = explained(outcome, PRODUCING["needs"], req.request.path_params)
            offsets.append(error_document(path, error.code, error.message, error.hint) | error.extra)
    if not stored:
        first = outcomes[0]
        assert isinstance(first, ApiError)
        raise first
    status = 200 if stored == len(outcomes) else 207
    return json_response(document | {"offsets": offsets}, status=status, headers=_new_end(req, stored))


def _new_end(req: ApiRequest, written: int) -> dict[str, str] | None:
    """The ETag after a conditional request that succeeded."""
    expected = expected_end(req)
    return None if expected is None else etag(expected + written)
