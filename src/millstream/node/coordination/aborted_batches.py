"""Which batches are of aborted transactions, told from headers as one reads on: as a consumer with `read_committed`."""

from collections import deque
from collections.abc import Iterable
from typing import Protocol


class Batch(Protocol):
    """What a header says that matters here."""

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
        """`aborted` has producer and first offset of the transactions that overlap with what is read."""
        self._coming = deque(sorted(aborted, key=lambda row: row[1]))
        self._open: set[int] = set()
        """Producers whose transaction, at the point that was reached, is one that was aborted."""

    def has(self, batch: Batch) -> bool:
        """Whether the records of a batch are to be left out; must be asked of every batch, in order."""
        while self._coming and self._coming[0][1] <= batch.last:
            self._open.add(self._coming.popleft()[0])
        if batch.producer_id not in self._open:
            return False
        if batch.is_control:
            self._open.discard(batch.producer_id)  # the marker: what comes after is of another transaction
            return False
        return batch.is_transactional
