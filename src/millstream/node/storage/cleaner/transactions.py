"""Which transactions a pass is in the middle of: records of aborted ones go, and markers once nothing of their
transaction is left.

Fed with the batches of a log in order, and with the aborted transactions that its indexes know.
"""

from collections.abc import Iterable
from heapq import heapify, heappop

from millstream.node.storage.index.transaction_index import AbortedTransaction
from millstream.node.storage.log.transaction_marker import read_marker


class CleanedTransactions:
    __slots__ = ("_aborted", "_committed", "_ongoing", "_seen", "retained")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted = [(each.first_offset, each) for each in aborted]
        heapify(self._aborted)
        self._ongoing: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()
        """Producers of ongoing aborted transactions of which a batch was met."""
        self._committed: set[int] = set()
        """Producers with a batch in a transaction that is not known to be aborted."""
        self.retained: list[AbortedTransaction] = []
        """Aborted transactions of which batches were met up to their markers: the index of the copy must have them."""

    def is_aborted(self, producer_id: int, last_offset: int) -> bool:
        """Take note of a batch of a transaction; whether that is aborted."""
        self._advance(last_offset)
        ongoing = self._ongoing.get(producer_id)
        if ongoing is not None and ongoing.last_offset > last_offset:
            self._seen.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def is_over(self, batch: bytes, record_count: int, producer_id: int, last_offset: int) -> bool:
        """Take note of a control batch; whether nothing is left of the transaction that it ends."""
        self._advance(last_offset)
        if record_count == 0:
            return True  # it was emptied before
        marker = read_marker(batch)
        if marker is None:
            return False
        if marker.committed:
            if producer_id in self._committed:
                self._committed.discard(producer_id)
                return False
            return True
        transaction = self._ongoing.pop(producer_id, None)
        if transaction is not None and producer_id in self._seen:
            self._seen.discard(producer_id)
            self.retained.append(transaction)
            return False
        return True

    def _advance(self, offset: int) -> None:
        aborted = self._aborted
        while aborted and aborted[0][0] <= offset:
            transaction = heappop(aborted)[1]
            if transaction.last_offset >= offset:  # else its marker lies before where this pass began, or is gone
                self._ongoing[transaction.producer_id] = transaction
