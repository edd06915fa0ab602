"""Transactional applications: writers that fence each other, a consume-transform-produce loop, read_committed
consumers.

Consumers filter aborted records as real clients do: by the list of aborted transactions in the fetch response.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.batch import BatchHeader
from millstream.formats.records.record import Record, read_batches
from millstream.simulator.clients.client import GROUP, SimulatedClient
from millstream.simulator.clients.transaction_tracker import NAME_HEADER, At, Transaction, known_by
from millstream.simulator.clients.transactional_producer import FencedError, MustAbortError, TransactionalProducer
from millstream.simulator.clients.workload import TopicPlan, Workload, partition_name
from millstream.simulator.machine import Process

_COMMIT_KEY = b"\x00\x00\x00\x01"
"""The key of a commit marker, version 0."""
_READ_AGAIN = 0.03


class CommittedFilter:
    """Drops aborted records from a fetch response, by its list of aborted transactions."""

    def __init__(self) -> None:
        self.next_offset = 0
        """The offset of the next fetch, after markers and aborted records."""

    def take(self, row: Any, position: int) -> Iterator[tuple[BatchHeader, Record]]:
        waiting = sorted(
            ((each.first_offset, each.producer_id) for each in row.aborted_transactions or ()), reverse=True
        )
        aborted: set[int] = set()
        self.next_offset = position
        for header, records in read_batches(bytes(row.records or b"")):
            while waiting and waiting[-1][0] <= header.last_offset:
                aborted.add(waiting.pop()[1])
            if header.is_control:
                if is_abort_marker(records):
                    aborted.discard(header.producer_id)
            elif not header.is_transactional or header.producer_id not in aborted:
                yield from ((header, record) for record in records if record.offset >= position)
            self.next_offset = max(self.next_offset, header.last_offset + 1)


def is_abort_marker(records: Sequence[Record]) -> bool:
    return bool(records) and (records[0].key or b"")[:4] == b"\x00\x00\x00\x00"


def is_commit_marker(records: Sequence[Record]) -> bool:
    return bool(records) and (records[0].key or b"")[:4] == _COMMIT_KEY


class CommittedReader:
    """A read_committed consumer of the transactional topics. Now and then it starts again at the beginning."""

    def __init__(
        self,
        process: Process,
        bootstrap: list[tuple[str, int]],
        workload: Workload,
        topics: tuple[TopicPlan, ...],
    ) -> None:
        self._workload = workload
        self._name = process.machine.name
        self._client = SimulatedClient(process, bootstrap, self._name)
        self._client.topics = tuple(plan.name for plan in topics)
        self._topics = topics
        self._loop = process.loop
        self.positions: dict[At, int] = {}
        self.seen: dict[At, dict[int, Record]] = {}
        """Records read in this pass, by offset."""

    def start(self) -> None:
        for plan in self._topics:
            for partition in range(plan.partitions):
                self._loop.create_task(self._read(plan, partition))

    def stop(self) -> None:
        pass

    async def _read(self, plan: TopicPlan, partition: int) -> None:
        workload, client = self._workload, self._client
        at = (plan.name, partition)
        name = partition_name(*at)
        filtered = CommittedFilter()
        self.positions[at] = 0
        seen = self.seen[at] = {}
        before: dict[int, Record] = {}
        while workload.reading:
            position = self.positions[at]
            error, row = await client.fetch(*at, position, committed_only=True)
            if error == ErrorCode.OFFSET_OUT_OF_RANGE:
                workload.report(
                    "AcknowledgedIsDurable", f"offset {position} of {name} is out of range, but it was read up to there"
                )
            if error != ErrorCode.NONE or row is None:
                await client.recover()
                continue
            for _, record in filtered.take(row, position):
                if record.offset >= row.last_stable_offset:
                    workload.report(
                        "NoAbortedRead",
                        f"{name} returned offset {record.offset} to {self._name}, but the last stable offset is "
                        f"{row.last_stable_offset}",
                    )
                self._see(at, record, before)
                seen[record.offset] = record
            self.positions[at] = filtered.next_offset
            if filtered.next_offset == position:
                if before and not plan.is_compacted:
                    self._compare(name, before, position)
                before = {}
                await client.pause(0.05, 0.1)
            if workload.writing and not before and client.randomness.random() < _READ_AGAIN:
                before, seen = dict(seen), {}
                self.seen[at] = seen
                self.positions[at] = 0

    def _see(self, at: At, record: Record, before: dict[int, Record]) -> None:
        workload = self._workload
        name = partition_name(*at)
        known = before.get(record.offset)
        if known is not None and known != record:
            workload.report("TransactionsAreAtomic", f"{name} has {record}, but had {known} there before")
        identity = known_by(record)
        transaction = workload.tracker.of(identity) if identity is not None else None
        if identity is not None and transaction is not None:
            workload.tracker.note_read(transaction, self._name, identity, at, record.offset)

    def _compare(self, name: str, before: dict[int, Record], position: int) -> None:
        seen = next(self.seen[at] for at in self.seen if partition_name(*at) == name)
        lost = sorted(offset for offset in before if offset < position and offset not in seen)
        if lost:
            self._workload.report(
                "TransactionsAreAtomic",
                f"{self._name} read {before[lost[0]]} in {name} at offset {lost[0]}, but it is gone now",
            )


TIMEOUT_MS = 2000
LEDGER = TopicPlan("ledger", 2, 3, {"min.insync.replicas": "2", "segment.ms": "2000"}, plain=False)
STATE = TopicPlan(
    "state",
    1,
    3,
    {
        "min.insync.replicas": "2",
        "cleanup.policy": "compact",
        "segment.ms": "700",
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": "1500",
    },
    plain=False,
)
LOOP_GROUP = "loop"
LOOP_INPUT: At = ("orders", 0)
LOOP_KEY = b"loop"
"""Key of the outputs of the copying loop. Their values are the input offsets."""
WRITER_ID, LOOP_ID = "tx-writer", "tx-loop"
_KEYS = 6
_TOMBSTONE = 0.15
_ABORT = 0.2
_DAWDLE = 0.04
_ABORT_UNWRITTEN = 0.25
_AT_ONCE = 0.25
"""Probability that a client starts the next transaction while the last one may still be ending: it aborts it without a
record, or writes in it."""
_WAIT_MS = 20
"""Fetch wait; responses to other requests on the connection wait behind it."""


class _Instances(ABC):
    """Instances of a transactional id: a new one starts each time the last one was fenced."""

    def __init__(self, client: SimulatedClient, workload: Workload, name: str, transactional_id: str) -> None:
        self.workload = workload
        self.client = client
        self.randomness = client.randomness
        self._name = name
        self._id = transactional_id
        self._lives = 0

    async def run(self) -> None:
        while self.workload.writing:
            self._lives += 1
            name = f"{self._name}.{self._lives}"
            version = self.randomness.choice(self.workload.transaction_versions)
            producer = TransactionalProducer(
                self.client, self.workload, name, self._id, version=version, timeout_ms=TIMEOUT_MS
            )
            try:
                await self.run_instance(producer)
            except FencedError as error:
                if not self.workload.writing:
                    return
                self.workload.tracker.fenced += 1
                self.workload.log_event(name, f"ends: {error}")
            await self.client.recover()
            await self.client.pause(0.2, self.workload.fenced_pause_s)

    @abstractmethod
    async def run_instance(self, producer: TransactionalProducer) -> None:
        """Runs an instance until it is fenced."""

    async def wait_sometimes(self) -> None:
        """Sometimes waits, now and then longer than the transaction timeout."""
        if self.randomness.random() < _DAWDLE:
            await self.client.pause(0.5, 1.6 * TIMEOUT_MS / 1000)

    async def pause(self, producer: TransactionalProducer) -> None:
        """Waits between transactions. Some clients do not wait, and some abort a transaction without records."""
        if self.randomness.random() < _ABORT_UNWRITTEN:
            await producer.abort(producer.begin())
        if self.randomness.random() >= _AT_ONCE:
            pause = self.workload.transaction_pause_s
            await self.client.pause(0.2 * pause, 1.8 * pause)

    async def give_up(self, producer: TransactionalProducer, transaction: Transaction, error: MustAbortError) -> None:
        self.workload.log_event(producer.name, f"{transaction.name} must abort: {error}")
        await producer.abort(transaction)


class Writer(_Instances):
    """Writes to several partitions in a transaction, and aborts some of them."""

    async def run_instance(self, producer: TransactionalProducer) -> None:
        await producer.init_producer()
        while self.workload.writing:
            transaction = producer.begin()
            try:
                await self._write(producer, transaction)
                if self.randomness.random() < _ABORT:
                    await producer.abort(transaction)
                else:
                    await producer.commit(transaction)
            except MustAbortError as error:
                await self.give_up(producer, transaction, error)
            await self.pause(producer)

    async def _write(self, producer: TransactionalProducer, transaction: Transaction) -> None:
        randomness, made = self.randomness, 0
        places: list[At] = [(LEDGER.name, 0), (LEDGER.name, 1), (STATE.name, 0)]
        for _ in range(randomness.choice((1, 1, 2))):
            batches: dict[At, list[tuple[str, Record]]] = {}
            for at in randomness.sample(places, randomness.randint(1, len(places))):
                batches[at] = []
                for _ in range(randomness.choice((1, 1, 2))):
                    made += 1
                    batches[at].append(self._record(transaction, at, made))
            await producer.send(transaction, batches)
            await self.wait_sometimes()

    def _record(self, transaction: Transaction, at: At, number: int) -> tuple[str, Record]:
        known_by = f"{transaction.name}#{number}"
        key: bytes | None = None
        value: bytes | None = known_by.encode()
        if at[0] == STATE.name:
            key = f"key-{self.randomness.randrange(_KEYS)}".encode()
            if self.randomness.random() < _TOMBSTONE:
                value = None
        return known_by, self._stamped(known_by, key, value)

    def _stamped(self, known_by: str, key: bytes | None, value: bytes | None) -> Record:
        now_ms = self.client.process.environment.clock.now_ms()
        return Record(key, value, ((NAME_HEADER, known_by.encode()),), now_ms)


class Copier(_Instances):
    """A consume-transform-produce loop: reads from the committed offset, and writes outputs and the new offset."""

    async def run_instance(self, producer: TransactionalProducer) -> None:
        await producer.init_producer()
        while self.workload.writing:
            position = await self._committed_offset()
            filtered = CommittedFilter()
            while self.workload.writing:
                error, row = await self.client.fetch(*LOOP_INPUT, position, committed_only=True, wait_ms=_WAIT_MS)
                if error != ErrorCode.NONE or row is None:
                    await self.client.recover()
                    continue
                inputs = [record for _, record in filtered.take(row, position)][: self.randomness.choice((1, 3, 10))]
                if not inputs:
                    await self.client.pause(0.2, 0.5)
                    continue
                transaction = producer.begin()
                try:
                    if not await self._copy(producer, transaction, position, inputs):
                        break
                except MustAbortError as failure:
                    await self.give_up(producer, transaction, failure)
                    break
                position = inputs[-1].offset + 1
                await self.pause(producer)

    async def _copy(
        self, producer: TransactionalProducer, transaction: Transaction, position: int, inputs: list[Record]
    ) -> bool:
        """Whether it was committed."""
        transaction.takes = (position, inputs[-1].offset + 1)
        batches: dict[At, list[tuple[str, Record]]] = {}
        for record in inputs:
            known_by = f"{transaction.name}#{record.offset}"
            output = Record(
                LOOP_KEY, str(record.offset).encode(), ((NAME_HEADER, known_by.encode()),), record.timestamp
            )
            batches.setdefault((LEDGER.name, record.offset % LEDGER.partitions), []).append((known_by, output))
        await producer.send(transaction, batches)
        await self.wait_sometimes()
        await producer.send_offsets(transaction, LOOP_GROUP, LOOP_INPUT, inputs[-1].offset + 1)
        if self.randomness.random() < _ABORT / 2:
            await producer.abort(transaction)
            return False
        await producer.commit(transaction)
        return True

    async def _committed_offset(self) -> int:
        """The committed offset of the group, after pending transactions have ended."""
        client, workload = self.client, self.workload
        while workload.writing:
            at_least = workload.tracker.loop_offset
            try:
                offset = await fetch_offset(client, LOOP_GROUP, LOOP_INPUT)
            except OSError:
                await client.recover()
                continue
            if offset is not None:
                if offset < at_least and not workload.may_lose_records:
                    workload.report(
                        "OffsetsMatchOutput",
                        f"group {LOOP_GROUP} has offset {offset}, but a transaction with offset {at_least} was "
                        "acknowledged as committed",
                    )
                return offset
            await client.pause(0.05, 0.2)
        raise FencedError("the run ends")


async def fetch_offset(client: SimulatedClient, group: str, at: At) -> int | None:
    """The committed offset of a group, 0 if there is none; None while a transaction is pending. OSError without
    response."""
    node_id = await client.find_coordinator(GROUP, group)
    topic, partition = at
    leader = client.leader(topic, partition)
    if leader is None:
        raise ConnectionError("unknown topic")
    topics = [{"name": topic, "topic_id": leader.topic_id, "partition_indexes": [partition]}]
    group_row = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
    response = await client.request(node_id, "offset_fetch", {"groups": [group_row], "require_stable": True})
    row = response.groups[0]
    if row.error_code:
        raise ConnectionError(ErrorCode(row.error_code).name)
    seen = row.topics[0].partitions[0]
    if seen.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
        return None
    if seen.error_code:
        raise ConnectionError(ErrorCode(seen.error_code).name)
    return max(0, int(seen.committed_offset))


class Applications:
    """A writer and a copier. A second instance with the same transactional ids fences the first."""

    def __init__(self, process: Process, bootstrap: list[tuple[str, int]], workload: Workload, number: int) -> None:
        self._loop = process.loop
        client = SimulatedClient(process, bootstrap, process.machine.name)
        client.topics = tuple(plan.name for plan in workload.topics if not plan.plain or plan.name == LOOP_INPUT[0])
        self._parts = (
            Writer(client, workload, f"writer{number}", WRITER_ID),
            Copier(client, workload, f"copier{number}", LOOP_ID),
        )

    def start(self) -> None:
        for each in self._parts:
            self._loop.create_task(each.run())

    def stop(self) -> None:
        pass
