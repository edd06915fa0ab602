"""A consumer catches up on data that is no longer in the page cache, while a producer goes on at a steady rate.

The topic is written, flushed (fsync on its files from outside the broker) and dropped from the page cache with
posix_fadvise(DONTNEED); then it is read from the beginning with librdkafka while 2,000 messages/s of 1 KB are
produced to a second topic, open-loop. A broker whose reads stall its writes shows it in the acknowledgement's p99.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from benchmarks.compare import librdkafka
from benchmarks.compare.loads.latency import percentile
from benchmarks.compare.loads.open_loop_producer import produce_until
from benchmarks.compare.measure import Load, Measure, Scale
from benchmarks.compare.target import Target
from benchmarks.compare.topic import THROUGHPUT_PARTITIONS, temporary_topic

_SIZE_BYTES = 1024
_FULL_RECORDS = 1_000_000
_PRODUCE_RATE = 2_000


class ColdCatchUp(Load):
    name: ClassVar[str] = "cold-catch-up"
    title: ClassVar[str] = "Catch-up read of cold data while producing"
    measures: Sequence[Measure] = (
        Measure("read", "catch-up read of cold data, librdkafka", "MB/s", "higher", 1.3),
        Measure("ack_p50", "produce ack p50 during the catch-up", "ms", "lower"),
        Measure("ack_p99", "produce ack p99 during the catch-up", "ms", "lower", 0.8),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        count = scale.records(_FULL_RECORDS)
        with (
            temporary_topic(target, 1, 0) as busy,
            temporary_topic(target, THROUGHPUT_PARTITIONS, count * _SIZE_BYTES) as cold,
        ):
            producer = librdkafka.Producer(target.bootstrap, cold, acks="all")
            producer.send(count, _SIZE_BYTES)
            producer.close()
            drop_from_page_cache(target.data_dir, cold)
            return _read_while_producing(target, cold, busy)


def _read_while_producing(target: Target, cold: str, busy: str) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    stop = context.Event()
    arguments = (target.bootstrap, busy, _PRODUCE_RATE, _SIZE_BYTES, stop, there)
    beside = context.Process(target=produce_until, args=arguments)
    beside.start()
    there.close()
    try:
        while sum(librdkafka.end_offsets(target.bootstrap, busy, 1)) < _PRODUCE_RATE // 10:
            if not beside.is_alive():
                raise RuntimeError(f"{target.name}: the producer beside the catch-up read ended early")
        read, seconds = librdkafka.consume_all(target.bootstrap, cold, THROUGHPUT_PARTITIONS)
        stop.set()
        if not here.poll(90):
            raise RuntimeError(f"{target.name}: the producer beside the catch-up read did not finish")
        delays_ns, failures = here.recv()
    finally:
        stop.set()
        beside.join(timeout=10)
        if beside.is_alive():
            beside.kill()
    if failures:
        raise RuntimeError(f"{target.name}: produce failed during the catch-up read: {failures[0]}")
    return {
        "read": read * _SIZE_BYTES / seconds / 1e6,
        "ack_p50": percentile(delays_ns, 0.5) / 1e6,
        "ack_p99": percentile(delays_ns, 0.99) / 1e6,
    }


def drop_from_page_cache(data_dir: Path, topic: str) -> None:
    for path in data_dir.glob(f"{topic}-*/*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
