"""What clients notice when nodes die, stop, hang or come back."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.testing import EmbeddedCluster
from tests.system.cluster.conftest import Writer, admin, create_topic, described, eventually, leader_of, read_all
from tests.waiting import TIMEOUT_SECONDS

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


@pytest.fixture(scope="module")
def quick() -> Iterator[EmbeddedCluster]:
    """Notices soon that a node is gone."""
    with EmbeddedCluster(3, {**QUICK, "min.insync.replicas": 2}) as cluster:
        yield cluster


def test_kill_9_of_every_node_in_turn_loses_nothing(quick: EmbeddedCluster) -> None:
    create_topic(quick, "t", partitions=3)

    def kill_each() -> None:
        for number in quick.nodes:
            quick.kill(number)
            time.sleep(1.0)
            quick.start(number)
            eventually(lambda: described(quick, "t", in_sync=3))

    writer = write_while(quick, "t", 3, kill_each)
    check_nothing_lost(quick, "t", writer)


def test_a_rolling_restart_under_load_gives_no_error(tmp_path: Path) -> None:
    with EmbeddedCluster(3, {"min.insync.replicas": 2}, data_dir=tmp_path) as cluster:
        create_topic(cluster, "t", partitions=6)

        def restart_each() -> None:
            for number in cluster.nodes:
                cluster.restart(number)
                eventually(lambda: described(cluster, "t", in_sync=3))

        writer = write_while(cluster, "t", 6, restart_each)
        check_nothing_lost(cluster, "t", writer)


def test_a_leader_that_slept_through_its_successor_harms_nothing(quick: EmbeddedCluster) -> None:
    create_topic(quick, "slept")
    asleep = leader_of(quick, "slept")

    def sleep_and_wake() -> None:
        quick.pause(asleep)
        try:
            eventually(lambda: _leads_another(quick, asleep))
            time.sleep(1)
        finally:
            quick.resume(asleep)
        eventually(lambda: described(quick, "slept", in_sync=3))

    writer = write_while(quick, "slept", 1, sleep_and_wake)
    check_nothing_lost(quick, "slept", writer)


def _leads_another(cluster: EmbeddedCluster, asleep: int) -> None:
    awake = next(number for number in cluster.brokers if number != asleep)
    topics = admin(cluster.address(awake)).list_topics("slept", timeout=TIMEOUT_SECONDS).topics
    assert topics["slept"].partitions[0].leader not in (asleep, -1)
