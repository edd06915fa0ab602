"""Filters batches of aborted transactions by their headers, as a consumer at `read_committed` does."""

from collections import deque
from collections.abc import Iterable
from typing import Protocol


class Header(Protocol):
    """The fields of a batch header that the filter reads."""

    @property
    def last_offset(self) -> int: ...

    @property
    def producer_id(self) -> int: ...

    @property
    def is_transactional(self) -> bool: ...

    @property
    def is_control(self) -> bool: ...


class AbortedTransactions:
    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted`: producer id and first offset, as in the response to a fetch with `read_committed`."""
        self._coming = deque(sorted(aborted, key=lambda row: row[1]))
        self._open: set[int] = set()
        """Producers with an aborted transaction at the current offset."""

    def hide(self, header: Header) -> bool:
        """Whether the batch's records are left out: those of aborted transactions, and markers. Must be called for each
        batch, in order."""
        while self._coming and self._coming[0][1] <= header.last_offset:
            self._open.add(self._coming.popleft()[0])
        if header.is_control:
            self._open.discard(header.producer_id)  # the marker ends the transaction
            return True
        return header.is_transactional and header.producer_id in self._open
