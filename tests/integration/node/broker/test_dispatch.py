"""From frame to response: every API and version that is offered, and those that are not."""

from typing import Any
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.primitives import MAX_FETCHED_PARTITIONS
from millstream.formats.protocol.schema import request_schema
from millstream.node.broker.cluster_apis import MOST_TOPICS
from millstream.testing import EmbeddedBroker
from tests.wire import Closed, Wire, batch, decode, fetch_fields, framed, header, request_names

NAMES = request_names()
BY_ID = {"produce": 13, "fetch": 13}


def fields_of(api: str, version: int, topic: str, topic_id: UUID) -> dict[str, Any]:
    """A request that makes sense; APIs not named here are asked with every field at its default."""
    by_id = version >= BY_ID.get(api, 99)
    key: dict[str, Any] = {"topic_id": topic_id} if by_id else {"name": topic}
    partition = {"partition_index": 0, "current_leader_epoch": -1}
    requests: dict[str, dict[str, Any]] = {
        "produce": {
            "acks": 1,
            "timeout_ms": 1000,
            "topic_data": [{**key, "partition_data": [{"index": 0, "records": batch(b"value")}]}],
        },
        "fetch": fetch_fields([(topic_id if by_id else topic, 0, 0)], by_id=by_id),
        "list_offsets": {"replica_id": -1, "topics": [{"name": topic, "partitions": [{**partition, "timestamp": -1}]}]},
        "metadata": {"topics": [{"name": topic, "topic_id": UUID(int=0)}]},
        "find_coordinator": {"key": "group", "coordinator_keys": ["group"], "key_type": 0},
        "api_versions": {"client_software_name": "wire", "client_software_version": "1"},
        "create_topics": {"topics": [{"name": f"made-by-v{version}", "num_partitions": 1, "replication_factor": 1}]},
        "delete_topics": {"topics": [{"name": "not-there", "topic_id": UUID(int=0)}], "topic_names": ["not-there"]},
        "delete_records": {"topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}]},
        "init_producer_id": {"transactional_id": None, "producer_id": -1, "producer_epoch": -1},
        "offset_for_leader_epoch": {
            "topics": [
                {"topic": topic, "partitions": [{"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}]}
            ]
        },
        "describe_configs": {"resources": [{"resource_type": 2, "resource_name": topic, "configuration_keys": None}]},
        "alter_configs": {"resources": [{"resource_type": 2, "resource_name": topic, "configs": []}]},
        "incremental_alter_configs": {"resources": [{"resource_type": 2, "resource_name": topic, "configs": []}]},
        "describe_log_dirs": {"topics": None},
        "create_partitions": {"topics": [{"name": topic, "count": 2, "assignments": None}], "validate_only": True},
        "describe_topic_partitions": {"topics": [{"name": topic}], "response_partition_limit": 10, "cursor": None},
    }
    known = {each.name for each in request_schema(api).root.fields}
    return {name: value for name, value in requests.get(api, {}).items() if name in known}


def test_every_api_responds_in_its_first_and_in_its_last_version(wire: Wire, topic: str) -> None:
    topic_id = wire.call("metadata", 12, topics=[{"name": topic, "topic_id": UUID(int=0)}]).topics[0].topic_id
    offered = wire.call("api_versions", 0).api_keys
    assert {0, 1, 2, 3, 10, 18, 19, 20, 21, 22, 23, 32, 33, 35, 37, 44, 60, 75} <= {row.api_key for row in offered}
    for row in offered:
        api = NAMES[row.api_key]
        for version in {max(row.min_version, request_schema(api).versions.low), row.max_version}:
            wire.call(api, version, **fields_of(api, version, topic, topic_id))


def test_the_ranges_are_those_of_kafka_4(wire: Wire) -> None:
    offered = {row.api_key: (row.min_version, row.max_version) for row in wire.call("api_versions", 0).api_keys}
    for key, versions in offered.items():
        schema = request_schema(NAMES[key]).versions
        assert versions == (0 if key == 0 else schema.low, schema.high), NAMES[key]


@pytest.mark.parametrize("version", [5, 99, -1, 32_767])
def test_an_unknown_version_of_api_versions_gets_a_response_of_version_0(wire: Wire, version: int) -> None:
    wire.send_raw(framed(header(18, version, 77, flexible=False) + b"\x02\x02anything"))
    correlation_id, response = decode("api_versions", 0, wire.receive_raw())
    assert correlation_id == 77
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert any(row.api_key == 18 for row in response.api_keys)
    assert wire.call("api_versions", 0).error_code == 0  # and the connection goes on


@pytest.mark.parametrize("name", ["", "-bad", "bad-", "white space", "é"])
def test_api_versions_refuses_a_wrong_software_name(wire: Wire, name: str) -> None:
    response = wire.call("api_versions", 3, client_software_name=name, client_software_version="1")
    assert response.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("key", "version"), [(-1, 0), (9999, 0), (3, 99), (3, -1), (1, 3), (1, 99), (0, 2), (0, 99)])
def test_what_is_not_offered_closes_the_connection(broker: EmbeddedBroker, key: int, version: int) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        wire.send_raw(framed(header(key, version, 1, flexible=False) + bytes(40)))
        assert wire.is_closed()


def test_a_client_without_a_name_is_served(wire: Wire) -> None:
    wire.send_raw(framed(header(18, 0, 5, flexible=False, client_id=None)))
    assert decode("api_versions", 0, wire.receive_raw())[0] == 5


def test_bytes_after_a_request_are_passed_over(wire: Wire) -> None:
    wire.send_raw(framed(header(18, 0, 5, flexible=False) + b"more"))
    assert decode("api_versions", 0, wire.receive_raw())[0] == 5


def test_responses_come_in_order_although_the_first_waits(wire: Wire, topic: str) -> None:
    first = wire.send("fetch", 12, **fetch_fields([(topic, 0, 0)], max_wait_ms=300))
    second = wire.send("api_versions", 0)
    third = wire.send("create_topics", 7, topics=[], timeout_ms=1000)
    assert wire.receive("fetch", 12)[0] == first
    assert wire.receive("api_versions", 0)[0] == second
    assert wire.receive("create_topics", 7)[0] == third


def test_a_large_request_other_than_produce_is_refused(wire: Wire) -> None:
    wire.send_raw(framed(header(3, 1, 1, flexible=False) + bytes(17 << 20)))
    assert wire.is_closed()


def test_more_partitions_than_anyone_has_are_refused(broker: EmbeddedBroker) -> None:
    for api, version, fields in (
        ("fetch", 11, fetch_fields([("t", 0, 0)] * (MAX_FETCHED_PARTITIONS + 1))),
        ("produce", 9, {"acks": 1, "topic_data": [{"name": "t", "partition_data": [{"index": 1}] * 10_001}]}),
    ):
        with Wire(broker.bootstrap_servers) as wire, pytest.raises(Closed):
            wire.call(api, version, **fields)


def test_metadata_for_more_names_than_anyone_has_is_refused(broker: EmbeddedBroker) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        names = [{"name": f"unknown-{number}"} for number in range(MOST_TOPICS + 1)]
        fields = {"allow_auto_topic_creation": False}
        assert len(wire.call("metadata", 9, topics=names[:-1], **fields).topics) == MOST_TOPICS
        wire.send("metadata", 9, topics=names, **fields)
        assert wire.is_closed()


@pytest.mark.parametrize("api", ["alter_configs", "incremental_alter_configs"])
def test_a_setting_that_is_too_long_is_refused(broker: EmbeddedBroker, topic: str, api: str) -> None:
    def change(value: str) -> dict[str, Any]:
        setting = {"name": "leader.replication.throttled.replicas", "value": value}
        resource = {"resource_type": 2, "resource_name": topic, "configs": [setting]}
        return {"resources": [resource], "validate_only": True}

    version = 1 if api.startswith("incremental") else 2
    with Wire(broker.bootstrap_servers) as wire:
        (row,) = wire.call(api, version, **change("0:1," * 8000)).responses
        assert row.error_code == 0
        (row,) = wire.call(api, version, **change("0:1," * 10_000)).responses
        assert row.error_code == ErrorCode.INVALID_CONFIG
        assert "40000 bytes" in row.error_message and "32767 bytes" in row.error_message
        wire.send(api, version, **change("0:1," * (3 << 20)))
        assert wire.is_closed()


def test_a_header_with_very_many_tags_is_refused(broker: EmbeddedBroker) -> None:
    tags = b"\x80\x80\x04" + b"\x01\x00" * 65_536
    for key, version in ((0, 9), (1, 12), (18, 3)):
        with Wire(broker.bootstrap_servers) as wire:
            wire.send_raw(framed(header(key, version, 1, flexible=False) + tags))
            assert wire.is_closed()
