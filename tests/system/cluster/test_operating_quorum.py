"""Nodes that join a running cluster by `controller.quorum.bootstrap.servers`, become voters and replace others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import EmbeddedCluster
from tests.system.cluster.conftest import Writer, admin, eventually, new_topic, read_all
from tests.system.cluster.kafka_tools import KafkaTools
from tests.topics import await_topic
from tests.waiting import TIMEOUT_SECONDS
from tools import apache_kafka

VOTER, BROKER = "4", "5"


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[KafkaTools]:
    try:
        run = KafkaTools(tmp_path / "tools.log")
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"Apache Kafka's tools: {reason}")
    yield run
    run.close()


def joining(cluster: EmbeddedCluster, number: str, *, votes: bool) -> EmbeddedCluster:
    """A node of that number which knows nothing but where the cluster's controllers are."""
    controllers = ",".join(cluster.controller_address(each) for each in cluster.controllers)
    settings = {
        "node.id": number,
        "controller.quorum.voters": "",
        "controller.quorum.bootstrap.servers": controllers,
    }
    return EmbeddedCluster(1, controllers=0 if votes else 1, node_settings={1: settings})


def test_voters_are_replaced_one_by_one(tmp_path: Path, tools: KafkaTools) -> None:
    with EmbeddedCluster(3, {"min.insync.replicas": 2}) as cluster:
        at = ("--bootstrap-server", cluster.bootstrap_servers)

        def voters() -> dict[str, list[str]]:
            said = tools("kafka-metadata-quorum", *at, "describe", "--replication")
            return {row[0]: row for row in (line.split() for line in said.splitlines()) if row and row[0].isdigit()}

        tools("kafka-features", *at, "upgrade", "--feature", "kraft.version=1")
        voter, broker = joining(cluster, VOTER, votes=True), joining(cluster, BROKER, votes=False)
        try:
            voter.start(1)
            broker.start(1)
            assert {voters()[number][-1] for number in (VOTER, BROKER)} == {"Observer"}
            config = ("--command-config", str(voter.write_properties(1)))
            assert "Added controller 4" in tools("kafka-metadata-quorum", *config, *at, "add-controller")
            gone = ("--controller-id", "1", "--controller-directory-id", voters()["1"][1])
            assert "Removed" in tools("kafka-metadata-quorum", *at, "remove-controller", *gone)
            # It keeps its place over a restart, and its vote counts: 2 is away, 3 and 4 are the majority.
            voter.restart(1)
            cluster.kill(2)
            new_topic(voter.address(1), "on-the-new-ones", 2, 4)
            for each in (cluster, voter, broker):
                await_topic(each, "on-the-new-ones", 2)
            eventually(lambda: _sees(broker.address(1), {1, 3, 4, 5}))
            writer = Writer(f"{voter.address(1)},{broker.address(1)}")
            writer.write("on-the-new-ones", 20)
            assert len(read_all(broker.address(1), "on-the-new-ones", end=20)) == 20
        finally:
            voter.close()
            broker.close()


def _sees(address: str, brokers: set[int]) -> None:
    assert {node.id for node in admin(address).list_topics(timeout=TIMEOUT_SECONDS).brokers.values()} == brokers
