"""How long a branch of a large topic takes, and its space: `python -m benchmarks.branch [--gigabytes N] [--save FILE]`.

One broker with one partition of closed segments of 1 GB. The files are sparse: each has the header of one batch that is
as large as the segment, and no other bytes, so that 100 GB need no disk. The broker opens them as it opens any log.
Target: 100 GB in less than a second, and no space beside that of directories and small files.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from millstream.admin import Admin
from millstream.formats.records.batch import HEADER, LOG_OVERHEAD
from millstream.node.runtime.disk import RealDisk
from millstream.node.storage.file_formats import (
    LOG_SUFFIX,
    RECOVERY_POINTS,
    encode_offsets,
    offset_file,
    parse_directory,
)
from millstream.node.storage.index.time_index import IndexBuilder
from millstream.node.storage.log.batch_scan import walk_headers
from millstream.testing import EmbeddedBroker

TOPIC, BRANCH = "history", "history-test"
_SEGMENT_OFFSETS = 1000
_TIMES = 3


def fill(data_dir: Path, segments: int, segment_bytes: int) -> int:
    """Put closed segments into the stopped broker's log; returns the end offset."""
    disk, directory = RealDisk(), data_dir / f"{TOPIC}-0"
    for old in directory.glob(f"*{LOG_SUFFIX}"):
        old.unlink()
    now_ms = int(time.time() * 1000)
    for number in range(segments):
        base = number * _SEGMENT_OFFSETS
        path = offset_file(str(directory), base, LOG_SUFFIX)
        header = bytearray(HEADER.size)
        HEADER.pack_into(
            header, 0, base, segment_bytes - LOG_OVERHEAD, 0, 2, 0, 0, _SEGMENT_OFFSETS - 1, now_ms, now_ms, -1, -1, -1,
            _SEGMENT_OFFSETS,
        )  # fmt: skip
        file = disk.create(path)
        file.write_at(0, header)
        file.truncate(segment_bytes)
        builder = IndexBuilder(base)
        for position, found in walk_headers(file, 0, segment_bytes):
            builder.add(position, found)
        builder.write(disk, str(directory))
    end = segments * _SEGMENT_OFFSETS
    disk.create(offset_file(str(directory), end, LOG_SUFFIX))
    partition = parse_directory(directory.name)
    assert partition is not None
    (data_dir / RECOVERY_POINTS).write_bytes(encode_offsets({partition: end}))
    return end


def used_bytes(data_dir: Path) -> int:
    """The space of all files, each counted once."""
    found = {}
    for directory, _, names in os.walk(data_dir):
        for name in names:
            try:
                about = os.stat(os.path.join(directory, name))
            except FileNotFoundError:  # the files of a deleted branch are being removed
                continue
            found[about.st_dev, about.st_ino] = about.st_blocks * 512
    return sum(found.values())


def measure(gigabytes: float, directory: Path) -> dict[str, float]:
    segments = max(2, int(gigabytes))
    segment_bytes = min(1 << 30, max(1 << 20, int(gigabytes * (1 << 30) / segments)))
    with EmbeddedBroker({"log.retention.ms": "-1"}, data_dir=directory) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.topics.create(TOPIC, 1, 1)
            admin.topics.plan_deletion(TOPIC)  # the log is created at its first use
        broker.stop()
        end = fill(broker.data_dir, segments, segment_bytes)
        broker.start()
        seconds, space = [], []
        with Admin(broker.bootstrap_servers) as admin:
            admin.topics.topics()  # connected, and the log is open
            for _ in range(_TIMES):
                before, begun = used_bytes(broker.data_dir), time.perf_counter()
                made = admin.topics.branch(TOPIC, BRANCH)
                seconds.append(time.perf_counter() - begun)
                space.append(used_bytes(broker.data_dir) - before)
                assert made.points[0].offset == end
                admin.topics.delete(BRANCH)
    return {
        "gigabytes": segments * segment_bytes / (1 << 30),
        "segments": segments,
        "seconds": min(seconds),
        "slowest_seconds": max(seconds),
        "space_bytes": max(space),
    }


def main(words: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=100.0)
    parser.add_argument("--save", type=Path, help="a file for the results, as JSON")
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as directory:
        results = measure(arguments.gigabytes, Path(directory))
    for name, value in results.items():
        print(f"{name:16} {value:,.3f}".rstrip("0").rstrip("."))
    if arguments.save is not None:
        arguments.save.write_text(json.dumps(results, indent=2) + "\n")
    return results


if __name__ == "__main__":
    main()
