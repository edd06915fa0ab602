"""What is committed in each log, by offset, put together from all replicas. Whoever calls an offset committed first
says what it is, and everybody is held to that."""

from collections.abc import Callable, Iterable

from millstream.simulator.sight import Batch, LogContent, PartitionKey, ReplicaSight

OnCommitted = Callable[[ReplicaSight, Batch], None]


class CommittedLog:
    """One log. `is_cleaned`: records of it may be gone from some replicas."""

    def __init__(self, *, is_cleaned: bool = False) -> None:
        self.is_cleaned = is_cleaned
        self.batches: dict[int, Batch] = {}
        self.end = 0
        self.fresh: list[Batch] = []
        """What the last comparison added at the end."""

    def compare(self, log: LogContent, offset: int, below: int) -> tuple[int, str | None]:
        """(how far was compared, what is wrong)."""
        self.fresh = []
        offset = max(offset, log.start)
        for batch in log.batches(offset, below):
            known = self.batches.get(batch.base_offset)
            if known is None:
                if batch.base_offset < self.end and not self.is_cleaned:
                    return offset, f"has {batch}, where others have something else committed"
                self.batches[batch.base_offset] = batch
                if batch.base_offset >= self.end:
                    self.fresh.append(batch)
                    self.end = batch.last_offset + 1
            elif known != batch:
                if self.is_cleaned and is_rest_of(known, batch):
                    self.batches[batch.base_offset] = batch  # cleaned before it was first seen
                elif not self.is_cleaned or not is_rest_of(batch, known):
                    return offset, f"has {batch}, and {known} is committed there"
            offset = batch.last_offset + 1
        return offset, None


def is_rest_of(batch: Batch, whole: Batch) -> bool:
    """Whether a batch is what cleaning may have left of another: some of its records, each where it was."""
    left, before = batch.header, whole.header
    if (left.last_offset, left.producer_id, left.producer_epoch, left.base_sequence, left.leader_epoch) != (
        before.last_offset,
        before.producer_id,
        before.producer_epoch,
        before.base_sequence,
        before.leader_epoch,
    ):
        return False
    if (left.is_control, left.is_transactional) != (before.is_control, before.is_transactional):
        return False
    records = {record.offset: record for record in whole.records}
    return all(records.get(record.offset) == record for record in batch.records)


class CommittedLogs:
    """All logs. Who listens is told of each batch when it is first seen to be committed, in the order of its log."""

    def __init__(self, cleaned: Iterable[str] = ()) -> None:
        self._cleaned = frozenset(cleaned)
        self._logs: dict[PartitionKey, CommittedLog] = {}
        self.listeners: list[OnCommitted] = []
        self.ends: dict[tuple[str, int], int] = {}
        """By topic and partition: how far somebody has called it committed."""

    def of(self, seen: ReplicaSight) -> CommittedLog:
        log = self._logs.get(seen.key)
        if log is None:
            log = self._logs[seen.key] = CommittedLog(is_cleaned=seen.topic in self._cleaned)
        return log

    def compare(self, seen: ReplicaSight, offset: int) -> tuple[int, str | None]:
        """Compares what a replica has from `offset` up to its high watermark."""
        assert seen.log is not None
        log = self.of(seen)
        result = log.compare(seen.log, offset, seen.high_watermark)
        self.ends[seen.topic, seen.key.partition] = log.end
        for batch in log.fresh:
            for listener in self.listeners:
                listener(seen, batch)
        return result
