"""Logs of branches on a node: made a few at a time, before their parent goes, in its directory, and again after a
directory has failed."""

import os
import random
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicId, TopicName, TopicPartition
from millstream.node.environment import Environment
from millstream.node.metadata.image import Branch, MetadataImage, PartitionState, TopicImage
from millstream.node.replicas.branches import BranchLogs
from millstream.node.replicas.roles import ReplicaRoles
from millstream.node.runtime.disk import RealDisk
from millstream.node.storage.log.directories import LogDirectories
from tests.unit.node.storage.batches import NOW
from tests.unit.node.storage.test_partition_log import append

PARENT, BRANCH = TopicName("orders"), TopicName("orders-test")
PARENT_ID, BRANCH_ID = TopicId(UUID(int=1)), TopicId(UUID(int=2))
PARTITIONS = 20
CONFIG = LogConfig(segment_bytes=200)
RECORDS = 4


class Clock:
    def now_ms(self) -> int:
        return NOW


class Loop:
    """Turns of an event loop, one by one."""

    def __init__(self) -> None:
        self.ready: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []
        self.jobs: list[Callable[[], None]] = []

    def call_soon(self, action: Callable[[], None]) -> None:
        self.ready.append(action)

    def call_later(self, _: float, action: Callable[[], None]) -> None:
        self.later.append(action)

    def turn(self) -> None:
        actions, self.ready = self.ready, []
        for action in actions:
            action()

    def offload(self, function: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        self.jobs.append(lambda: future.set_result(function()))
        return future

    def finish(self) -> None:
        while self.ready or self.jobs:
            jobs, self.jobs = self.jobs, []
            for job in jobs:
                job()
            self.turn()


class Node:
    def __init__(self, roots: list[str], partitions: int, isr: tuple[int, ...] = (1,)) -> None:
        self.disk = RealDisk()
        self.logs = LogDirectories(self.disk, roots)
        for directory in self.logs.data:
            directory.start(NOW)
        self.partitions = partitions
        for index in range(partitions):
            home = self.logs.data[index % len(roots)]
            log = home.create(TopicPartition(PARENT, index), PARENT_ID, CONFIG, NOW)
            for number in range(RECORDS):
                append(log, b"%d" % number * 100)
        state = PartitionState(
            replicas=(1,), isr=isr, leader=1, leader_epoch=1, partition_epoch=0, last_known_elr=() if isr else (1,)
        )
        branch = Branch(parent=PARENT, parent_id=PARENT_ID, origin_id=PARENT_ID, offsets=(RECORDS,) * partitions)
        self.topic = TopicImage(name=BRANCH, id=BRANCH_ID, partitions=(state,) * partitions, branch=branch)
        parent = TopicImage(name=PARENT, id=PARENT_ID, partitions=(state,) * partitions)
        image = MetadataImage(topics={PARENT: parent, BRANCH: self.topic})
        self.loop = Loop()
        environment = Environment(
            Clock(), cast(Any, self.loop), cast(Any, self.loop.offload), random.Random(1), cast(Any, None)
        )
        self.made: list[int] = []
        self.branches = BranchLogs(self.logs, environment, 1, lambda: image, lambda name: CONFIG)
        self.branches.on_made = lambda at: self.made.append(at.partition)

    def begun(self) -> set[int]:
        """The partitions whose links are made."""
        folders = [name for each in self.logs.data for name in os.listdir(each.root) if name.endswith("-branch")]
        return {int(name.rpartition("-branch")[0].partition(".")[0].rpartition("-")[2]) for name in folders}

    def check(self, indexes: range) -> None:
        for index in indexes:
            log = self.logs.open(TopicPartition(BRANCH, index), CONFIG, NOW)
            assert log.log_end_offset == RECORDS and len(log.segments) > 2
            first = os.stat(f"{log.directory}/{0:020d}.log")
            assert first.st_nlink == 2, "the parent has it too"


@pytest.mark.plain
def test_a_turn_of_the_loop_links_few_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.node.replicas.branches._SEGMENTS_IN_A_TURN", 10)
    node = Node([str(tmp_path / "1"), str(tmp_path / "2")], PARTITIONS)
    node.branches.make(node.topic)
    assert not node.begun() and node.branches.is_being_made(TopicPartition(BRANCH, 0), BRANCH_ID)
    node.loop.turn()
    first = len(node.begun())
    assert 0 < first < 10
    last = PARTITIONS - 1
    node.branches.parent_goes(TopicPartition(PARENT, last), PARENT_ID)
    assert node.begun() == {*range(first), last}, "before the log of its parent is deleted"
    node.logs.delete(TopicPartition(PARENT, last)).run()
    node.branches.forget(TopicPartition(BRANCH, last - 1), BRANCH_ID)  # deleted while it waits
    node.loop.finish()
    assert sorted(node.made) == [*range(last - 1), last]
    node.check(range(last - 1))
    log = node.logs.open(TopicPartition(BRANCH, last), CONFIG, NOW)
    assert log.log_end_offset == RECORDS


def test_a_directory_fails_while_logs_are_made_in_it(tmp_path: Path) -> None:
    node = Node([str(tmp_path / "1"), str(tmp_path / "2")], 4)
    node.branches.make(node.topic)
    node.loop.turn()
    assert node.begun() == {0, 1, 2, 3}
    failed = node.logs.data[1]
    node.logs.take_offline(failed)
    node.loop.finish()
    assert sorted(node.made) == [0, 1, 2, 3], "roles are taken; those in the directory are offline"
    assert [node.logs.has(TopicPartition(BRANCH, index)) for index in range(4)] == [True, False, True, False]
    fresh = node.logs.fresh(failed)
    fresh.start(NOW)
    node.logs.bring_online(fresh, lambda at: True)
    node.branches.resume()
    node.loop.finish()
    node.check(range(4))
    for index in range(4):
        parent, branch = (TopicPartition(name, index) for name in (PARENT, BRANCH))
        homes = {each.root for each in node.logs.data if parent in each.partitions or branch in each.partitions}
        assert len(homes) == 1, "files are shared within one directory"


def test_a_node_that_crashed_as_the_last_of_the_isr_makes_the_logs_at_its_start(tmp_path: Path) -> None:
    """The controller has taken it out of the ISR, and elects it again: no one else has the records."""
    node = Node([str(tmp_path)], 2, isr=())
    node.branches.resume()
    node.loop.finish()
    node.check(range(2))


def test_no_log_is_created_while_the_branch_is_made(tmp_path: Path) -> None:
    """Tiered storage looks for its logs once a second. An empty one would take the place of the branch."""
    node = Node([str(tmp_path)], 1)
    at = TopicPartition(BRANCH, 0)
    roles = SimpleNamespace(_branches=node.branches, _logs=node.logs)
    node.branches.make(node.topic)
    node.loop.turn()
    with pytest.raises(KafkaError, match="is being made") as refused:
        ReplicaRoles._open_log(cast(Any, roles), at, node.topic)
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and not node.logs.has(at)
    node.loop.finish()
    node.check(range(1))
