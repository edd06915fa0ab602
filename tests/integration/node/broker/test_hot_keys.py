"""Sampling and reporting, on real logs with a clock of our own: one tick is one second."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from millstream.config.loading import load_broker_config
from millstream.formats.records.record import Record, build_batch, read_batches
from millstream.node.broker.broker import Broker
from millstream.node.data.internal_client import InternalProducer
from millstream.node.environment import Environment
from millstream.node.hot_keys import hot_keys
from millstream.node.hot_keys.hot_keys import FOLLOWED_TOPICS, REPORT_TOPIC, HotKeys
from millstream.node.metadata.image import ResourceType
from millstream.node.metadata.topics import NewTopic
from millstream.node.runtime.disk import RealDisk
from millstream.node.runtime.node import Node
from millstream.node.runtime.real_environment import real_environment
from millstream.node.server.network import SocketNetwork

T = TypeVar("T")


class Bench:
    """A node without clients, whose hot keys tick when told to."""

    def __init__(self, directory: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._node = Node(
            load_broker_config(listen="127.0.0.1:0", data_dir=str(directory)), real_environment(self.loop), RealDisk()
        )
        self.loop.run_until_complete(self._node.start())
        assert isinstance(self._node.broker, Broker)
        assert self._node._maintenance is not None
        self._node._maintenance.cancel()
        self.broker = self._node.broker
        self.time_ms = 1_800_000_000_000
        self._environment = Environment(self, self.loop, self._offload, random.Random(11), SocketNetwork(self.loop))
        self.begin()

    def begin(self) -> None:
        """As after a start: nothing is known of any topic."""
        broker, started = self.broker, self.broker.hot_keys
        writer = InternalProducer(broker.view, broker.partitions, broker.peers, self._environment)
        broker.hot_keys = HotKeys(broker.view, broker.partitions, started._internal_topics, writer, self._environment)
        broker.replicas.roles.on_opened = broker.hot_keys.opened

    def now_ms(self) -> int:
        return self.time_ms

    def _offload(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        done: asyncio.Future[T] = self.loop.create_future()
        done.set_result(function())
        return done

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        new = NewTopic(name=name, partition_count=partitions, configs=configs)
        self.loop.run_until_complete(self.broker.link.create_topics([new]))

    def delete(self, name: str) -> None:
        self.ask("delete_topics", {"topics": [{"name": name}], "timeout_ms": 1000})

    def ask(self, api: str, fields: dict[str, Any]) -> None:
        self.loop.run_until_complete(self.broker.link.request(api, fields))

    def append(self, topic: str, partition: int, keys: Sequence[bytes | None], size: int = 10) -> None:
        records = [Record(key, b"v" * size, timestamp=self.time_ms) for key in keys]
        self.broker.partitions.find(topic, partition).append(memoryview(build_batch(records)), self.time_ms)

    def tick(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.time_ms += 1000
            self.broker.hot_keys.tick()
            self.loop.run_until_complete(asyncio.sleep(0))
            writing = self.broker.hot_keys._writing
            if writing is not None:
                self.loop.run_until_complete(writing)

    def reports(self) -> list[tuple[str, dict[str, Any] | None]]:
        if REPORT_TOPIC not in self.broker.view.image.topics:
            return []
        log = self.broker.partitions.find(REPORT_TOPIC, 0).log
        data = b""
        if log.log_end_offset:
            data = log.read(0, 1 << 24, up_to=log.log_end_offset, at_least_one=True).read()
        return [
            ((record.key or b"").decode(), None if record.value is None else json.loads(record.value))
            for _, records in read_batches(data)
            for record in records
        ]

    def close(self) -> None:
        self.loop.run_until_complete(self._node.stop())
        self.loop.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    running = Bench(tmp_path)
    yield running
    running.close()


def test_shares_are_right_whatever_the_batches(bench: Bench) -> None:
    """`bulk` comes in large batches, `single` one by one and to another partition."""
    bench.create("t", 2)
    for _ in range(150):
        bench.append("t", 0, [b"bulk"] * 150 + [b"other-%d" % n for n in range(50)])
        for _ in range(20):
            bench.append("t", 1, [b"single"], 100)
        bench.tick()
    name, report = bench.reports()[-1]
    assert (name, report is not None) == ("t/1", True)
    assert report is not None
    assert report["records_per_second"] == pytest.approx(220, rel=0.05)
    assert {row["partition"]: round(row["records_per_second"]) for row in report["partitions"]} == {0: 200, 1: 20}
    by_key = {row["key"]: row for row in report["keys"]}
    assert by_key["bulk"]["record_share"] == pytest.approx(150 / 220, abs=0.1)
    assert by_key["single"]["record_share"] == pytest.approx(20 / 220, abs=0.05)
    assert [row["key"] for row in report["keys"][:1]] == ["bulk"]


def test_bytes_are_counted_over_segments(bench: Bench) -> None:
    bench.create("t", 1, **{"segment.bytes": str(1 << 20)})
    bench.tick()
    for _ in range(3):
        bench.append("t", 0, [None] * 10, 90_000)
    assert len(bench.broker.partitions.find("t", 0).log.segments) == 3
    bench.tick(11)
    (report,) = [document for _, document in bench.reports()]
    assert report is not None
    # All within one second of eleven that count, the younger ones more.
    assert report["bytes_per_second"] == pytest.approx(2_700_000 / 11, rel=0.2)
    assert report["keys"][0]["key"] is None


def test_reports_are_written_while_records_arrive_and_taken_back(bench: Bench) -> None:
    bench.create("busy")
    bench.create("gone")
    bench.create("quiet", 1, **{"millstream.hot.keys.enable": "false"})
    bench.tick()
    for _ in range(25):
        for topic in ("busy", "gone", "quiet"):
            bench.append(topic, 0, [b"k"])
        bench.tick()
    assert [name for name, _ in bench.reports()] == ["busy/1", "gone/1"] * 2
    bench.delete("gone")
    bench.tick(20)
    assert bench.reports()[4:] == [("busy/1", bench.reports()[4][1]), ("gone/1", None)]
    bench.tick(400)
    assert bench.reports()[6:] == [("busy/1", None)]


def test_what_was_there_before_is_no_traffic(bench: Bench) -> None:
    bench.create("old")
    bench.append("old", 0, [b"k"] * 1000)
    bench.begin()
    bench.broker.hot_keys.opened(bench.broker.partitions.find("old", 0).log)
    bench.tick(30)
    assert bench.reports() == []
    bench.append("old", 0, [b"k"] * 5)
    bench.tick(20)
    ((_, report),) = bench.reports()
    assert report is not None and report["records_per_second"] < 6


def test_many_topics_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(FOLLOWED_TOPICS + 20):
        bench.create(f"t{number}")
        bench.append(f"t{number}", 0, [b"k"])
    decoded = []
    monkeypatch.setattr(hot_keys, "sample_block", lambda data, offset, limits: decoded.append(offset))
    bench.tick()
    assert len(bench.broker.hot_keys._statistics) == FOLLOWED_TOPICS
    assert len(decoded) == hot_keys.SAMPLES_PER_TICK
    bench.tick(60)
    assert len({name for name, _ in bench.reports()}) == FOLLOWED_TOPICS
    # A place is free as soon as a topic has been quiet for a while.
    bench.append(f"t{FOLLOWED_TOPICS + 5}", 0, [b"k"])
    bench.tick(12)
    assert f"t{FOLLOWED_TOPICS + 5}/1" in {name for name, _ in bench.reports()}


def test_turned_off_and_on_again(bench: Bench) -> None:
    def turn(value: str) -> None:
        change = {"name": "millstream.hot.keys.enable", "config_operation": 0, "value": value}
        everywhere = {"resource_type": ResourceType.BROKER, "resource_name": "", "configs": [change]}
        bench.ask("incremental_alter_configs", {"resources": [everywhere]})

    bench.create("t")
    bench.append("t", 0, [b"k"])
    bench.tick(12)
    assert [name for name, _ in bench.reports()] == ["t/1"]
    turn("false")
    bench.append("t", 0, [b"k"] * 1000)
    bench.tick(12)
    assert bench.reports()[1:] == [("t/1", None)]
    turn("true")
    bench.tick(12)
    assert len(bench.reports()) == 2  # what came while it was off is no traffic
