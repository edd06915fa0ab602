"""Reading what is committed, as clients do it: brokers say which transactions were aborted, clients leave them out."""

from collections.abc import Iterator, Sequence
from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.batch import BatchHeader
from millstream.formats.records.record import Record, read_batches
from millstream.simulator.client import SimulatedClient
from millstream.simulator.machine import Process
from millstream.simulator.transaction_book import At, known_by
from millstream.simulator.workload import TopicPlan, Workload, partition_name

_COMMIT_KEY = b"\x00\x00\x00\x01"
"""The key of the record that ends a committed transaction, in its first version."""
_READ_AGAIN = 0.03


class CommittedFilter:
    """Leaves out of fetched batches what was aborted, by the list that came with them."""

    def __init__(self) -> None:
        self.next_offset = 0
        """Where the next fetch goes on; markers and aborted records are passed over."""

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
    """A program: follows the partitions that transactions write to, and begins at their start again now and then."""

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
        """What was seen in this pass, by offset."""

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
                workload.report("AckedIsKept", f"{name} has no offset {position} any more, and it was read up to there")
            if error != ErrorCode.NONE or row is None:
                await client.recover()
                continue
            for _, record in filtered.take(row, position):
                if record.offset >= row.last_stable_offset:
                    workload.report(
                        "NoAbortedRead",
                        f"{name} gave offset {record.offset} to {self._name}, and only what is below "
                        f"{row.last_stable_offset} is stable",
                    )
                self._see(at, record, before)
                seen[record.offset] = record
            self.positions[at] = filtered.next_offset
            if filtered.next_offset == position:
                if before and not plan.is_compacted:
                    self._compare(name, before, position)
                before = {}
                await client.rest(0.05, 0.1)
            if workload.writing and not before and client.randomness.random() < _READ_AGAIN:
                before, seen = dict(seen), {}
                self.seen[at] = seen
                self.positions[at] = 0

    def _see(self, at: At, record: Record, before: dict[int, Record]) -> None:
        workload = self._workload
        name = partition_name(*at)
        known = before.get(record.offset)
        if known is not None and known != record:
            workload.report("TransactionsAreWhole", f"{name} has {record} now, and had {known} before")
        identity = known_by(record)
        transaction = workload.book.of(identity) if identity is not None else None
        if identity is not None and transaction is not None:
            workload.book.given(transaction, f"{self._name} at {name} offset {record.offset}", identity)

    def _compare(self, name: str, before: dict[int, Record], position: int) -> None:
        seen = next(self.seen[at] for at in self.seen if partition_name(*at) == name)
        lost = sorted(offset for offset in before if offset < position and offset not in seen)
        if lost:
            self._workload.report(
                "TransactionsAreWhole",
                f"{self._name} saw {before[lost[0]]} in {name} at offset {lost[0]}, and it is not there any more",
            )
