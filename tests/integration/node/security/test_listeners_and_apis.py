"""Which listener serves which APIs: each API number, in each version, is really sent to each kind of listener."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from millstream.formats.protocol.schema import request_schema
from tests.integration.node.security.secured_broker import Secured, secured_pair
from tests.sasl import plain
from tests.wire import Closed, Wire

LAST_API = 100
OF_NODES = (
    "vote", "begin_quorum_epoch", "end_quorum_epoch", "alter_partition", "envelope", "fetch_snapshot",
    "broker_registration", "broker_heartbeat", "allocate_producer_ids", "update_raft_voter",
)  # fmt: skip
"""The cluster's own APIs, which are on controller listeners alone."""
OF_BROKERS = (
    "initialize_share_group_state", "read_share_group_state", "write_share_group_state", "delete_share_group_state",
    "read_share_group_state_summary",
)  # fmt: skip
"""Those that brokers send each other."""
OF_CLIENTS = (
    "produce", "list_offsets", "metadata", "offset_commit", "offset_fetch", "find_coordinator", "join_group",
    "heartbeat", "leave_group", "sync_group", "describe_groups", "list_groups", "delete_records", "init_producer_id",
    "offset_for_leader_epoch", "add_partitions_to_txn", "add_offsets_to_txn", "end_txn", "write_txn_markers",
    "txn_offset_commit", "delete_groups", "offset_delete", "describe_producers", "describe_transactions",
    "list_transactions", "consumer_group_heartbeat", "consumer_group_describe", "describe_topic_partitions",
    "share_group_heartbeat", "share_group_describe", "share_fetch", "share_acknowledge", "describe_log_dirs",
)  # fmt: skip
"""Those that a controller does not serve: clients of the data ask brokers."""


def keys(names: tuple[str, ...]) -> set[int]:
    return {request_schema(name).api_key for name in names}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_pair(tmp_path_factory.mktemp("pair")) as running:
        yield running


def connected(pair: Secured, listener: str) -> Wire:
    wire = Wire(f"127.0.0.1:{pair.ports[listener]}")
    if listener == "SASL":
        assert not plain(wire, "admin", "admin-secret").error_code
    return wire


def offered(pair: Secured, listener: str) -> dict[int, tuple[int, int]]:
    with connected(pair, listener) as wire:
        rows = wire.call("api_versions", 0).api_keys
        return {row.api_key: (row.min_version, row.max_version) for row in rows}


def is_served(pair: Secured, listener: str, key: int, version: int) -> bool:
    """Whether there is any response to a request, here without a body: it may be one about the body."""
    with connected(pair, listener) as wire:
        # A client id, and no tags: the header of both versions.
        wire.send_raw(struct.pack(">ihhihb", 11, key, version, 1, -1, 0))
        try:
            return bool(wire.receive_raw())
        except Closed:
            return False


@pytest.mark.parametrize("listener", ["SASL", "PLAINTEXT", "CONTROLLER"])
def test_each_listener_offers_its_apis(pair: Secured, listener: str) -> None:
    found = set(offered(pair, listener))
    if listener == "CONTROLLER":
        assert keys(OF_NODES) <= found
        assert not found & keys(OF_CLIENTS + OF_BROKERS)
    else:
        assert not found & keys(OF_NODES)
        assert keys(OF_CLIENTS) <= found
        assert found & keys(OF_BROKERS) == (keys(OF_BROKERS) if listener == "PLAINTEXT" else set())


@pytest.mark.parametrize("listener", ["SASL", "PLAINTEXT", "CONTROLLER"])
def test_what_is_not_offered_closes_the_connection(pair: Secured, listener: str) -> None:
    """Also for a super user, with every version: what is not offered is not there."""
    known = offered(pair, listener)
    for key in range(LAST_API):
        if key in known:
            continue
        for version in (0, 1, 3):
            assert not is_served(pair, listener, key, version), (listener, key, version)
