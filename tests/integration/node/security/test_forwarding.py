"""Requests that a broker forwards to a controller in another process are authorized as those of the client."""

from pathlib import Path

from millstream.formats.model.access_control import AclOperation as Op
from millstream.formats.model.access_control import AclResourceType as Kind
from millstream.formats.model.errors import ErrorCode
from tests.integration.node.security.authorization_walk import granted
from tests.integration.node.security.secured_broker import secured_pair


def test_the_controller_authorizes_the_client(tmp_path: Path) -> None:
    topic = {"name": "forwarded", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    with secured_pair(tmp_path) as pair, pair.cluster("admin") as admin, pair.cluster("alice") as alice:

        def create(name: str) -> int:
            response = alice.call("create_topics", topics=[{**topic, "name": name}], timeout_ms=10_000)
            return int(response.topics[0].error_code)

        assert create("forwarded") == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with granted(admin, "User:alice", ((Kind.TOPIC, "forwarded", Op.CREATE),), host="10.9.9.9"):
            assert create("forwarded") == ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the address is the client's"
        with granted(admin, "User:alice", ((Kind.TOPIC, "forwarded", Op.CREATE),), host="127.0.0.1"):
            assert create("forwarded") == 0
            assert create("other") == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert alice.call("describe_quorum", topics=[]).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert alice.call("remove_raft_voter", cluster_id=None, voter_id=1).error_code == 31
        created = alice.call("create_acls", creations=[])
        assert created.results == []
        # Internal topics are created by the broker itself, and clients find their coordinator.
        with granted(admin, "User:alice", ((Kind.GROUP, "g", Op.READ),)):
            found = alice.call("find_coordinator", key_type=0, coordinator_keys=["g"])
            assert found.coordinators[0].error_code in (0, ErrorCode.COORDINATOR_NOT_AVAILABLE)
