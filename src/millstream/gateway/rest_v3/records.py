"""Confluent's REST v3: produce records in a stream, with one line of response for each in order, or as a batch.

The response to a stream begins while the request is still being sent: records are handed to the producer at once, and
while too many records wait for their result, no more are read.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from anyio import to_thread
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from millstream.gateway.context import caller_registry
from millstream.gateway.http.errors import (
    INTERNAL_ERROR,
    JSON,
    ApiError,
    error_document,
    error_for_wire_error,
    json_bytes,
    json_response,
)
from millstream.gateway.http.request import ApiRequest, BrokenStreamError, read_json, split
from millstream.gateway.http.routes import Doc, Int32, Int64, endpoint, explained
from millstream.gateway.produce.publisher import Outcome, OutgoingRecord
from millstream.gateway.produce.routes import PRODUCING, Producing
from millstream.gateway.rest_v3.resources import BASE, TAG, Links
from millstream.raw_client import WireError
from millstream.registry.encoding import Encoders, InvalidValueError, SchemaEncoder, record_name
from millstream.registry.errors import RegistryError
from millstream.registry.formats import ParsedSchema
from millstream.registry.records import Subject, parse_subject
from millstream.registry.registering import SchemaRequest
from millstream.registry.registry import Registry

_SCHEMA_TYPES = {"AVRO": "AVRO", "JSONSCHEMA": "JSON", "PROTOBUF": "PROTOBUF"}
_TYPE_NAMES = {registered: name for name, registered in _SCHEMA_TYPES.items()}
_PLAIN_TYPES = ("BINARY", "JSON", "STRING")
_STRATEGIES = ("TOPIC_NAME", "RECORD_NAME", "TOPIC_RECORD_NAME")
_HOW = f"give type as one of {', '.join((*_PLAIN_TYPES, *_SCHEMA_TYPES))}"
_NULL = b"null"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_Int32 = Annotated[int, Meta(ge=0, le=2**31 - 1)]


_SCHEMA_FIELDS = ("subject", "subject_name_strategy", "schema_id", "schema_version", "schema")
_EXCLUSIVE = (
    ("schema", "schema_id"),
    ("schema", "schema_version"),
    ("schema_id", "schema_version"),
    ("subject", "subject_name_strategy"),
)


class RecordPart(Struct, forbid_unknown_fields=True):
    """A key or a value, and how it is encoded."""

    data: Raw = msgspec.field(default_factory=lambda: Raw(_NULL))
    type: Annotated[
        str | None,
        Meta(description="BINARY takes base64.", extra_json_schema={"enum": [*_PLAIN_TYPES, *_SCHEMA_TYPES, None]}),
    ] = None
    subject: str | None = None
    subject_name_strategy: Annotated[str | None, Meta(extra_json_schema={"enum": [*_STRATEGIES, None]})] = None
    schema_id: _Int32 | None = None
    schema_version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    schema: Annotated[str | None, Meta(description="The text of a schema, which is registered.")] = None

    @property
    def choice(self) -> tuple[Any, ...]:
        """The fields that determine the encoder."""
        return self.type, self.subject, self.subject_name_strategy, self.schema_id, self.schema_version, self.schema

    def check(self) -> None:
        """400 if two fields exclude each other."""
        named = [name for name in _SCHEMA_FIELDS if getattr(self, name) is not None]
        if self.type in _PLAIN_TYPES and named:
            raise ApiError(400, f"{' and '.join(named)} cannot be used with type {self.type}, which has no schema")
        for first, second in _EXCLUSIVE:
            if first in named and second in named:
                raise ApiError(400, f"{first} and {second} exclude each other", "give one of them")


class RecordHeader(Struct, forbid_unknown_fields=True):
    """A header, with its value in base64."""

    name: str
    value: bytes | None = None


class Record(Struct, forbid_unknown_fields=True):
    """A record to be written."""

    partition_id: _Int32 | None = None
    headers: list[RecordHeader] | None = None
    key: RecordPart | None = None
    value: RecordPart | None = None
    timestamp: datetime | None = None


class Entry(Record, forbid_unknown_fields=True, kw_only=True):
    """A record of a batch."""

    id: Annotated[str, Meta(description="Unique in the batch.", min_length=1, max_length=80)]


class Batch(Struct, forbid_unknown_fields=True):
    """Records to be written."""

    entries: list[Entry]


class PartSummary(Struct, omit_defaults=True):
    """How a key or a value was encoded."""

    type: str
    size: Int32
    subject: str | UnsetType = UNSET
    schema_id: Int32 | UnsetType = UNSET
    schema_version: Int32 | UnsetType = UNSET


class RecordResult(Struct, kw_only=True):
    """The result of one record: its position, or an error."""

    error_code: Annotated[int, Meta(description="200: the record was written.")]
    cluster_id: str | UnsetType = UNSET
    topic_name: str | UnsetType = UNSET
    partition_id: Int32 | UnsetType = UNSET
    offset: Int64 | UnsetType = UNSET
    timestamp: datetime | UnsetType = UNSET
    key: PartSummary | UnsetType = UNSET
    value: PartSummary | UnsetType = UNSET
    message: str | UnsetType = UNSET


class EntrySuccess(Struct, kw_only=True):
    """A record that was written."""

    id: str
    cluster_id: str
    topic_name: str
    partition_id: Int32
    offset: Int64
    timestamp: datetime
    key: PartSummary | UnsetType = UNSET
    value: PartSummary | UnsetType = UNSET


class EntryFailure(Struct):
    """A record that was not written."""

    id: str
    error_code: int
    message: str


class RecordBatchResult(Struct):
    """The results of a batch."""

    successes: list[EntrySuccess]
    failures: list[EntryFailure]


RECORDS_DOC = Doc(
    tag=TAG,
    summary="Write a stream of records",
    description="The body is a sequence of JSON objects. The response has one line for each record, in the same order, "
    "and begins while the request is still being sent: `error_code` 200 with the position, or an error.",
    body=Record,
    response=RecordResult,
    errors=(422, 429),
    example={"value": {"type": "JSON", "data": {"order": 17}}},
)
BATCH_DOC = Doc(
    tag=TAG,
    summary="Write a batch of records",
    body=Batch,
    response=RecordBatchResult,
    status=207,
    errors=(422, 429),
    example={"entries": [{"id": "1", "value": {"type": "STRING", "data": "hello"}}]},
)

_RECORD = msgspec.json.Decoder(Record)
_BATCH = msgspec.json.Decoder(Batch)


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """A key or value as bytes, and its summary in the response."""

    data: bytes | None
    summary: dict[str, Any] | None


def to_outgoing(record: Record, key: EncodedPart, value: EncodedPart) -> OutgoingRecord:
    headers: list[tuple[str, str | bytes | None]] | None = None
    if record.headers:
        if any("\0" in header.name for header in record.headers):
            raise ApiError(400, "the name of a header must not contain the character 0")  # librdkafka would cut it off
        headers = [(header.name, header.value) for header in record.headers]
    partition = -1 if record.partition_id is None else record.partition_id
    return OutgoingRecord(value.data, key.data, headers, partition, _milliseconds(record.timestamp))


def _milliseconds(at: datetime | None) -> int:
    """Milliseconds since 1970; 0 is now. A time without a zone is in UTC."""
    if at is None:
        return 0
    since = ((at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    if not 0 < since <= _LAST:  # for 0 librdkafka would write the current time
        raise ApiError(400, "the timestamp of a record must be after 1970-01-01T00:00:00Z and before the year 10000")
    return since


class PartEncoder:
    """Encodes the keys and values of one request. `find` may block on the cluster; `write` does not."""

    def __init__(self, registry: Registry, encoders: Encoders, topic: str) -> None:
        self._registry = registry
        self._encoders = encoders
        self._topic = topic
        self._found: dict[tuple[Any, ...], SchemaEncoder] = {}

    def needs_schema(self, part: RecordPart | None, which: str) -> bool:
        """Whether `find` must be called before `write`."""
        return part is not None and part.type not in _PLAIN_TYPES and (which, *part.choice) not in self._found

    def find(self, part: RecordPart, which: str) -> None:
        """`which`: key or value."""
        type_, subject, strategy, schema_id, version, schema = part.choice
        if type_ is not None and type_ not in _SCHEMA_TYPES:
            raise ApiError(400, f"type {type_!r} is unknown: {_HOW}")
        if strategy not in (None, *_STRATEGIES):
            raise ApiError(
                400,
                f"subject_name_strategy {strategy} is unknown",
                f"give one of {', '.join(_STRATEGIES)}, or a subject",
            )
        by_record = strategy not in (None, "TOPIC_NAME")
        place = parse_subject(subject or f"{self._topic}-{which}")
        try:
            if schema is not None:
                if type_ is None:
                    raise ApiError(400, f"a schema needs a type: {_HOW}")
                request = SchemaRequest(schema, _SCHEMA_TYPES[type_], (), None, None)
                if by_record:
                    parsed = self._registry.parser.parse(place, request.type, schema, ())
                    place = self._place_of(parsed, strategy)
                encoder = self._encoders.of(self._registry.register(place, request))
            elif schema_id is not None:
                encoder = self._encoders.by_id(schema_id, within=self._registry)
                if by_record:
                    place = self._place_of(self._registry.parser.parse_stored(encoder.stored), strategy)
                    versions = self._registry.versions_of_id(schema_id, place)
                    if not versions:
                        raise ApiError(404, f"subject {place} has no schema {schema_id}", code=40403)
                    encoder = self._encoders.of(versions[-1])
            elif by_record:
                raise ApiError(
                    400,
                    f"with subject_name_strategy {strategy}, the subject follows from the schema",
                    "give schema or schema_id, or the subject instead of the strategy",
                )
            else:
                encoder = self._encoders.version(place, version, within=self._registry)
        except InvalidValueError as error:
            raise ApiError(400, str(error)) from None
        if type_ is not None and encoder.stored.type != _SCHEMA_TYPES[type_]:
            raise ApiError(400, f"schema {encoder.stored.id} is {encoder.stored.type}, not {type_}")
        self._found[which, *part.choice] = encoder

    def _place_of(self, parsed: ParsedSchema, strategy: str | None) -> Subject:
        name = record_name(parsed)
        if name is None:
            raise ApiError(400, "the schema has no record with a name", "give the subject instead of the strategy")
        return parse_subject(name if strategy == "RECORD_NAME" else f"{self._topic}-{name}")

    def write(self, part: RecordPart | None, which: str) -> EncodedPart:
        if part is None:
            return EncodedPart(None, None)
        raw = bytes(part.data)
        if part.type in _PLAIN_TYPES:
            data = None if raw == _NULL else _plain(part.type, raw)
            return EncodedPart(data, {"type": part.type, "size": len(data or b"")})
        encoder = self._found[which, *part.choice]
        try:
            data = None if raw == _NULL else encoder.encode(msgspec.json.decode(raw))
        except InvalidValueError as error:
            raise ApiError(422, f"{which}: {error}", code=42206) from None
        stored = encoder.stored
        summary = {
            "type": _TYPE_NAMES[stored.type],
            "subject": str(stored.subject),
            "schema_id": stored.id,
            "schema_version": stored.version,
            "size": len(data or b""),
        }
        return EncodedPart(data, summary)


def _plain(type_: str | None, raw: bytes) -> bytes:
    if type_ == "JSON":
        return raw
    if not raw.startswith(b'"'):
        raise ApiError(400, f"data of type {type_} must be a string")
    text: str = msgspec.json.decode(raw, type=str)
    if type_ == "STRING":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, "data of type BINARY must be base64") from None


_log = logging.getLogger(__name__)
_MAX_WAITING = 1_000
"""Records of one stream that have no result yet."""
_TOPIC = BASE + "/{cluster_id}/topics/{topic_name}"
_MISSING = "Null input provided. Data is required."


class RecordRoutes:
    def __init__(self, producing: Producing, registry: Registry, links: Callable[[ApiRequest], Links]) -> None:
        self._producing = producing
        self._registry = registry
        self._links = links

    def routes(self) -> list[BaseRoute]:
        return [
            endpoint("POST", f"{_TOPIC}/records", self.stream, doc=RECORDS_DOC, reads_body=False, **PRODUCING),
            endpoint("POST", f"{_TOPIC}/records:batch", self.batch, doc=BATCH_DOC, reads_body=False, **PRODUCING),
        ]

    async def _sender(self, req: ApiRequest) -> "_RecordSender":
        threads, topic = self._producing.threads, req.path("topic_name")
        links = await to_thread.run_sync(self._links, req, limiter=threads)
        partitions = await self._producing.partitions(topic)
        writer = PartEncoder(caller_registry(self._registry), self._producing.encoders, topic)
        return _RecordSender(self._producing, writer, links.cluster_id, topic, partitions, req.request.scope["path"])

    async def stream(self, req: ApiRequest) -> Response:
        sender = await self._sender(req)
        waiting: asyncio.Queue[asyncio.Future[dict[str, Any]] | None] = asyncio.Queue(_MAX_WAITING)
        reader = asyncio.create_task(self._read(req, sender, waiting))
        first = await waiting.get()
        if first is None:
            await reader
            raise ApiError(400, _MISSING)
        return _LineResponse(_result_lines(first, waiting, reader))

    async def _read(
        self, req: ApiRequest, sender: "_RecordSender", waiting: "asyncio.Queue[asyncio.Future[dict[str, Any]] | None]"
    ) -> None:
        """Reads until the stream ends or is invalid."""
        try:
            async for data in split(req.request.stream(), self._producing.limits.max_body_bytes):
                await waiting.put(await sender.send(data))
        except BrokenStreamError as error:
            await waiting.put(sender.refused(ApiError(400, f"{error}; the rest was not read")))
        except ApiError as error:  # of the body: it is not the gzip that it says
            await waiting.put(sender.refused(error))
        except ClientDisconnect:
            pass
        except Exception:  # the reader of the lines must not wait forever
            _log.exception("stream_failed topic=%s", req.path("topic_name"))
            await waiting.put(sender.refused(ApiError(500, INTERNAL_ERROR)))
        await waiting.put(None)

    async def batch(self, req: ApiRequest) -> Response:
        sender, limits = await self._sender(req), self._producing.limits
        successes: list[dict[str, Any]] = []
        failures: list[dict[str, Any]] = []
        whole = self._producing.in_flight.body(req.request, limits.max_body_bytes, limits.body_timeout_s)
        async with whole as body:
            entries = read_json(body, _BATCH).entries
            ids = [entry.id for entry in entries]
            if not 0 < len(entries) <= limits.max_records or not all(ids) or len(set(ids)) < len(ids):
                message = f"a batch has from 1 to {limits.max_records} entries, each with a different id"
                raise ApiError(400, message)
            results = [await sender.send_record(entry, 0) for entry in entries]
            for entry, result in zip(entries, results, strict=True):
                summary = {"id": entry.id, **await result}
                (successes if summary["error_code"] == 200 else failures).append(summary)
        for summary in successes:
            del summary["error_code"]
        return json_response({"successes": successes, "failures": failures}, status=207)


class _RecordSender:
    """Sends the records of one request to one topic."""

    def __init__(
        self, producing: Producing, writer: PartEncoder, cluster_id: str, topic: str, partitions: int, path: str
    ) -> None:
        self._producing = producing
        self._publisher = producing.mine().publisher
        self._writer = writer
        self._cluster_id = cluster_id
        self._topic = topic
        self._partitions = partitions
        self._path = path

    async def send(self, data: bytes) -> "asyncio.Future[dict[str, Any]]":
        try:
            record = read_json(data, _RECORD)
        except ApiError as error:
            return self.refused(error)
        return await self.send_record(record, len(data))

    async def send_record(self, record: Record, size: int) -> "asyncio.Future[dict[str, Any]]":
        """Hands the record to the producer unless it is refused. The future has its result."""
        try:
            for part, which in ((record.key, "key"), (record.value, "value")):
                if part is not None:
                    part.check()
                if part is not None and self._writer.needs_schema(part, which):
                    await to_thread.run_sync(self._writer.find, part, which, limiter=self._producing.threads)
            key, value = self._writer.write(record.key, "key"), self._writer.write(record.value, "value")
            if record.partition_id is not None and record.partition_id >= self._partitions:
                raise ApiError(404, f"topic {self._topic} has no partition {record.partition_id}", code=40404)
            outgoing = to_outgoing(record, key, value)
            self._producing.in_flight.take(size)
        except (ApiError, RegistryError, WireError) as error:
            return self.refused(error)
        outcome = self._publisher.enqueue(self._topic, [outgoing])
        return asyncio.ensure_future(self._result(outcome, key, value, size))

    async def _result(
        self, pending: "asyncio.Future[list[Outcome]]", key: EncodedPart, value: EncodedPart, size: int
    ) -> dict[str, Any]:
        try:
            (outcome,) = await self._publisher.outcome(pending)
        finally:
            self._producing.in_flight.give_back(size)
        if isinstance(outcome, ApiError):
            outcome = explained(outcome, PRODUCING["needs"], {"topic": self._topic})
            return error_document(self._path, outcome.code, outcome.message, outcome.hint) | outcome.extra
        at = datetime.fromtimestamp(outcome.timestamp / 1000, UTC)
        summary: dict[str, Any] = {
            "error_code": 200,
            "cluster_id": self._cluster_id,
            "topic_name": self._topic,
            "partition_id": outcome.partition,
            "offset": outcome.offset,
            "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        if key.summary is not None:
            summary["key"] = key.summary
        if value.summary is not None:
            summary["value"] = value.summary
        return summary

    def refused(self, error: ApiError | RegistryError | WireError) -> "asyncio.Future[dict[str, Any]]":
        if isinstance(error, WireError):
            found = error_for_wire_error(error)
            document = error_document(self._path, found.code, found.message, found.hint)
        else:
            document = error_document(self._path, error.code, error.message, getattr(error, "hint", ""))
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        future.set_result(document)
        return future


async def _result_lines(
    first: "asyncio.Future[dict[str, Any]]",
    waiting: "asyncio.Queue[asyncio.Future[dict[str, Any]] | None]",
    reader: "asyncio.Task[None]",
) -> AsyncIterator[bytes]:
    """Lines in the order of the records; results that are ready together are sent together."""
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


class _LineResponse(Response):
    """Sends while the request is still being read. (Starlette's StreamingResponse waits for a disconnect, and would
    discard the rest of the request.)"""

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        super().__init__(None, 200, None, JSON)
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for line in self._lines:
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
