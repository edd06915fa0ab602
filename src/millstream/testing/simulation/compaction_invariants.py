"""What must hold of compacted topics: cleaning takes away only what a later record of the same key replaces."""

from millstream.records.record import Record
from millstream.testing.simulation.committed_log import CommittedLogs
from millstream.testing.simulation.sight import UNREADABLE, Batch, PartitionKey, ReplicaSight, Sight
from millstream.testing.simulation.transaction_invariants import TransactionLogs
from millstream.testing.simulation.violation import Violation


class _Whole:
    """Everything that was ever committed in one log."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[Record, int]] = {}
        """By offset, with the producer of what was written in a transaction; -1 otherwise."""

    def take(self, batch: Batch) -> None:
        header = batch.header
        if not header.is_control:
            producer_id = header.producer_id if header.is_transactional else -1
            for record in batch.records:
                self.records[record.offset] = record, producer_id


class CleaningKeepsTheLast:
    """A record may be gone from a compacted log only if a later one of its key is there, if it says that its key is
    gone, or if it was aborted. Looked at when a log became smaller or was opened, and at the end. A follower that was
    started again may have cleaned more than it knows to be committed."""

    def __init__(self, transactions: TransactionLogs, logs: CommittedLogs) -> None:
        self._transactions = transactions
        self._wholes: dict[PartitionKey, _Whole] = {}
        self._sizes: dict[tuple[int, int, PartitionKey], int] = {}
        self.cleanings = 0
        """How often a log was seen to have become smaller."""
        logs.listeners.append(self._committed)
        self._logs = logs

    def _committed(self, seen: ReplicaSight, batch: Batch) -> None:
        if self._logs.of(seen).is_cleaned:
            self._wholes.setdefault(seen.key, _Whole()).take(batch)

    def check(self, sight: Sight) -> None:
        for seen in sight.replicas:
            if seen.key not in self._wholes or seen.log is None:
                continue
            at = (seen.node_id, seen.life, seen.key)
            size, before = seen.log.size, self._sizes.get(at)
            self._sizes[at] = size
            if before is None or size < before:
                self.cleanings += before is not None
                self._look(seen)

    def check_end(self, sight: Sight) -> None:
        for seen in sight.replicas:
            if seen.key in self._wholes and seen.log is not None:
                self._look(seen)

    def _look(self, seen: ReplicaSight) -> None:
        assert seen.log is not None
        whole, spans = self._wholes[seen.key], self._transactions.of(seen.key)
        try:
            there = {
                record.offset: record
                for batch in seen.log.batches(seen.log.start, seen.log.end)
                for record in (() if batch.header.is_control else batch.records)
            }
        except UNREADABLE as error:
            raise self._wrong(seen, f"cannot be read: {error}") from None
        last: set[bytes | None] = set()
        for offset in sorted(whole.records, reverse=True):
            record, producer_id = whole.records[offset]
            found = there.get(offset)
            fate = spans.fate(offset, producer_id) if producer_id >= 0 and spans is not None else True
            if offset >= seen.high_watermark and found != record:
                continue  # what it has not got yet, or will cut off
            if found is None:
                if record.key not in last and record.value is not None and fate is not False:
                    raise self._wrong(seen, f"has lost {record}, the last one of its key")
            elif found != record:
                raise self._wrong(seen, f"has {found}, and {record} was committed there")
            if fate:
                last.add(record.key)

    def _wrong(self, seen: ReplicaSight, what: str) -> Violation:
        return Violation(type(self).__name__, f"{seen.name} on node {seen.node_id} {what}")
