"""When a write may be acknowledged: the in-sync replicas have it and, where the topic requires that, it is on disk.

One rule for all acknowledged writes: records of clients, markers of transactions, and records of the coordinators of
groups, transactions and share groups. The disk is waited for with `flush.before.ack`, and where `flush.messages`
requires a flush now. The fsync is the partition's (`LocalPartition.when_flushed`): one serves all waiters.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from millstream.formats.model.errors import KafkaError

if TYPE_CHECKING:
    from millstream.node.replicas.local_partition import LocalPartition


OnCommitted = Callable[[KafkaError | None], None]


class CommitWaiter:
    __slots__ = ("_callback", "offset")

    def __init__(self, offset: int, callback: OnCommitted) -> None:
        self.offset = offset
        self._callback: OnCommitted | None = callback

    def __lt__(self, other: "CommitWaiter") -> bool:
        return self.offset < other.offset

    @property
    def is_waiting(self) -> bool:
        return self._callback is not None

    def cancel(self) -> None:
        self._callback = None

    def tell(self, error: KafkaError | None) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(error)


_SWEEP_SIZE = 64


class CommitWaiters:
    """Callers that wait for a partition's high watermark to reach an offset; nothing polls."""

    __slots__ = ("_heap", "_sweep_at")

    def __init__(self) -> None:
        self._heap: list[CommitWaiter] = []
        self._sweep_at = _SWEEP_SIZE

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, offset: int, callback: OnCommitted) -> CommitWaiter:
        if len(self._heap) >= self._sweep_at:
            # While nothing is committed, cancelled waiters would accumulate.
            self._heap = [waiter for waiter in self._heap if waiter.is_waiting]
            heapify(self._heap)
            self._sweep_at = max(_SWEEP_SIZE, 2 * len(self._heap))
        waiter = CommitWaiter(offset, callback)
        heappush(self._heap, waiter)
        return waiter

    def reached(self, offset: int) -> None:
        """Everything before `offset` is committed."""
        heap = self._heap
        while heap and heap[0].offset <= offset:
            heappop(heap).tell(None)

    def fail(self, error: KafkaError) -> None:
        waiting, self._heap = self._heap, []
        for waiter in sorted(waiting):
            waiter.tell(error)


class Acknowledgement:
    """Calls back once: when the write may be acknowledged, or with the first error."""

    __slots__ = ("_callback", "_commit", "_left")

    def __init__(self, partition: "LocalPartition", end: int, callback: OnCommitted, *, acks_all: bool) -> None:
        """`end` is the offset behind the write. Without `acks_all` the leader's own log is enough."""
        self._callback: OnCommitted | None = callback
        self._commit: CommitWaiter | None = None
        until_flushed = needs_flush(partition, end)
        self._left = acks_all + until_flushed
        if not self._left:
            self._call_back(None)
        # Commit and flush proceed at the same time.
        if until_flushed:
            partition.when_flushed(end, self._step)
        if acks_all and self._callback is not None:
            self._commit = partition.when_committed(end, self._step)

    @property
    def is_waiting(self) -> bool:
        return self._callback is not None

    def cancel(self) -> None:
        """The caller no longer waits, and is not called."""
        self._callback = None
        if self._commit is not None:
            self._commit.cancel()

    def _step(self, error: KafkaError | None) -> None:
        self._left -= 1
        if error is not None or not self._left:
            self._call_back(error)

    def _call_back(self, error: KafkaError | None) -> None:
        callback = self._callback
        if callback is not None:
            self.cancel()
            callback(error)


def needs_flush(partition: "LocalPartition", end: int) -> bool:
    """Whether a write that was just made has to wait for the disk."""
    log = partition.log
    return end > log.recovery_point and (log.config.flush_before_ack or log.flush_due)


def may_acknowledge(partition: "LocalPartition", end: int, *, acks_all: bool = True) -> bool:
    """Whether a write that was just made and ends at `end` may be acknowledged at once."""
    return (not acks_all or end <= partition.high_watermark) and not needs_flush(partition, end)


def when_acknowledged(
    partition: "LocalPartition", end: int, callback: OnCommitted, *, acks_all: bool = True
) -> Acknowledgement:
    """Calls back when a write that was just made may be acknowledged, possibly at once. With an error if it cannot be:
    leadership is lost, too few replicas are in sync, or the disk fails."""
    return Acknowledgement(partition, end, callback, acks_all=acks_all)
