"""Attempts of a client that may log in to the listener of the controllers, and has no permission there."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message, request_schema
from millstream.node.consensus.quorum.metadata_log import METADATA_TOPIC_ID
from millstream.testing.node_process import NodeProcess, free_ports
from tests.integration.node.security.secured_broker import in_a_file
from tests.sasl import plain
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire

_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_JAAS = f'{_MODULE} username="admin" password="admin-secret-1" user_admin="admin-secret-1" user_eve="eve-secret-1";'


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("controller")
    (port,) = free_ports(1)
    settings = {
        "node.id": "1",
        "process.roles": "controller",
        "listeners": f"CONTROLLER://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{port}",
        "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": _JAAS,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    arguments = ["--data-dir", str(directory / "data"), "--no-http"]
    arguments += in_a_file(directory / "controller.properties", settings)
    process = NodeProcess("the controller", arguments, directory / "controller.log", stop_timeout=TIMEOUT_SECONDS)
    process.spawn()
    try:
        process.wait_until_ready(60)
        yield f"127.0.0.1:{port}"
    finally:
        process.reap(signal.SIGTERM)


def fetch_metadata(address: str, user: str, replica_id: int, version: int) -> Any:
    row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "last_fetched_epoch": 0}
    named = {"topic_id": METADATA_TOPIC_ID} if version >= 13 else {"topic": "__cluster_metadata"}
    state = {"replica_state": {"replica_id": replica_id}} if version >= 15 else {"replica_id": replica_id}
    with Wire(address) as wire:
        assert plain(wire, user, f"{user}-secret-1").error_code == 0
        fields = {"max_wait_ms": 0, "max_bytes": 1 << 20, "topics": [{**named, "partitions": [row]}], **state}
        return wire.call("fetch", version, **fields)


@pytest.mark.parametrize("version", [12, 17])
@pytest.mark.parametrize("replica_id", [-1, 1, 99])
def test_metadata_log_is_closed_to_clients_without_permission(controller: str, version: int, replica_id: int) -> None:
    """It has users, tokens, ACLs and the proofs of brokers. A fetch of a voter even moves the high watermark."""
    response = fetch_metadata(controller, "eve", replica_id, version)
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert response.responses == []


def test_metadata_log_is_open_to_nodes(controller: str) -> None:
    response = fetch_metadata(controller, "admin", -1, 17)
    assert response.error_code == 0 and response.responses[0].partitions[0].records


_OF_NODES = (
    "vote", "begin_quorum_epoch", "end_quorum_epoch", "alter_partition", "envelope", "fetch_snapshot",
    "broker_registration", "broker_heartbeat", "allocate_producer_ids", "update_raft_voter",
)  # fmt: skip


@pytest.mark.parametrize("api", _OF_NODES)
def test_apis_of_nodes_are_refused_for_clients_without_permission(controller: str, api: str) -> None:
    """Each one, in its first and its last version."""
    versions = request_schema(api).versions
    for version in sorted({versions.low, versions.high}):
        with Wire(controller) as wire:
            assert plain(wire, "eve", "eve-secret-1").error_code == 0
            fields: dict[str, Any] = {"k_raft_version_feature": {}} if api == "update_raft_voter" else {}
            response = wire.call(api, version, **fields)
            assert _errors(response) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}, (api, version, response)


def _errors(response: Any) -> set[int]:
    """All error codes in a response, on any level."""
    if isinstance(response, list):
        return set().union(*(_errors(each) for each in response))
    if not isinstance(response, Message):
        return set()
    found = {response.error_code} if "error_code" in response.__slots__ else set()
    return found.union(*(_errors(getattr(response, name)) for name in response.__slots__))
