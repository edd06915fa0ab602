"""Branches of logs: they share files with their parent, and no change of one is a change of the other."""

import os
import random
from pathlib import Path
from uuid import UUID

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.records.batch import iterate_headers
from millstream.node.runtime.disk import RealDisk
from millstream.node.storage.disk import Job
from millstream.node.storage.log.branching import LogBranch, begin_branch
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.simulator.disk import Killed, SimulatedDisk
from tests.unit.node.storage.batches import NOW
from tests.unit.node.storage.conftest import PARTITION, TOPIC_ID, Node
from tests.unit.node.storage.test_partition_log import append, read
from tests.unit.node.storage.transactional import abort, commit, write_own

BRANCH = TopicPartition(TopicName("orders-test"), 0)
BRANCH_ID = UUID(int=7)
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, retention_ms=-1)


@pytest.fixture
def node(disk: RealDisk, root: str) -> Node:
    return Node(disk, root)  # type: ignore[arg-type]


def run(job: Job | None) -> None:
    if job is not None:
        failure = job.run()
        job.done(failure)
        if failure is not None:
            raise failure


def filled(node: Node, count: int = 20) -> PartitionLog:
    log = node.log(CONFIG)
    for number in range(count):
        append(log, b"value-%03d" % number)
    return log


def branched(directory: LogDirectory, log: PartitionLog, offset: int) -> PartitionLog:
    branch = begin_branch(log, directory.root, BRANCH, BRANCH_ID, offset, NOW)
    run(branch.finish(directory.disk))
    directory.take_branch(branch)
    return directory.open(BRANCH, CONFIG, NOW)


def content(log: PartitionLog, up_to: int | None = None) -> bytes:
    """All bytes of the log, segment by segment."""
    found, offset = b"", log.log_start_offset
    end = log.log_end_offset if up_to is None else up_to
    while offset < end:
        data = read(log, offset, up_to=end).read()
        if not data:
            break
        found += bytes(data)
        offset = log_end_of(bytes(data))
    return found


def log_end_of(data: bytes) -> int:
    *_, (_, last) = iterate_headers(data)
    return last.last_offset + 1


def log_files(log: PartitionLog) -> dict[str, int]:
    return {path.name: os.stat(path).st_ino for path in Path(log.directory).glob("*.log")}


def test_a_branch_at_the_end_has_the_files_of_its_parent(node: Node) -> None:
    log = filled(node)
    branch = branched(node.directory, log, log.log_end_offset)
    assert content(branch) == content(log) != b""
    own, shared = log_files(branch), log_files(log)
    empty = f"{log.log_end_offset:020d}.log"
    assert {name: inode for name, inode in own.items() if name != empty} == {
        name: inode for name, inode in shared.items() if name != empty
    }
    assert own[empty] != shared[empty]
    assert (branch.log_start_offset, branch.log_end_offset) == (log.log_start_offset, log.log_end_offset)
    append(branch, b"of the branch")
    append(log, b"of the parent")
    assert b"of the parent" in content(log) and b"of the branch" not in content(log)
    assert b"of the branch" in content(branch) and b"of the parent" not in content(branch)


def test_a_point_within_a_segment_copies_only_its_part(node: Node) -> None:
    log = filled(node)
    before = content(log, 12)
    branch = branched(node.directory, log, 12)
    assert content(branch) == before
    assert branch.log_end_offset == 12
    shared = [name for name, inode in log_files(branch).items() if log_files(log).get(name) == inode]
    assert len(shared) == len(branch.segments) - 2  # the part, and the empty segment
    assert not list(Path(branch.directory).glob("*.part"))


def test_a_batch_that_reaches_over_the_point_is_left_out(node: Node) -> None:
    log = node.log(CONFIG)
    append(log, b"a", b"b")
    append(log, b"c", b"d", b"e")
    branch = branched(node.directory, log, 3)
    assert content(branch) == content(log, 2)
    assert append(branch, b"f") == 3


@pytest.mark.parametrize("clean", [True, False])
def test_a_branch_and_its_parent_after_a_restart(node: Node, clean: bool) -> None:
    log = filled(node)
    branch = branched(node.directory, log, log.log_end_offset)
    append(branch, b"of the branch")
    parent_content, branch_content = content(log), content(branch)
    node.restart(clean=clean)
    log, branch = node.log(CONFIG), node.directory.open(BRANCH, CONFIG, NOW)
    assert (content(log), content(branch)) == (parent_content, branch_content)
    assert not any(node.disk.is_shared(each.segments.active.log.path) for each in (log, branch))


def test_no_shared_file_is_appended_to_if_the_segment_after_it_is_lost(node: Node) -> None:
    log = filled(node)
    branch = branched(node.directory, log, log.log_end_offset)
    for each in (log, branch):
        os.unlink(each.segments.active.log.path)
    node.restart(clean=False)
    log, branch = node.log(CONFIG), node.directory.open(BRANCH, CONFIG, NOW)
    before = content(branch)
    append(log, b"of the parent")
    assert content(branch) == before
    append(branch, b"of the branch")
    assert content(branch).startswith(before) and b"of the branch" not in content(log)


@pytest.mark.parametrize("shortened", ["parent", "branch"])
def test_truncation_of_shared_records_leaves_the_other_log_whole(node: Node, shortened: str) -> None:
    log = filled(node)
    branch = branched(node.directory, log, log.log_end_offset)
    cut, kept = (log, branch) if shortened == "parent" else (branch, log)
    whole = content(kept)
    cut.truncate_to(5)
    append(cut, b"another")
    assert cut.log_end_offset == 6
    assert content(kept) == whole
    node.restart(clean=False)
    log, branch = node.log(CONFIG), node.directory.open(BRANCH, CONFIG, NOW)
    cut, kept = (log, branch) if shortened == "parent" else (branch, log)
    assert content(kept) == whole
    assert b"another" in content(cut)


def test_recovery_that_cuts_a_shared_segment_leaves_the_other_log_its_bytes(node: Node) -> None:
    log = filled(node, 4)
    branch = branched(node.directory, log, log.log_end_offset)
    path = log.segments[0].log.path
    size = os.stat(path).st_size
    os.unlink(log.segments.active.log.path)  # so that the shared one is the last, and may be cut
    with open(path, "r+b") as file:
        file.seek(size - 3)
        file.write(b"\0\0\0")
    node.kill()
    node.start()
    log = node.log(CONFIG)
    assert log.log_end_offset < 4
    assert os.stat(f"{branch.directory}/{path.rpartition('/')[2]}").st_size == size


@pytest.mark.parametrize("deleted", [PARTITION, BRANCH])
def test_deletion_of_either_leaves_the_other(node: Node, deleted: TopicPartition) -> None:
    log = filled(node)
    branch = branched(node.directory, log, log.log_end_offset)
    whole = content(log)
    run(node.directory.delete(deleted))
    kept = branch if deleted == PARTITION else log
    assert content(kept) == whole
    kept.truncate_to(5)
    assert not node.disk.is_shared(kept.segments.active.log.path)


def test_retention_of_the_parent_does_not_touch_the_branch(node: Node) -> None:
    log = filled(node)
    branch = branched(node.directory, log, log.log_end_offset)
    whole = content(branch)
    run(log.drop_segments(len(log.segments) - 1))
    assert content(branch) == whole


def test_producers_begin_again_and_aborted_transactions_stay(node: Node) -> None:
    log = node.log(CONFIG)
    write_own(log, 10, b"dropped")
    abort(log, 10)
    write_own(log, 20, b"kept")
    commit(log, 20)
    append(log, b"x", producer_id=30, producer_epoch=0, sequence=0)
    append(log, b"y", producer_id=30, producer_epoch=0, sequence=1)
    end = log.log_end_offset
    branch = branched(node.directory, log, end)
    assert branch.aborted_transactions(0, end) == log.aborted_transactions(0, end) == [(10, 0)]
    assert branch.last_stable_offset == end
    assert not branch.producers.entries
    append(branch, b"z", producer_id=30, producer_epoch=0, sequence=0)  # not a repetition of x
    assert branch.log_end_offset == end + 1
    with pytest.raises(KafkaError):
        append(log, b"z", producer_id=30, producer_epoch=0, sequence=5)
    for path in Path(branch.directory).glob("*.snapshot"):
        path.unlink()
    node.restart(clean=False)
    branch = node.directory.open(BRANCH, CONFIG, NOW)
    assert list(branch.producers.entries) == [30]
    assert branch.producers.entries[30].last_sequence == 0
    assert branch.aborted_transactions(0, end) == [(10, 0)]


def test_a_follower_that_copies_the_shared_part_has_the_same_producers(node: Node) -> None:
    log = node.log(CONFIG)
    append(log, b"x", producer_id=30, producer_epoch=0, sequence=0)
    branch = branched(node.directory, log, 1)
    branch.restart_at(0, NOW)
    branch.append_as_follower(bytearray(content(log)), now_ms=NOW)
    assert branch.log_end_offset == 1
    assert not branch.producers.entries


class Machine:
    """A node that dies, or loses power, within any change, while a log is branched, cut and written."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = SimulatedDisk(str(seed))
        self.disk.make_root("/data")
        self.now = 0
        self.point = -1
        self.shared = b""

    def _now_ns(self) -> int:
        self.now += 1
        return self.now

    def live(self, *, power_cut: bool) -> None:
        session = self.disk.attach(self._now_ns)
        self.disk.kill_at(self.chance.randint(1, 150), session.end)
        try:
            directory = LogDirectory(session, "/data", max_open_files=16)
            directory.start(NOW)
            self._work(directory)
        except Killed:
            pass
        session.end()
        if power_cut:
            self.disk.lose_power()

    def _work(self, directory: LogDirectory) -> None:
        is_new = PARTITION not in directory.partitions
        log = directory.create(PARTITION, TOPIC_ID, CONFIG, NOW) if is_new else directory.open(PARTITION, CONFIG, NOW)
        branch = self._branch(directory)
        for _ in range(60):
            choice = self.chance.random()
            if branch is None and self.point < 0 and choice < 0.1:
                run(log.flush_job())
                self.point, self.shared = log.log_end_offset, content(log)
                branch = branched(directory, log, self.point)
            elif choice < 0.15 and self.point >= 0 and branch is not None:
                log.truncate_to(self.chance.randint(0, log.log_end_offset))
            elif choice < 0.6:
                append(log, bytes(self.chance.randint(1, 60)))
            elif branch is not None:
                append(branch, bytes(self.chance.randint(1, 60)))

    def _branch(self, directory: LogDirectory) -> PartitionLog | None:
        for found in list(directory.unfinished_branches):
            finish(directory, found)
        return directory.open(BRANCH, CONFIG, NOW) if BRANCH in directory.partitions else None

    def check(self) -> None:
        """The branch has exactly the records that the parent had, or was not made."""
        session = self.disk.attach(self._now_ns)
        directory = LogDirectory(session, "/data", max_open_files=16)
        directory.start(NOW)
        branch = self._branch(directory)
        if branch is not None:
            assert branch.log_end_offset >= self.point
            assert content(branch, self.point) == self.shared
        elif self.point >= 0:
            self.point = -1  # to be made again from the parent, which has not been touched
            log = directory.open(PARTITION, CONFIG, NOW)
            assert content(log).startswith(self.shared)
        session.end()


def finish(directory: LogDirectory, branch: LogBranch) -> None:
    run(branch.finish(directory.disk))
    directory.take_branch(branch)


@pytest.mark.parametrize("power_cut", [True, False], ids=["power_cut", "kill"])
def test_a_branch_is_whole_or_not_there_when_a_node_dies(power_cut: bool) -> None:
    for seed in range(60):
        machine = Machine(seed)
        for life in range(4):
            try:
                machine.live(power_cut=power_cut)
                machine.check()
            except Exception as error:
                raise AssertionError(f"seed {seed}, life {life}") from error
