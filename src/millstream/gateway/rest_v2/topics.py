"""REST v2: topics, partitions with their offsets, and brokers."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from starlette.routing import BaseRoute

from millstream.admin.topics import ConfigResource, TopicAdmin
from millstream.gateway.context import GatewayContext
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import INT32, TEXT, Doc, Int32, Int64, array, record
from millstream.gateway.identity.caller import caller_cluster
from millstream.gateway.identity.missing_acl import Needs
from millstream.gateway.produce.conditional import partition_offsets
from millstream.gateway.rest_v2.form import (
    PARTITION_NOT_FOUND,
    TAG,
    V2,
    V2Error,
    accepts_v2,
    number_in_path,
    v2_endpoint,
)
from millstream.raw_client import PartitionInfo, TopicInfo


class Replica(Struct):
    """A replica of a partition."""

    broker: Int32
    leader: bool
    in_sync: bool


class PartitionState(Struct):
    """A partition with its replicas."""

    partition: Int32
    leader: Int32
    replicas: list[Replica]


class TopicState(Struct):
    """A topic with its settings and partitions."""

    name: str
    configs: dict[str, str | None]
    partitions: list[PartitionState]


class PartitionEnds(Struct):
    """The first and the end offset of a partition."""

    beginning_offset: Int64
    end_offset: Int64


def _doc(summary: str, response: Any) -> Doc:
    return Doc(tag=TAG, summary=summary, response=response, response_type=V2)


_TOPIC = "/topics/{topic}"
_PARTITION = _TOPIC + "/partitions/{partition}"


def v2_topic_routes(context: GatewayContext) -> Sequence[BaseRoute]:
    describe = Needs(topic="Describe")
    return [
        v2_endpoint("GET", "/topics", topics, _doc("List the names of topics", array(TEXT)), when=accepts_v2),
        v2_endpoint("GET", _TOPIC, topic, _doc("Get a topic", TopicState), when=accepts_v2, needs=describe),
        v2_endpoint(
            "GET",
            _TOPIC + "/partitions",
            partitions,
            _doc("List the partitions of a topic", list[PartitionState]),
            needs=describe,
        ),
        v2_endpoint("GET", _PARTITION, partition, _doc("Get a partition", PartitionState), needs=describe),
        v2_endpoint(
            "GET",
            _PARTITION + "/offsets",
            partition_offsets,
            _doc("Get the offsets of a partition", PartitionEnds),
            when=accepts_v2,
            needs=describe,
        ),
        v2_endpoint("GET", "/brokers", brokers, _doc("List the ids of brokers", record({"brokers": array(INT32)}))),
    ]


def _admin() -> TopicAdmin:
    return TopicAdmin(caller_cluster())


def topics(req: ApiRequest) -> Any:
    return [row.name for row in _admin().topics()]


def topic(req: ApiRequest) -> Any:
    found = _admin().topic(req.path("topic"))
    settings = _admin().settings(ConfigResource.TOPIC, found.name)
    return TopicState(found.name, {row.name: row.value for row in settings}, _partitions(found))


def partitions(req: ApiRequest) -> Any:
    return _partitions(_admin().topic(req.path("topic")))


def partition(req: ApiRequest) -> Any:
    found, number = _admin().topic(req.path("topic")), number_in_path(req, "partition")
    if number >= len(found.partitions):
        raise V2Error(
            404, "Partition not found.", f"topic {found.name!r} has no partition {number}", code=PARTITION_NOT_FOUND
        )
    return _partition(found.partitions[number])


def brokers(req: ApiRequest) -> Any:
    return {"brokers": [row.id for row in _admin().cluster().brokers]}


def _partitions(found: TopicInfo) -> list[PartitionState]:
    return [_partition(row) for row in found.partitions]


def _partition(row: PartitionInfo) -> PartitionState:
    replicas = [Replica(broker, broker == row.leader, broker in row.isr) for broker in row.replicas]
    return PartitionState(row.index, row.leader, replicas)
