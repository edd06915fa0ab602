"""How fast the cleaner works on logs of various records: `python -m benchmarks.micro.cleaner [--tiny] [--megabytes N]`.

MB/s are bytes of log per second of a whole pass, mapped, copied and put in place; the log is in the page cache.
"""

import argparse
import asyncio
import os
import random
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from millstream.config.topic_config import LogConfig
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import Record, build_batch
from millstream.node.runtime.disk import RealDisk
from millstream.node.runtime.real_environment import yield_interpreter
from millstream.node.storage.cleaner.cleaning import Cleaning
from millstream.node.storage.cleaner.plan import CleanerSettings, Throttle, cleanable
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.partition_log import PartitionLog

NOW_MS = 1_700_000_000_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    record_bytes: int
    live_share: float
    records_per_batch: int
    codec: Codec = Codec.NONE
    key_bytes: int = 16


WORKLOADS = (
    Workload("1 KB, 10 % live, batches of 16", 1024, 0.1, 16),
    Workload("1 KB, 10 % live, batches of 64", 1024, 0.1, 64),
    Workload("1 KB, 10 % live, single records", 1024, 0.1, 1),
    Workload("1 KB, 10 % live, keys of 100 B", 1024, 0.1, 16, key_bytes=100),
    Workload("1 KB, 90 % live", 1024, 0.9, 16),
    Workload("100 B, 10 % live, batches of 100", 100, 0.1, 100),
    Workload("1 KB, 10 % live, lz4", 1024, 0.1, 16, Codec.LZ4),
    Workload("1 KB, 10 % live, zstd", 1024, 0.1, 16, Codec.ZSTD),
)


def fill(log: PartitionLog, load: Workload, megabytes: float) -> None:
    count = int(megabytes * 1e6 / load.record_bytes)
    chance = random.Random(7)
    keys = [chance.randbytes(load.key_bytes) for _ in range(max(1, int(count * load.live_share)))]
    size = load.record_bytes - load.key_bytes
    values = [chance.randbytes(size // 2 + 1).hex().encode()[:size] for _ in range(997)]
    for start in range(0, count, load.records_per_batch):
        taken = range(min(load.records_per_batch, count - start))
        records = [Record(chance.choice(keys), chance.choice(values), timestamp=NOW_MS) for _ in taken]
        log.append(build_batch(records, codec=load.codec), leader_epoch=0, now_ms=NOW_MS)
    log.roll(NOW_MS)


def offload(function: Callable[[], T]) -> "asyncio.Future[T]":
    return asyncio.get_running_loop().run_in_executor(None, function)


def measure(load: Workload, megabytes: float, root: str) -> dict[str, float]:
    directory = LogDirectory(RealDisk(), root)
    directory.start(NOW_MS)
    try:
        config = LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=100 << 20)
        log = directory.create(TopicPartition(TopicName("cleaned"), 0), uuid.uuid4(), config, NOW_MS)
        fill(log, load, megabytes)
        os.sync()
        before = log.size_bytes
        cleaning = Cleaning(
            log,
            cleanable(log, NOW_MS),
            CleanerSettings(),
            NOW_MS,
            offload=offload,
            throttle=Throttle(),
            now=lambda: 0.0,
            is_wanted=lambda log: True,
            yield_interpreter=yield_interpreter,
        )
        begun, begun_cpu = time.perf_counter(), time.process_time()
        asyncio.run(cleaning.run())
        seconds, cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
        stats = cleaning.stats
        return {
            "MB/s": before / 1e6 / seconds,
            "MB/s of CPU": before / 1e6 / cpu,
            "kept %": 100 * log.size_bytes / before,
            "map bytes a key": stats.map_used_bytes / max(1, stats.mapped_keys),
        }
    finally:
        directory.close(NOW_MS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--megabytes", type=float, default=300)
    parser.add_argument("--only", type=int, default=None)
    arguments = parser.parse_args()
    for at, load in enumerate(WORKLOADS):
        if arguments.only is not None and at != arguments.only:
            continue
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as root:
            found = measure(load, 1 if arguments.tiny else arguments.megabytes, f"{root}/data")
        print(f"{load.name:34}" + "".join(f"  {name} {value:7.1f}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
