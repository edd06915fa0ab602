"""A partition on a real log: roles, what waits for what, and what a restart shows."""

import asyncio
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.records.record import Record, build_batch
from millstream.node.metadata.image import PartitionState
from millstream.node.replicas.core.leader import Confirmed, Proposal
from millstream.node.replicas.local_partition import Role
from millstream.node.replicas.partition import Partition
from millstream.node.runtime.disk import RealDisk
from millstream.node.runtime.real_environment import real_environment
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.leader_epochs import LeaderEpochFile
from millstream.node.storage.log.partition_log import PartitionLog

AT = TopicPartition(TopicName("t"), 0)
TOPIC_ID = UUID(int=5)
LED = PartitionState(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=3, partition_epoch=0)
ALONE = PartitionState(replicas=(1,), isr=(1,), leader=1, leader_epoch=3, partition_epoch=0)


class Around:
    node_id = 1

    def __init__(self) -> None:
        self.proposals: list[Proposal] = []

    def has_lost_controller(self) -> bool:
        return False

    def is_eligible(self, broker_id: int, broker_epoch: int, state: object = None) -> bool:
        return True

    def is_alive(self, broker_id: int) -> bool:
        return True

    def broker_epoch(self) -> int:
        return 10

    def lag_max_ms(self) -> int:
        return 30_000

    def submit(self, partition: Partition, proposal: Proposal) -> None:
        self.proposals.append(proposal)


class Bench:
    def __init__(self, root: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.root = root
        self.environment = real_environment(loop)
        self.around = Around()
        self.config = LogConfig()
        self.logs = LogDirectory(RealDisk(), str(root))
        self.logs.start(0)
        self.partition = self.new_partition()

    def new_partition(self) -> Partition:
        return Partition(AT, TOPIC_ID, self._open, self.environment, self.around)

    def _open(self) -> PartitionLog:
        if AT in self.logs.partitions:
            log = self.logs.open(AT, self.config, 0)
            self.logs.restore_high_watermark(log)
            return log
        return self.logs.create(AT, TOPIC_ID, self.config, 0)

    def restart(self) -> None:
        self.logs.close(0)
        self.logs = LogDirectory(RealDisk(), str(self.root))
        self.logs.start(0)
        self.partition = self.new_partition()

    def append(self, *values: bytes) -> int:
        """Returns the offset behind what was appended."""
        batch = build_batch([Record(None, value, timestamp=1) for value in values])
        return self.partition.append(memoryview(batch), 1).last_offset + 1

    def outcome(self, offset: int) -> list[KafkaError | None]:
        told: list[KafkaError | None] = []
        self.partition.when_committed(offset, told.append)
        return told


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    made = Bench(tmp_path, loop)
    yield made
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def code(told: list[KafkaError | None]) -> ErrorCode | None:
    (only,) = told
    return None if only is None else ErrorCode(only.code)


def test_without_a_role_nothing_is_taken(bench: Bench) -> None:
    assert bench.partition.role is Role.OFFLINE
    with pytest.raises(KafkaError) as refused:
        bench.append(b"x")
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code(bench.outcome(0)) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_with_one_replica_all_is_committed_at_once(bench: Bench) -> None:
    bench.partition.become_leader(ALONE)
    end = bench.append(b"a", b"b")
    assert bench.partition.high_watermark == end == 2
    assert code(bench.outcome(end)) is None


def test_a_write_is_committed_when_the_follower_fetches_behind_it(bench: Bench) -> None:
    bench.partition.become_leader(LED)
    end = bench.append(b"a")
    told = bench.outcome(end)
    assert told == [] and bench.partition.high_watermark == 0
    bench.partition.fetched_by(2, 20, 0, 0)
    assert told == []
    bench.partition.fetched_by(2, 20, end, 0)
    assert told == [None] and bench.partition.high_watermark == end


def test_who_gave_up_waiting_is_not_called(bench: Bench) -> None:
    bench.partition.become_leader(LED)
    end = bench.append(b"a")
    told: list[KafkaError | None] = []
    waiter = bench.partition.when_committed(end, told.append)
    assert waiter is not None
    waiter.cancel()
    bench.partition.fetched_by(2, 20, end, 0)
    assert told == []


@pytest.mark.parametrize(
    "leave",
    [
        lambda p: p.become_follower(replace(LED, leader=2, leader_epoch=4, partition_epoch=1)),
        lambda p: p.become_leader(replace(LED, leader_epoch=4, partition_epoch=1)),
        lambda p: p.go_offline(),
    ],
    ids=["follows", "leads again", "goes"],
)
def test_whoever_waits_hears_that_the_leadership_is_over(leave: Callable[[Partition], None], bench: Bench) -> None:
    bench.partition.become_leader(LED)
    told = bench.outcome(bench.append(b"a"))
    flushed: list[KafkaError | None] = []
    bench.partition._flush_waiters.append((1, flushed.append))
    leave(bench.partition)
    assert code(told) == code(flushed) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_whoever_waits_hears_that_too_few_are_left(bench: Bench) -> None:
    bench.config = LogConfig(min_insync_replicas=2)
    bench.partition.become_leader(LED)
    told = bench.outcome(bench.append(b"a"))
    bench.partition.become_leader(replace(LED, isr=(1,), partition_epoch=1))
    assert code(told) == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    with pytest.raises(KafkaError) as refused:
        bench.partition.check_enough_in_sync()
    assert refused.value.code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_follower_in_front_of_the_door_is_proposed_and_let_in(bench: Bench) -> None:
    bench.partition.become_leader(replace(LED, isr=(1,)))
    end = bench.append(b"a")
    assert bench.partition.high_watermark == end
    bench.partition.fetched_by(2, 20, end, 0)
    (proposal,) = bench.around.proposals
    assert proposal.isr == ((1, 10), (2, 20))
    told = bench.outcome(bench.append(b"b"))
    assert told == [], "who is proposed counts"
    bench.partition.on_proposal_response(proposal, 0, Confirmed(3, 1, (1, 2)))
    assert bench.partition.in_sync() == {1, 2} and told == []
    bench.partition.fetched_by(2, 20, end + 1, 0)
    assert told == [None]


def test_records_are_gone_when_the_follower_says_so(bench: Bench) -> None:
    bench.partition.become_leader(LED)
    end = bench.append(b"a", b"b")
    bench.partition.fetched_by(2, 20, end, 0)
    bench.partition.log.delete_records_before(1)
    told: list[KafkaError | None] = []
    bench.partition.when_deleted(1, told.append)
    bench.partition.fetched_by(2, 20, end, 0)
    assert told == []
    bench.partition.fetched_by(2, 20, end, 1)
    assert told == [None] and bench.partition.low_watermark == 1


@pytest.mark.parametrize("as_leader", [True, False])
def test_a_restart_shows_nothing_that_was_not_committed(as_leader: bool, bench: Bench) -> None:
    bench.partition.become_leader(LED)
    end = bench.append(b"committed")
    bench.partition.fetched_by(2, 20, end, 0)
    bench.append(b"not yet")
    bench.restart()
    if as_leader:
        bench.partition.become_leader(replace(LED, leader_epoch=4, partition_epoch=1))
    else:
        bench.partition.become_follower(replace(LED, leader=2, leader_epoch=4, partition_epoch=1))
    assert bench.partition.log.log_end_offset == 2
    assert bench.partition.high_watermark == 1
    if as_leader:
        assert not bench.partition.knows_what_is_committed
        bench.partition.fetched_by(2, 21, 2, 0)
        assert bench.partition.knows_what_is_committed and bench.partition.high_watermark == 2


@pytest.mark.parametrize("as_leader", [True, False])
def test_a_batch_of_an_epoch_that_cannot_be_is_damaged(as_leader: bool, bench: Bench) -> None:
    """The epoch of a batch stands outside of its checksum."""
    bench.partition.become_leader(LED)
    bench.append(b"sound")
    bench.append(b"damaged")
    bench.append(b"behind it")
    bench.logs.close(0, may_be_clean=False)
    path = bench.root / f"{AT}" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    second = 12 + struct.unpack_from(">i", content, 8)[0]
    content[second + 12] ^= 1  # the highest byte of the leader epoch
    path.write_bytes(content)
    bench.logs = LogDirectory(RealDisk(), str(bench.root))
    bench.logs.start(0)
    bench.partition = bench.new_partition()
    if as_leader:
        bench.partition.become_leader(replace(LED, leader_epoch=4, partition_epoch=1))
    else:
        bench.partition.become_follower(replace(LED, leader=2, leader_epoch=4, partition_epoch=1))
    log = bench.partition.log
    assert log.epochs.latest <= 4
    assert log.log_end_offset == (3 if as_leader else 1)


def flip_in_the_second_batch(path: Path) -> None:
    content = bytearray(path.read_bytes())
    second = 12 + struct.unpack_from(">i", content, 8)[0]
    content[2 * second - 1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("as_leader", [True, False])
@pytest.mark.parametrize(
    ("harm", "kept_from", "cut_to"),
    [(flip_in_the_second_batch, 0, 1), (lambda path: os.truncate(path, 0), 3, 0), (Path.unlink, 3, 0)],
    ids=["a batch damaged", "the first segment empty", "the first segment gone"],
)
def test_a_follower_cuts_what_recovery_kept_behind_a_loss(
    harm: Callable[[Path], None], kept_from: int, cut_to: int, as_leader: bool, bench: Bench
) -> None:
    """Before it fetches: what lies before the offset of a fetch counts as had."""
    bench.partition.become_leader(LED)
    for value in (b"a", b"b", b"c"):
        bench.partition.fetched_by(2, 20, bench.append(value), 0)
    bench.partition.log.roll(0)
    bench.append(b"d")
    bench.logs.close(0, may_be_clean=False)
    # The power went before anything was flushed.
    (bench.root / "recovery-point-offset-checkpoint").unlink()
    harm(bench.root / f"{AT}" / f"{0:020d}.log")
    bench.logs = LogDirectory(RealDisk(), str(bench.root))
    bench.logs.start(0)
    bench.partition = bench.new_partition()
    if as_leader:
        bench.partition.become_leader(replace(LED, leader_epoch=4, partition_epoch=1))
        log = bench.partition.log
        assert (log.log_start_offset, log.log_end_offset) == (kept_from, 4), "nobody else may have what follows"
        return
    bench.partition.become_follower(replace(LED, leader=2, leader_epoch=4, partition_epoch=1))
    follower = bench.partition.follower
    assert follower is not None and follower.position().offset == cut_to
    assert bench.partition.log.log_end_offset == cut_to
    assert bench.partition.high_watermark == follower.high_watermark <= cut_to
    assert bench.partition.log.damaged_from is None


def test_a_second_replica_comes_and_goes(bench: Bench) -> None:
    bench.partition.become_leader(ALONE)
    bench.append(b"a")
    bench.partition.become_leader(replace(ALONE, replicas=(1, 2), partition_epoch=1))
    assert bench.append(b"b") == bench.partition.high_watermark == 2
    bench.partition.become_leader(replace(ALONE, replicas=(1, 2), isr=(1, 2), partition_epoch=2))
    bench.append(b"c")
    assert bench.partition.high_watermark == 2
    bench.partition.become_leader(replace(ALONE, partition_epoch=3))
    assert bench.partition.high_watermark == 3
    assert bench.partition.log.high_watermark is None


def test_a_new_leadership_is_noted_in_the_log_before_anything_is_written(bench: Bench) -> None:
    bench.partition.become_leader(LED)
    bench.append(b"a")
    bench.partition.become_leader(replace(LED, leader_epoch=7, partition_epoch=1))
    assert bench.partition.log.end_offset_of_epoch(3) == (3, 1)
    assert bench.partition.log.end_offset_of_epoch(7) == (7, 1)


@pytest.mark.plain
def test_a_leadership_that_cannot_be_noted_takes_nothing_until_it_can(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.partition.become_follower(replace(LED, leader=2, leader_epoch=2))
    log = bench.partition.log
    with monkeypatch.context() as broken:

        def fail(epoch: int, start_offset: int) -> None:
            raise OSError("disk full")

        broken.setattr(LeaderEpochFile, "begin", lambda self, epoch, start: fail(epoch, start))
        with pytest.raises(KafkaError):
            bench.partition.become_leader(LED)
        with pytest.raises(KafkaError):
            bench.append(b"x")
    bench.append(b"x")
    assert bench.partition.log is log
    assert bench.partition.high_watermark == 0, "the follower does not have it"
