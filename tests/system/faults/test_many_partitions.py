"""Ten thousand partitions on one node: bounded memory and descriptors, and a start that does not open them all."""

import os
from pathlib import Path

import pytest

from millstream.testing import EmbeddedBroker
from tests.wire import Wire, batch, values

TOPICS, PARTITIONS = 1000, 10
LARGEST_RESIDENT_MB = 400
LARGEST_DESCRIPTORS = 6000


def resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.slow
def test_a_broker_with_ten_thousand_partitions_restarts(tmp_path: Path) -> None:
    with EmbeddedBroker(data_dir=tmp_path / "data", stop_timeout=120, start_timeout=120) as broker:
        with Wire(broker.bootstrap_servers, timeout=120) as wire:
            for first in range(0, TOPICS, 100):
                topics = [
                    {"name": f"t{number}", "num_partitions": PARTITIONS, "replication_factor": 1}
                    for number in range(first, first + 100)
                ]
                rows = wire.call("create_topics", 7, topics=topics, timeout_ms=60_000).topics
                assert {row.error_code for row in rows} == {0}
            partitions = [{"index": index, "records": batch(b"value")} for index in range(PARTITIONS)]
            for number in range(TOPICS):
                data = [{"name": f"t{number}", "partition_data": partitions}]
                (row,) = wire.call("produce", 9, acks=-1, timeout_ms=60_000, topic_data=data).responses
                assert {partition.error_code for partition in row.partition_responses} == {0}
            assert sum(not topic.is_internal for topic in wire.call("metadata", 12, topics=None).topics) == TOPICS
        print(f"in use: {resident_mb(broker.pid):.0f} MB, {descriptors(broker.pid)} descriptors")
        assert resident_mb(broker.pid) < LARGEST_RESIDENT_MB
        assert descriptors(broker.pid) < LARGEST_DESCRIPTORS
        broker.restart()
        print(f"started: {resident_mb(broker.pid):.0f} MB, {descriptors(broker.pid)} descriptors")
        assert resident_mb(broker.pid) < LARGEST_RESIDENT_MB / 2
        assert descriptors(broker.pid) < 200
        with Wire(broker.bootstrap_servers, timeout=120) as wire:
            for number in (0, 499, TOPICS - 1):
                assert values(wire.fetch(f"t{number}", partition=PARTITIONS - 1).records) == [b"value"]
        broker.kill()
        broker.start()
        with Wire(broker.bootstrap_servers, timeout=120) as wire:
            assert values(wire.fetch("t500", partition=3).records) == [b"value"]
