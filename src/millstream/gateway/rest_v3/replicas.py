"""Confluent's REST v3: replicas as brokers hold them, and replicas that are being moved."""

from collections.abc import Callable
from typing import Any, NamedTuple

from starlette.routing import BaseRoute

from millstream.gateway.admin.topics import TopicAdmin
from millstream.gateway.http.asked import Asked
from millstream.gateway.http.endpoints import endpoint
from millstream.gateway.rest_v3.docs import REPLICA_DOCS
from millstream.gateway.rest_v3.resources import BASE, Links, not_found, number_from_path
from millstream.gateway.rest_v3.topics import shown_replica
from millstream.raw_client import Cluster, TopicPartition
from millstream.raw_client.errors import error_code, refusal


class _Move(NamedTuple):
    place: TopicPartition
    adding: list[int]
    removing: list[int]


class ReplicaRoutes:
    def __init__(self, cluster: Cluster, admin: TopicAdmin, links: Callable[[Asked], Links]) -> None:
        self._cluster = cluster
        self._admin = admin
        self._links = links

    def routes(self) -> list[BaseRoute]:
        """Those with a dash, which means all, come before those with a name in its place."""
        table: list[tuple[str, Callable[[Asked], Any]]] = [
            ("/brokers/{broker_id}/partition-replicas", self.of_broker),
            ("/topics/-/partitions/-/reassignment", self.all_moves),
            ("/topics/{topic_name}/partitions/-/reassignment", self.moves_of_topic),
            ("/topics/{topic_name}/partitions/{partition_id}/reassignment", self.move),
        ]
        cluster = BASE + "/{cluster_id}"
        return [endpoint("GET", cluster + path, handler, doc=REPLICA_DOCS[path]) for path, handler in table]

    def of_broker(self, asked: Asked) -> Any:
        links, broker = self._links(asked), number_from_path(asked, "broker_id", "Broker")
        if broker not in {row.node_id for row in self._admin.cluster().brokers}:
            raise not_found(f"Broker {broker}")
        rows = [
            shown_replica(links, topic.name, row, broker)
            for topic in self._admin.topics()
            for row in topic.partitions
            if broker in row.replicas
        ]
        return links.collection("KafkaReplicaList", ("brokers", broker, "partition-replicas"), rows)

    def all_moves(self, asked: Asked) -> Any:
        return self._shown_moves(self._links(asked), "-", self._moves())

    def moves_of_topic(self, asked: Asked) -> Any:
        links, topic = self._links(asked), self._admin.topic(asked.path("topic_name")).name
        return self._shown_moves(links, topic, [row for row in self._moves() if row.place.topic == topic])

    def move(self, asked: Asked) -> Any:
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
