"""Which batches of a fetched stretch belong to aborted transactions, told from their headers in order."""

from collections import deque
from collections.abc import Iterable

from millstream.formats.records.batch import BatchHeader


class AbortedTransactions:
    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted`: producer id and first offset, as a fetch with `read_committed` names them."""
        self._coming = deque(sorted(aborted, key=lambda row: row[1]))
        self._open: set[int] = set()
        """Producers whose transaction, at the point that was reached, is an aborted one."""

    def hide(self, header: BatchHeader) -> bool:
        """Whether the batch's records are to be left out; must be asked of every batch, in order."""
        while self._coming and self._coming[0][1] <= header.last_offset:
            self._open.add(self._coming.popleft()[0])
        if header.is_control:
            self._open.discard(header.producer_id)  # its marker: what follows is another transaction
            return True
        return header.is_transactional and header.producer_id in self._open
