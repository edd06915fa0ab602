"""Confluent's REST v3: clusters, brokers, topics, partitions, replicas and reassignments."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from starlette.responses import Response
from starlette.routing import BaseRoute

from millstream.admin.cluster import Broker, ClusterAdmin, Reassignment
from millstream.admin.topics import TopicAdmin
from millstream.formats.model.errors import ErrorCode
from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import endpoint
from millstream.gateway.identity.caller import caller_cluster
from millstream.gateway.identity.missing_acl import Needs
from millstream.gateway.rest_v3.resources import (
    BASE,
    REASSIGN_DOC,
    REPLICA_DOCS,
    TOPIC_DOCS,
    Links,
    NewReplicas,
    NewTopic,
    PartitionsCount,
    not_found,
    number_from_path,
)
from millstream.raw_client import EARLIEST, LATEST, PartitionInfo, RefusedError, TopicInfo, TopicPartition

_NO_ID = UUID(int=0)
_BOTH_OFFSETS = "earliest_and_latest"
_NEEDS = {
    "POST": Needs(topic="Create", cluster="Create"),
    "DELETE": Needs(topic="Delete"),
    "PATCH": Needs(topic="Alter"),
}


class TopicRoutes:
    def __init__(self, links: Callable[[ApiRequest], Links]) -> None:
        self._links = links

    @property
    def _admin(self) -> TopicAdmin:
        return TopicAdmin(caller_cluster())

    def routes(self) -> list[BaseRoute]:
        cluster = BASE + "/{cluster_id}"
        topic = cluster + "/topics/{topic_name}"
        partition = topic + "/partitions/{partition_id}"
        table: list[tuple[str, str, Callable[[ApiRequest], Any]]] = [
            ("GET", BASE, self.clusters),
            ("GET", cluster, self.cluster),
            ("GET", cluster + "/brokers", self.brokers),
            ("GET", cluster + "/brokers/{broker_id}", self.broker),
            ("GET", cluster + "/topics", self.topics),
            ("POST", cluster + "/topics", self.create),
            ("GET", topic, self.topic),
            ("DELETE", topic, self.delete),
            ("PATCH", topic, self.grow),
            ("GET", topic + "/partitions", self.partitions),
            ("GET", partition, self.partition),
            ("GET", partition + "/offset", self.offsets),
            ("GET", partition + "/replicas", self.replicas),
            ("GET", partition + "/replicas/{broker_id}", self.replica),
        ]
        return [
            endpoint(
                method,
                path,
                handler,
                doc=TOPIC_DOCS[method, path.removeprefix(BASE)],
                needs=_NEEDS.get(method, Needs()),
            )
            for method, path, handler in table
        ]

    # Clusters and brokers

    def clusters(self, req: ApiRequest) -> Any:
        links = Links(req, self._admin.cluster().cluster_id)
        document = links.collection("KafkaClusterList", (), [self._cluster(links)])
        document["metadata"]["self"] = links.clusters
        return document

    def cluster(self, req: ApiRequest) -> Any:
        return self._cluster(self._links(req))

    def _cluster(self, links: Links) -> dict[str, Any]:
        controller = self._admin.cluster().controller_id
        fields: dict[str, Any] = {} if controller < 0 else {"controller": links.related("brokers", controller)}
        fields |= {
            "acls": links.related("acls"),
            "brokers": links.related("brokers"),
            "broker_configs": links.related("broker-configs"),
            "consumer_groups": links.related("consumer-groups"),
            "topics": links.related("topics"),
            "partition_reassignments": links.related("topics", "-", "partitions", "-", "reassignment"),
        }
        return links.resource("KafkaCluster", (), (), fields)

    def brokers(self, req: ApiRequest) -> Any:
        links = self._links(req)
        rows = [_broker(links, row) for row in self._admin.cluster().brokers]
        return links.collection("KafkaBrokerList", ("brokers",), rows)

    def broker(self, req: ApiRequest) -> Any:
        links, number = self._links(req), number_from_path(req, "broker_id", "Broker")
        for row in self._admin.cluster().brokers:
            if row.id == number:
                return _broker(links, row)
        raise not_found(f"Broker {number}")

    # Topics

    def topics(self, req: ApiRequest) -> Any:
        links = self._links(req)
        return links.collection("KafkaTopicList", ("topics",), [_topic(links, row) for row in self._admin.topics()])

    def topic(self, req: ApiRequest) -> Any:
        return _topic(self._links(req), self._admin.topic(req.path("topic_name")))

    def create(self, req: ApiRequest) -> Any:
        links = self._links(req)
        wanted = req.read(NewTopic)
        name, validate_only = wanted.topic_name, bool(wanted.validate_only)
        partitions = -1 if wanted.partitions_count is None else wanted.partitions_count
        replication = -1 if wanted.replication_factor is None else wanted.replication_factor
        configs = {row.name: row.value for row in wanted.configs or ()}
        assignments = {row.partition_id: row.broker_ids for row in wanted.replicas_assignments or ()}
        try:
            self._admin.create(name, partitions, replication, configs, assignments, validate_only=validate_only)
        except RefusedError as error:
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:  # 400 in Confluent's API, 409 in ours
                raise ApiError(400, f"Topic '{name}' already exists.", code=40002) from None
            raise
        if validate_only:
            return _topic(links, TopicInfo(name, _NO_ID, [], is_internal=False))
        return _topic(links, self._admin.topic(name))

    def delete(self, req: ApiRequest) -> None:
        self._links(req)
        self._admin.delete(req.path("topic_name"))

    def grow(self, req: ApiRequest) -> Any:
        links, name = self._links(req), req.path("topic_name")
        self._admin.add_partitions(name, req.read(PartitionsCount).partitions_count)
        return _topic(links, self._admin.topic(name))

    # Partitions and replicas

    def partitions(self, req: ApiRequest) -> Any:
        links, topic = self._links(req), self._admin.topic(req.path("topic_name"))
        rows = [_partition(links, topic.name, row) for row in topic.partitions]
        return links.collection("KafkaPartitionList", ("topics", topic.name, "partitions"), rows)

    def partition(self, req: ApiRequest) -> Any:
        return _partition(self._links(req), *self._one_partition(req))

    def offsets(self, req: ApiRequest) -> Any:
        links, kind = self._links(req), req.text("offset_type") or _BOTH_OFFSETS
        if kind != _BOTH_OFFSETS:
            raise ApiError(400, f"offset_type {kind} is unknown", f"give {_BOTH_OFFSETS}")
        name, row = self._one_partition(req)
        place, cluster = TopicPartition(name, row.index), caller_cluster()
        fields = {
            "topic_name": name,
            "partition_id": row.index,
            "earliest_offset": cluster.offsets({place: EARLIEST})[place].offset,
            "latest_offset": cluster.offsets({place: LATEST}, read_committed=False)[place].offset,
        }
        named = (("topic", name), ("partition", row.index), ("offset_type", kind))
        path = ("topics", name, "partitions", row.index, "offset")
        return links.resource("KafkaPartitionWithOffsets", path, named, fields)

    def replicas(self, req: ApiRequest) -> Any:
        links, (name, row) = self._links(req), self._one_partition(req)
        data = [shown_replica(links, name, row, broker) for broker in row.replicas]
        return links.collection("KafkaReplicaList", ("topics", name, "partitions", row.index, "replicas"), data)

    def replica(self, req: ApiRequest) -> Any:
        links, (name, row) = self._links(req), self._one_partition(req)
        broker = number_from_path(req, "broker_id", "Replica")
        if broker not in row.replicas:
            raise not_found(f"Replica {broker} of partition {row.index} of topic {name}")
        return shown_replica(links, name, row, broker)

    def _one_partition(self, req: ApiRequest) -> tuple[str, PartitionInfo]:
        topic, number = (
            self._admin.topic(req.path("topic_name")),
            number_from_path(req, "partition_id", "Partition"),
        )
        if number >= len(topic.partitions):
            raise not_found(f"Partition {number} of topic {topic.name}")
        return topic.name, topic.partitions[number]


def _broker(links: Links, row: Broker) -> dict[str, Any]:
    number = row.id
    fields = {
        "broker_id": number,
        "host": row.host,
        "port": row.port,
        "rack": row.rack,
        "configs": links.related("brokers", number, "configs"),
        "partition_replicas": links.related("brokers", number, "partition-replicas"),
    }
    return links.resource("KafkaBroker", ("brokers", number), (("broker", number),), fields)


def _topic(links: Links, topic: TopicInfo) -> dict[str, Any]:
    path = ("topics", topic.name)
    fields = {
        "topic_name": topic.name,
        "is_internal": topic.is_internal,
        "replication_factor": len(topic.partitions[0].replicas) if topic.partitions else 0,
        "partitions_count": len(topic.partitions),
        "partitions": links.related(*path, "partitions"),
        "configs": links.related(*path, "configs"),
        "partition_reassignments": links.related(*path, "partitions", "-", "reassignment"),
    }
    return links.resource("KafkaTopic", path, (("topic", topic.name),), fields)


def _partition(links: Links, topic: str, row: PartitionInfo) -> dict[str, Any]:
    path = ("topics", topic, "partitions", row.index)
    fields: dict[str, Any] = {"topic_name": topic, "partition_id": row.index}
    if row.leader >= 0:
        fields["leader"] = links.related(*path, "replicas", row.leader)
    fields |= {"replicas": links.related(*path, "replicas"), "reassignment": links.related(*path, "reassignment")}
    return links.resource("KafkaPartition", path, (("topic", topic), ("partition", row.index)), fields)


def shown_replica(links: Links, topic: str, row: PartitionInfo, broker: int) -> dict[str, Any]:
    fields = {
        "topic_name": topic,
        "partition_id": row.index,
        "broker_id": broker,
        "is_leader": broker == row.leader,
        "is_in_sync": broker in row.isr,
        "broker": links.related("brokers", broker),
    }
    named = (("topic", topic), ("partition", row.index), ("replica", broker))
    path = ("topics", topic, "partitions", row.index, "replicas", broker)
    return links.resource("KafkaReplica", path, named, fields)


class ReplicaRoutes:
    def __init__(self, links: Callable[[ApiRequest], Links]) -> None:
        self._links = links

    @property
    def _cluster(self) -> ClusterAdmin:
        return ClusterAdmin(caller_cluster())

    @property
    def _admin(self) -> TopicAdmin:
        return TopicAdmin(caller_cluster())

    def routes(self) -> list[BaseRoute]:
        """Paths with a dash, which means all, are matched before those with a name."""
        table: list[tuple[str, Callable[[ApiRequest], Any]]] = [
            ("/brokers/{broker_id}/partition-replicas", self.of_broker),
            ("/topics/-/partitions/-/reassignment", self.all_moves),
            ("/topics/{topic_name}/partitions/-/reassignment", self.moves_of_topic),
            ("/topics/{topic_name}/partitions/{partition_id}/reassignment", self.move),
        ]
        cluster = BASE + "/{cluster_id}"
        routes: list[BaseRoute] = [
            endpoint("GET", cluster + path, handler, doc=REPLICA_DOCS[path]) for path, handler in table
        ]
        needs = Needs(cluster="Alter")
        return [*routes, endpoint("POST", cluster + table[-1][0], self.reassign, doc=REASSIGN_DOC, needs=needs)]

    def of_broker(self, req: ApiRequest) -> Any:
        links, broker = self._links(req), number_from_path(req, "broker_id", "Broker")
        if broker not in {row.id for row in self._admin.cluster().brokers}:
            raise not_found(f"Broker {broker}")
        rows = [
            shown_replica(links, topic.name, row, broker)
            for topic in self._admin.topics()
            for row in topic.partitions
            if broker in row.replicas
        ]
        return links.collection("KafkaReplicaList", ("brokers", broker, "partition-replicas"), rows)

    def all_moves(self, req: ApiRequest) -> Any:
        return self._shown_moves(self._links(req), "-", self._cluster.reassignments())

    def moves_of_topic(self, req: ApiRequest) -> Any:
        links, topic = self._links(req), self._admin.topic(req.path("topic_name")).name
        return self._shown_moves(
            links, topic, [row for row in self._cluster.reassignments() if row.partition.topic == topic]
        )

    def move(self, req: ApiRequest) -> Any:
        links, topic = self._links(req), self._admin.topic(req.path("topic_name")).name
        place = TopicPartition(topic, number_from_path(req, "partition_id", "Partition"))
        for row in self._cluster.reassignments():
            if row.partition == place:
                return _shown(links, row)
        raise not_found(f"Reassignment of partition {place.partition} of topic {topic}")

    def reassign(self, req: ApiRequest) -> Response:
        """Not in Confluent's API, which only shows reassignments."""
        self._links(req)
        wanted = req.read(NewReplicas).broker_ids
        topic = self._admin.topic(req.path("topic_name"))
        number = number_from_path(req, "partition_id", "Partition")
        if number >= len(topic.partitions):
            raise not_found(f"Partition {number} of topic {topic.name}")
        place = TopicPartition(topic.name, number)
        if refused := self._cluster.reassign({place: wanted or None}).get(place):
            raise ApiError(400, f"partition {number} of topic {topic.name} is not reassigned: {refused}")
        return Response(status_code=202)

    @staticmethod
    def _shown_moves(links: Links, topic: str, rows: list[Reassignment]) -> dict[str, Any]:
        path = ("topics", topic, "partitions", "-", "reassignment")
        return links.collection("KafkaReassignmentList", path, [_shown(links, row) for row in rows])


def _shown(links: Links, row: Reassignment) -> dict[str, Any]:
    path = ("topics", row.partition.topic, "partitions", row.partition.partition)
    fields = {
        "topic_name": row.partition.topic,
        "partition_id": row.partition.partition,
        "adding_replicas": list(row.adding),
        "removing_replicas": list(row.removing),
        "replicas": links.related(*path, "replicas"),
    }
    named = (("topic", row.partition.topic), ("partition", row.partition.partition), ("reassignment", ""))
    return links.resource("KafkaReassignment", (*path, "reassignment"), named, fields)
