"""A disk that can fail, and logs on it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.partition_log import PartitionLog
from tests.unit.node.storage.batches import NOW
from tests.unit.node.storage.faulty_disk import FaultyDisk

PARTITION = TopicPartition(TopicName("orders"), 0)
TOPIC_ID = UUID("12345678-1234-5678-1234-567812345678")


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "data")


class Node:
    """One log directory through stops, kills and starts, with one partition."""

    def __init__(self, disk: FaultyDisk, root: str) -> None:
        self.disk = disk
        self.root = root
        self.path = Path(root) / str(PARTITION)
        self.directory = LogDirectory(disk, root, max_open_files=16)
        self.reports = self.directory.start(NOW)

    def log(self, config: LogConfig | None = None) -> PartitionLog:
        config = config or LogConfig()
        if PARTITION in self.directory.partitions:
            return self.directory.open(PARTITION, config, NOW)
        return self.directory.create(PARTITION, TOPIC_ID, config, NOW)

    def stop(self) -> None:
        self.directory.close(NOW)

    def kill(self) -> None:
        """What is in memory is lost; what was written stays in the files."""
        lock = self.directory._lock
        if lock is not None:
            lock.release()

    def start(self) -> None:
        self.directory = LogDirectory(self.disk, self.root, max_open_files=16)
        self.reports = self.directory.start(NOW)

    def restart(self, *, clean: bool) -> None:
        self.stop() if clean else self.kill()
        self.start()

    def file(self, base_offset: int, suffix: str = ".log") -> Path:
        return self.path / f"{base_offset:020d}{suffix}"


@pytest.fixture
def node(disk: FaultyDisk, root: str) -> Iterator[Node]:
    node = Node(disk, root)
    yield node
    node.kill()


@pytest.fixture
def make_node(disk: FaultyDisk) -> Callable[[str], Node]:
    return lambda root: Node(disk, root)
