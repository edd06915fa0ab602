"""Tiered storage in a cluster: new followers, new leaders, and brokers that lose their disks."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing import EmbeddedCluster
from tests.integration.node.tier.tiered_topic import (
    SETTINGS,
    SMALL,
    consume,
    local_logs,
    make_tiered,
    objects,
    produce,
    until_tiered,
    value_of,
)
from tests.topics import await_topic, delete_topic
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    store = tmp_path_factory.mktemp("tier")
    settings = {**SETTINGS, "millstream.tier.url": f"file://{store}", "offsets.topic.replication.factor": "1"}
    with EmbeddedCluster(settings=settings) as running:
        yield running


def _state(cluster: EmbeddedCluster, topic: str, ask: int) -> tuple[int, set[int]]:
    """Leader and in-sync replicas, as one broker knows them."""
    with Wire(cluster.address(ask)) as wire:
        (row,) = wire.call("metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False).topics
        (partition,) = row.partitions
        return partition.leader_id, set(partition.isr_nodes)


def _alive(cluster: EmbeddedCluster) -> int:
    return next(number for number in cluster.brokers if cluster.running(number))


def _until_in_sync(cluster: EmbeddedCluster, topic: str, count: int = 3) -> None:
    """By all brokers that run: one that has just started knows the in-sync replicas of the time before its stop."""

    def is_known() -> bool:
        running = [number for number in cluster.brokers if cluster.running(number)]
        return all(len(_state(cluster, topic, number)[1]) == count for number in running)

    until(is_known, f"{count} replicas of {topic} are in sync")


def _expect_all(cluster: EmbeddedCluster, topic: str, count: int) -> None:
    found = consume(cluster.bootstrap_servers, topic, count)
    assert [(each.offset(), each.value()) for each in found] == [(n, value_of(n)) for n in range(count)]


@pytest.mark.slow
def test_each_leader_serves_all_records(cluster: EmbeddedCluster) -> None:
    make_tiered(cluster.bootstrap_servers, "moves", replicas=3)
    await_topic(cluster, "moves")
    produce(cluster.bootstrap_servers, "moves", range(1000))
    for number in cluster.brokers:
        until_tiered(cluster.data_dir(number), "moves")
    written = 1000
    for _ in range(2):
        leader, _ = _state(cluster, "moves", _alive(cluster))
        cluster.kill(leader)
        until(lambda leader=leader: _state(cluster, "moves", _alive(cluster))[0] not in (leader, -1), "a new leader")  # type: ignore[misc]
        _expect_all(cluster, "moves", written)
        produce(cluster.bootstrap_servers, "moves", range(written, written + 500))
        written += 500
        cluster.start(leader)
        _until_in_sync(cluster, "moves")
        _expect_all(cluster, "moves", written)


def test_a_follower_with_an_empty_disk_starts_where_the_tier_ends(cluster: EmbeddedCluster) -> None:
    make_tiered(cluster.bootstrap_servers, "fresh", replicas=3)
    await_topic(cluster, "fresh")
    produce(cluster.bootstrap_servers, "fresh", range(1000))
    for number in cluster.brokers:
        start = until_tiered(cluster.data_dir(number), "fresh")
    leader, _ = _state(cluster, "fresh", _alive(cluster))
    empty = next(number for number in cluster.brokers if number != leader)
    cluster.stop(empty)
    _until_in_sync(cluster, "fresh", 2)
    shutil.rmtree(cluster.data_dir(empty) / "fresh-0")
    cluster.start(empty)
    _until_in_sync(cluster, "fresh")
    assert int(local_logs(cluster.data_dir(empty), "fresh")[0][:20]) >= start
    produce(cluster.bootstrap_servers, "fresh", range(1000, 1400))
    _until_in_sync(cluster, "fresh")
    others = [number for number in cluster.brokers if number != empty]
    cluster.stop(others[0])
    _elect(cluster, "fresh", empty)
    _expect_all(cluster, "fresh", 1400)
    with Wire(cluster.address(empty)) as wire:
        row = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
        response = wire.call(
            "offset_for_leader_epoch", 4, replica_id=-1, topics=[{"topic": "fresh", "partitions": [row]}]
        )
        (found,) = response.topics[0].partitions
        assert (found.error_code, found.leader_epoch) == (0, 0)
        assert found.end_offset > 900, "the epochs of the tier are known"
    cluster.start(others[0])
    _until_in_sync(cluster, "fresh")


def _elect(cluster: EmbeddedCluster, topic: str, wanted: int) -> None:
    """Makes a broker the leader: other leaders are restarted until it is."""

    def leads() -> bool:
        leader, _ = _state(cluster, topic, wanted)
        if leader == wanted:
            return True
        if leader >= 0 and cluster.running(leader):
            cluster.restart(leader)
        return False

    until(leads, f"broker {wanted} leads {topic}")


def test_after_an_unclean_election_tier_and_disks_have_the_same_records(cluster: EmbeddedCluster) -> None:
    """A replica without the newest tiered records becomes leader: they are lost, in the tier too. The replica that had
    them on its disk, and has deleted most of them there, takes over what the others have."""
    risky = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    make_tiered(cluster.bootstrap_servers, "unclean", risky, replicas=2)
    await_topic(cluster, "unclean")
    produce(cluster.bootstrap_servers, "unclean", range(500))
    _until_in_sync(cluster, "unclean", 2)
    first, in_sync = _state(cluster, "unclean", _alive(cluster))
    (behind,) = in_sync - {first}
    cluster.stop(behind)
    produce(cluster.bootstrap_servers, "unclean", range(500, 1000))
    until_tiered(cluster.data_dir(first), "unclean", 800)
    cluster.kill(first)
    cluster.start(behind)
    until(lambda: _state(cluster, "unclean", behind)[0] == behind, "the replica that is behind leads")
    produce(cluster.bootstrap_servers, "unclean", range(5000, 5600))
    until_tiered(cluster.data_dir(behind), "unclean", 900)
    wanted = list(enumerate(value_of(number) for number in (*range(500), *range(5000, 5600))))

    def read() -> list[tuple[int | None, bytes | None]]:
        return [(each.offset(), each.value()) for each in consume(cluster.bootstrap_servers, "unclean", 1100)]

    assert read() == wanted
    cluster.start(first)
    _until_in_sync(cluster, "unclean", 2)
    cluster.stop(behind)
    until(lambda: _state(cluster, "unclean", first)[0] == first, "the first leader leads again")
    assert read() == wanted
    produce(cluster.bootstrap_servers, "unclean", range(6000, 6100))
    cluster.start(behind)
    _until_in_sync(cluster, "unclean", 2)


def test_a_tiered_partition_moves_to_other_brokers(cluster: EmbeddedCluster) -> None:
    """New replicas copy what is on the disk of the leader; the rest they read from the tier."""
    make_tiered(cluster.bootstrap_servers, "reassigned", replicas=1)
    await_topic(cluster, "reassigned")
    written = 0
    for _ in range(2):
        produce(cluster.bootstrap_servers, "reassigned", range(written, written + 700))
        written += 700
        leader, replicas = _state(cluster, "reassigned", _alive(cluster))
        assert replicas == {leader}
        start = until_tiered(cluster.data_dir(leader), "reassigned", written - 400)
        wanted = next(number for number in cluster.brokers if number != leader)
        row = {"partition_index": 0, "replicas": [wanted]}
        with Wire(cluster.address(leader)) as wire:
            response = wire.call(
                "alter_partition_reassignments",
                0,
                topics=[{"name": "reassigned", "partitions": [row]}],
                timeout_ms=int(TIMEOUT_SECONDS * 1000),
            )
            assert response.error_code == 0 and response.responses[0].partitions[0].error_code == 0, response
        until(lambda wanted=wanted: _state(cluster, "reassigned", wanted) == (wanted, {wanted}), "it has moved")  # type: ignore[misc]
        assert int(local_logs(cluster.data_dir(wanted), "reassigned")[0][:20]) >= start
        _expect_all(cluster, "reassigned", written)


def test_deleted_records_stay_deleted_with_a_new_leader(cluster: EmbeddedCluster) -> None:
    admin: AdminClient = make_tiered(cluster.bootstrap_servers, "shorter", replicas=3)
    await_topic(cluster, "shorter")
    produce(cluster.bootstrap_servers, "shorter", range(1000))
    for number in cluster.brokers:
        until_tiered(cluster.data_dir(number), "shorter")
    at = TopicPartition("shorter", 0, 400)
    assert admin.delete_records([at])[at].result(TIMEOUT_SECONDS).low_watermark == 400
    leader, _ = _state(cluster, "shorter", _alive(cluster))
    cluster.kill(leader)
    until(lambda: _state(cluster, "shorter", _alive(cluster))[0] not in (leader, -1), "a new leader")
    found = consume(cluster.bootstrap_servers, "shorter", 600, first=400)
    assert [each.offset() for each in found] == list(range(400, 1000))
    with Wire(cluster.address(_state(cluster, "shorter", _alive(cluster))[0])) as wire:
        row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}
        response = wire.call(
            "list_offsets", 11, replica_id=-1, isolation_level=0, topics=[{"name": "shorter", "partitions": [row]}]
        )
        assert response.topics[0].partitions[0].offset == 400
    cluster.start(leader)
    _until_in_sync(cluster, "shorter")


def test_the_data_directory_has_no_strange_directory(cluster: EmbeddedCluster) -> None:
    """Kafka refuses directories that are no partitions, but for this one."""
    for number in cluster.brokers:
        strange = [
            each.name for each in Path(cluster.data_dir(number)).iterdir() if each.is_dir() and "-" not in each.name
        ]
        assert strange in ([], ["remote-log-index-cache"])


def test_the_objects_of_a_topic_go_that_is_deleted_while_its_leader_is_down(tmp_path: Path) -> None:
    """Another broker has seen that it was deleted, so it is not taken for a topic of a lost cluster."""
    settings = {**SETTINGS, "millstream.tier.url": f"file://{tmp_path}", "offsets.topic.replication.factor": "1"}
    sweeps = {"millstream.tier.sweep.interval.ms": "200", "millstream.tier.sweep.age.ms": "0"}
    with EmbeddedCluster(settings=settings | sweeps) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers, "log_level": 0})
        topic = NewTopic("alone", 1, replica_assignment=[[3]], config=SMALL)
        admin.create_topics([topic])["alone"].result(TIMEOUT_SECONDS)
        await_topic(running, "alone")
        produce(running.bootstrap_servers, "alone", range(500))
        until_tiered(running.data_dir(3), "alone")
        assert objects(tmp_path)
        running.kill(3)
        delete_topic(running, "alone")
        until(lambda: not [*tmp_path.rglob("*.segment"), *tmp_path.rglob("*.json")], "all objects are deleted")
