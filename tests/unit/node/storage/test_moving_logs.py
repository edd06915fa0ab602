"""Moves of a log between two directories, on a disk that dies or loses power within any change: the log is whole
afterwards, in one directory, and nothing that was acknowledged is undone."""

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from millstream.config.table import cluster
from millstream.config.topic_config import LogConfig
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.node.environment import Environment
from millstream.node.replicas.directory_moves import DirectoryMoves
from millstream.node.replicas.local_partition import LocalPartition
from millstream.node.storage.disk import Job
from millstream.node.storage.file_formats import DamagedFileError
from millstream.node.storage.log import directory, moving
from millstream.node.storage.log.directories import LogDirectories
from millstream.node.storage.log.moving import LogMove
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.simulator.disk import DiskSession, Killed, SimulatedDisk
from tests.examples import examples
from tests.unit.node.storage.batches import NOW
from tests.unit.node.storage.conftest import PARTITION
from tests.unit.node.storage.test_partition_log import append, read_all
from tests.unit.node.storage.test_transactions_power_loss import agrees
from tests.unit.node.storage.transactional import end, write_own
from tests.waiting import until_async

SEEDS = examples(40)
FOUND = (36, 45, 106)
"""A segment that was closed between the last turn and the settling; a damaged batch; a log that was here before."""
LIVES = 5
ROOTS = "/disk1", "/disk2"
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150, retention_ms=-1)
TOPIC_ID = UUID(int=1)


def run(job: Job | None) -> None:
    if job is not None:
        failure = job.run()
        job.done(failure)
        if failure is not None:
            raise failure


class Machine:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = SimulatedDisk(str(seed))
        for root in ROOTS:
            self.disk.make_root(root)
        self.now = 0
        self.flushed = 0
        self.deleted_before = 0
        self.deletes = seed % 2 == 0
        self.writes_during_steps = False

    def _now_ns(self) -> int:
        self.now += 1
        return self.now

    def start(self) -> tuple[DiskSession, LogDirectories]:
        session = self.disk.attach(self._now_ns)
        return session, LogDirectories(session, ROOTS)

    def live(self, *, power_cut: bool) -> None:
        """Start, work, and die somewhere; perhaps while starting."""
        session, logs = self.start()
        self.disk.kill_at(self.chance.randint(1, 150), session.end)
        try:
            logs.start(NOW)
            self._work(logs)
        except Killed:
            pass
        session.end()
        if power_cut:
            self.disk.lose_power()

    def is_whole(self) -> bool:
        """False if a batch that was never flushed is damaged: recovery keeps it."""
        session, logs = self.start()
        logs.start(NOW)
        assert not logs.duplicates()
        if logs.has(PARTITION):
            log = logs.open(PARTITION, CONFIG, NOW)
            assert log.log_end_offset >= self.flushed
            assert log.log_start_offset >= self.deleted_before
            if log.damaged_from is not None:
                return False
            if log.log_start_offset == 0:
                agrees(log)
            self.flushed = min(self.flushed, log.recovery_point)
        else:
            assert self.flushed == 0
        session.end()
        return True

    def _work(self, logs: LogDirectories) -> None:
        if logs.has(PARTITION):
            log = logs.open(PARTITION, CONFIG, NOW)
        else:
            log = logs.create(PARTITION, TOPIC_ID, CONFIG, NOW)
        move: LogMove | None = None
        while True:
            choice = self.chance.random()
            if choice < 0.3:
                producer = self.chance.choice((10, 20))
                write_own(log, producer, bytes(self.chance.randint(1, 60)))
            elif choice < 0.45:
                for producer in list(log.open_transactions()):
                    end(log, producer, committed=self.chance.random() < 0.4)
            elif choice < 0.55:
                append(log, bytes(self.chance.randint(1, 60)))
            elif choice < 0.65:
                run(log.flush_job())
                self.flushed = max(self.flushed, log.recovery_point)
            elif choice < 0.7 and self.deletes:
                log.delete_records_before(self.chance.randint(log.log_start_offset, log.log_end_offset))
                start = log.log_start_offset
                for job in logs.checkpoint_jobs(NOW):
                    run(job)
                self.deleted_before = max(self.deleted_before, start)
            else:
                move = self._move(logs, log, move)

    def _move(self, logs: LogDirectories, log: PartitionLog, move: LogMove | None) -> LogMove | None:
        if move is None:
            source = logs.place_of(PARTITION)
            (target,) = [each for each in logs.data if each is not source]
            assert source is not None
            move = LogMove(log, source, target, f"{self.chance.getrandbits(64):016x}")
        run(move.step(NOW))
        if self.writes_during_steps:
            append(log, bytes(self.chance.randint(1, 60)))
            run(move.catch_up())
        if not move.is_at_end or not move.finish(NOW):
            return move
        if self.chance.random() < 0.3:
            append(log, b"between")
        run(move.settle())
        run(move.target.checkpoint_job(NOW))
        run(move.retire())
        return None


@pytest.mark.parametrize("power_cut", [True, False], ids=["power_cut", "kill"])
def test_what_is_left_when_a_node_dies_during_moves(power_cut: bool) -> None:
    for seed in (*range(SEEDS), *FOUND):
        machine = Machine(seed)
        for life in range(LIVES):
            try:
                machine.live(power_cut=power_cut)
                if not machine.is_whole():
                    break
            except Exception as error:
                raise AssertionError(f"seed {seed}, life {life}") from error


def test_what_is_left_when_a_node_dies_during_moves_of_a_busy_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "LAST_BYTES", 0)
    for seed in range(SEEDS // 2):
        machine = Machine(seed)
        machine.writes_during_steps = True
        for life in range(LIVES):
            try:
                machine.live(power_cut=True)
                if not machine.is_whole():
                    break
            except Exception as error:
                raise AssertionError(f"seed {seed}, life {life}") from error


def test_little_is_copied_on_the_event_loop() -> None:
    _, logs, move = logs_with_one()
    log = move.log
    log.config = LogConfig()
    run(move.step(NOW))
    assert move.is_at_end and move.catch_up() is None
    append(log, bytes(100_000))
    assert not move.finish(NOW)
    job = move.catch_up()
    append(log, b"during the copy")
    run(job)
    assert move.catch_up() is None and move.finish(NOW)
    append(log, b"in the other directory")
    assert logs.place_of(PARTITION) is logs.data[1] and read_all(log) == [0, 1, 2, 3]


def test_a_copy_begins_again_if_the_log_is_truncated_while_it_catches_up() -> None:
    _, _, move = logs_with_one()
    log = move.log
    log.config = LogConfig()
    run(move.step(NOW))
    append(log, bytes(100_000))
    job = move.catch_up()
    log.truncate_to(1)
    append(log, b"x" * 100_000, epoch=1)
    assert job is not None
    job.done(job.run())  # it may fail: the bytes are not there any more
    assert move.is_stale and move.catch_up() is None and not move.finish(NOW)
    run(move.step(NOW))
    assert move.finish(NOW) and read_all(log) == [0, 1]


def logs_with_one(partition: TopicPartition = PARTITION) -> tuple[SimulatedDisk, LogDirectories, LogMove]:
    """A log with a record in the first directory, and its move to the second."""
    machine = Machine(1)
    _, logs = machine.start()
    logs.start(NOW)
    log = logs.data[0].create(partition, TOPIC_ID, CONFIG, NOW)
    append(log, b"first")
    return machine.disk, logs, LogMove(log, logs.data[0], logs.data[1], "7")


def test_a_copy_that_cannot_be_opened_does_not_count_at_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    _, logs, move = logs_with_one()
    run(move.step(NOW))

    def refuse(*arguments: object, **fields: object) -> None:
        raise DamagedFileError("not readable")

    with monkeypatch.context() as patch:
        patch.setattr(directory, "load_log", refuse)
        with pytest.raises(DamagedFileError):
            move.finish(NOW)
    assert not logs.disk.exists(f"{ROOTS[1]}/{PARTITION}")
    append(move.log, b"second")
    run(move.step(NOW))
    assert move.finish(NOW) and logs.place_of(PARTITION) is logs.data[1]
    assert move.log.log_end_offset == 2


def test_a_step_that_runs_late_does_not_make_a_cancelled_copy_again() -> None:
    _, logs, move = logs_with_one()
    late = move.step(NOW)
    run(move.cancel())
    run(late)
    assert not [entry for entry in logs.disk.list(ROOTS[1]) if "future" in entry.name]


def test_an_unfinished_move_of_a_topic_with_a_long_name_is_found_again() -> None:
    long = TopicPartition(TopicName("n" * 249), 12)
    disk, _, move = logs_with_one(long)
    run(move.step(NOW))
    disk.locks.clear()
    logs = LogDirectories(disk.attach(lambda: 1), ROOTS)
    logs.start(NOW)
    assert logs.data[1].futures == [long]


def test_a_topic_that_was_created_again_keeps_its_log_when_the_old_one_is_removed() -> None:
    _, logs, move = logs_with_one()
    run(move.step(NOW))
    assert move.finish(NOW)
    run(logs.delete(PARTITION))
    again = logs.data[0].create(PARTITION, UUID(int=2), CONFIG, NOW)
    run(move.retire())
    assert logs.loaded_log(PARTITION) is again and logs.topic_id(PARTITION) == UUID(int=2)


@pytest.mark.parametrize("counts", [True, False])
def test_a_directory_returns_with_a_log_that_another_one_has_too(counts: bool) -> None:
    """The node died before it removed the old log, and the disk of the new one did not work at the start."""
    disk, logs, move = logs_with_one()
    run(move.step(NOW))
    assert move.finish(NOW)
    run(move.settle())
    disk.locks.clear()
    logs = LogDirectories(disk.attach(lambda: 1), ROOTS)
    logs.unusable(logs.data[1], OSError("no disk"))
    logs.start(NOW)
    assert logs.place_of(PARTITION) is logs.data[0]
    fresh = logs.fresh(logs.data[1])
    fresh.start(NOW)
    logs.bring_online(fresh, lambda at: counts)
    assert logs.place_of(PARTITION) is (fresh if counts else logs.data[0])
    assert not logs.duplicates()


def test_a_move_gets_its_turn_while_flushes_follow_one_another() -> None:
    asyncio.run(hold_while_flushes_run())


async def hold_while_flushes_run() -> None:
    _, _, move = logs_with_one()
    flushes: list[asyncio.Future[OSError | None]] = []
    loop = asyncio.get_running_loop()

    def offload(work: Callable[[], object]) -> "asyncio.Future[OSError | None]":
        flushes.append(loop.create_future())
        return flushes[-1]

    environment = cast("Environment", SimpleNamespace(loop=loop, offload=offload))
    partition = LocalPartition(PARTITION, TOPIC_ID, lambda: move.log, environment)
    await partition.open()
    heard: list[object] = []
    partition.when_flushed(1, heard.append)
    append(move.log, b"second")
    partition.when_flushed(2, heard.append)
    holding = asyncio.ensure_future(partition.hold_flushes())
    await asyncio.sleep(0)
    flushes[0].set_result(None)
    await holding
    assert heard == [None] and len(flushes) == 1
    partition.release_flushes()
    flushes[1].set_result(None)
    await asyncio.sleep(0)
    assert heard == [None, None]


@pytest.mark.parametrize("failed", [0, 1], ids=["source", "target"])
def test_the_controller_gets_the_directory_with_the_log_when_a_directory_fails_in_a_move(failed: int) -> None:
    """The request with the target may be under way: without another one, the replica would seem to be online there."""
    asyncio.run(fail_in_move(failed))


async def fail_in_move(failed: int) -> None:
    _, logs, move = logs_with_one()
    for number, each in enumerate(logs.data):
        each.id = UUID(int=100 + number)
    assigned: list[tuple[object, ...]] = []
    partition: Any = SimpleNamespace(topic_partition=PARTITION, topic_id=TOPIC_ID, open=asyncio.Event().wait)
    roles: Any = SimpleNamespace(moving_to={}, partitions=SimpleNamespace(by_name={b"orders": {0: partition}}))
    assignments: Any = SimpleNamespace(assign=lambda *fields: assigned.append(fields))
    cleaner: Any = SimpleNamespace(release=lambda at: None)
    environment: Any = SimpleNamespace(loop=asyncio.get_running_loop())
    config: Any = None
    moves = DirectoryMoves(logs, roles, assignments, cleaner, environment, lambda: config)
    moves.begin(partition, move.target)
    await asyncio.sleep(0)
    roles.moving_to[PARTITION] = move.target.id
    assert len(moves.directory_failed(logs.data[failed])) == 1
    assert assigned == [(TOPIC_ID, 0, move.source.id)]
    await asyncio.sleep(0)
    assert len(moves) == 0 and not roles.moving_to


def test_a_move_goes_on_after_a_truncation_during_a_step() -> None:
    asyncio.run(truncate_in_move())


async def truncate_in_move() -> None:
    _, logs, move = logs_with_one()
    log, loop = move.log, asyncio.get_running_loop()
    steps: list[str] = []

    def offload(work: Callable[[], Any]) -> "asyncio.Future[Any]":
        steps.append("")
        if len(steps) == 1:
            log.truncate_to(0)  # the step finds less than there was when it was planned
        done = loop.create_future()
        done.set_result(work())
        return done

    async def assign(*fields: object) -> bool:
        return True

    environment: Any = SimpleNamespace(
        loop=loop, offload=offload, clock=SimpleNamespace(now_ms=lambda: NOW), randomness=random.Random(1)
    )
    partition: Any = LocalPartition(PARTITION, TOPIC_ID, lambda: log, environment)
    roles: Any = SimpleNamespace(moving_to={})
    cleaner: Any = SimpleNamespace(hold=lambda at: True, release=lambda at: None)
    assignments: Any = SimpleNamespace(assign=assign)
    config: Any = {cluster.REPLICA_ALTER_LOG_DIRS_IO_MAX_BYTES_PER_SECOND: 1 << 40}
    moves = DirectoryMoves(logs, roles, assignments, cleaner, environment, lambda: config)
    moves.begin(partition, move.target)
    await until_async(lambda: bool(moves.finished + moves.failed))
    assert (moves.finished, moves.failed) == (1, 0)
    assert logs.place_of(PARTITION) is logs.data[1]
