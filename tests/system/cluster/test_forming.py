"""Nodes on empty disks become a cluster, and stay the same one."""

from functools import partial
from pathlib import Path

from millstream.testing import EmbeddedCluster
from tests.system.cluster.conftest import Writer, admin, create_topic, eventually, leader_of, new_topic, read_all
from tests.topics import await_topic
from tests.waiting import TIMEOUT_SECONDS


def cluster_ids(cluster: EmbeddedCluster) -> set[str]:
    found = set()
    for number in cluster.nodes:
        lines = (cluster.data_dir(number) / "meta.properties").read_text().splitlines()
        found.add(next(line.partition("=")[2] for line in lines if line.startswith("cluster.id=")))
    return found


def brokers_seen(address: str) -> set[int]:
    return set(admin(address).list_topics(timeout=TIMEOUT_SECONDS).brokers)


def test_three_files_as_kafkas_documentation_writes_them_make_a_cluster(cluster: EmbeddedCluster) -> None:
    assert len(cluster_ids(cluster)) == 1
    for number in cluster.brokers:
        eventually(partial(_sees, cluster.address(number), {1, 2, 3}))
    create_topic(cluster, "first", partitions=3)
    writer = Writer(cluster.bootstrap_servers)
    for partition in range(3):
        writer.write("first", 100, partition)
    for partition in range(3):
        found = read_all(cluster.bootstrap_servers, "first", partition, end=100)
        assert found == {number: b"%d" % number for number in range(100)}


def _sees(address: str, brokers: set[int]) -> None:
    assert brokers_seen(address) == brokers


def test_admin_requests_sent_to_any_broker_reach_the_controller(cluster: EmbeddedCluster) -> None:
    for number in cluster.brokers:
        name = f"by-way-of-{number}"
        new_topic(cluster.address(number), name, 1, 3)
        await_topic(cluster, name, 1)
        assert leader_of(cluster, name) in cluster.brokers


def test_a_cluster_that_was_stopped_comes_back_with_its_id_and_its_records(tmp_path: Path) -> None:
    with EmbeddedCluster(3, data_dir=tmp_path) as cluster:
        create_topic(cluster, "kept")
        Writer(cluster.bootstrap_servers).write("kept", 50)
        before = cluster_ids(cluster)
        cluster.stop()
        cluster.start()
        assert cluster_ids(cluster) == before
        assert len(read_all(cluster.bootstrap_servers, "kept", end=50)) == 50
        cluster.kill()
        cluster.start()
        assert len(read_all(cluster.bootstrap_servers, "kept", end=50)) == 50
        Writer(cluster.bootstrap_servers).write("kept", 50)


def test_a_controller_and_two_brokers_form_a_cluster(tmp_path: Path) -> None:
    with EmbeddedCluster(2, {"cluster.id": "4L6g3nShT-eMCtK--X86sw"}, controllers=1, data_dir=tmp_path) as cluster:
        assert cluster_ids(cluster) == {"4L6g3nShT-eMCtK--X86sw"}
        eventually(lambda: _sees(cluster.address(1), {1, 2}))
        create_topic(cluster, "t", replicas=2)
        writer = Writer(cluster.bootstrap_servers)
        writer.write("t", 10)
        cluster.kill(3)
        writer.write("t", 10)  # what is decided already needs no controller
        cluster.start(3)
        create_topic(cluster, "later", replicas=2)
