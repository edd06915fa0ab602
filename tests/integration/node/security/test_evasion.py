"""Attempts to get around ACLs and around the border between clients and brokers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millstream.formats.model.access_control import AclOperation as Op
from millstream.formats.model.access_control import AclResourceType as Kind
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import request_schema
from millstream.formats.records.record import Record, build_batch
from millstream.node.server.request import BROKER_CLIENT_ID, BROKER_SOFTWARE
from millstream.raw_client import Cluster, CoordinatorKind
from millstream.testing.embedded import EmbeddedBroker
from tests.acting_broker import act_as_broker, broker_proof
from tests.integration.node.security.authorization_walk import granted
from tests.integration.node.security.secured_broker import Secured, secured_millstream
from tests.waiting import until
from tests.wire import Closed, Wire

SECRET = "evasion-secret"
BATCH = bytes(build_batch([Record(None, b"v")]))
_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_millstream(tmp_path_factory.mktemp("evasion")) as broker:
        with broker.cluster("admin") as admin:
            for name in (SECRET, "evasion-open"):
                admin.create_topic(name, 1, 1)
        yield broker


@pytest.fixture
def admin(secured: Secured) -> Iterator[Cluster]:
    with secured.cluster("admin") as cluster:
        yield cluster


@pytest.fixture
def alice(secured: Secured) -> Iterator[Cluster]:
    with secured.cluster("alice") as cluster:
        yield cluster


def topic_id(admin: Cluster, name: str = SECRET) -> UUID:
    found: UUID = admin.call("metadata", topics=[{"name": name}]).topics[0].topic_id
    return found


def fetch(cluster: Cluster, at: UUID, session_id: int = 0, epoch: int = -1, *, again: bool = False) -> "object":
    row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [] if again else [{"topic_id": at, "partitions": [row]}]
    return cluster.call(
        "fetch", max_wait_ms=0, min_bytes=0, topics=topics, session_id=session_id, session_epoch=epoch, node=1
    )


def test_fetch_session_ends_with_its_permission(admin: Cluster, alice: Cluster) -> None:
    at = topic_id(admin)
    data = [{"name": SECRET, "partition_data": [{"index": 0, "records": BATCH}]}]
    admin.call("produce", at_most=12, transactional_id=None, acks=1, timeout_ms=9000, topic_data=data)
    with granted(admin, "User:alice", ((Kind.TOPIC, SECRET, Op.READ),)):
        opened = fetch(alice, at, epoch=0)
        assert opened.session_id and opened.responses[0].partitions[0].error_code == 0  # type: ignore[attr-defined]
        assert opened.responses[0].partitions[0].records  # type: ignore[attr-defined]
    after = fetch(alice, at, opened.session_id, 1, again=True)  # type: ignore[attr-defined]
    (row,) = after.responses[0].partitions  # type: ignore[attr-defined]
    assert row.error_code == _REFUSED and not row.records


def test_topic_id_beside_an_allowed_name(admin: Cluster, alice: Cluster) -> None:
    """Metadata and DeleteTopics have a name and an id in a row: both are checked."""
    at, other = topic_id(admin), topic_id(admin, "evasion-open")
    needs = ((Kind.TOPIC, "evasion-open", Op.DESCRIBE), (Kind.TOPIC, "evasion-open", Op.DELETE))
    with granted(admin, "User:alice", needs):
        for row in ({"name": SECRET, "topic_id": other}, {"name": None, "topic_id": at}):
            found = alice.call("metadata", topics=[row]).topics[0]
            assert found.error_code == _REFUSED and not found.partitions
        for row in ({"name": SECRET, "topic_id": other}, {"name": "evasion-open", "topic_id": at}):
            deleted = alice.call("delete_topics", topics=[row], timeout_ms=5000)
            assert [each.error_code for each in deleted.responses] != [0]
    assert topic_id(admin) == at and topic_id(admin, "evasion-open") == other


def test_what_lists_leave_out_is_no_denial(secured: Secured, alice: Cluster) -> None:
    """A client that lists the cluster would otherwise fill the audit log, and push other events out of its queue."""
    before = len(secured.log_file.read_bytes())
    alice.call("metadata", topics=None)
    alice.call("describe_topic_partitions", topics=[], response_partition_limit=10)
    alice.call("list_groups")
    alice.call("list_transactions")
    assert alice.call("metadata", topics=[{"name": "evasion-marker"}]).topics[0].error_code == _REFUSED
    added = secured.log_file.read_bytes()[before:].decode()
    lines = [line for line in added.splitlines() if " denied principal=User:alice" in line]
    assert any("TOPIC:evasion-marker" in line for line in lines)
    assert not [line for line in lines if f"DESCRIBE resource=TOPIC:{SECRET}" in line or "CLUSTER" in line]


@pytest.mark.parametrize("name", ["*", "evasion-*", "", "evasion-secre", "Evasion-Secret"])
def test_wildcard_names_are_only_names(admin: Cluster, alice: Cluster, name: str) -> None:
    needs = ((Kind.TOPIC, name, Op.ALL),) if name not in ("", "*") else ()
    with granted(admin, "User:alice", needs):
        rows = [{"name": each, "partitions": [{"partition_index": 0, "timestamp": -1}]} for each in (name, SECRET)]
        response = alice.call("list_offsets", replica_id=-1, topics=rows)
        codes = {topic.name: topic.partitions[0].error_code for topic in response.topics}
        assert codes[SECRET] == _REFUSED
        assert 0 not in codes.values()


def test_group_and_transaction_of_others(admin: Cluster, alice: Cluster) -> None:
    needs = ((Kind.GROUP, "evasion-mine", Op.READ), (Kind.TRANSACTIONAL_ID, "evasion-mine", Op.WRITE))
    with granted(admin, "User:alice", (*needs, (Kind.TOPIC, SECRET, Op.READ), (Kind.TOPIC, SECRET, Op.WRITE))):
        at: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0}
        rows = [{"name": SECRET, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        codes = [
            alice.call("offset_commit", at_most=9, group_id="evasion-theirs", topics=rows).topics[0],
            alice.call(
                "txn_offset_commit",
                at_most=4,
                transactional_id="evasion-theirs",
                group_id="evasion-mine",
                topics=rows,
                **at,
            ).topics[0],
            alice.call(
                "txn_offset_commit",
                at_most=4,
                transactional_id="evasion-mine",
                group_id="evasion-theirs",
                topics=rows,
                **at,
            ).topics[0],
        ]
        expected = [30, 53, 30]
        assert [topic.partitions[0].error_code for topic in codes] == expected
        for transactional_id, group_id, code in (("evasion-theirs", "evasion-mine", 53), ("evasion-mine", "other", 30)):
            added = alice.call("add_offsets_to_txn", transactional_id=transactional_id, group_id=group_id, **at)
            assert added.error_code == code
        assert alice.call("end_txn", transactional_id="evasion-theirs", committed=True, **at).error_code == 53


def test_regular_expression_finds_only_what_the_member_may_describe(admin: Cluster, alice: Cluster) -> None:
    needs = ((Kind.GROUP, "evasion-regex", Op.READ), (Kind.TOPIC, "evasion-open", Op.READ))
    with granted(admin, "User:alice", needs):
        alice.coordinator_of("evasion-regex", CoordinatorKind.GROUP)
        member: dict[str, Any] = {
            "group_id": "evasion-regex",
            "member_id": "AAAAAAAAAAAAAAAAAAAAAw",
            "rebalance_timeout_ms": 10_000,
        }
        response = alice.call_coordinator(
            "evasion-regex",
            CoordinatorKind.GROUP,
            "consumer_group_heartbeat",
            member_epoch=0,
            subscribed_topic_names=[],
            subscribed_topic_regex="evasion-.*",
            topic_partitions=[],
            **member,
        )
        assert response.error_code == 0
        epoch = response.member_epoch

        def assigned() -> list[UUID]:
            again = alice.call_coordinator(
                "evasion-regex", CoordinatorKind.GROUP, "consumer_group_heartbeat", member_epoch=epoch, **member
            )
            rows = again.assignment or response.assignment
            return [row.topic_id for row in rows.topic_partitions] if rows is not None else []

        until(lambda: assigned() == [topic_id(admin, "evasion-open")])


def test_internal_topics_are_closed_to_writers_with_all_permissions(admin: Cluster, alice: Cluster) -> None:
    admin.call("find_coordinator", key_type=0, coordinator_keys=["evasion-group"])
    with granted(admin, "User:alice", ((Kind.TOPIC, "__consumer_offsets", Op.ALL),)):
        data = [{"name": "__consumer_offsets", "partition_data": [{"index": 0, "records": BATCH}]}]
        response = alice.call("produce", at_most=12, transactional_id=None, acks=1, timeout_ms=9000, topic_data=data)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_listener_for_clients_hides_the_apis_of_brokers(secured: Secured) -> None:
    hidden = ("initialize_share_group_state", "read_share_group_state", "write_share_group_state")
    elsewhere = ("vote", "alter_partition", "broker_registration", "envelope", "fetch_snapshot", "update_raft_voter")
    with secured.cluster("admin") as admin, Cluster(secured.open_address) as broker:
        offered = {row.api_key for row in admin.call("api_versions", at_most=2).api_keys}
        between = {row.api_key for row in broker.call("api_versions", at_most=2).api_keys}
    for name in hidden:
        assert request_schema(name).api_key not in offered
        assert request_schema(name).api_key in between
    for name in elsewhere:
        assert request_schema(name).api_key not in offered | between


# Without an authorizer


@pytest.fixture(scope="module")
def plain() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"offsets.topic.num.partitions": 1}) as broker:
        with Cluster(broker.bootstrap_servers) as cluster:
            cluster.call("find_coordinator", key_type=0, coordinator_keys=["evasion-group"])
        yield broker


def produce_internal(wire: Wire) -> int:
    return int(wire.produce("__consumer_offsets", BATCH).error_code)


def test_acls_without_an_authorizer(plain: EmbeddedBroker) -> None:
    with Cluster(plain.bootstrap_servers) as cluster:
        any_acl: dict[str, Any] = {
            "resource_type_filter": 1,
            "pattern_type_filter": 1,
            "operation": 1,
            "permission_type": 1,
        }
        assert cluster.call("describe_acls", **any_acl).error_code == ErrorCode.SECURITY_DISABLED
        acl = {"resource_type": 2, "resource_name": "x", "principal": "User:x", "host": "*", "operation": 3}
        created = cluster.call("create_acls", creations=[{**acl, "permission_type": 3}])
        assert created.results[0].error_code == ErrorCode.SECURITY_DISABLED
        deleted = cluster.call("delete_acls", filters=[any_acl])
        assert deleted.filter_results[0].error_code == ErrorCode.SECURITY_DISABLED


def test_forged_client_id_does_not_make_a_broker(plain: EmbeddedBroker) -> None:
    with Cluster(plain.bootstrap_servers, client_id=f"{BROKER_CLIENT_ID}1") as forger:
        data = [{"name": "__consumer_offsets", "partition_data": [{"index": 0, "records": BATCH}]}]
        response = forger.call("produce", at_most=12, transactional_id=None, acks=1, timeout_ms=9000, topic_data=data)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("claim", ["1", "1.unregistered", f"1.{'0' * 32}", f"2.{'0' * 32}", f"{'9' * 40}.x", "x.x"])
def test_forged_proofs_do_not_make_a_broker(plain: EmbeddedBroker, claim: str) -> None:
    with Wire(plain.bootstrap_servers) as wire:
        wire.call("api_versions", 3, client_software_name=BROKER_SOFTWARE, client_software_version=claim)
        assert produce_internal(wire) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_broker_that_proves_itself_may_write(plain: EmbeddedBroker) -> None:
    with Wire(plain.bootstrap_servers) as wire:
        act_as_broker(wire, plain.data_dir)
        assert produce_internal(wire) != ErrorCode.INVALID_TOPIC_EXCEPTION


def test_proof_is_not_shown(plain: EmbeddedBroker) -> None:
    secret = broker_proof(plain.data_dir).partition(".")[2]
    assert secret not in plain.log_file.read_text()


def test_client_listener_without_authorizer(tmp_path: Path) -> None:
    """A second listener is for clients alone: no fetch as a follower, no markers, no proof."""
    open_cluster = {"authorizer.class.name": "", "inter.broker.listener.name": "PLAINTEXT"}
    both = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:PLAINTEXT"}
    with secured_millstream(tmp_path, {**open_cluster, **both}) as broker:
        with Cluster(broker.open_address) as cluster:
            cluster.create_topic("t", 1, 1)
            cluster.call("find_coordinator", key_type=0, coordinator_keys=["evasion-group"])
        offered = {row.api_key for row in Cluster(broker.address).call("api_versions", at_most=2).api_keys}
        assert request_schema("write_txn_markers").api_key not in offered
        with Wire(broker.address) as wire:
            act_as_broker(wire, tmp_path / "data")
            assert produce_internal(wire) == ErrorCode.INVALID_TOPIC_EXCEPTION
        row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        fields = {"max_wait_ms": 0, "min_bytes": 0, "topics": [{"topic": "t", "partitions": [row]}]}
        with Wire(broker.address) as wire, pytest.raises(Closed):
            wire.call("fetch", 11, replica_id=1, **fields)
        with Wire(broker.address) as wire, pytest.raises(Closed):
            wire.call("write_txn_markers", 1, markers=[])
