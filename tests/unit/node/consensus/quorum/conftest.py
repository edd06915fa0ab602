"""A node's disk and world, as the quorum needs them."""

import asyncio
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.identifiers import TopicId, TopicName
from millstream.node.consensus.quorum.metadata_log import MetadataLog, new_batch
from millstream.node.environment import Environment
from millstream.node.metadata.records import MetadataRecord, TopicRecord
from millstream.node.runtime.disk import RealDisk
from millstream.node.runtime.real_environment import SystemClock
from millstream.node.server.network import SocketNetwork
from millstream.node.storage.log.directory import LogDirectory

T = TypeVar("T")
NOW = 1_700_000_000_000
CONFIG = LogConfig(retention_ms=-1, cleanup_policy=frozenset(), segment_bytes=2048)


def make_environment(loop: asyncio.AbstractEventLoop, threads: ThreadPoolExecutor, seed: int = 1) -> Environment:
    def offload(function: Callable[[], T]) -> "asyncio.Future[T]":
        return loop.run_in_executor(threads, function)

    return Environment(SystemClock(), loop, offload, random.Random(seed), SocketNetwork(loop))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def environment(loop: asyncio.AbstractEventLoop, threads: ThreadPoolExecutor) -> Environment:
    return make_environment(loop, threads)


class DiskOfNode:
    """One data directory through stops, kills and starts."""

    def __init__(self, root: Path, environment: Environment) -> None:
        self.root = root
        self.path = root / "__cluster_metadata-0"
        self.disk = RealDisk()
        self._environment = environment
        self._logs: LogDirectory | None = None

    def open(self) -> MetadataLog:
        self._logs = LogDirectory(self.disk, str(self.root))
        self._logs.start(self._environment.clock.now_ms())
        return MetadataLog.open(self._logs, self.disk, CONFIG, self._environment)

    def stop(self) -> None:
        assert self._logs is not None
        self._logs.close(self._environment.clock.now_ms())

    def kill(self, *, checkpointed: bool = False) -> None:
        """What is in memory is lost; what was written stays in the files."""
        assert self._logs is not None and self._logs._lock is not None
        if checkpointed and (job := self._logs.checkpoint_job(self._environment.clock.now_ms())) is not None:
            job.done(job.run())
        self._logs._lock.release()


@pytest.fixture
def node(tmp_path: Path, environment: Environment) -> DiskOfNode:
    return DiskOfNode(tmp_path / "data", environment)


MakeNode = Callable[[str], DiskOfNode]


@pytest.fixture
def make_node(tmp_path: Path, environment: Environment) -> MakeNode:
    return lambda name: DiskOfNode(tmp_path / name, environment)


def topic(number: int) -> TopicRecord:
    return TopicRecord(name=TopicName(f"topic-{number}"), topic_id=TopicId(UUID(int=1000 + number)))


def append(log: MetadataLog, *records: MetadataRecord, epoch: int = 1) -> int:
    return log.append_records(epoch, new_batch(records, NOW), NOW)


def flush(log: MetadataLog) -> None:
    job = log.flush_job()
    if job is not None:
        job.done(job.run())


def names(log: MetadataLog, offset: int = 0) -> list[str]:
    """The topics in the log, in order."""
    found: list[str] = []
    for batch in log.batches(offset, log.end.offset):
        found += [record.name for record in batch.records if isinstance(record, TopicRecord)]
    return found
