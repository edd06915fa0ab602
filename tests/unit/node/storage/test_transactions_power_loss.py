"""Transactions on a disk that loses power within any change: what the log says of them afterwards is what its batches
say, whatever of them is left, and nothing that was flushed is lost."""

import random
from uuid import UUID

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import KafkaError
from millstream.formats.records.batch import iterate_headers
from millstream.node.storage.index.transaction_index import read_marker
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.simulator.disk import Killed, SimulatedDisk
from tests.examples import examples
from tests.unit.node.storage.batches import NOW
from tests.unit.node.storage.conftest import PARTITION
from tests.unit.node.storage.test_partition_log import append
from tests.unit.node.storage.test_transaction_model import Naive, Written
from tests.unit.node.storage.transactional import end, write, write_own

SEEDS = examples(60)
FOUND = (1114, 1200, 5096)
"""A truncation that a checkpoint, or the file of the segment, did not know of."""
LIVES = 5
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150, retention_ms=-1)


def batches_of(log: PartitionLog) -> list[Written]:
    """What is in the log, read as any reader reads it."""
    found: list[Written] = []
    offset = 0
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20, up_to=log.log_end_offset, at_least_one=True)
        piece.prepare()
        data = piece.read()
        for position, header in iterate_headers(data):
            committed = None
            if header.is_control:
                marker = read_marker(data[position : position + header.size])
                assert marker is not None
                committed = marker.committed
            producer = header.producer_id if header.is_transactional else 0
            found.append(Written(header.base_offset, header.last_offset + 1, header.size, producer, committed))
            offset = header.last_offset + 1
    return found


def agrees(log: PartitionLog) -> None:
    naive = Naive(batches_of(log), log.log_end_offset)
    assert log.open_transactions() == naive.open
    assert log.last_stable_offset == (log.log_end_offset if naive.first_unstable is None else naive.first_unstable)
    found = log.aborted_transactions(0, log.log_end_offset)
    assert found == [(producer, first) for producer, first, _ in naive.aborted]


class Machine:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = SimulatedDisk(str(seed))
        self.disk.make_root("/data")
        self.now = 0
        self.flushed = 0

    def _now_ns(self) -> int:
        self.now += 1
        return self.now

    def live(self, *, power_cut: bool) -> None:
        """Start, work, and die somewhere; perhaps while starting."""
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
        self.disk.heal()

    def look(self) -> bool:
        """Whether the log is whole: one that was never flushed may lose its first segment (see docs/simulation.md), and
        a damaged batch in a sealed one is kept."""
        session = self.disk.attach(self._now_ns)
        directory = LogDirectory(session, "/data", max_open_files=16)
        if any(report.damaged for report in directory.start(NOW)):
            return False
        if PARTITION in directory.partitions:
            log = directory.open(PARTITION, CONFIG, NOW)
            assert log.log_end_offset >= self.flushed
            if log.log_start_offset > 0:
                assert self.flushed == 0
                return False
            agrees(log)
            self.flushed = min(self.flushed, log.recovery_point)
        session.end()
        return True

    def _work(self, directory: LogDirectory) -> None:
        chance = self.chance
        if PARTITION in directory.partitions:
            log = directory.open(PARTITION, CONFIG, NOW)
        else:
            log = directory.create(PARTITION, UUID(int=1), CONFIG, NOW)
        agrees(log)
        for _ in range(chance.randint(1, 60)):
            step, producer = chance.random(), chance.randint(1, 4)
            try:
                self._step(directory, log, step, producer)
            except KafkaError:
                return  # its disk is gone
        if chance.random() < 0.3:
            directory.close(NOW)

    def _step(self, directory: LogDirectory, log: PartitionLog, step: float, producer: int) -> None:
        chance = self.chance
        if step < 0.4:
            if producer == 4:
                write_own(log, producer, b"v" * 20)
            else:
                entry = log.producers.entries.get(producer)
                write(log, producer, entry.next_sequence if entry else 0, b"v" * 20)
        elif step < 0.7:
            end(log, producer, committed=chance.random() < 0.3)
        elif step < 0.78:
            append(log, b"v" * 40)
        elif step < 0.86:
            offset = max(log.log_end_offset - chance.randint(0, 6), 0)
            before = [batch.end for batch in batches_of(log) if batch.end <= offset]
            self.flushed = min(self.flushed, before[-1] if before else 0)
            log.truncate_to(offset)
        elif step < 0.93:
            flush = log.flush_job()
            if flush is not None:
                flush.done(flush.run())
                self.flushed = log.recovery_point
        else:
            checkpoint = directory.checkpoint_job(NOW)
            assert checkpoint is not None
            checkpoint.done(checkpoint.run())


@pytest.mark.parametrize("power_cut", [True, False])
def test_logs_and_indexes_agree_after_power_loss(power_cut: bool) -> None:
    for seed in (*range(SEEDS), *FOUND):
        machine = Machine(seed)
        for _ in range(LIVES):
            machine.live(power_cut=power_cut)
            if not machine.look():
                break
