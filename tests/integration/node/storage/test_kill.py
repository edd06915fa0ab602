"""A real process, killed with SIGKILL while it appends: what it had acknowledged is there afterwards."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millstream.config.topic_config import LogConfig
from millstream.node.runtime.disk import RealDisk
from millstream.node.storage.log.directory import LogDirectory
from tests.unit.node.storage.batches import NOW
from tests.unit.node.storage.conftest import PARTITION
from tests.unit.node.storage.test_partition_log import read_all

WRITER = """
import sys
from uuid import UUID
from millstream.config.topic_config import LogConfig
from millstream.formats.model.identifiers import TopicPartition
from millstream.node.runtime.disk import RealDisk
from millstream.node.storage.log.directory import LogDirectory
root, template = sys.argv[1], bytes.fromhex(sys.argv[2])
directory = LogDirectory(RealDisk(), root)
directory.start(0)
partition, config = TopicPartition("orders", 0), LogConfig(segment_bytes=20_000, retention_ms=-1)
if partition in directory.partitions:
    log = directory.open(partition, config, 0)
else:
    log = directory.create(partition, UUID(int=1), config, 0)
while True:
    appended = log.append(bytearray(template), leader_epoch=0, now_ms=1_700_000_000_000)
    sys.stdout.write(f"{appended.last_offset}\\n")
    sys.stdout.flush()
"""


@pytest.mark.parametrize("after_seconds", [0.05, 0.2])
def test_nothing_acknowledged_is_lost(tmp_path: Path, after_seconds: float) -> None:
    from tests.unit.node.storage.batches import batch

    root = str(tmp_path / "data")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    acknowledged = -1
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, root, bytes(batch(b"value" * 50, b"second")).hex()],
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        assert int(first) > acknowledged
        time.sleep(after_seconds)
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().splitlines(keepends=True)
        process.wait()
        process.stdout.close()
        acknowledged = max(int(line) for line in [first, *rest] if line.endswith(b"\n"))
    directory = LogDirectory(RealDisk(), root)
    directory.start(NOW)
    log = directory.open(PARTITION, LogConfig(segment_bytes=20_000), NOW)
    assert log.log_end_offset > acknowledged
    assert read_all(log) == list(range(0, log.log_end_offset, 2))
    directory.close(NOW)
