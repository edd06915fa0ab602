"""What clients notice when nodes die, stop, hang or come back."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from millstream.testing import EmbeddedCluster
from tests.system.cluster.conftest import Writer, create_topic, described, eventually, leader_of, read_all

QUICK = {"broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500, "replica.lag.time.max.ms": 3000}


def write_while(cluster: EmbeddedCluster, topic: str, partitions: int, happening: Callable[[], None]) -> Writer:
    """Writes all the time while something happens, and returns the writer with what was acknowledged."""
    writer = Writer(cluster.bootstrap_servers)
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            writer.send(topic, b"%d" % number, number % partitions)
            number += 1
            time.sleep(0.002)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        time.sleep(0.5)
        happening()
        time.sleep(0.5)
    finally:
        over.set()
        thread.join()
    writer.flush()
    return writer


def check_nothing_lost(cluster: EmbeddedCluster, topic: str, writer: Writer) -> None:
    assert not writer.errors, writer.errors
    for partition, acked in writer.acked.items():
        found = read_all(cluster.bootstrap_servers, topic, partition, end=max(acked) + 1)
        assert {offset: found.get(offset) for offset in acked} == acked
        values = list(found.values())
        assert len(set(values)) == len(values), "a record is there twice"
        assert [int(value) for value in values] == sorted(int(value) for value in values), (
            "the order is not the sender's"
        )


def test_kill_9_of_every_node_in_turn_loses_nothing(tmp_path: Path) -> None:
    with EmbeddedCluster(3, {**QUICK, "min.insync.replicas": 2}, data_dir=tmp_path) as cluster:
        create_topic(cluster, "t", partitions=3)

        def kill_each() -> None:
            for number in cluster.nodes:
                cluster.kill(number)
                time.sleep(1.0)
                cluster.start(number)
                eventually(lambda: described(cluster, "t", in_sync=3))

        writer = write_while(cluster, "t", 3, kill_each)
        check_nothing_lost(cluster, "t", writer)


def test_a_rolling_restart_under_load_gives_no_error(tmp_path: Path) -> None:
    with EmbeddedCluster(3, {"min.insync.replicas": 2}, data_dir=tmp_path) as cluster:
        create_topic(cluster, "t", partitions=6)

        def restart_each() -> None:
            for number in cluster.nodes:
                cluster.restart(number)
                eventually(lambda: described(cluster, "t", in_sync=3))

        writer = write_while(cluster, "t", 6, restart_each)
        check_nothing_lost(cluster, "t", writer)


def test_a_leader_that_slept_through_its_successor_harms_nothing(tmp_path: Path) -> None:
    with EmbeddedCluster(3, {**QUICK, "min.insync.replicas": 2}, data_dir=tmp_path) as cluster:
        create_topic(cluster, "t")
        asleep = leader_of(cluster, "t")

        def sleep_and_wake() -> None:
            cluster.pause(asleep)
            try:
                eventually(lambda: _leads_another(cluster, asleep), seconds=60)
                time.sleep(1)
            finally:
                cluster.resume(asleep)
            eventually(lambda: described(cluster, "t", in_sync=3))

        writer = write_while(cluster, "t", 1, sleep_and_wake)
        check_nothing_lost(cluster, "t", writer)


def _leads_another(cluster: EmbeddedCluster, asleep: int) -> None:
    from tests.system.cluster.conftest import admin

    awake = next(number for number in cluster.brokers if number != asleep)
    partition = admin(cluster.address(awake)).list_topics("t", timeout=20).topics["t"].partitions[0]
    assert partition.leader not in (asleep, -1)
