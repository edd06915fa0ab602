"""The log cleaner: MB/s over 1 KB records of which one in ten is the last of its key, and produce latency meanwhile.

The same records on both, one partition, the same `segment.bytes`, written before the topic is compacted. Then
`cleanup.policy=compact` is set, and the clock runs until the closed segments have been swapped for clean ones, as the
partition's directory shows; that the broker knows it, by its `cleaner-offset-checkpoint`, is waited for afterwards.
`log.cleaner.backoff.ms` is 100 on both while this goes on: by default a cleaner looks every 15 s, and most of the time
measured would be its sleep. MB/s are of the log as it was before.

Latency: acknowledgements of an open-loop producer to another topic, as in the other latency loads; first with the
cleaner at rest, then while a second such topic is cleaned: only messages that were due during the cleaning count.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from benchmarks.compare import librdkafka
from benchmarks.compare.loads.latency import percentile
from benchmarks.compare.loads.open_loop_producer import produce_dated
from benchmarks.compare.measure import LATENCY_GOAL, Load, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.target import Target
from benchmarks.compare.topic import temporary_topic

_SIZE_BYTES = 1024
_FULL_RECORDS = 400_000
_LIVE_SHARE = 10
_MOST_LEFT = 1.6
"""Times the bytes of the live records: some have their last one in the active segment, which is not counted."""
_SEGMENT_BYTES = 32 << 20
_SMALLEST_SEGMENT_BYTES = 1 << 20
_RATE = 2_000
_QUIET_SECONDS = 6.0
_LEAD_SECONDS = 1.0
_TIMEOUT_SECONDS = 180.0
_BACKOFF = "log.cleaner.backoff.ms"


class Cleaner(Load):
    name: ClassVar[str] = "cleaner"
    title: ClassVar[str] = "The log cleaner"
    measures: Sequence[Measure] = (
        Measure("mb_s", "cleaner, 1 KB records, 10 % live keys", "MB/s", "higher", 1.0),
        Measure("cpu", "broker CPU while cleaning", "s/GB", "lower"),
        Measure("quiet_p99", "produce ack p99, cleaner at rest", "ms", "lower"),
        Measure("busy_p50", "produce ack p50 while it cleans", "ms", "lower"),
        Measure("busy_p99", "produce ack p99 while it cleans", "ms", "lower", LATENCY_GOAL),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        count = scale.records(_FULL_RECORDS, least=4_000)
        segment_bytes = max(int(_SEGMENT_BYTES * min(scale.factor, 1.0)), _SMALLEST_SEGMENT_BYTES)
        admin = AdminClient({"bootstrap.servers": target.bootstrap})
        with _quick_to_look(admin):
            with temporary_topic(target, 1, count * _SIZE_BYTES) as topic:
                log = _fill(target, admin, topic, count, segment_bytes)
                cpu_before = cpu_seconds(target.pid)
                took_s = log.clean()
                cpu_s = cpu_seconds(target.pid) - cpu_before
                values = {"mb_s": log.dirty_bytes / took_s / 1e6, "cpu": cpu_s / (log.dirty_bytes / 1e9)}
            with temporary_topic(target, 1, count * _SIZE_BYTES) as topic, temporary_topic(target, 1, 0) as beside:
                log = _fill(target, admin, topic, count, segment_bytes)
                return values | _latencies(target, log, beside, scale.seconds(_QUIET_SECONDS))


class _DirtyLog:
    """A partition that is to be cleaned: how much there is, and whether it was done."""

    def __init__(self, target: Target, admin: AdminClient, topic: str) -> None:
        self._target, self._admin, self._topic = target, admin, topic
        closed = sorted((target.data_dir / f"{topic}-0").glob("*.log"))
        self._active_offset = int(closed.pop().stem)
        self.dirty_bytes = sum(path.stat().st_size for path in closed)
        if not closed:
            raise RuntimeError(f"{target.name}: all records are in the active segment, which is never cleaned")

    def clean(self) -> float:
        """Enable compaction and wait until all closed segments are clean; the seconds that took."""
        changes = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        started = time.monotonic()
        _alter(self._admin, ResourceType.TOPIC, self._topic, changes)
        self._wait(started, self._is_swapped)
        took_s = time.monotonic() - started
        self._wait(started, lambda: self._clean_until() >= self._active_offset)
        if not self._is_swapped():
            raise RuntimeError(f"{self._target.name}: more is left than the last record of each key")
        return took_s

    def _wait(self, started: float, done: Callable[[], bool]) -> None:
        while not done():
            if time.monotonic() - started > _TIMEOUT_SECONDS:
                raise RuntimeError(f"{self._target.name}: not clean within {_TIMEOUT_SECONDS:.0f} s")
            time.sleep(0.005)

    def _is_swapped(self) -> bool:
        """Little more than one record of each key is left, and nothing is half done."""
        left = 0
        try:
            for path in (self._target.data_dir / f"{self._topic}-0").iterdir():
                if path.suffix in (".cleaned", ".swap"):
                    return False
                if path.suffix == ".log" and int(path.stem) < self._active_offset:
                    left += path.stat().st_size
        except FileNotFoundError:  # renamed meanwhile
            return False
        return left < _MOST_LEFT * self.dirty_bytes / _LIVE_SHARE

    def _clean_until(self) -> int:
        """The first offset that is not clean, by the broker's checkpoint."""
        try:
            lines = Path(self._target.data_dir / "cleaner-offset-checkpoint").read_text().splitlines()
        except FileNotFoundError:
            return 0
        rows = [line.rsplit(" ", 2) for line in lines[2:]]
        return next((int(row[2]) for row in rows if len(row) == 3 and row[:2] == [self._topic, "0"]), 0)


def _fill(target: Target, admin: AdminClient, topic: str, count: int, segment_bytes: int) -> _DirtyLog:
    _alter(admin, ResourceType.TOPIC, topic, {"segment.bytes": str(segment_bytes)})
    producer = librdkafka.Producer(target.bootstrap, topic, acks="all")
    producer.send(count, _SIZE_BYTES, keys=count // _LIVE_SHARE)
    producer.close()
    return _DirtyLog(target, admin, topic)


def _latencies(target: Target, log: _DirtyLog, beside: str, quiet_s: float) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    stop = context.Event()
    producer = context.Process(target=produce_dated, args=(target.bootstrap, beside, _RATE, _SIZE_BYTES, stop, there))
    producer.start()
    there.close()
    try:
        _wait_until_ready(here, target)
        time.sleep(min(_LEAD_SECONDS, quiet_s))
        quiet_from = time.monotonic_ns()
        time.sleep(quiet_s)
        busy_from = time.monotonic_ns()
        log.clean()
        busy_to = time.monotonic_ns()
        stop.set()
        if not here.poll(90):
            raise RuntimeError(f"{target.name}: the producer beside the cleaner did not finish")
        acks, failures = here.recv()
    finally:
        stop.set()
        producer.join(timeout=10)
        if producer.is_alive():
            producer.kill()
    if failures:
        raise RuntimeError(f"{target.name}: produce failed while the cleaner ran: {failures[0]}")
    quiet = sorted(delay for due, delay in acks if quiet_from <= due < busy_from)
    busy = sorted(delay for due, delay in acks if busy_from <= due < busy_to)
    if not quiet or not busy:
        raise RuntimeError(f"{target.name}: the cleaner was done before a message was due")
    return {
        "quiet_p99": percentile(quiet, 0.99) / 1e6,
        "busy_p50": percentile(busy, 0.5) / 1e6,
        "busy_p99": percentile(busy, 0.99) / 1e6,
    }


def _wait_until_ready(here: Connection, target: Target) -> None:
    if not here.poll(30) or here.recv() != "producing":
        raise RuntimeError(f"{target.name}: the producer beside the cleaner did not start")


@contextmanager
def _quick_to_look(admin: AdminClient) -> Iterator[None]:
    (broker,) = map(str, admin.list_topics(timeout=30).brokers)
    _alter(admin, ResourceType.BROKER, broker, {_BACKOFF: "100"})
    try:
        yield
    finally:
        _alter(admin, ResourceType.BROKER, broker, {_BACKOFF: None})


def _alter(admin: AdminClient, kind: ResourceType, name: str, changes: dict[str, Any]) -> None:
    entries = [
        ConfigEntry(
            setting,
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for setting, value in changes.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(timeout=30)
