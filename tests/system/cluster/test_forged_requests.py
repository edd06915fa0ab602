"""Requests with numbers that no node of the cluster has: each is refused, and the cluster works as before."""

import base64
import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.node.metadata.features import SUPPORTED_FEATURES
from millstream.testing import EmbeddedCluster
from tests.system.cluster.conftest import Writer, create_topic, described, eventually, leader_of
from tests.wire import Wire, fetch_fields, now_ms

TOPIC = "forged"
HIGHEST_INT = 2**31 - 1


@pytest.fixture(scope="module")
def served(cluster: EmbeddedCluster) -> EmbeddedCluster:
    create_topic(cluster, TOPIC)
    return cluster


@pytest.fixture(autouse=True)
def works_as_before(served: EmbeddedCluster) -> Iterator[None]:
    """After each test all three replicas are in sync, take writes, and no node has ended."""
    before = quorum(served).leader_epoch
    yield
    assert all(served.running(number) for number in (1, 2, 3))
    Writer(served.bootstrap_servers).write(TOPIC, 50)
    eventually(lambda: described(served, TOPIC, in_sync=3))
    create_topic(served, f"after-{now_ms()}")
    assert quorum(served).leader_epoch < before + 1000


def quorum(cluster: EmbeddedCluster) -> Message:
    with Wire(cluster.address(1)) as wire:
        asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        row: Message = wire.call("describe_quorum", 2, topics=asked).topics[0].partitions[0]
    return row


def directory_id(cluster: EmbeddedCluster, number: int) -> UUID:
    (text,) = re.findall(r"directory\.id=(\S+)", (cluster.data_dir(number) / "meta.properties").read_text())
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def cluster_id(cluster: EmbeddedCluster) -> str:
    with Wire(cluster.address(1)) as wire:
        return str(wire.call("metadata", 12, topics=[]).cluster_id)


def topic_id(cluster: EmbeddedCluster) -> UUID:
    with Wire(cluster.address(1)) as wire:
        response = wire.call("metadata", 12, topics=[{"topic_id": UUID(int=0), "name": TOPIC}])
        return UUID(str(response.topics[0].topic_id))


def test_a_fetch_of_a_broker_epoch_that_does_not_exist(served: EmbeddedCluster) -> None:
    leader = leader_of(served, TOPIC)
    follower = next(number for number in (1, 2, 3) if number != leader)
    fields = fetch_fields([(topic_id(served), 0, 0)], by_id=True, session_epoch=0)
    fields["replica_state"] = {"replica_id": follower, "replica_epoch": 2**62}
    with Wire(served.address(leader)) as wire:
        response = wire.call("fetch", 17, **fields)
    assert response.error_code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize("pre_vote", [False, True])
def test_a_vote_in_the_highest_epoch(served: EmbeddedCluster, pre_vote: bool) -> None:
    for number in (1, 2, 3):
        candidate = number % 3 + 1
        row = {
            "partition_index": 0,
            "replica_epoch": HIGHEST_INT,
            "replica_id": candidate,
            "replica_directory_id": directory_id(served, candidate),
            "voter_directory_id": directory_id(served, number),
            "last_offset_epoch": 1,
            "last_offset": 2**40,
            "pre_vote": pre_vote,
        }
        with Wire(served.controller_address(number)) as wire:
            topics = [{"topic_name": "__cluster_metadata", "partitions": [row]}]
            response = wire.call("vote", 2, cluster_id=cluster_id(served), voter_id=number, topics=topics)
        assert (response.error_code, response.topics) == (ErrorCode.INVALID_REQUEST, [])


@pytest.mark.parametrize("api", ["begin_quorum_epoch", "end_quorum_epoch"])
def test_a_quorum_leader_of_the_highest_epoch(served: EmbeddedCluster, api: str) -> None:
    for number in (1, 2, 3):
        row: dict[str, Any] = {"partition_index": 0, "leader_id": number % 3 + 1, "leader_epoch": HIGHEST_INT}
        if api == "begin_quorum_epoch":
            row["voter_directory_id"] = directory_id(served, number)
        fields: dict[str, Any] = {"cluster_id": cluster_id(served), "leader_endpoints": []}
        if api == "begin_quorum_epoch":
            fields["voter_id"] = number
        with Wire(served.controller_address(number)) as wire:
            topics = [{"topic_name": "__cluster_metadata", "partitions": [row]}]
            response = wire.call(api, 1, topics=topics, **fields)
        assert (response.error_code, response.topics) == (ErrorCode.INVALID_REQUEST, [])


def test_a_registration_with_the_directory_and_address_of_a_broker(served: EmbeddedCluster) -> None:
    controller = quorum(served).leader_id
    host, _, port = served.address(2).rpartition(":")
    fields = {
        "broker_id": 2,
        "cluster_id": cluster_id(served),
        "incarnation_id": UUID(int=99),
        "listeners": [{"name": "PLAINTEXT", "host": host, "port": int(port), "security_protocol": 0}],
        "features": [
            {
                "name": each.name,
                "min_supported_version": each.min_supported_version,
                "max_supported_version": each.max_supported_version,
            }
            for each in SUPPORTED_FEATURES
        ],
        "rack": None,
        "log_dirs": [directory_id(served, 2)],
        "previous_broker_epoch": -1,
    }
    with Wire(served.controller_address(controller)) as wire:
        response = wire.call("broker_registration", 4, **fields)
    assert response.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_a_marker_of_a_coordinator_epoch_that_does_not_exist(served: EmbeddedCluster) -> None:
    topics = [{"name": TOPIC, "partition_indexes": [0]}]
    marker = {
        "producer_id": 0,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": topics,
        "coordinator_epoch": HIGHEST_INT,
    }
    with Wire(served.address(leader_of(served, TOPIC))) as wire:
        response = wire.call("write_txn_markers", 1, markers=[marker])
    assert response.markers[0].topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("api", ["read_share_group_state", "write_share_group_state"])
def test_share_state_of_a_leader_epoch_that_does_not_exist(served: EmbeddedCluster, api: str) -> None:
    row: dict[str, Any] = {"partition": 0, "leader_epoch": HIGHEST_INT}
    if api == "write_share_group_state":
        row |= {"state_epoch": 0, "start_offset": 0, "state_batches": []}
    topics = [{"topic_id": topic_id(served), "partitions": [row]}]
    with Wire(served.address(1)) as wire:
        response = wire.call(api, 0, group_id="g", topics=topics)
    assert response.results[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "..", "\x00", "ex ample"])
def test_a_new_voter_whose_host_is_no_name(served: EmbeddedCluster, host: str) -> None:
    with Wire(served.controller_address(quorum(served).leader_id)) as wire:
        response = wire.call(
            "add_raft_voter",
            0,
            cluster_id=cluster_id(served),
            timeout_ms=2000,
            voter_id=9,
            voter_directory_id=UUID(int=9),
            listeners=[{"name": "CONTROLLER", "host": host, "port": 9093}],
        )
    assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "cannot be reached" in response.error_message
