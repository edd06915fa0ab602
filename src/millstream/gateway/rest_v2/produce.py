"""REST v2: produce to a topic or to one partition. The Content-Type names the format of keys and values."""

from functools import cache
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from anyio import to_thread
from msgspec import Meta, Raw, Struct
from starlette.responses import Response
from starlette.routing import BaseRoute

from millstream.gateway.context import caller_registry
from millstream.gateway.http.errors import ApiError, json_response
from millstream.gateway.http.request import ApiRequest, read_json
from millstream.gateway.http.routes import Doc, Int32, Int64, explained
from millstream.gateway.produce.bodies import Form, converter
from millstream.gateway.produce.publisher import Outcome, OutgoingRecord
from millstream.gateway.produce.routes import PRODUCING, Producing
from millstream.gateway.rest_v2.form import (
    BINARY,
    FORMATS,
    INVALID_SCHEMA,
    JSON_FORMAT,
    KEY_SCHEMA_MISSING,
    SCHEMA_TYPES,
    TAG,
    TEXT_FORMAT,
    V2,
    VALUE_SCHEMA_MISSING,
    V2Error,
    as_v2,
    format_in,
    media_type,
    number_in_path,
    v2_endpoint,
)
from millstream.gateway.rest_v3.records import PartEncoder, RecordPart
from millstream.registry.errors import RegistryError
from millstream.registry.registry import Registry

Data = TypeVar("Data")
_FORMS = {BINARY: Form.BASE64, JSON_FORMAT: Form.JSON, TEXT_FORMAT: Form.TEXT}
_NULL = b"null"


class V2Header(Struct, forbid_unknown_fields=True):
    """A header, with its value in base64 (in Strimzi's bridge)."""

    key: str
    value: bytes | None = None


class V2Record(Struct, Generic[Data], forbid_unknown_fields=True):
    """A record to be written. Key and value are in the format that the Content-Type names."""

    value: Data = None  # type: ignore[assignment]  # a missing key or value is null in every format
    key: Data = None  # type: ignore[assignment]
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    headers: list[V2Header] | None = None
    timestamp: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


class V2Records(Struct, Generic[Data], forbid_unknown_fields=True):
    """Records of a batch, and their schemas in a format with schemas."""

    records: Annotated[list[V2Record[Data]], Meta(min_length=1)]
    key_schema: Annotated[str | None, Meta(description="The text of a schema, which is registered.")] = None
    key_schema_id: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    value_schema: Annotated[str | None, Meta(description="The text of a schema, which is registered.")] = None
    value_schema_id: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class WrittenOffset(Struct):
    """The position of a record, or an error."""

    partition: Int32 | None
    offset: Int64 | None
    error_code: Annotated[int | None, Meta(description="50002: final. 50003: may be sent again.")]
    error: str | None


class ProduceResult(Struct):
    """One entry for each record, in the order of the request."""

    key_schema_id: Int32 | None
    value_schema_id: Int32 | None
    offsets: list[WrittenOffset]


def _doc(summary: str) -> Doc:
    first, *others = (media_type(format_) for format_ in (JSON_FORMAT, BINARY, TEXT_FORMAT, *SCHEMA_TYPES))
    return Doc(
        tag=TAG,
        summary=summary,
        description="The Content-Type names the format: json; binary (base64); text; avro, jsonschema and protobuf "
        "take JSON, and a schema or its id. The response is 200, also if some records have an error.",
        body=V2Records[Any],
        body_type=first,
        more_body_types=others,
        response=ProduceResult,
        response_type=V2,
        errors=(415, 422, 429),
        example={"records": [{"key": "ann", "value": {"order": 17}}]},
    )


@cache
def _decoder(format_: str) -> msgspec.json.Decoder[Any]:
    kind: Any = V2Records
    return msgspec.json.Decoder(kind[bytes | None if format_ == BINARY else Raw])


class V2ProduceRoutes:
    def __init__(self, producing: Producing, registry: Registry) -> None:
        self._producing = producing
        self._registry = registry

    def routes(self) -> list[BaseRoute]:
        topic, partition = "/topics/{topic}", "/topics/{topic}/partitions/{partition}"
        return [
            v2_endpoint("POST", topic, self.to_topic, _doc("Write records to a topic"), reads_body=False, **PRODUCING),
            v2_endpoint(
                "POST",
                partition,
                self.to_partition,
                _doc("Write records to a partition"),
                reads_body=False,
                **PRODUCING,
            ),
        ]

    async def to_topic(self, req: ApiRequest) -> Response:
        return await self._produce(req, None)

    async def to_partition(self, req: ApiRequest) -> Response:
        return await self._produce(req, number_in_path(req, "partition"))

    async def _produce(self, req: ApiRequest, partition: int | None) -> Response:
        topic, limits = req.path("topic"), self._producing.limits
        format_ = format_in(req.request.headers.get("content-type", ""))
        if format_ not in FORMATS:
            names = ", ".join(media_type(each) for each in FORMATS)
            raise V2Error(415, "HTTP 415 Unsupported Media Type", f"send records with a Content-Type of {names}")
        whole = self._producing.in_flight.body(req.request, limits.max_body_bytes, limits.body_timeout_s)
        async with whole as body:
            wanted = read_json(body, _decoder(format_), 422)
            if len(wanted.records) > limits.max_records:
                raise V2Error(422, f"{len(wanted.records)} records in one request", f"send up to {limits.max_records}")
            if partition is not None:
                for each in wanted.records:
                    each.partition = partition
            if format_ in SCHEMA_TYPES:
                encoding = _SchemaEncoding(
                    PartEncoder(caller_registry(self._registry), self._producing.encoders, topic), format_, wanted
                )
                records = await to_thread.run_sync(encoding.outgoing, limiter=self._producing.threads)
                ids = encoding.ids
            else:
                records, ids = _plain(wanted, _FORMS[format_]), {}
            outcomes = await self._producing.publish(topic, records)
        offsets = [_shown(outcome, topic) for outcome in outcomes]
        statuses = {row.error_code for row in offsets}
        status = 401 if 40101 in statuses else 403 if 40301 in statuses else 200
        result = ProduceResult(ids.get("key"), ids.get("value"), offsets)
        return json_response(result, status=status, media_type=V2)


def _plain(wanted: V2Records[Any], form: Form) -> list[OutgoingRecord]:
    convert = converter(form, _no_schema)
    return [_outgoing(each, convert(each.key), convert(each.value)) for each in wanted.records]


def _no_schema(value: Any) -> bytes:
    raise AssertionError("formats without schemas are not encoded")


def _outgoing(record: V2Record[Any], key: bytes | None, value: bytes | None) -> OutgoingRecord:
    headers: list[tuple[str, str | bytes | None]] | None = None
    if record.headers:
        if any("\0" in header.key for header in record.headers):
            raise V2Error(422, "the name of a header must not contain the character 0")  # librdkafka would cut it off
        headers = [(header.key, header.value) for header in record.headers]
    return OutgoingRecord(
        value, key, headers, -1 if record.partition is None else record.partition, record.timestamp or 0
    )


class _SchemaEncoding:
    """Encodes the records of one request. `outgoing` may block on the cluster for the schemas."""

    def __init__(self, encoder: PartEncoder, format_: str, wanted: V2Records[Any]) -> None:
        self._encoder = encoder
        self._format = format_
        self._wanted = wanted
        self.ids: dict[str, int] = {}
        """The ids of the schemas, by key and value."""

    def outgoing(self) -> list[OutgoingRecord]:
        wanted = self._wanted
        self._parts = {
            "key": self._part(wanted.key_schema, wanted.key_schema_id),
            "value": self._part(wanted.value_schema, wanted.value_schema_id),
        }
        for which, missing in (("key", KEY_SCHEMA_MISSING), ("value", VALUE_SCHEMA_MISSING)):
            part = self._parts[which]
            if any(bytes(getattr(each, which) or _NULL) != _NULL for each in wanted.records) and part is None:
                raise V2Error(
                    422,
                    f"Request includes {which}s but does not include {which} schema",
                    f"give {which}_schema or {which}_schema_id",
                    code=missing,
                )
            if part is not None:
                self._find(part, which)
        return [
            _outgoing(each, self._written(each.key, "key"), self._written(each.value, "value"))
            for each in wanted.records
        ]

    def _part(self, schema: str | None, schema_id: int | None) -> RecordPart | None:
        if schema is None and schema_id is None:
            return None
        return RecordPart(type=SCHEMA_TYPES[self._format], schema_id=schema_id, schema=schema)

    def _find(self, part: RecordPart, which: str) -> None:
        try:
            part.check()
            self._encoder.find(part, which)
        except RegistryError as error:
            raise as_v2(error) from None
        except ApiError as error:
            raise V2Error(422, f"Invalid schema: {error.message}", error.hint, code=INVALID_SCHEMA) from None
        summary = self._encoder.write(part, which).summary  # of null, which fits every schema
        self.ids[which] = 0 if summary is None else summary["schema_id"]

    def _written(self, raw: Raw | None, which: str) -> bytes | None:
        part = self._parts[which]
        if part is None or raw is None:
            return None
        part.data = raw
        return self._encoder.write(part, which).data


def _shown(outcome: Outcome, topic: str) -> WrittenOffset:
    if not isinstance(outcome, ApiError):
        return WrittenOffset(outcome.partition, outcome.offset, None, None)
    error = as_v2(explained(outcome, PRODUCING["needs"], {"topic": topic}))
    return WrittenOffset(None, None, error.code, f"{error.message}: {error.hint}" if error.hint else error.message)
