"""`python -m benchmarks.mirror`: a mirror link beside MirrorMaker 2, at the source's full produce rate.

python -m benchmarks.mirror                     # 3 rounds of 1,000,000 records of 1 KB each
python -m benchmarks.mirror --source kafka      # from an Apache Kafka
python -m benchmarks.mirror --pin               # source and producer on one core, destination and copier on another
python -m benchmarks.mirror --scale 0.01 --rounds 1 --only link

Each round has a new source, a new destination (always Millstream) and one copier: none (what producers reach alone),
the link of the destination, or MirrorMaker 2 with its defaults and a task for each partition. A producer writes as fast
as it can. Meanwhile the ends of both sides are read ten times a second: the lag in seconds is the age of the first
record that the destination does not have. CPU is that of the destination and of the copier together, because the link
runs in the destination. In practice the two sides are two machines. With `--pin` they do not share a core, so that
what producers of the source lose is what the source spends on the copier, not what the destination takes from it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.compare.librdkafka import Producer
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.target import KafkaTarget, MillstreamTarget, Target, start
from millstream.admin.mirrors import MirrorAdmin
from millstream.raw_client import Cluster, TopicPartition
from millstream.raw_client.offsets import LATEST
from tools import apache_kafka, kafka_libraries, mirror_maker

COPIERS = ("none", "link", "mirror-maker")
TOPIC = "load"
PARTITIONS = 6
RECORD_BYTES = 1000
RECORDS = 1_000_000
_SOURCE_CORES, _DESTINATION_CORES = {0}, {1}
_SAMPLE_SECONDS = 0.1
_WARM_UP_RECORDS = 6_000
_READY_TIMEOUT_SECONDS = 180.0
_RESULTS = Path(__file__).resolve().parent.parent / "benchmark-results" / "mirror.json"


@dataclass(frozen=True, slots=True)
class Measured:
    copier: str
    source_mb_per_s: float
    """What the producer of the source reached."""
    mirror_mb_per_s: float
    """From the first record that was sent until the destination had all."""
    lag_p50_s: float
    lag_p99_s: float
    lag_max_s: float
    cpu_s_per_gb: float
    """Of the destination and the copier."""
    source_cpu_s_per_gb: float


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mirror", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often each copier is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the records")
    parser.add_argument("--only", action="append", choices=COPIERS, help="only this copier (repeatable)")
    parser.add_argument("--source", choices=("millstream", "kafka"), default="millstream")
    parser.add_argument(
        "--pin", action="store_true", help="a core for each side: 0 for the source, 1 for the destination"
    )
    parser.add_argument("--output", type=Path, default=_RESULTS, help="the file of all values")
    chosen = parser.parse_args(arguments)
    wanted = [each for each in COPIERS if not chosen.only or each in chosen.only]
    count = max(int(RECORDS * chosen.scale), PARTITIONS)
    found: list[Measured] = []
    try:
        for number in range(chosen.rounds):
            for copier in wanted if number % 2 == 0 else reversed(wanted):
                with tempfile.TemporaryDirectory(prefix="mirror-") as directory:
                    found.append(measure(copier, chosen.source, count, Path(directory), chosen.pin))
                print(f"round {number + 1}: {_line(found[-1])}", file=sys.stderr)
    except apache_kafka.ToolchainMissingError as reason:
        print(f"benchmarks.mirror: {reason}", file=sys.stderr)
        return 1
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    print(report(found))
    return 0


def measure(copier: str, source_kind: str, count: int, directory: Path, pinned: bool = False) -> Measured:
    """One round with new brokers."""
    with ExitStack() as stack:
        if pinned:
            stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            # Processes and threads take over the cores of the thread that starts them.
            os.sched_setaffinity(0, _SOURCE_CORES)
        source = stack.enter_context(_running(source_kind, directory / "source"))
        if pinned:
            os.sched_setaffinity(0, _DESTINATION_CORES)
        here = stack.enter_context(_running("millstream", directory / "here"))
        there = stack.enter_context(Cluster(source.bootstrap, {}, client_id="benchmark", timeout_s=60))
        destination = stack.enter_context(Cluster(here.bootstrap, {}, client_id="benchmark", timeout_s=60))
        there.create_topic(TOPIC, PARTITIONS, 1)
        pids = [here.pid]
        if copier == "link":
            link = {"bootstrap.servers": source.bootstrap, "topics": TOPIC}
            MirrorAdmin(destination).create("bench", link)
        elif copier == "mirror-maker":
            jars = kafka_libraries.connect()
            made = mirror_maker.MirrorMaker(
                jars, directory / "mm2", source.bootstrap, here.bootstrap, TOPIC, PARTITIONS
            )
            pids.append(stack.enter_context(made).pid)
        if pinned:
            os.sched_setaffinity(0, _SOURCE_CORES)
        producer = Producer(source.bootstrap, TOPIC, acks="all")
        stack.callback(producer.close)
        producer.send(_WARM_UP_RECORDS, RECORD_BYTES)
        copies = copier != "none"
        if copies:
            _await_end(destination, _end(there), _READY_TIMEOUT_SECONDS)
        used, source_used = sum(map(cpu_seconds, pids)), cpu_seconds(source.pid)
        lag = LagSampler(source.bootstrap, here.bootstrap) if copies else None
        started = time.perf_counter()
        with lag or ExitStack():
            produce_s = producer.send(count, RECORD_BYTES, timeout_s=600)
            if copies:
                _await_end(destination, _end(there), 600)
            mirror_s = time.perf_counter() - started
        gigabytes = count * RECORD_BYTES / 1e9
        lags = sorted(lag.seconds) if lag is not None else []
        return Measured(
            copier,
            source_mb_per_s=gigabytes * 1000 / produce_s,
            mirror_mb_per_s=gigabytes * 1000 / mirror_s if copies else 0.0,
            lag_p50_s=_quantile(lags, 0.5),
            lag_p99_s=_quantile(lags, 0.99),
            lag_max_s=_quantile(lags, 1.0),
            cpu_s_per_gb=(sum(map(cpu_seconds, pids)) - used) / gigabytes,
            source_cpu_s_per_gb=(cpu_seconds(source.pid) - source_used) / gigabytes,
        )


class LagSampler:
    """Reads the ends of both sides in a thread, with connections of its own. Use as a context manager."""

    def __init__(self, source: str, here: str) -> None:
        self.seconds: list[float] = []
        self._source = Cluster(source, {}, client_id="lag", timeout_s=60)
        self._here = Cluster(here, {}, client_id="lag", timeout_s=60)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LagSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._source.close()
        self._here.close()

    def _run(self) -> None:
        ends: deque[tuple[float, int]] = deque()
        """When the source had how many records, for records that the destination may not have yet."""
        while not self._stopping.wait(_SAMPLE_SECONDS):
            now, end = time.perf_counter(), _end(self._source)
            ends.append((now, end))
            copied = _end(self._here)
            while ends and ends[0][1] <= copied:
                ends.popleft()
            self.seconds.append(time.perf_counter() - ends[0][0] if ends else 0.0)


@contextmanager
def _running(kind: str, directory: Path) -> Iterator[Target]:
    directory.mkdir(parents=True)
    target: Target = (
        MillstreamTarget(directory) if kind == "millstream" else KafkaTarget(directory, apache_kafka.resolve())
    )
    try:
        start(target)
        yield target
    finally:
        target.stop()


def _end(cluster: Cluster) -> int:
    places = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    return sum(found.offset for found in cluster.offsets(dict.fromkeys(places, LATEST), read_committed=False).values())


def _await_end(cluster: Cluster, end: int, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while TOPIC not in cluster.topics() or _end(cluster) < end:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the destination did not get {end} records in {timeout_s:.0f} s")
        time.sleep(0.02)


def _quantile(ordered: list[float], part: float) -> float:
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0


def _median(found: list[Measured], copier: str, name: str) -> float:
    return statistics.median(getattr(each, name) for each in found if each.copier == copier)


def _line(each: Measured) -> str:
    return (
        f"{each.copier}: source {each.source_mb_per_s:.0f} MB/s, mirror {each.mirror_mb_per_s:.0f} MB/s, "
        f"lag p99 {each.lag_p99_s:.2f} s, CPU {each.cpu_s_per_gb:.1f} s/GB"
    )


def report(found: list[Measured]) -> str:
    """Medians of the rounds as a table, and the ratios that matter."""
    columns = [name for name in Measured.__dataclass_fields__ if name != "copier"]
    copiers = [each for each in COPIERS if any(row.copier == each for row in found)]
    lines = ["| copier | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for copier in copiers:
        lines.append(f"| {copier} | " + " | ".join(f"{_median(found, copier, name):.2f}" for name in columns) + " |")
    if {"link", "mirror-maker"} <= set(copiers):
        throughput = _ratio(found, "mirror_mb_per_s", "link", "mirror-maker")
        cpu = _ratio(found, "cpu_s_per_gb", "link", "mirror-maker")
        lines.append(f"\nlink beside MirrorMaker 2: throughput {throughput:.2f} times, CPU {cpu:.2f} times")
    for copier in copiers:
        if copier != "none" and "none" in copiers:
            kept = _ratio(found, "source_mb_per_s", copier, "none")
            lines.append(f"producers of the source with {copier}: {kept:.0%} of their rate without a mirror")
    return "\n".join(lines)


def _ratio(found: list[Measured], name: str, one: str, other: str) -> float:
    return _median(found, one, name) / max(_median(found, other, name), 1e-9)


if __name__ == "__main__":
    sys.exit(main())
