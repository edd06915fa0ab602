"""The form of Confluent's REST v3: resources with their links, bodies of requests, and documentation of the routes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

from msgspec import UNSET, Meta, Struct, UnsetType, field

from millstream.admin.topics import ConfigOperation
from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import BodyType, Doc, Parameter

BASE = "/v3/clusters"


class Links:
    """URLs below one cluster, with the host that the caller used."""

    def __init__(self, req: ApiRequest, cluster_id: str) -> None:
        url = req.request.url
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
        """`named`: the parts of Confluent's resource name below the cluster."""
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


def number_from_path(req: ApiRequest, name: str, what: str) -> int:
    """A number in the path; 404 for text that is not a number."""
    text = req.path(name)
    if not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise not_found(f"{what} {text}")
    return int(text)


# Bodies


class ResourceMetadata(Struct):
    """The address and the name of a resource."""

    self_: str = field(name="self")
    resource_name: str | UnsetType | None = UNSET


class Resource(Struct):
    """A resource; `kind` names its other fields."""

    kind: str
    metadata: ResourceMetadata
    cluster_id: str


class CollectionMetadata(Struct):
    """The address of a list. `next` is always null: lists are not split into pages."""

    self_: str = field(name="self")
    next: str | None


class Collection(Struct):
    """A list of resources."""

    kind: str
    metadata: CollectionMetadata
    data: list[Resource]


class ConfigValue(Struct, forbid_unknown_fields=True):
    """A setting and its value."""

    name: str
    value: str | None = None


class ConfigUpdate(Struct, forbid_unknown_fields=True):
    """The new value of a setting."""

    value: str


class ConfigAlteration(Struct, forbid_unknown_fields=True):
    """A change of one setting."""

    name: str
    value: str | None = None
    operation: Annotated[
        str | None,
        Meta(description="SET by default.", extra_json_schema={"enum": [*ConfigOperation.__members__, None]}),
    ] = None


class ConfigAlterations(Struct, forbid_unknown_fields=True):
    """Changes that are made together, or not at all."""

    data: Annotated[list[ConfigAlteration], Meta(min_length=1, max_length=1_000)]
    validate_only: bool | None = None


class ReplicaAssignment(Struct, forbid_unknown_fields=True):
    """The brokers of one partition."""

    partition_id: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    broker_ids: Annotated[list[Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(min_length=1)]


class NewTopic(Struct, forbid_unknown_fields=True):
    """A topic to create. The defaults are those of the brokers."""

    topic_name: Annotated[
        str,
        Meta(description="Letters, digits, '.', '_' and '-'.", min_length=1, extra_json_schema={"maxLength": 249}),
    ]
    partitions_count: (
        Annotated[int, Meta(ge=-1, le=2**31 - 1, extra_json_schema={"minimum": 1, "maximum": 10_000})] | None
    ) = None
    replication_factor: (
        Annotated[int, Meta(ge=-1, le=2**15 - 1, extra_json_schema={"minimum": 1, "maximum": 100})] | None
    ) = None
    replicas_assignments: list[ReplicaAssignment] | None = None
    configs: list[ConfigValue] | None = None
    validate_only: bool | None = None


class NewReplicas(Struct, forbid_unknown_fields=True):
    """The brokers that a partition shall have."""

    broker_ids: Annotated[
        list[Annotated[int, Meta(ge=0, le=2**31 - 1)]],
        Meta(description="The first is the preferred leader. Empty: an active reassignment is cancelled."),
    ]


class PartitionsCount(Struct, forbid_unknown_fields=True):
    """The new number of partitions."""

    partitions_count: Annotated[int, Meta(ge=1, le=2**31 - 1)]


# Routes

TAG = "Confluent REST v3"


def _doc(
    summary: str, response: BodyType | None, body: BodyType | None = None, status: int = 200, more: Sequence[int] = ()
) -> Doc:
    return Doc(tag=TAG, summary=summary, response=response, body=body, status=status, errors=more)


CONFIG_DOCS: dict[tuple[str, str], Doc] = {
    ("GET", ""): _doc("List the settings", Collection),
    ("POST", ":alter"): _doc(
        "Change several settings",
        None,
        ConfigAlterations,
        204,
    ),
    ("GET", "/{name}"): _doc("Get a setting", Resource),
    ("PUT", "/{name}"): _doc("Change a setting", None, ConfigUpdate, 204),
    ("DELETE", "/{name}"): _doc("Reset a setting to its default", None, status=204),
}

ALL_CONFIGS_DOCS = {
    "topics": _doc("List the settings of all topics", Collection),
    "brokers": _doc("List the settings of all brokers", Collection),
}

_CLUSTER = "/{cluster_id}"
_TOPIC = _CLUSTER + "/topics/{topic_name}"
_PARTITION = _TOPIC + "/partitions/{partition_id}"
TOPIC_DOCS: dict[tuple[str, str], Doc] = {
    ("GET", ""): _doc("List the clusters: the one of this gateway", Collection),
    ("GET", _CLUSTER): _doc("Get the cluster", Resource),
    ("GET", _CLUSTER + "/brokers"): _doc("List the brokers", Collection),
    ("GET", _CLUSTER + "/brokers/{broker_id}"): _doc("Get a broker", Resource),
    ("GET", _CLUSTER + "/topics"): _doc("List the topics", Collection),
    ("POST", _CLUSTER + "/topics"): _doc("Create a topic", Resource, NewTopic, 201),
    ("GET", _TOPIC): _doc("Get a topic", Resource),
    ("DELETE", _TOPIC): _doc("Delete a topic", None, status=204, more=(403, 409)),
    ("PATCH", _TOPIC): _doc("Add partitions to a topic", Resource, PartitionsCount),
    ("GET", _TOPIC + "/partitions"): _doc("List the partitions of a topic", Collection),
    ("GET", _PARTITION): _doc("Get a partition", Resource),
    ("GET", _PARTITION + "/offset"): Doc(
        tag=TAG,
        summary="Get the first and the end offset of a partition",
        parameters=(Parameter("offset_type", "", {"enum": ["earliest_and_latest"]}),),
        response=Resource,
    ),
    ("GET", _PARTITION + "/replicas"): _doc("List the replicas of a partition", Collection),
    ("GET", _PARTITION + "/replicas/{broker_id}"): _doc("Get a replica", Resource),
}

REASSIGN_DOC = _doc("Start or cancel the reassignment of a partition", None, NewReplicas, 202)

REPLICA_DOCS: dict[str, Doc] = {
    "/brokers/{broker_id}/partition-replicas": _doc("List the replicas of a broker", Collection),
    "/topics/-/partitions/-/reassignment": _doc("List the reassignments", Collection),
    "/topics/{topic_name}/partitions/-/reassignment": _doc("List the reassignments of a topic", Collection),
    "/topics/{topic_name}/partitions/{partition_id}/reassignment": _doc(
        "Get the reassignment of a partition", Resource
    ),
}

_GROUP = "/{consumer_group_id}"
_CONSUMER = _GROUP + "/consumers/{consumer_id}"
_PLACE = "/{topic_name}/partitions/{partition_id}"
GROUP_DOCS: dict[tuple[str, str], Doc] = {
    ("GET", ""): _doc("List the consumer groups", Collection),
    ("GET", _GROUP): _doc("Get a consumer group", Resource),
    ("DELETE", _GROUP): _doc("Delete a consumer group without members", None, status=204, more=(409,)),
    ("GET", _GROUP + "/consumers"): _doc("List the members of a group", Collection),
    ("GET", _CONSUMER): _doc("Get a member", Resource),
    ("GET", _CONSUMER + "/assignments"): _doc("List the assigned partitions of a member", Collection),
    ("GET", _CONSUMER + "/assignments" + _PLACE): _doc("Get an assigned partition of a member", Resource),
    ("GET", _GROUP + "/lag-summary"): _doc("Get the lag of a group", Resource),
    ("GET", _GROUP + "/lags"): _doc("List the lag of a group by partition", Collection),
    ("GET", _GROUP + "/lags" + _PLACE): _doc("Get the lag of a group in a partition", Resource),
}
