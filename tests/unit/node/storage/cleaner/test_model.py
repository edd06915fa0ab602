"""A compacted log against a dictionary: puts, deletions, transactions, rolls, passes, restarts, kills and power cuts.

After each step a `read_committed` reader who keeps the latest value of each key has what the dictionary has, every
record that is left is where it was, and producers may go on with their next sequence.
"""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from millstream.config.topic_config import LogConfig
from millstream.formats.records.compression import Codec
from millstream.node.storage.cleaner.plan import CleanerSettings, cleanable
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.simulator.disk import DiskSession, Killed, SimulatedDisk
from tests.examples import examples, stride
from tests.unit.node.storage.cleaner.compacted import (
    HOUR_MS,
    NOW,
    append,
    clean,
    committed_records,
    config,
    end_transaction,
    records,
    table,
)
from tests.unit.node.storage.conftest import PARTITION, TOPIC_ID

ROOT = "/data"
PLAIN = 1
TRANSACTIONAL = (2, 3)
DELETE_RETENTION_MS = 10 * HOUR_MS

Keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e" * 40, b"f" * 40])
Values = st.one_of(st.none(), st.binary(max_size=30))
Puts = st.lists(st.tuples(Keys, Values), min_size=1, max_size=4)


class Machine:
    """One directory on a simulated disk, through lives of the process."""

    def __init__(self, seed: int, log_config: LogConfig) -> None:
        self.disk = SimulatedDisk(str(seed))
        self.disk.make_root(ROOT)
        self.config = log_config
        self.start()

    def start(self) -> None:
        self.session: DiskSession = self.disk.attach(lambda: NOW * 1_000_000)
        self.directory = LogDirectory(self.session, ROOT)
        self.directory.start(NOW)
        if PARTITION in self.directory.partitions:
            self.log: PartitionLog = self.directory.open(PARTITION, self.config, NOW)
        else:
            self.log = self.directory.create(PARTITION, TOPIC_ID, self.config, NOW)

    def flush(self) -> None:
        job = self.log.flush_job()
        if job is not None:
            assert job.run() is None
            job.done(None)

    def checkpoint(self) -> None:
        job = self.directory.checkpoint_job(NOW)
        assert job is not None
        assert job.run() is None
        job.done(None)

    def stop(self) -> None:
        self.directory.close(NOW)
        self.session.end()

    def survive(self, operations: int, act: Callable[[], None], *, power_cut: bool) -> bool:
        """Act, die in the nth change of the disk, and start again; whether it came to that."""
        died = False
        self.disk.kill_at(operations, self.session.end)
        try:
            act()
        except Killed:
            died = True
        self.disk.heal()
        if not died:
            return False
        if power_cut:
            self.disk.lose_power()
        self.start()
        return True


class CompactedModel(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1 << 32), segment_bytes=st.sampled_from([400, 1000, 4000]), tiny_map=st.booleans())
    def begin(self, seed: int, segment_bytes: int, tiny_map: bool) -> None:
        self.machine = Machine(
            seed,
            config(segment_bytes=segment_bytes, index_interval_bytes=100, delete_retention_ms=DELETE_RETENTION_MS),
        )
        self.settings = CleanerSettings(dedupe_buffer_bytes=1200 if tiny_map else 1 << 20, io_buffer_bytes=0)
        self.now_ms = NOW
        self.written: dict[int, tuple[bytes, bytes | None]] = {}
        self.transaction_of: dict[int, int] = {}
        """Offset to transaction."""
        self.open: dict[int, int] = {}
        """Producer to transaction."""
        self.aborted: set[int] = set()
        self.transactions = 0
        self.sequence = dict.fromkeys((PLAIN, *TRANSACTIONAL), 0)

    @property
    def log(self) -> PartitionLog:
        return self.machine.log

    def _note(self, base: int, puts: list[tuple[bytes, bytes | None]]) -> None:
        for at, put in enumerate(puts):
            self.written[base + at] = put

    @rule(puts=Puts, codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.GZIP]))
    def put(self, puts: list[tuple[bytes, bytes | None]], codec: Codec) -> None:
        self._note(append(self.log, *puts, codec=codec), puts)

    @rule(puts=Puts)
    def put_idempotent(self, puts: list[tuple[bytes, bytes | None]]) -> None:
        self._note(append(self.log, *puts, producer=(PLAIN, 0, self.sequence[PLAIN])), puts)
        self.sequence[PLAIN] += len(puts)

    @rule(puts=Puts, producer=st.sampled_from(TRANSACTIONAL))
    def put_in_transaction(self, puts: list[tuple[bytes, bytes | None]], producer: int) -> None:
        if producer not in self.open:
            self.transactions += 1
            self.open[producer] = self.transactions
        base = append(self.log, *puts, producer=(producer, 0, self.sequence[producer]), transactional=True)
        self.sequence[producer] += len(puts)
        self._note(base, puts)
        for at in range(len(puts)):
            self.transaction_of[base + at] = self.open[producer]

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 1), committed=st.booleans())
    def end(self, which: int, committed: bool) -> None:
        producer = sorted(self.open)[which % len(self.open)]
        end_transaction(self.log, producer, committed=committed)
        transaction = self.open.pop(producer)
        if not committed:
            self.aborted.add(transaction)

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW)

    @rule(hours=st.integers(1, 12))
    def wait(self, hours: int) -> None:
        self.now_ms += hours * HOUR_MS

    @rule()
    def clean(self) -> None:
        self._clean()
        self._check()

    @rule()
    def clean_all(self) -> None:
        for _ in range(100):
            found = cleanable(self.log, self.now_ms)
            if not found.dirty_bytes:
                break
            self._clean()
        self._check()

    def _clean(self) -> None:
        if cleanable(self.log, self.now_ms).segments:
            clean(self.log, self.now_ms, self.settings)

    @rule(at=st.floats(0, 1))
    def delete_records(self, at: float) -> None:
        """Move the start of the log, into the middle of a batch perhaps; retention removes whole segments before it."""
        start = self.log.log_start_offset
        self.log.delete_records_before(start + int(at * (self.log.last_stable_offset - start)))
        for job in self.machine.directory.maintenance(NOW):
            job.done(job.run())
        self.machine.checkpoint()  # a start that was not written down is forgotten by a crash
        self._check()

    @rule()
    def checkpoint(self) -> None:
        self.machine.checkpoint()

    @rule()
    def restart(self) -> None:
        self.machine.stop()
        self.machine.start()
        self._check()

    @rule(operations=st.integers(1, 60), power_cut=st.booleans(), checkpoint=st.booleans())
    def die_while_cleaning(self, operations: int, power_cut: bool, checkpoint: bool) -> None:
        if power_cut:
            self.machine.flush()
        if checkpoint:
            self.machine.checkpoint()

        def act() -> None:
            self._clean()
            self.machine.checkpoint()

        self.machine.survive(operations, act, power_cut=power_cut)
        self._check()

    def _check(self) -> None:
        log = self.log
        for offset, key, value in records(log):
            assert self.written[offset] == (key, value)
        stable = log.last_stable_offset
        expected: dict[bytes, tuple[int, bytes]] = {}
        for offset, (key, value) in self.written.items():
            transaction = self.transaction_of.get(offset)
            if not log.log_start_offset <= offset < stable or transaction in self.aborted:
                continue
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = offset, value
        seen = [record for record in committed_records(log) if record.offset >= log.log_start_offset]
        assert table(seen) == {key: value for key, (_, value) in expected.items()}
        places = {record.key: record.offset for record in seen if record.value is not None}
        for key, (offset, _) in expected.items():
            assert places[key] == offset
        for producer, transaction in self.open.items():
            assert producer in log.open_transactions(), transaction
        assert log.open_transactions().keys() <= self.open.keys()
        for producer, sequence in self.sequence.items():
            entry = log.producers.entries.get(producer)
            if log.log_start_offset == 0:
                assert sequence == (0 if entry is None else entry.next_sequence)
            elif entry is not None and entry.batches:
                assert sequence == entry.next_sequence
            elif entry is not None:
                self.sequence[producer] = 0  # only its marker is left of what was deleted: it has to begin again


TestCompactedModel = CompactedModel.TestCase
TestCompactedModel.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("power_cut", [False, True])
def test_death_at_every_operation_of_a_pass(power_cut: bool) -> None:
    for operations in range(1, 500, stride()):
        machine = Machine(operations, config(segment_bytes=600))
        for number in range(8):
            append(machine.log, (b"%d" % (number % 4), b"%d" % number))
            append(machine.log, (b"t", b"%d" % number), producer=(7, 0, number), transactional=True)
            end_transaction(machine.log, 7, committed=number % 2 == 0)
        machine.log.roll(NOW)
        machine.flush()
        machine.checkpoint()
        expected = table(committed_records(machine.log))
        died = machine.survive(operations, lambda: _clean_and_checkpoint(machine), power_cut=power_cut)  # noqa: B023
        assert table(committed_records(machine.log)) == expected
        clean(machine.log)
        assert table(committed_records(machine.log)) == expected
        assert len(records(machine.log)) == 5
        if not died:
            return
    raise AssertionError("a pass has no end")


def _clean_and_checkpoint(machine: Machine) -> None:
    clean(machine.log)
    machine.checkpoint()
