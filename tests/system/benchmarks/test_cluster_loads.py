"""Every load of a cluster, tiny, so that none rots; and that its raw requests are understood."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

from benchmarks.compare import cluster_wire
from benchmarks.compare.cluster_target import ClusterFactory, ClusterTarget
from benchmarks.compare.loads import CLUSTER_LOAD_NAMES, build_cluster_loads
from benchmarks.compare.measure import Measure, Scale
from millstream.formats.protocol.primitives import Cursor
from millstream.formats.protocol.schema import request_schema, response_schema
from tools import apache_kafka

_TINY = Scale(0.0005)


@pytest.mark.parametrize("name", CLUSTER_LOAD_NAMES)
def test_load_yields_every_measure_it_names(name: str, cluster: ClusterTarget, fresh_cluster: ClusterFactory) -> None:
    if name in ("cluster-produce", "cluster-transactions") and apache_kafka.installed() is None:
        pytest.skip("Kafka's Java tools are not in .cache (python tools/apache_kafka.py fetches them)")
    loads = {each.name: each for each in build_cluster_loads(fresh_cluster)}

    found = loads[name].run(cluster, _TINY)

    measures = {measure.key: measure for measure in loads[name].measures}
    assert set(found) == set(measures)
    assert all(math.isfinite(value) for value in found.values())
    assert all(value >= 0 or not measures[key].comparable for key, value in found.items())


def test_names_match_the_loads(fresh_cluster: ClusterFactory) -> None:
    assert tuple(load.name for load in build_cluster_loads(fresh_cluster)) == CLUSTER_LOAD_NAMES


def _body(request: bytes) -> bytes:
    (client_id_length,) = struct.unpack_from(">h", request, 12)
    return request[14 + client_id_length + 1 :]


def _request(name: str, version: int, request: bytes) -> Any:
    assert struct.unpack_from(">hh", request, 4) == (request_schema(name).api_key, version)
    cursor = Cursor(_body(request))
    return request_schema(name).read(cursor, version)


def test_requests_are_read_by_the_schemas() -> None:
    one = _request("metadata", 12, cluster_wire.metadata_request("orders"))
    assert [topic.name for topic in one.topics] == ["orders"]
    assert not one.allow_auto_topic_creation
    assert _request("metadata", 12, cluster_wire.metadata_request(None)).topics is None
    quorum = _request("describe_quorum", 0, cluster_wire.describe_quorum_request())
    assert quorum.topics[0].topic_name == "__cluster_metadata"
    assert quorum.topics[0].partitions[0].partition_index == 0


def test_responses_are_read_as_the_schemas_write_them() -> None:
    partition = {"partition_index": 3, "leader_id": 2, "leader_epoch": 7, "replica_nodes": [2, 1], "isr_nodes": [2]}
    brokers = [{"node_id": 1, "host": "one", "port": 9092, "rack": None}, {"node_id": 2, "host": "two", "port": 9093}]
    topics = [{"name": "orders", "partitions": [partition]}, {"name": "empty", "partitions": []}]
    fields = {"brokers": brokers, "cluster_id": "here", "controller_id": 1, "topics": topics}
    found = cluster_wire.parse_metadata(b"\0\0\0\1\0" + response_schema("metadata").encode(fields, 12))
    assert found.brokers == {1: "one:9092", 2: "two:9093"}
    assert found.topics["empty"] == {}
    assert found.topics["orders"] == {3: cluster_wire.PartitionRow(2, (2, 1), (2,))}
    assert not found.topics["orders"][3].whole

    row = {"partition_index": 0, "leader_id": 3, "leader_epoch": 9, "high_watermark": 1}
    quorum = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [row]}]}
    response = b"\0\0\0\1\0" + response_schema("describe_quorum").encode(quorum, 0)
    assert cluster_wire.parse_quorum_leader(response) == 3


def test_a_promise_may_be_a_figure_instead_of_a_ratio() -> None:
    promised = Measure("k", "title", "s", "lower", at_most=1.5)
    assert promised.met(ratio=2.0, ours=1.4) is True
    assert promised.met(ratio=None, ours=1.6) is False
    assert promised.met(ratio=0.1) is None
