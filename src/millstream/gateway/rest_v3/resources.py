"""The form of Confluent's REST v3: every resource says what it is and where, and where its relatives are.

Confluent's REST v3, described.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import (
    ANYTHING,
    FLAG,
    INT32,
    INT64,
    TEXT,
    Doc,
    JsonSchema,
    array,
    nullable,
    record,
    text,
    whole,
)

BASE = "/v3/clusters"


class Links:
    """Addresses below one cluster, as whoever asks would spell them."""

    def __init__(self, asked: ApiRequest, cluster_id: str) -> None:
        url = asked.request.url
        self.cluster_id = cluster_id
        self._clusters = f"{url.scheme}://{url.netloc}{BASE}"

    def to(self, *parts: object) -> str:
        return "/".join((self._clusters, *(quote(str(part), safe="") for part in (self.cluster_id, *parts))))

    def related(self, *parts: object) -> dict[str, str]:
        return {"related": self.to(*parts)}

    @property
    def clusters(self) -> str:
        return self._clusters

    def resource(
        self,
        kind: str,
        path: tuple[object, ...],
        named: Iterable[tuple[str, object]],
        fields: Mapping[str, Any],
    ) -> dict[str, Any]:
        """`named`: what the resource is called, from the cluster down, for its name in Confluent's spelling."""
        name = "".join(f"/{part}={value}" for part, value in (("kafka", self.cluster_id), *named))
        return {
            "kind": kind,
            "metadata": {"self": self.to(*path), "resource_name": f"crn://{name}"},
            "cluster_id": self.cluster_id,
            **fields,
        }

    def collection(self, kind: str, path: tuple[object, ...], data: list[dict[str, Any]]) -> dict[str, Any]:
        return {"kind": kind, "metadata": {"self": self.to(*path), "next": None}, "data": data}


def not_found(what: str, hint: str = "") -> ApiError:
    return ApiError(404, f"{what} cannot be found", hint)


def number_from_path(asked: ApiRequest, name: str, what: str) -> int:
    """A number in the path; what is none can name nothing."""
    text = asked.path(name)
    if not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise not_found(f"{what} {text}")
    return int(text)


def read_fields(document: Mapping[str, Any], known: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """The fields that are given, each of its type; null is as good as left out. Others are refused."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        if name not in known:
            raise ApiError(400, f"Unrecognized field: {name}", f"there are {', '.join(known)}")
        if value is None:
            continue
        if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is not bool):
            raise ApiError(400, f"Cannot deserialize the field {name}", "see /docs for what it takes")
        found[name] = value
    return found


_TAG = "Confluent REST v3"
_METADATA = record({"self": TEXT}, {"resource_name": nullable(TEXT)})
_RESOURCE = record({"kind": TEXT, "metadata": _METADATA, "cluster_id": TEXT})
_COLLECTION = record(
    {"kind": TEXT, "metadata": record({"self": TEXT, "next": nullable(TEXT)}), "data": array(_RESOURCE)}
)
_CONFIGS = array(record({"name": TEXT}, {"value": nullable(TEXT)}, closed=True))
_CHANGES = array(
    record(
        {"name": TEXT},
        {"value": nullable(TEXT), "operation": nullable({"enum": ["SET", "DELETE", "APPEND", "SUBTRACT"]})},
        closed=True,
    ),
    minItems=1,
)


def _doc(
    summary: str, answer: JsonSchema | None, body: JsonSchema | None = None, status: int = 200, more: Sequence[int] = ()
) -> Doc:
    return Doc(tag=_TAG, summary=summary, answer=answer, body=body, status=status, errors=more)


CONFIG_DOCS: dict[tuple[str, str], Doc] = {
    ("GET", ""): _doc("Settings", _COLLECTION),
    ("POST", ":alter"): _doc(
        "Change several settings at once",
        None,
        record({"data": _CHANGES}, {"validate_only": nullable(FLAG)}, closed=True),
        204,
    ),
    ("GET", "/{name}"): _doc("One setting", _RESOURCE),
    ("PUT", "/{name}"): _doc("Set one setting", None, record({"value": TEXT}, closed=True), 204),
    ("DELETE", "/{name}"): _doc("Back to a setting's default", None, status=204),
}

_CLUSTER = "/{cluster_id}"
_TOPIC = _CLUSTER + "/topics/{topic_name}"
_PARTITION = _TOPIC + "/partitions/{partition_id}"
_NEW_TOPIC = record(
    {"topic_name": text("Letters, digits, '.', '_' and '-'.", minLength=1, maxLength=249)},
    {
        "partitions_count": nullable(whole(minimum=1, maximum=10_000)),
        "replication_factor": nullable(whole(minimum=1, maximum=100)),
        "replicas_assignments": nullable(
            array(record({"partition_id": whole(minimum=0), "broker_ids": array(INT32, minItems=1)}, closed=True))
        ),
        "configs": nullable(_CONFIGS),
        "validate_only": nullable(FLAG),
    },
    closed=True,
)
TOPIC_DOCS: dict[tuple[str, str], Doc] = {
    ("GET", ""): _doc("Clusters: the one behind this gateway", _COLLECTION),
    ("GET", _CLUSTER): _doc("The cluster", _RESOURCE),
    ("GET", _CLUSTER + "/brokers"): _doc("The brokers", _COLLECTION),
    ("GET", _CLUSTER + "/brokers/{broker_id}"): _doc("One broker", _RESOURCE),
    ("GET", _CLUSTER + "/topics"): _doc("The topics", _COLLECTION),
    ("POST", _CLUSTER + "/topics"): _doc("Create a topic", _RESOURCE, _NEW_TOPIC, 201),
    ("GET", _TOPIC): _doc("One topic", _RESOURCE),
    ("DELETE", _TOPIC): _doc("Delete a topic", None, status=204, more=(403, 409)),
    ("PATCH", _TOPIC): _doc(
        "Add partitions to a topic", _RESOURCE, record({"partitions_count": whole(minimum=1)}, closed=True)
    ),
    ("GET", _TOPIC + "/partitions"): _doc("The partitions of a topic", _COLLECTION),
    ("GET", _PARTITION): _doc("One partition", _RESOURCE),
    ("GET", _PARTITION + "/replicas"): _doc("The replicas of a partition", _COLLECTION),
    ("GET", _PARTITION + "/replicas/{broker_id}"): _doc("One replica", _RESOURCE),
}

REPLICA_DOCS: dict[str, Doc] = {
    "/brokers/{broker_id}/partition-replicas": _doc("The replicas that a broker holds", _COLLECTION),
    "/topics/-/partitions/-/reassignment": _doc("Replicas that are being moved", _COLLECTION),
    "/topics/{topic_name}/partitions/-/reassignment": _doc("Replicas of a topic that are being moved", _COLLECTION),
    "/topics/{topic_name}/partitions/{partition_id}/reassignment": _doc("Where a partition is moving", _RESOURCE),
}

_GROUP = "/{consumer_group_id}"
_CONSUMER = _GROUP + "/consumers/{consumer_id}"
_PLACE = "/{topic_name}/partitions/{partition_id}"
GROUP_DOCS: dict[tuple[str, str], Doc] = {
    ("GET", ""): _doc("The consumer groups", _COLLECTION),
    ("GET", _GROUP): _doc("One consumer group", _RESOURCE),
    ("DELETE", _GROUP): _doc("Delete a consumer group without members", None, status=204, more=(409,)),
    ("GET", _GROUP + "/consumers"): _doc("The members of a group", _COLLECTION),
    ("GET", _CONSUMER): _doc("One member", _RESOURCE),
    ("GET", _CONSUMER + "/assignments"): _doc("What a member reads", _COLLECTION),
    ("GET", _CONSUMER + "/assignments" + _PLACE): _doc("One partition that a member reads", _RESOURCE),
    ("GET", _GROUP + "/lag-summary"): _doc("How far behind a group is", _RESOURCE),
    ("GET", _GROUP + "/lags"): _doc("How far behind a group is in each partition", _COLLECTION),
    ("GET", _GROUP + "/lags" + _PLACE): _doc("How far behind a group is in one partition", _RESOURCE),
}

_PART = record(
    {},
    {
        "type": nullable({"enum": ["BINARY", "JSON", "STRING", "AVRO", "JSONSCHEMA", "PROTOBUF"]}),
        "data": ANYTHING,
        "subject": nullable(TEXT),
        "subject_name_strategy": nullable({"enum": ["TOPIC_NAME"]}),
        "schema_id": nullable(whole(minimum=0, maximum=2**31 - 1)),
        "schema_version": nullable(whole(minimum=1, maximum=2**31 - 1)),
        "schema": nullable(text("The schema itself, which is registered.")),
    },
    closed=True,
)
_RECORD: dict[str, JsonSchema] = {
    "partition_id": nullable(whole(minimum=0, maximum=2**31 - 1)),
    "headers": nullable(array(record({"name": TEXT}, {"value": nullable(text("In base64."))}, closed=True))),
    "key": nullable(_PART),
    "value": nullable(_PART),
    "timestamp": nullable({"type": "string", "format": "date-time"}),
}
_TOLD = record({"type": TEXT, "size": INT32}, {"subject": TEXT, "schema_id": INT32, "schema_version": INT32})
_STORED: dict[str, JsonSchema] = {
    "cluster_id": TEXT,
    "topic_name": TEXT,
    "partition_id": INT32,
    "offset": INT64,
    "timestamp": {"type": "string", "format": "date-time"},
}
RECORDS_DOC = Doc(
    tag=_TAG,
    summary="Write records, one JSON object after the other",
    description="The answer has one line for each record, in their order, while the request is still being sent: "
    "`error_code` 200 and where it is, or an error. The type BINARY takes base64.",
    body=record({}, _RECORD, closed=True),
    answer=record({"error_code": whole()}, {**_STORED, "key": _TOLD, "value": _TOLD, "message": TEXT}),
    errors=(422, 429),
    example={"value": {"type": "JSON", "data": {"order": 17}}},
)
BATCH_DOC = Doc(
    tag=_TAG,
    summary="Write a batch of records",
    body=record({"entries": array(record({"id": TEXT}, _RECORD, closed=True))}, closed=True),
    answer=record(
        {
            "successes": array(record({"id": TEXT, **_STORED}, {"key": _TOLD, "value": _TOLD})),
            "failures": array(record({"id": TEXT, "error_code": whole(), "message": TEXT})),
        }
    ),
    status=207,
    errors=(422, 429),
    example={"entries": [{"id": "1", "value": {"type": "STRING", "data": "hello"}}]},
)
