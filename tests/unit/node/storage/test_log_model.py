"""The log against a list of batches, through full disks, kills, torn tails, flipped bits and restarts."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import iterate_headers
from tests.examples import examples
from tests.unit.node.storage.batches import NOW, batch
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.faulty_disk import FaultyDisk

PRODUCER = 42


class LogModel(RuleBasedStateMachine):
    @initialize(
        segment_bytes=st.sampled_from([400, 1000, 5000, 1 << 20]), interval=st.sampled_from([0, 150, 1000, 4096])
    )
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.root = tempfile.mkdtemp()
        self.config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=interval)
        self.node = Node(FaultyDisk(), str(Path(self.root) / "data"))
        self.log = self.node.log(self.config)
        self.batches: list[tuple[int, int, bytes]] = []
        """(base offset, end offset, bytes as stored)"""
        self.start = 0
        self.epoch = 0
        self.sequence = 0

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.node.kill()
            shutil.rmtree(self.root, ignore_errors=True)

    @property
    def end(self) -> int:
        return self.batches[-1][1] if self.batches else self.log.log_start_offset

    def _batch(self, sizes: list[int], idempotent: bool) -> bytearray:
        fields: dict[str, Any] = (
            {"producer_id": PRODUCER, "producer_epoch": 0, "sequence": self.sequence} if idempotent else {}
        )
        return batch(*(b"v" * size for size in sizes), **fields)

    def _append(self, data: bytearray, count: int, idempotent: bool) -> None:
        end = self.log.log_end_offset
        appended = self.log.append(data, leader_epoch=self.epoch, now_ms=NOW)
        assert (appended.base_offset, appended.last_offset) == (end, end + count - 1)
        self.batches.append((end, end + count, bytes(data)))
        if idempotent:
            self.sequence += count

    @rule(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=3), idempotent=st.booleans(), times=st.integers(1, 6))
    def append(self, sizes: list[int], idempotent: bool, times: int) -> None:
        for _ in range(times):
            self._append(self._batch(sizes, idempotent), len(sizes), idempotent)

    @rule(
        sizes=st.lists(st.integers(0, 60), min_size=1, max_size=3), room=st.integers(0, 150), idempotent=st.booleans()
    )
    def append_on_a_full_disk(self, sizes: list[int], room: int, idempotent: bool) -> None:
        self.node.disk.room = room
        try:
            self._append(self._batch(sizes, idempotent), len(sizes), idempotent)
        except KafkaError as error:
            assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
        finally:
            self.node.disk.room = None

    @rule()
    def next_epoch(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW)

    @rule(
        at=st.floats(0, 1), max_bytes=st.integers(0, 2000), bound=st.floats(0, 1), one=st.booleans(), cold=st.booleans()
    )
    def read(self, at: float, max_bytes: int, bound: float, one: bool, cold: bool) -> None:
        offset = self.start + round(at * (self.end - self.start))
        bounds = [self.start, *(end for _, end, _ in self.batches if end > self.start)]
        up_to = bounds[round(bound * (len(bounds) - 1))]
        self.node.disk.cold = cold
        try:
            found = self.log.read(offset, max_bytes, up_to=up_to, at_least_one=one)
            found.prepare()
        finally:
            self.node.disk.cold = False
        expected = [data for _, end, data in self.batches if offset < end <= up_to]
        data = found.read()
        assert len(data) == found.length
        assert b"".join(expected).startswith(data)
        if expected and offset < up_to and (one or len(expected[0]) <= max_bytes):
            assert len(data) >= len(expected[0])
        if len(data) > max_bytes:
            assert one and data == expected[0]

    @rule(at=st.floats(0, 1))
    def truncate(self, at: float) -> None:
        offset = self.start + round(at * (self.end - self.start))
        new_end = self.log.truncate_to(offset)
        self.batches = [entry for entry in self.batches if entry[1] <= offset]
        if self.batches:
            assert new_end == self.end
        self.start = self.log.log_start_offset
        self._resume_sequence()

    def _resume_sequence(self) -> None:
        """Go on where the log says the producer is; what it still holds of the producer must bear that out."""
        expected = None
        for _, end, data in self.batches:
            for _, header in iterate_headers(data):
                if header.producer_id == PRODUCER and end > self.log.log_start_offset:
                    expected = header.base_sequence + header.record_count
        entry = self.log.producers.entries.get(PRODUCER)
        if expected is not None:
            assert entry is not None
            assert entry.next_sequence == expected
        self.sequence = 0 if entry is None else entry.next_sequence

    @precondition(lambda self: self.batches)
    @rule(at=st.floats(0, 1))
    def delete_records(self, at: float) -> None:
        offset = self.start + round(at * (self.end - self.start))
        self.log.delete_records_before(offset)
        self.start = max(self.start, offset)

    @rule(checkpoint=st.booleans())
    def maintain(self, checkpoint: bool) -> None:
        for job in self.node.directory.maintenance(NOW):
            job.done(job.run())
        if checkpoint:
            checkpointing = self.node.directory.checkpoint_job(NOW)
            assert checkpointing is not None
            checkpointing.done(checkpointing.run())

    @rule()
    def flush(self) -> None:
        job = self.log.flush_job()
        if job is not None:
            job.done(job.run())
        assert self.log.recovery_point == self.log.log_end_offset

    @rule()
    def restart(self) -> None:
        self.node.restart(clean=True)
        self._reopen()
        assert self.log.log_start_offset == self.start

    @rule(
        damage=st.sampled_from(["none", "torn", "junk", "flip", "indexes", "snapshots"]),
        where=st.floats(0, 1),
        junk=st.binary(min_size=1, max_size=100),
    )
    def kill(self, damage: str, where: float, junk: bytes) -> None:
        self.node.kill()
        active = sorted(self.node.path.glob("*.log"))[-1]
        base, size = int(active.stem), active.stat().st_size
        inside = [entry for entry in self.batches if entry[0] >= base]
        assert sum(len(data) for _, _, data in inside) == size
        if damage == "torn" and size:
            self._cut(base, round(where * size))
            os.truncate(active, round(where * size))
        elif damage == "junk":
            with active.open("ab") as file:
                file.write(junk)
        elif damage == "flip" and size:
            self._flip(active, base, min(round(where * size), size - 1))
        elif damage in ("indexes", "snapshots"):
            for path in self.node.path.glob("*index" if damage == "indexes" else "*.snapshot"):
                path.write_bytes(junk) if len(junk) % 2 else path.unlink()
        self.node.start()
        self._reopen()

    def _flip(self, path: Path, base: int, position: int) -> None:
        start = 0
        for first, _, data in self.batches:
            if first >= base:
                if start + len(data) > position:
                    break
                start += len(data)
        within = position - start
        if within < 8 or 12 <= within < 16:
            position = start + 20  # offset and leader epoch lie outside the checksum, in Kafka's format
        content = bytearray(path.read_bytes())
        content[position] ^= 1 << (position % 8)
        path.write_bytes(content)
        self._cut(base, position)

    def _cut(self, base: int, position: int) -> None:
        """Keep what is whole before a byte of the active segment."""
        kept, reached = [], 0
        for entry in self.batches:
            if entry[0] >= base:
                reached += len(entry[2])
                if reached > position:
                    break
            kept.append(entry)
        self.batches = kept

    def _reopen(self) -> None:
        self.log = self.node.log(self.config)
        start = self.log.log_start_offset
        if self.batches and self.batches[-1][1] < start:
            self.batches = []
        if not self.batches:
            assert self.log.log_end_offset >= start
        else:
            assert start <= max(self.start, self.batches[0][0]), "no kept record is lost"
        self.start = start
        self._resume_sequence()

    @invariant()
    def holds_what_was_appended(self) -> None:
        if not hasattr(self, "node"):
            return
        if self.batches:
            assert self.log.log_end_offset == self.end
        self.batches = [entry for entry in self.batches if entry[1] > self.log.segments.bases[0]]
        offset, seen = self.log.log_start_offset, []
        while offset < self.log.log_end_offset:
            found = self.log.read(offset, 700, up_to=self.log.log_end_offset, at_least_one=True)
            found.prepare()
            data = found.read()
            whole = [(header.last_offset + 1, position + header.size) for position, header in iterate_headers(data)]
            if not whole:
                break
            seen.append(data[: whole[-1][1]])
            offset = whole[-1][0]
        expected = b"".join(data for _, end, data in self.batches if end > self.log.log_start_offset)
        assert b"".join(seen) == expected
        assert self.log.recovery_point <= self.log.log_end_offset
        assert self.log.size_bytes == sum(path.stat().st_size for path in self.node.path.glob("*.log"))


LogModel.TestCase.settings = settings(
    max_examples=examples(80), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLogModel = LogModel.TestCase
