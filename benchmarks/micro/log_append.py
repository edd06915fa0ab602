"""How long one append and one read of the tail take, in microseconds: `python benchmarks/micro/log_append.py
[--tiny]`."""

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable

from millstream.config.topic_config import LogConfig
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, seal
from millstream.formats.records.record import Record, build_batch
from millstream.node.runtime.disk import RealDisk
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.partition_log import PartitionLog

NOW_MS = 1_700_000_000_000


def make_batch(size: int, producer_id: int = -1, sequence: int = -1) -> bytearray:
    """One record with a random value, of about that size."""
    data = bytearray(HEADER_SIZE) + build_batch([Record(None, os.urandom(size))])[HEADER_SIZE:]
    epoch = 0 if producer_id >= 0 else -1
    header = (0, len(data) - LOG_OVERHEAD, -1, 2, 0, 0, 0, NOW_MS, NOW_MS, producer_id, epoch, sequence, 1)
    HEADER.pack_into(data, 0, *header)
    seal(data, 0, len(data))
    return data


def best_us(action: Callable[[], object], rounds: int, repeats: int = 5) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(rounds):
            action()
        best = min(best, (time.perf_counter() - start) / rounds)
    return best * 1e6


def measure(rounds: int) -> dict[str, float]:
    """Microseconds by name of the measure."""
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as root:
        directory = LogDirectory(RealDisk(), root)
        directory.start(NOW_MS)

        def new_log(name: str) -> PartitionLog:
            return directory.create(TopicPartition(TopicName(name), 0), uuid.uuid4(), LogConfig(), NOW_MS)

        for label, size in (("100 B", 100), ("1 KB", 1024), ("16 KB", 16_384), ("1 MB", (1 << 20) - 100)):
            log = new_log(f"plain-{size}")
            data = make_batch(size)
            times = rounds if size < 16_384 else max(1, rounds // 50)
            results[f"append {label}"] = best_us(lambda: log.append(data, leader_epoch=0, now_ms=NOW_MS), times)  # noqa: B023
            file = log.segments[-1].file()
            results[f"  bare pwrite {label}"] = best_us(lambda: os.pwrite(file.fileno(), data, 0), times)  # noqa: B023

        log = new_log("idempotent")
        prepared = [make_batch(100, 7, sequence) for sequence in range(rounds * 5)]
        appends = iter(prepared)
        results["append 100 B, idempotent"] = best_us(
            lambda: log.append(next(appends), leader_epoch=0, now_ms=NOW_MS), rounds
        )
        end = log.log_end_offset
        results["read the last batch"] = best_us(
            lambda: log.read(end - 1, 1 << 20, up_to=end, at_least_one=True), rounds
        )
        results["read the last 50 batches"] = best_us(
            lambda: log.read(end - 50, 1 << 20, up_to=end, at_least_one=True), rounds
        )
        results["read at the end (nothing)"] = best_us(
            lambda: log.read(end, 1 << 20, up_to=end, at_least_one=True), rounds
        )
        results["read 1 MB in the middle"] = best_us(
            lambda: log.read(end // 2, 1 << 20, up_to=end, at_least_one=True), rounds
        )
        directory.close(NOW_MS)
    return results


def main() -> None:
    for name, microseconds in measure(20 if "--tiny" in sys.argv else 5_000).items():
        print(f"{name:<28} {microseconds:9.2f} µs")


if __name__ == "__main__":
    main()
