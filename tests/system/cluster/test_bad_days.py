"""Wrong disks, wrong files, too few nodes: refused with one line that says what to do, and nothing else suffers."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from millstream.testing import EmbeddedCluster
from millstream.testing.node_process import NodeProcessError
from tests.system.cluster.conftest import Writer, create_topic, eventually, read_all


def refusal(cluster: EmbeddedCluster, number: int) -> str:
    """The line with which a node that should not start says so."""
    with pytest.raises(NodeProcessError) as caught:
        cluster.start(number)
    assert "exit code" in str(caught.value)
    lines = [line for line in cluster.log_file(number).read_text().splitlines() if line.startswith("millstream: ")]
    assert lines, caught.value
    return lines[-1]


class TwoOfThree(NamedTuple):
    """A cluster that works, of whose nodes the third was stopped; and a copy of its disk."""

    cluster: EmbeddedCluster
    disk: Path


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoOfThree]:
    directory = tmp_path_factory.mktemp("bad-days")
    with EmbeddedCluster(3, data_dir=directory / "cluster") as cluster:
        create_topic(cluster, "t")
        cluster.stop(3)
        shutil.copytree(cluster.data_dir(3), directory / "disk")
        yield TwoOfThree(cluster, directory / "disk")


@pytest.fixture
def two_of_three(started: TwoOfThree) -> EmbeddedCluster:
    """The third node has its disk and its settings again."""
    cluster = started.cluster
    shutil.rmtree(cluster.data_dir(3))
    shutil.copytree(started.disk, cluster.data_dir(3))
    cluster._node_settings.clear()
    return cluster


def still_serves(cluster: EmbeddedCluster) -> None:
    Writer(cluster.bootstrap_servers).write("t", 10)


def test_a_node_with_the_disk_of_another_cluster(two_of_three: EmbeddedCluster, tmp_path: Path) -> None:
    cluster = two_of_three
    with EmbeddedCluster(3, data_dir=tmp_path) as other:
        other.stop()
    shutil.rmtree(cluster.data_dir(3))
    shutil.copytree(other.data_dir(3), cluster.data_dir(3))
    said = refusal(cluster, 3)
    assert "another cluster" in said and "empty data directory" in said
    still_serves(cluster)


def test_a_cluster_id_that_is_not_the_clusters(two_of_three: EmbeddedCluster) -> None:
    shutil.rmtree(two_of_three.data_dir(3))
    two_of_three._node_settings[3] = {"cluster.id": "4L6g3nShT-eMCtK--X86sw"}
    assert "4L6g3nShT-eMCtK--X86sw" in refusal(two_of_three, 3)
    still_serves(two_of_three)


def test_two_nodes_with_one_number(tmp_path: Path) -> None:
    """A broker that calls itself as another one does is refused while the other lives."""
    with EmbeddedCluster(2, controllers=1, data_dir=tmp_path) as cluster:
        create_topic(cluster, "t", replicas=2)
        cluster.stop(2)
        cluster._node_settings[2] = {"node.id": 1}
        shutil.rmtree(cluster.data_dir(2))
        said = refusal(cluster, 2)
        assert "node.id=1" in said
        still_serves(cluster)


def test_a_node_with_other_voters_is_refused(two_of_three: EmbeddedCluster) -> None:
    voters = ",".join(f"{number}@{two_of_three.controller_address(number)}" for number in (1, 3))
    two_of_three._node_settings[3] = {"controller.quorum.voters": voters}
    assert "controller.quorum.voters" in refusal(two_of_three, 3)
    still_serves(two_of_three)


def test_a_metadata_log_that_is_corrupt(two_of_three: EmbeddedCluster) -> None:
    directory = two_of_three.data_dir(3) / "__cluster_metadata-0"
    log = max(directory.glob("*.log"))
    content = bytearray(log.read_bytes())
    content[len(content) // 3] ^= 0xFF
    log.write_bytes(content)
    said = refusal(two_of_three, 3)
    assert "metadata" in said and str(directory) in said
    still_serves(two_of_three)


def test_without_a_majority_what_is_committed_can_be_read_and_service_returns_by_itself(tmp_path: Path) -> None:
    settings = {"min.insync.replicas": 2, "broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500}
    with EmbeddedCluster(3, settings, data_dir=tmp_path) as cluster:
        create_topic(cluster, "t")
        Writer(cluster.bootstrap_servers).write("t", 20)
        leader = _leader_after_losing_the_others(cluster)
        assert len(read_all(cluster.address(leader), "t", end=20)) == 20
        writer = Writer(cluster.bootstrap_servers, **{"delivery.timeout.ms": 4000, "request.timeout.ms": 2000})
        writer.send("t", b"must not be acknowledged")
        writer.flush()
        assert writer.acked_count == 0 and len(writer.errors) == 1
        cluster.start(*(number for number in cluster.nodes if number != leader))
        eventually(lambda: still_serves(cluster))


def _leader_after_losing_the_others(cluster: EmbeddedCluster) -> int:
    from tests.system.cluster.conftest import leader_of

    leader = leader_of(cluster, "t")
    cluster.kill(*(number for number in cluster.nodes if number != leader))
    return leader
