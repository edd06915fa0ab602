"""Conditional append while leaders are killed: two writers, real processes; the log is what the winners wrote."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from millstream.formats.records.record import Record, read_batches
from millstream.raw_client import Cluster, TopicPartition
from millstream.raw_client.conditional import ConditionalProducer, UnexpectedEndError
from millstream.testing import EmbeddedCluster
from tests.topics import make_topic
from tests.waiting import until
from tests.wire import now_ms

AT = TopicPartition("events", 0)


class Writer(threading.Thread):
    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(name=name)
        self._servers = bootstrap
        self.won: dict[int, bytes] = {}
        self.failure: Exception | None = None
        self.stopped = threading.Event()

    def run(self) -> None:
        try:
            with Cluster(self._servers) as cluster:
                self._write(ConditionalProducer(cluster, timeout_s=60.0))
        except Exception as error:
            self.failure = error

    def _write(self, producer: ConditionalProducer) -> None:
        expected = number = 0
        while not self.stopped.is_set():
            value = f"{self.name}/{number}".encode()
            number += 1
            try:
                end = producer.append(AT, [Record(None, value, timestamp=now_ms())], expected)
                assert end == expected + 1
                self.won[expected] = value
                expected = end
            except UnexpectedEndError as error:
                expected = error.end_offset


@pytest.mark.timeout(240)
def test_leaders_are_killed() -> None:
    with EmbeddedCluster(3) as nodes:
        make_topic(nodes, AT.topic, config={"min.insync.replicas": "2"})
        writers = [Writer(nodes.bootstrap_servers, name) for name in ("a", "b")]
        for writer in writers:
            writer.start()

        def won() -> int:
            return sum(len(writer.won) for writer in writers)

        def more_than(count: int) -> bool:
            return won() > count

        with Cluster(nodes.bootstrap_servers) as cluster:
            until(partial(more_than, 20))
            for _ in range(2):
                cluster.refresh_leader(AT.topic)
                leader = cluster.leader_of(AT).node_id
                nodes.kill(leader)
                until(partial(more_than, won() + 20))
                nodes.start(leader)
            for writer in writers:
                writer.stopped.set()
            for writer in writers:
                writer.join()
            assert [writer.failure for writer in writers] == [None, None]
            first, second = (writer.won for writer in writers)
            assert not first.keys() & second.keys()  # no expectation was met twice
            assert first and second
            written = {**first, **second}
            assert read(cluster, max(written) + 1) == [written[offset] for offset in sorted(written)]
            assert sorted(written) == list(range(len(written)))


def read(cluster: Cluster, end: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < end:
        data = cluster.fetch(AT, len(found), max_bytes=1 << 20, max_wait_ms=1000).data
        found += [
            record.value for _, records in read_batches(data) for record in records if record.offset >= len(found)
        ]
    return found[:end]
