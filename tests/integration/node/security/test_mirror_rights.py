"""Settings of mirroring with ACLs: who may change a topic may not make it a mirror, nor change the whole cluster; and
who may create a branch of a topic."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from millstream.admin.topics import TopicAdmin
from millstream.cli.main import main
from millstream.formats.model.access_control import AclOperation as Op
from millstream.formats.model.access_control import AclResourceType as Kind
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import Cluster
from tests.integration.node.security.authorization_walk import granted
from tests.integration.node.security.secured_broker import Secured, options, secured_millstream

TOPIC, BROKER, SET = 2, 4, 0
MIRROR = {
    "millstream.mirror.link": "west",
    "millstream.mirror.state": "mirroring",
    "millstream.mirror.source.topic": "not-for-alice",
    "millstream.mirror.source.topic.id": str(uuid4()),
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_millstream(tmp_path_factory.mktemp("mirror-rights")) as broker:
        with broker.cluster("admin") as admin:
            admin.create_topic("hers", 1, 1)
        yield broker


def alter(client: Cluster, kind: int, name: str, settings: dict[str, str]) -> int:
    configs = [{"name": each, "config_operation": SET, "value": value} for each, value in settings.items()]
    resource: dict[str, Any] = {"resource_type": kind, "resource_name": name, "configs": configs}
    response = client.call("incremental_alter_configs", resources=[resource], validate_only=False)
    return int(response.responses[0].error_code)


def test_the_owner_of_a_topic_does_not_make_it_a_mirror(secured: Secured) -> None:
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with (
        secured.cluster("admin") as admin,
        secured.cluster("alice") as alice,
        granted(admin, "User:alice", ((Kind.TOPIC, "hers", Op.ALTER_CONFIGS), (Kind.TOPIC, "new", Op.CREATE))),
    ):
        assert alter(alice, TOPIC, "hers", {"retention.ms": "1000000"}) == 0
        assert alter(alice, TOPIC, "hers", MIRROR) == denied
        # It would leave no producer ids to the whole cluster.
        assert alter(alice, TOPIC, "hers", {"millstream.mirror.producer.id": str(1 << 62)}) == denied
        configs = [{"name": each, "value": value} for each, value in MIRROR.items()]
        topic = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": configs}
        response = alice.call("create_topics", topics=[topic], timeout_ms=10_000, validate_only=False)
        assert response.topics[0].error_code == denied


def test_a_link_needs_more_than_settings_of_the_cluster(secured: Secured) -> None:
    """It may copy ACLs of any source, which only those may create who may ALTER the cluster."""
    link = {"millstream.mirror.link.west.bootstrap.servers": "127.0.0.1:1", "millstream.mirror.link.west.acls": "true"}
    settings = (Kind.CLUSTER, "kafka-cluster", Op.ALTER_CONFIGS)
    with secured.cluster("admin") as admin, secured.cluster("alice") as alice:
        with granted(admin, "User:alice", (settings,)):
            assert alter(alice, BROKER, "", {"log.cleaner.threads": "1"}) == 0
            assert alter(alice, BROKER, "", link) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        with granted(admin, "User:alice", (settings, (Kind.CLUSTER, "kafka-cluster", Op.ALTER))):
            assert alter(alice, BROKER, "", link) == 0


def test_a_branch_needs_create_on_its_name_and_read_on_the_parent(secured: Secured, tmp_path: Path) -> None:
    create, read = (Kind.TOPIC, "hers-test", Op.CREATE), (Kind.TOPIC, "hers", Op.READ)
    describe = (Kind.TOPIC, "hers", Op.DESCRIBE)
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    properties = tmp_path / "alice.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in options("alice").items()))

    def branch_over_the_wire(client: Cluster, topic_id: UUID) -> int:
        row = {
            "name": "hers-test",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [],
            "configs": [],
            "branch_of": "hers",
            "branch_of_id": topic_id,
            "branch_offsets": [0],
        }
        return int(client.call("create_topics", topics=[row], timeout_ms=10_000).topics[0].error_code)

    def branch_by_command() -> int:
        return main(
            ["topic", "branch", "hers", "hers-test", "-b", secured.address, "--command-config", str(properties)]
        )

    with secured.cluster("admin") as admin, secured.cluster("alice") as alice:
        topic_id = admin.topics(["hers"])["hers"].topic_id
        for needs in ((), (create,), (create, describe), (read,)):
            with granted(admin, "User:alice", needs):
                assert branch_over_the_wire(alice, topic_id) == denied, needs
                assert branch_by_command() != 0, needs
        assert "hers-test" not in admin.topics()
        with granted(admin, "User:alice", (create, read)):
            assert branch_over_the_wire(alice, topic_id) == 0
            TopicAdmin(admin).delete("hers-test")
        with granted(admin, "User:alice", (create, read, (Kind.TOPIC, "hers-test", Op.DESCRIBE))):
            assert branch_by_command() == 0
