"""APIs of the controller as clients reach them through a broker, in every version."""

from collections.abc import Iterator

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import request_schema
from millstream.node.controller.controller_apis import FORWARDED_APIS
from millstream.testing import EmbeddedBroker
from tests.wire import Wire


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        with Wire(running.bootstrap_servers) as wire:
            wire.create_topic("t", 2)
        yield running
        log = running.log_file.read_text()
        assert "handler_failed" not in log and "Traceback" not in log, log[-3000:]


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap_servers) as connected:
        yield connected


def versions(api: str) -> range:
    found = request_schema(api).versions
    return range(found.low, found.high + 1)


def in_all_versions(*apis: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("api", "version"), [(api, version) for api in apis for version in versions(api)])


def test_everything_that_is_passed_on_is_offered(wire: Wire) -> None:
    offered = {
        row.api_key
        for row in wire.call("api_versions", 4, client_software_name="t", client_software_version="1").api_keys
    }
    assert {request_schema(name).api_key for name in FORWARDED_APIS} <= offered


@in_all_versions("elect_leaders")
def test_elections_are_forwarded(wire: Wire, api: str, version: int) -> None:
    partitions = [{"topic": "t", "partitions": [0, 7]}]
    response = wire.call(api, version, topic_partitions=partitions)
    (topic,) = response.replica_election_results
    assert {row.partition_id: row.error_code for row in topic.partition_result} == {
        0: ErrorCode.ELECTION_NOT_NEEDED,
        7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert wire.call(api, version, topic_partitions=None).replica_election_results == []


@in_all_versions("alter_partition_reassignments")
def test_reassignments_are_forwarded(wire: Wire, api: str, version: int) -> None:
    wanted = [
        {
            "name": "t",
            "partitions": [{"partition_index": 0, "replicas": [9]}, {"partition_index": 1, "replicas": None}],
        },
        {"name": "none", "partitions": [{"partition_index": 0, "replicas": [1]}]},
    ]
    response = wire.call(api, version, topics=wanted)
    assert response.error_code == 0
    assert {
        (topic.name, row.partition_index): row.error_code for topic in response.responses for row in topic.partitions
    } == {
        ("t", 0): ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ("t", 1): ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    listed = wire.call("list_partition_reassignments", 0, topics=None)
    assert (listed.error_code, listed.topics) == (0, [])


@in_all_versions("describe_quorum")
def test_describe_quorum_is_forwarded(wire: Wire, api: str, version: int) -> None:
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    response = wire.call(api, version, topics=topics)
    (row,) = response.topics[0].partitions
    assert response.error_code == row.error_code == 0
    assert row.leader_id == 1 and row.high_watermark > 0
    assert [voter.replica_id for voter in row.current_voters] == [1]


@in_all_versions("update_features")
def test_feature_updates_are_forwarded(wire: Wire, api: str, version: int) -> None:
    response = wire.call(api, version, feature_updates=[{"feature": "metadata.version", "max_version_level": 999}])
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "metadata.version" in response.error_message
    same = [{"feature": "group.version", "max_version_level": 1}]
    assert wire.call(api, version, feature_updates=same).error_code == 0


def test_an_unknown_broker_cannot_be_unregistered(wire: Wire) -> None:
    response = wire.call("unregister_broker", 0, broker_id=77)
    assert response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


@in_all_versions("describe_cluster")
def test_clients_take_a_broker_for_the_controller(wire: Wire, api: str, version: int) -> None:
    response = wire.call(api, version)
    assert response.controller_id == 1
    assert [row.broker_id for row in response.brokers] == [1]
