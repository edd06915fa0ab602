"""Transactions of a log against a list of what was written, through truncation, full disks, kills and restarts; a
follower copies the log on the way, and consumers read it committed from anywhere."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import iterate_headers
from millstream.node.storage.index.transaction_index import read_marker
from millstream.node.storage.log.partition_log import PartitionLog
from tests.examples import examples
from tests.unit.node.storage.batches import NOW
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.faulty_disk import FaultyDisk
from tests.unit.node.storage.test_partition_log import append
from tests.unit.node.storage.transactional import end, write, write_own

CLIENTS = (1, 2, 3)
COORDINATED = (4, 5)
"""Producers for which a broker writes, without sequences."""


class Written(NamedTuple):
    """A batch in the log: of a transaction, its marker, or neither (producer 0)."""

    first: int
    end: int
    size: int
    producer: int = 0
    committed: bool | None = None
    """What a marker says; None for data."""


class Naive:
    """What follows from a list of batches, found by walking over all of it."""

    def __init__(self, batches: list[Written], high_watermark: int) -> None:
        self.open: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []
        self.visible: list[int] = []
        """First offsets of the batches that `read_committed` is to see."""
        unsettled: list[int] = []
        pending: dict[int, list[int]] = {}
        for batch in batches:
            if batch.producer == 0:
                self.visible.append(batch.first)
            elif batch.committed is None:
                self.open.setdefault(batch.producer, batch.first)
                pending.setdefault(batch.producer, []).append(batch.first)
            else:
                first = self.open.pop(batch.producer, None)
                records = pending.pop(batch.producer, [])
                if first is None:
                    continue
                if batch.first >= high_watermark:
                    unsettled.append(first)
                if batch.committed:
                    self.visible += records
                else:
                    self.aborted.append((batch.producer, first, batch.first))
        self.first_unstable = min([*self.open.values(), *unsettled], default=None)


class TransactionModel(RuleBasedStateMachine):
    @initialize(segment_bytes=st.sampled_from([300, 700, 2000, 1 << 20]), replicated=st.booleans())
    def begin(self, segment_bytes: int, replicated: bool) -> None:
        self.root = tempfile.mkdtemp()
        self.config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=150)
        self.node = Node(FaultyDisk(), str(Path(self.root) / "leader"))
        self.log = self.node.log(self.config)
        self.other = Node(FaultyDisk(), str(Path(self.root) / "follower"))
        self.follower = self.other.log(self.config)
        self.batches: list[Written] = []
        self.high_watermark: int | None = 0 if replicated else None
        self.was_reloaded = False
        self._lead()

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.node.kill()
            self.other.kill()
            shutil.rmtree(self.root, ignore_errors=True)

    def _lead(self) -> None:
        if self.high_watermark is not None:
            self.high_watermark = min(self.high_watermark, self.log.log_end_offset)
        self.log.high_watermark = self.high_watermark

    def _write(
        self, call: Callable[[], int], room: int | None, producer: int = 0, committed: bool | None = None
    ) -> bool:
        size = self.log.size_bytes
        before = self.log.log_end_offset, self.log.open_transactions()
        self.node.disk.room = room
        try:
            first = call()
        except KafkaError as error:
            assert error.code == ErrorCode.KAFKA_STORAGE_ERROR and room is not None
            assert (self.log.log_end_offset, self.log.open_transactions()) == before
            return False
        finally:
            self.node.disk.room = None
        self.batches.append(Written(first, self.log.log_end_offset, self.log.size_bytes - size, producer, committed))
        return True

    @rule(
        steps=st.lists(
            st.tuples(
                st.sampled_from(("write", "write", "commit", "abort", "outside")),
                st.sampled_from((*CLIENTS, *COORDINATED)),
                st.integers(1, 3),
            ),
            min_size=1,
            max_size=12,
        )
    )
    def work(self, steps: list[tuple[str, int, int]]) -> None:
        for step, producer, count in steps:
            self._step(step, producer, count, None)

    @rule(
        step=st.sampled_from(("write", "commit", "abort")),
        producer=st.sampled_from((*CLIENTS, *COORDINATED)),
        count=st.integers(1, 3),
        room=st.integers(0, 130),
    )
    def work_on_a_full_disk(self, step: str, producer: int, count: int, room: int) -> None:
        self._step(step, producer, count, room)

    def _step(self, step: str, producer: int, count: int, room: int | None) -> None:
        values = [b"v" * 20] * count
        entry = self.log.producers.entries.get(producer)
        sequence = entry.next_sequence if entry is not None else 0
        match step:
            case "write" if producer in CLIENTS:
                self._write(lambda: write(self.log, producer, sequence, *values), room, producer)
            case "write":
                self._write(lambda: write_own(self.log, producer, *values), room, producer)
            case "outside":
                self._write(lambda: append(self.log, *values), room)
            case _:
                committed = step == "commit"
                self._write(lambda: end(self.log, producer, committed=committed), room, producer, committed)

    @rule(at=st.floats(0, 1))
    def advance_high_watermark(self, at: float) -> None:
        if self.high_watermark is not None:
            self.high_watermark += round(at * (self.log.log_end_offset - self.high_watermark))
            self._lead()

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW)

    @rule()
    def flush(self) -> None:
        job = self.log.flush_job()
        if job is not None:
            job.done(job.run())
        job = self.node.directory.checkpoint_job(NOW)
        assert job is not None
        job.done(job.run())

    @rule(batches=st.integers(0, 8))
    def truncate(self, batches: int) -> None:
        offset = self.batches[-batches].first if 0 < batches <= len(self.batches) else self.log.log_end_offset
        self.was_reloaded = True
        self.log.truncate_to(offset)
        self.batches = [batch for batch in self.batches if batch.end <= offset]
        self._lead()
        if self.follower.log_end_offset > self.log.log_end_offset:
            self.follower.truncate_to(self.log.log_end_offset)

    @rule()
    def replicate(self) -> None:
        while self.follower.log_end_offset < self.log.log_end_offset:
            found = self.log.read(self.follower.log_end_offset, 300, up_to=self.log.log_end_offset, at_least_one=True)
            found.prepare()
            data = found.read()
            whole = [position + header.size for position, header in iterate_headers(data)][-1]
            self.follower.append_as_follower(data[:whole], now_ms=NOW)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.was_reloaded = True
        self.node.restart(clean=clean)
        self.log = self.node.log(self.config)
        self._lead()

    @rule(lost_bytes=st.integers(0, 400), junk=st.none() | st.binary(min_size=1, max_size=80))
    def kill(self, lost_bytes: int, junk: bytes | None) -> None:
        self.was_reloaded = True
        self.node.kill()
        active = sorted(self.node.path.glob("*.log"))[-1]
        base, size = int(active.stem), max(active.stat().st_size - lost_bytes, 0)
        os.truncate(active, size)
        reached, kept = 0, []
        for batch in self.batches:
            if batch.first >= base:
                reached += batch.size
                if reached > size:
                    break
            kept.append(batch)
        self.batches = kept
        if junk is not None:
            for path in self.node.path.glob("*.txnindex"):
                path.write_bytes(junk)
        self.node.start()
        self.log = self.node.log(self.config)
        self._lead()
        if self.follower.log_end_offset > self.log.log_end_offset:
            self.follower.truncate_to(self.log.log_end_offset)

    @rule(clean=st.booleans())
    def restart_follower(self, clean: bool) -> None:
        self.other.restart(clean=clean)
        self.follower = self.other.log(self.config)

    @rule(at=st.floats(0, 1), max_bytes=st.integers(1, 600))
    def consume(self, at: float, max_bytes: int) -> None:
        stable = self.log.last_stable_offset
        offset = round(at * stable)
        naive = Naive(self.batches, self.log.readable_end)
        expected = sorted(first for first in naive.visible if first < stable)
        whole = {batch.first: batch.end for batch in self.batches}
        seen = read_committed(self.log, offset, stable, max_bytes)
        assert seen == [first for first in expected if whole[first] > offset]

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "node"):
            self._agrees(self.log, self.batches)
            copied = [batch for batch in self.batches if batch.end <= self.follower.log_end_offset]
            self.follower.high_watermark = min(self.log.readable_end, self.follower.log_end_offset)
            self._agrees(self.follower, copied)

    def _agrees(self, log: PartitionLog, batches: list[Written]) -> None:
        assert log.log_end_offset == (batches[-1].end if batches else 0)
        committed = log.readable_end
        naive = Naive(batches, committed)
        assert log.open_transactions() == naive.open
        assert list(log.open_transactions().values()) == sorted(naive.open.values())
        # What a snapshot has of ended transactions is forgotten by a restart, as in Kafka: their outcome is decided.
        least = min(naive.open.values(), default=committed)
        exact = committed if naive.first_unstable is None else min(naive.first_unstable, committed)
        if self.was_reloaded or log is self.follower:
            assert exact <= log.last_stable_offset <= min(least, committed)
        else:
            assert log.last_stable_offset == exact
        found = log.aborted_transactions(0, log.log_end_offset)
        assert found == [(producer, first) for producer, first, _ in naive.aborted]


def read_committed(log: PartitionLog, offset: int, up_to: int, max_bytes: int) -> list[int]:
    """First offsets of what a consumer keeps, by the rules of Kafka's own."""
    seen: list[int] = []
    while offset < up_to:
        found = log.read(offset, max_bytes, up_to=up_to, at_least_one=True)
        found.prepare()
        data = found.read()
        headers = list(iterate_headers(data))
        end = headers[-1][1].last_offset + 1
        waiting = sorted(log.aborted_transactions(offset, end), key=lambda entry: entry[1])
        aborted: set[int] = set()
        for position, header in headers:
            while waiting and waiting[0][1] <= header.last_offset:
                aborted.add(waiting.pop(0)[0])
            if header.is_control:
                marker = read_marker(data[position : position + header.size])
                assert marker is not None
                if not marker.committed:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                seen.append(header.base_offset)
        offset = end
    return seen


TransactionModel.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTransactionModel = TransactionModel.TestCase
