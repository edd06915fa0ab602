"""Writes checkpoint files as Spark does, until it is killed; a program of its own for test_session_checkpoints.py.

    python -m tests.system.pipeline.checkpoint_writer DIRECTORY

First reads back, with Spark's own reader, all that an earlier one left, and fails if any of it cannot be read.
"""

import sys
from pathlib import Path
from typing import Any

from millstream.spark.session.session import start_session

SIZE = 200_000
STATE_FILES = 3


def content(number: int) -> bytes:
    """Only a whole file is of this size and ends as it began."""
    mark = b"%010d" % number
    return mark + b"." * (SIZE - 2 * len(mark)) + mark


def is_whole(found: bytes) -> bool:
    return len(found) == SIZE and found[:10] == found[-10:]


def main(directory: Path) -> None:
    session = start_session("checkpoints", master="local[1]", lifetime="short", checkpoints=str(directory))
    jvm: Any = session._jvm
    hadoop = jvm.org.apache.hadoop.fs
    name = session.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert name is not None and name.endswith(".FileSystemBasedCheckpointFileManager")
    checkpointing = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    configuration = session.sparkContext._jsc.hadoopConfiguration()
    manager = checkpointing.FileSystemBasedCheckpointFileManager(hadoop.Path(str(directory)), configuration)
    offsets = sorted(int(each.name) for each in directory.glob("[0-9]*"))
    for number in offsets:
        reader = manager.open(hadoop.Path(str(directory / str(number))))
        assert is_whole(bytes(reader.readAllBytes()))
        reader.close()
    gateway = session.sparkContext._gateway
    assert gateway is not None
    print(f"ready {gateway.proc.pid}", flush=True)
    number = offsets[-1] if offsets else 0
    while True:
        number += 1
        for file, overwrite in ((f"state-{number % STATE_FILES}", True), (str(number), False)):
            writer = manager.createAtomic(hadoop.Path(str(directory / file)), overwrite)
            writer.write(bytearray(content(number)))
            writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
