"""Filters batches of aborted transactions by their headers, as a consumer at `read_committed` does."""

from collections import deque
from collections.abc import Iterable
from typing import Protocol


class Batch(Protocol):
    """The fields of a batch header that the filter reads."""

    @property
    def last(self) -> int: ...

    @property
    def producer_id(self) -> int: ...

    @property
    def is_transactional(self) -> bool: ...

    @property
    def is_control(self) -> bool: ...


class AbortedBatches:
    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted` has the producer id and the first offset of each aborted transaction in the range that is read."""
        self._coming = deque(sorted(aborted, key=lambda row: row[1]))
        self._open: set[int] = set()
        """Producers whose current transaction, at the offset reached so far, was aborted."""

    def has(self, batch: Batch) -> bool:
        """Whether the batch belongs to an aborted transaction. Must be called for every batch, in order."""
        while self._coming and self._coming[0][1] <= batch.last:
            self._open.add(self._coming.popleft()[0])
        if batch.producer_id not in self._open:
            return False
        if batch.is_control:
            self._open.discard(batch.producer_id)  # the marker ends the transaction
            return False
        return batch.is_transactional
