"""REST v2: consumers. An instance is a consumer of `consumers/session`, as those of our own routes are.

What v2 adds to it: an instance is created before it subscribes; partitions can be assigned by hand; offsets are
committed automatically unless it is switched off. As in Confluent's proxy, an offset to commit is that of the last
record that is done.
"""

from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import quote

from anyio import to_thread
from msgspec import Meta, Struct, field
from starlette.responses import Response
from starlette.routing import BaseRoute

from millstream.formats.records.record import Record
from millstream.gateway.consumers.bodies import (
    MAX_POLL_BYTES,
    MAX_POLL_MS,
    MAX_POLL_RECORDS,
    Offset,
    Partition,
    Show,
    TopicName,
    base64_view,
    json_view,
    masked,
    text_view,
)
from millstream.gateway.consumers.progress import Batch
from millstream.gateway.consumers.routes import CONSUMING, PollLimits, poll, refuse_others
from millstream.gateway.consumers.session import Session, SessionSettings
from millstream.gateway.consumers.sessions import Sessions
from millstream.gateway.http.errors import ApiError, json_bytes
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import TEXT, Doc, Int32, Int64, Parameter, whole
from millstream.gateway.identity.caller import caller_cluster, current_caller
from millstream.gateway.rest_v2.form import (
    BINARY,
    CONSUMER_EXISTS,
    FORMAT_MISMATCH,
    FORMATS,
    ILLEGAL_STATE,
    INVALID_CONFIG,
    JSON_FORMAT,
    SCHEMA_TYPES,
    TAG,
    TEXT_FORMAT,
    UNREADABLE_RECORD,
    V2,
    V2Error,
    format_in,
    media_type,
    v2_endpoint,
)
from millstream.raw_client import TopicPartition
from millstream.registry.decoding import Decoder

_GROUP = "/consumers/{group}"
_INSTANCE = _GROUP + "/instances/{instance}"
_MAX_ASSIGNED = 1_000


class NewInstance(Struct, forbid_unknown_fields=True):
    """A consumer to create. Every field is optional."""

    id: Annotated[str, Meta(max_length=100)] | None = None
    name: Annotated[Annotated[str, Meta(max_length=100)] | None, Meta(description="Names it in its URL.")] = None
    format: Annotated[str | None, Meta(extra_json_schema={"enum": [*FORMATS, None]})] = None
    auto_offset_reset: Annotated[
        Literal["earliest", "latest", "none"] | None, Meta(description="latest by default, as in Kafka.")
    ] = field(default=None, name="auto.offset.reset")
    auto_commit_enable: Annotated[
        bool | Literal["true", "false"] | None, Meta(description="true by default, as in Kafka.")
    ] = field(default=None, name="auto.commit.enable")
    enable_auto_commit: Annotated[
        bool | Literal["true", "false"] | None, Meta(description="The same, as in Strimzi's bridge.")
    ] = field(default=None, name="enable.auto.commit")
    fetch_min_bytes: Annotated[
        Annotated[int, Meta(ge=-1, le=10_000_000)] | Annotated[str, Meta(pattern="^-?[0-9]{1,8}$")] | None,
        Meta(description="A poll waits for so many bytes, or for its timeout. 1 by default."),
    ] = field(default=None, name="fetch.min.bytes")
    request_timeout_ms: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)] | Annotated[str, Meta(pattern="^[0-9]{1,9}$")] | None,
        Meta(description="Timeout of a poll that names none; at most 60000. 1000 by default."),
    ] = field(default=None, name="consumer.request.timeout.ms")
    isolation_level: Annotated[
        Literal["read_committed", "read_uncommitted"] | None, Meta(description="read_committed by default.")
    ] = field(default=None, name="isolation.level")


class CreatedInstance(Struct):
    """The consumer, and the URL of its other requests."""

    instance_id: str
    base_uri: str


class V2Subscription(Struct, forbid_unknown_fields=True):
    """Names of topics, or a regular expression (RE2)."""

    topics: Annotated[list[TopicName], Meta(min_length=1, max_length=100)] | None = None
    topic_pattern: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None


class SubscribedTopics(Struct):
    """The topics that a consumer reads."""

    topics: list[str]


class V2Partition(Struct, forbid_unknown_fields=True):
    """A partition."""

    topic: TopicName
    partition: Partition


class V2Partitions(Struct, forbid_unknown_fields=True):
    """Partitions."""

    partitions: Annotated[list[V2Partition], Meta(max_length=_MAX_ASSIGNED)]


class V2Offset(Struct, forbid_unknown_fields=True):
    """An offset of a partition."""

    topic: TopicName
    partition: Partition
    offset: Offset
    metadata: Annotated[str, Meta(max_length=4_000)] | None = None


class V2Offsets(Struct, forbid_unknown_fields=True):
    """Offsets."""

    offsets: Annotated[list[V2Offset], Meta(max_length=_MAX_ASSIGNED)]


class CommittedOffsetRow(Struct):
    """The committed offset of a partition: the next record to read."""

    topic: str
    partition: Int32
    offset: Int64
    metadata: str


class CommittedOffsets(Struct):
    """The committed offsets. Partitions without one are absent."""

    offsets: list[CommittedOffsetRow]


def _doc(summary: str, response: Any = None, body: Any = None, **more: Any) -> Doc:
    given: dict[str, Any] = {"errors": (406, 409, 410, 416, 422, 429, 501, 502)} | more
    return Doc(
        tag=TAG,
        summary=summary,
        body=body,
        body_type=V2,
        response=response,
        response_type=V2,
        status=200 if response is not None else 204,
        **given,
    )


_RECORDS = Doc(
    tag=TAG,
    summary="Read the next records",
    description="Accept must name the format of the consumer, or no format.",
    parameters=(
        Parameter("timeout", "Milliseconds; at most 60000.", whole("", minimum=0)),
        Parameter("max_bytes", "Maximum size of keys and values; at most 16 MiB.", whole("")),
        Parameter("Accept", "Such as application/vnd.kafka.json.v2+json.", TEXT, place="header"),
    ),
    response={"type": "array", "items": {"type": "object"}},
    response_type=media_type(BINARY),
    errors=(406, 409, 422, 502),
)


class V2ConsumerRoutes:
    def __init__(self, sessions: Sessions, decoder: Decoder) -> None:
        self._sessions = sessions
        self._decoder = decoder

    def routes(self) -> list[BaseRoute]:
        table: list[tuple[str, str, Any, Doc]] = [
            ("POST", _GROUP, self.create, _doc("Create a consumer", CreatedInstance, NewInstance, body_required=False)),
            ("DELETE", _INSTANCE, self.delete, _doc("Delete a consumer")),
            ("POST", f"{_INSTANCE}/subscription", self.subscribe, _doc("Subscribe to topics", body=V2Subscription)),
            ("GET", f"{_INSTANCE}/subscription", self.subscription, _doc("Get the subscription", SubscribedTopics)),
            ("DELETE", f"{_INSTANCE}/subscription", self.unsubscribe, _doc("Unsubscribe")),
            ("POST", f"{_INSTANCE}/assignments", self.assign, _doc("Assign partitions by hand", body=V2Partitions)),
            ("GET", f"{_INSTANCE}/assignments", self.assignments, _doc("Get the assigned partitions", V2Partitions)),
            ("POST", f"{_INSTANCE}/positions", self.seek, _doc("Change positions", body=V2Offsets)),
            (
                "POST",
                f"{_INSTANCE}/positions/beginning",
                partial(self.seek_to, "earliest"),
                _doc("Change positions to the first offset", body=V2Partitions),
            ),
            (
                "POST",
                f"{_INSTANCE}/positions/end",
                partial(self.seek_to, "latest"),
                _doc("Change positions to the end offset", body=V2Partitions),
            ),
            ("GET", f"{_INSTANCE}/records", self.records, _RECORDS),
            (
                "POST",
                f"{_INSTANCE}/offsets",
                self.commit,
                _doc("Commit offsets; without a body, all records that were read", body=V2Offsets, body_required=False),
            ),
            (
                "GET",
                f"{_INSTANCE}/offsets",
                self.committed,
                _doc("Get committed offsets", CommittedOffsets, V2Partitions),
            ),
        ]
        return [v2_endpoint(method, path, handler, doc, **CONSUMING) for method, path, handler, doc in table]

    # Life

    async def create(self, req: ApiRequest) -> Any:
        wanted = req.read(NewInstance, 422) if req.body.strip() else NewInstance()
        group, name = req.path("group"), wanted.name or wanted.id or ""
        if name and any(session.instance == name for session in self._sessions.of_group(group)):
            raise V2Error(
                409,
                "Consumer with specified consumer ID already exists in the specified consumer group.",
                "DELETE it first, or choose another name",
                code=CONSUMER_EXISTS,
            )
        session = self._sessions.open(group, name, wanted.auto_offset_reset or "latest", None, _settings(wanted))
        self._sessions.used(session)
        url = req.request.url
        parts = ("consumers", group, "instances", session.instance)
        path = "/".join(quote(part, safe="") for part in parts)
        return CreatedInstance(session.instance, f"{url.scheme}://{url.netloc}/{path}")

    async def delete(self, req: ApiRequest) -> None:
        session = self._find(req)
        await session.auto_commit(now=True)
        await self._sessions.close(session)

    def _find(self, req: ApiRequest) -> Session:
        session = self._sessions.find(req.path("group"), req.path("instance"))
        self._sessions.used(session)
        return session

    # Topics and partitions

    async def subscribe(self, req: ApiRequest) -> None:
        wanted, session = req.read(V2Subscription, 422), self._find(req)
        if (wanted.topics is None) == (wanted.topic_pattern is None):
            raise V2Error(422, "a subscription has either topics or a topic_pattern", "give one of them")
        if session.topics and (session.pattern is None) != (wanted.topic_pattern is None):
            raise V2Error(
                409,
                "Subscriptions to topics, partitions, and patterns are mutually exclusive.",
                "DELETE the subscription first",
                code=ILLEGAL_STATE,
            )
        if wanted.topics is not None:
            await session.subscribe(sorted(set(wanted.topics)))
        elif wanted.topic_pattern is not None:
            await session.subscribe_pattern(wanted.topic_pattern)

    async def subscription(self, req: ApiRequest) -> Any:
        session = self._find(req)
        return SubscribedTopics([] if session.is_manual else list(session.topics))

    async def unsubscribe(self, req: ApiRequest) -> None:
        session = self._find(req)
        await session.auto_commit(now=True)
        await session.unsubscribe()

    async def assign(self, req: ApiRequest) -> None:
        wanted, session = req.read(V2Partitions, 422), self._find(req)
        if not wanted.partitions:
            await session.unsubscribe()
        else:
            await session.assign(_places(wanted))

    async def assignments(self, req: ApiRequest) -> Any:
        rows = self._find(req).assignment
        return V2Partitions([V2Partition(partition.topic, partition.partition) for partition in rows])

    # Positions and offsets

    async def seek(self, req: ApiRequest) -> None:
        wanted, session = req.read(V2Offsets, 422), self._find(req)
        _check_idle(session)
        for row in wanted.offsets:
            await session.seek(TopicPartition(row.topic, row.partition), row.offset)

    async def seek_to(self, target: str, req: ApiRequest) -> None:
        wanted, session = req.read(V2Partitions, 422), self._find(req)
        _check_idle(session)
        for place in _places(wanted):
            await session.seek(place, target)

    async def commit(self, req: ApiRequest) -> Response:
        wanted = req.read(V2Offsets, 422) if req.body.strip() else None
        session = self._find(req)
        if wanted is None:
            await session.commit(None)
        elif wanted.offsets:
            rows = {TopicPartition(row.topic, row.partition): row for row in wanted.offsets}
            await session.commit_any(
                {place: row.offset + 1 for place, row in rows.items()},
                {place: row.metadata or "" for place, row in rows.items()},
            )
        return Response(status_code=204)

    async def committed(self, req: ApiRequest) -> Any:
        wanted, session = req.read(V2Partitions, 422), self._find(req)
        places = _places(wanted)
        cluster = caller_cluster()
        found = await to_thread.run_sync(lambda: cluster.committed_metadata(session.group, places))
        return CommittedOffsets(
            [CommittedOffsetRow(place.topic, place.partition, *found[place]) for place in places if place in found]
        )

    # Records

    async def records(self, req: ApiRequest) -> Response:
        refuse_others(req.request)
        session = self._find(req)
        format_ = session.settings.format or BINARY
        accepted = format_in(req.accepts, default="")
        if accepted and accepted != format_:
            raise V2Error(
                406,
                "The requested embedded data format does not match the deserializer for this consumer instance",
                f"send Accept: {media_type(format_)}",
                code=FORMAT_MISMATCH,
            )
        if not session.topics and session.pattern is None:
            raise V2Error(
                409,
                "Illegal state: Consumer is not subscribed to any topics or assigned any partitions",
                "POST its subscription or its assignments first",
                code=ILLEGAL_STATE,
            )
        timeout_ms = req.number("timeout", -1)
        max_bytes = req.number("max_bytes", -1)
        limits = PollLimits(
            MAX_POLL_RECORDS,
            min(max_bytes, MAX_POLL_BYTES) if max_bytes > 0 else MAX_POLL_BYTES,
            min(timeout_ms if timeout_ms >= 0 else session.settings.timeout_ms, MAX_POLL_MS) / 1000,
        )
        view = _View(format_, self._decoder)
        return await poll(req.request, self._sessions, session, limits, view.render, media_type(format_))


def _settings(wanted: NewInstance) -> SessionSettings:
    format_ = (wanted.format or BINARY).lower()
    if format_ not in FORMATS:
        raise V2Error(422, "Invalid format type.", f"give one of {', '.join(FORMATS)}", code=422)
    both = [each for each in (wanted.auto_commit_enable, wanted.enable_auto_commit) if each is not None]
    min_bytes = int(wanted.fetch_min_bytes or 1)
    if not -1 <= min_bytes <= 10_000_000:
        raise V2Error(
            422,
            f"Invalid consumer configuration: fetch.min.bytes {min_bytes}",
            "give a number from -1 to 10000000",
            code=INVALID_CONFIG,
        )
    timeout_ms = 1_000 if wanted.request_timeout_ms is None else int(wanted.request_timeout_ms)
    return SessionSettings(
        format_,
        both[0] in (True, "true") if both else True,
        max(1, min_bytes),
        min(timeout_ms, MAX_POLL_MS),
        wanted.isolation_level != "read_uncommitted",
    )


def _places(wanted: V2Partitions) -> list[TopicPartition]:
    return [TopicPartition(row.topic, row.partition) for row in wanted.partitions]


def _check_idle(session: Session) -> None:
    if session.polling:
        raise V2Error(409, "a poll of this consumer is in progress", "seek after its response", code=ILLEGAL_STATE)


class _View:
    """Shows records in the format of a consumer. It may send requests to the cluster, so it is used in threads."""

    def __init__(self, format_: str, decoder: Decoder) -> None:
        self._mask_of = current_caller().mask_of
        self._decode = decoder.decode
        self._has_schema = format_ in SCHEMA_TYPES
        self._format = format_
        plain: dict[str, Show] = {BINARY: base64_view, JSON_FORMAT: json_view, TEXT_FORMAT: text_view}
        self._show = plain.get(format_, decoder.decode)

    def render(self, batch: Batch) -> tuple[bytes, Batch]:
        """A record that is not in the format ends the records of its partition; it is an error if it is the first."""
        rows: list[dict[str, Any]] = []
        ended: dict[TopicPartition, ApiError] = {}
        shown = batch
        for partition, record in batch.records:
            if partition in ended:
                continue
            try:
                rows.append(self._row(partition, record))
            except ApiError as error:
                ended[partition] = error
                shown = shown.without(partition, record.offset)
        if ended and not rows:
            raise next(iter(ended.values()))
        return json_bytes(rows), shown

    def _row(self, partition: TopicPartition, record: Record) -> dict[str, Any]:
        mask = self._mask_of(partition.topic)
        if mask is not None:
            record = masked(record, mask, self._decode)
        row = {
            "topic": partition.topic,
            "key": self._part(partition, record.offset, record.key, "key"),
            "value": self._part(partition, record.offset, record.value, "value"),
            "partition": partition.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
        }
        if record.headers:
            row["headers"] = [{"key": name, "value": base64_view(value).value} for name, value in record.headers]
        return row

    def _part(self, partition: TopicPartition, offset: int, data: bytes | None, which: str) -> Any:
        found = self._show(data)
        # Keys are often plain, beside values with a schema.
        misses_schema = self._has_schema and which == "value" and data is not None and found.schema_id is None
        is_other = self._format in (JSON_FORMAT, TEXT_FORMAT) and found.kind == "binary"
        if misses_schema or is_other or found.problem is not None:
            reason = found.problem or f"it is not {'encoded with a schema' if misses_schema else self._format}"
            raise V2Error(
                422,
                f"Error deserializing {which} for partition {partition} at offset {offset}: {reason}",
                f"seek to offset {offset + 1}, after the record, or read with format binary",
                code=UNREADABLE_RECORD,
            )
        return found.value
