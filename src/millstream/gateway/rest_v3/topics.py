"""Confluent's REST v3: clusters, brokers, topics, partitions and replicas.

Confluent's REST v3: replicas as brokers hold them, and replicas that are being moved.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from starlette.routing import BaseRoute

from millstream.admin.cluster import Broker
from millstream.admin.topics import TopicAdmin
from millstream.formats.model.errors import ErrorCode
from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import endpoint
from millstream.gateway.rest_v3.resources import (
    BASE,
    REPLICA_DOCS,
    TOPIC_DOCS,
    Links,
    not_found,
    number_from_path,
    read_fields,
)
from millstream.raw_client import Cluster, PartitionInfo, RefusedError, TopicInfo, TopicPartition
from millstream.raw_client.errors import error_code, refusal

_MAX_INT32, _MAX_INT16 = 2**31 - 1, 2**15 - 1
_NO_ID = UUID(int=0)


class TopicRoutes:
    def __init__(self, admin: TopicAdmin, links: Callable[[ApiRequest], Links]) -> None:
        self._admin = admin
        self._links = links

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
            ("GET", partition + "/replicas", self.replicas),
            ("GET", partition + "/replicas/{broker_id}", self.replica),
        ]
        return [
            endpoint(method, path, handler, doc=TOPIC_DOCS[method, path.removeprefix(BASE)])
            for method, path, handler in table
        ]

    # Clusters and brokers

    def clusters(self, asked: ApiRequest) -> Any:
        links = Links(asked, self._admin.cluster().cluster_id)
        document = links.collection("KafkaClusterList", (), [self._cluster(links)])
        document["metadata"]["self"] = links.clusters
        return document

    def cluster(self, asked: ApiRequest) -> Any:
        return self._cluster(self._links(asked))

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

    def brokers(self, asked: ApiRequest) -> Any:
        links = self._links(asked)
        rows = [_broker(links, row) for row in self._admin.cluster().brokers]
        return links.collection("KafkaBrokerList", ("brokers",), rows)

    def broker(self, asked: ApiRequest) -> Any:
        links, number = self._links(asked), number_from_path(asked, "broker_id", "Broker")
        for row in self._admin.cluster().brokers:
            if row.id == number:
                return _broker(links, row)
        raise not_found(f"Broker {number}")

    # Topics

    def topics(self, asked: ApiRequest) -> Any:
        links = self._links(asked)
        return links.collection("KafkaTopicList", ("topics",), [_topic(links, row) for row in self._admin.topics()])

    def topic(self, asked: ApiRequest) -> Any:
        return _topic(self._links(asked), self._admin.topic(asked.path("topic_name")))

    def create(self, asked: ApiRequest) -> Any:
        links = self._links(asked)
        fields = read_fields(
            asked.document(),
            {
                "topic_name": str,
                "partitions_count": int,
                "replication_factor": int,
                "replicas_assignments": list,
                "configs": list,
                "validate_only": bool,
            },
        )
        name = fields.get("topic_name")
        if not name:
            raise ApiError(400, "topic_name is missing", 'send {"topic_name": "orders"}')
        partitions, replication = fields.get("partitions_count", -1), fields.get("replication_factor", -1)
        if not -1 <= partitions <= _MAX_INT32 or not -1 <= replication <= _MAX_INT16:
            raise ApiError(400, "partitions_count or replication_factor is out of range", code=40002)
        configs = dict(_config(row) for row in fields.get("configs", []))
        assignments = dict(_assignment(row) for row in fields.get("replicas_assignments", []))
        validate_only = fields.get("validate_only", False)
        try:
            self._admin.create(name, partitions, replication, configs, assignments, validate_only=validate_only)
        except RefusedError as error:
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:  # as Confluent's has it, where ours is a conflict
                raise ApiError(400, f"Topic '{name}' already exists.", code=40002) from None
            raise
        if validate_only:
            return _topic(links, TopicInfo(name, _NO_ID, [], is_internal=False))
        return _topic(links, self._admin.topic(name))

    def delete(self, asked: ApiRequest) -> None:
        self._links(asked)
        self._admin.delete(asked.path("topic_name"))

    def grow(self, asked: ApiRequest) -> Any:
        links, name = self._links(asked), asked.path("topic_name")
        count = read_fields(asked.document(), {"partitions_count": int}).get("partitions_count", 0)
        if not 0 < count <= _MAX_INT32:
            raise ApiError(400, "partitions_count must be how many there shall be", code=40002)
        self._admin.add_partitions(name, count)
        return _topic(links, self._admin.topic(name))

    # Partitions and replicas

    def partitions(self, asked: ApiRequest) -> Any:
        links, topic = self._links(asked), self._admin.topic(asked.path("topic_name"))
        rows = [_partition(links, topic.name, row) for row in topic.partitions]
        return links.collection("KafkaPartitionList", ("topics", topic.name, "partitions"), rows)

    def partition(self, asked: ApiRequest) -> Any:
        return _partition(self._links(asked), *self._one_partition(asked))

    def replicas(self, asked: ApiRequest) -> Any:
        links, (name, row) = self._links(asked), self._one_partition(asked)
        data = [shown_replica(links, name, row, broker) for broker in row.replicas]
        return links.collection("KafkaReplicaList", ("topics", name, "partitions", row.index, "replicas"), data)

    def replica(self, asked: ApiRequest) -> Any:
        links, (name, row) = self._links(asked), self._one_partition(asked)
        broker = number_from_path(asked, "broker_id", "Replica")
        if broker not in row.replicas:
            raise not_found(f"Replica {broker} of partition {row.index} of topic {name}")
        return shown_replica(links, name, row, broker)

    def _one_partition(self, asked: ApiRequest) -> tuple[str, PartitionInfo]:
        topic, number = (
            self._admin.topic(asked.path("topic_name")),
            number_from_path(asked, "partition_id", "Partition"),
        )
        if number >= len(topic.partitions):
            raise not_found(f"Partition {number} of topic {topic.name}")
        return topic.name, topic.partitions[number]


def _config(row: Any) -> tuple[str, str | None]:
    if not isinstance(row, dict):
        raise ApiError(400, "configs must be objects with name and value")
    fields = read_fields(row, {"name": str, "value": str})
    if "name" not in fields:
        raise ApiError(400, "each of configs needs a name")
    return fields["name"], fields.get("value")


def _assignment(row: Any) -> tuple[int, list[int]]:
    if not isinstance(row, dict):
        raise ApiError(400, "replicas_assignments must be objects with partition_id and broker_ids")
    fields = read_fields(row, {"partition_id": int, "broker_ids": list})
    number, brokers = fields.get("partition_id", -1), fields.get("broker_ids", [])
    numbers = [number, *brokers]
    if not brokers or not all(type(each) is int and 0 <= each <= _MAX_INT32 for each in numbers):
        raise ApiError(400, "replicas_assignments need a partition_id and broker_ids", code=40002)
    return number, brokers


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


class _Move(NamedTuple):
    place: TopicPartition
    adding: list[int]
    removing: list[int]


class ReplicaRoutes:
    def __init__(self, cluster: Cluster, admin: TopicAdmin, links: Callable[[ApiRequest], Links]) -> None:
        self._cluster = cluster
        self._admin = admin
        self._links = links

    def routes(self) -> list[BaseRoute]:
        """Those with a dash, which means all, come before those with a name in its place."""
        table: list[tuple[str, Callable[[ApiRequest], Any]]] = [
            ("/brokers/{broker_id}/partition-replicas", self.of_broker),
            ("/topics/-/partitions/-/reassignment", self.all_moves),
            ("/topics/{topic_name}/partitions/-/reassignment", self.moves_of_topic),
            ("/topics/{topic_name}/partitions/{partition_id}/reassignment", self.move),
        ]
        cluster = BASE + "/{cluster_id}"
        return [endpoint("GET", cluster + path, handler, doc=REPLICA_DOCS[path]) for path, handler in table]

    def of_broker(self, asked: ApiRequest) -> Any:
        links, broker = self._links(asked), number_from_path(asked, "broker_id", "Broker")
        if broker not in {row.id for row in self._admin.cluster().brokers}:
            raise not_found(f"Broker {broker}")
        rows = [
            shown_replica(links, topic.name, row, broker)
            for topic in self._admin.topics()
            for row in topic.partitions
            if broker in row.replicas
        ]
        return links.collection("KafkaReplicaList", ("brokers", broker, "partition-replicas"), rows)

    def all_moves(self, asked: ApiRequest) -> Any:
        return self._shown_moves(self._links(asked), "-", self._moves())

    def moves_of_topic(self, asked: ApiRequest) -> Any:
        links, topic = self._links(asked), self._admin.topic(asked.path("topic_name")).name
        return self._shown_moves(links, topic, [row for row in self._moves() if row.place.topic == topic])

    def move(self, asked: ApiRequest) -> Any:
        links, topic = self._links(asked), self._admin.topic(asked.path("topic_name")).name
        place = TopicPartition(topic, number_from_path(asked, "partition_id", "Partition"))
        for row in self._moves():
            if row.place == place:
                return _shown(links, row)
        raise not_found(f"Reassignment of partition {place.partition} of topic {topic}")

    def _moves(self) -> list[_Move]:
        """All that are under way; the controller knows."""
        answer = self._cluster.call("list_partition_reassignments", topics=None, timeout_ms=10_000)
        if answer.error_code:
            raise refusal("the reassignments", error_code(answer.error_code), answer.error_message)
        return [
            _Move(TopicPartition(topic.name, row.partition_index), row.adding_replicas, row.removing_replicas)
            for topic in answer.topics
            for row in topic.partitions
        ]

    @staticmethod
    def _shown_moves(links: Links, topic: str, rows: list[_Move]) -> dict[str, Any]:
        path = ("topics", topic, "partitions", "-", "reassignment")
        return links.collection("KafkaReassignmentList", path, [_shown(links, row) for row in rows])


def _shown(links: Links, row: _Move) -> dict[str, Any]:
    path = ("topics", row.place.topic, "partitions", row.place.partition)
    fields = {
        "topic_name": row.place.topic,
        "partition_id": row.place.partition,
        "adding_replicas": list(row.adding),
        "removing_replicas": list(row.removing),
        "replicas": links.related(*path, "replicas"),
    }
    named = (("topic", row.place.topic), ("partition", row.place.partition), ("reassignment", ""))
    return links.resource("KafkaReassignment", (*path, "reassignment"), named, fields)
