"""The idempotent producers of a partition, from batch headers alone: epochs, the last five batches, open transactions.

The rules are those of Kafka 4's ProducerAppendInfo. A producer that the partition does not know may begin with any
sequence, because retention may have deleted its records. `replicas/retry_order` makes sure that its second batch is not
appended before its first. The file format is in `producer_snapshots`.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, NamedTuple

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker, VerificationGuard
from millstream.formats.records.batch import MAX_SEQUENCE, NO_SEQUENCE
from millstream.node.storage.index.transaction_index import AbortedTransaction


class Transactions:
    """The transactions of a log that are open, or whose markers may not be committed yet.

    Offsets before the first of them are stable: `read_committed` may read them.
    """

    __slots__ = ("ended", "ongoing")

    def __init__(self) -> None:
        self.ongoing: dict[int, int] = {}
        """First offset by producer, in the order of the offsets: transactions begin where the log ends."""
        self.ended: list[tuple[int, int]] = []
        """(first offset, marker's offset) of those whose markers may not be below the high watermark, as a heap."""

    def __bool__(self) -> bool:
        return bool(self.ongoing or self.ended)

    def begin(self, producer_id: int, first_offset: int) -> None:
        self.ongoing[producer_id] = first_offset

    def end(self, producer_id: int, marker_offset: int) -> tuple[int, int]:
        """Ends an open transaction: (its first offset, the last stable offset for the transaction index)."""
        first_offset = self.ongoing.pop(producer_id)
        heappush(self.ended, (first_offset, marker_offset))
        return first_offset, next(iter(self.ongoing.values()), marker_offset + 1)

    def first_unstable(self, high_watermark: int) -> int | None:
        """The first offset that is undecided, or decided by a marker that is not below the high watermark."""
        ended = self.ended
        while ended and ended[0][1] < high_watermark:
            heappop(ended)
        first_open = next(iter(self.ongoing.values()), None)
        if not ended:
            return first_open
        return ended[0][0] if first_open is None else min(first_open, ended[0][0])


REMEMBERED_BATCHES: Final = 5
NO_EPOCH: Final = -1
NO_TRANSACTION: Final = -1


class WrittenBatch(NamedTuple):
    """One batch a producer wrote."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


class ProducerEntry:
    """The state of one producer in one partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "next_sequence",
        "producer_id",
        "transaction_start",
    )

    def __init__(self, producer_id: int, epoch: int = NO_EPOCH) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        # The fields of `WrittenBatch` as plain tuples: named tuples would cost a tenth of an append.
        self.batches: list[tuple[int, int, int, int, int]] = []
        self.next_sequence = 0
        self.last_timestamp = -1
        self.coordinator_epoch = -1
        self.transaction_start = NO_TRANSACTION

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][1] if self.batches else NO_SEQUENCE

    @property
    def last_batch(self) -> WrittenBatch | None:
        return WrittenBatch(*self.batches[-1]) if self.batches else None

    def add(self, epoch: int, first_sequence: int, offset_delta: int, last_offset: int, timestamp: int) -> None:
        batches = self.batches
        if epoch != self.epoch:
            self.epoch = epoch
            batches.clear()
        elif len(batches) >= REMEMBERED_BATCHES:
            del batches[0]
        # A batch of the broker has no sequence.
        last_sequence = (first_sequence + offset_delta) & MAX_SEQUENCE if first_sequence >= 0 else NO_SEQUENCE
        batches.append((first_sequence, last_sequence, last_offset, offset_delta, timestamp))
        self.next_sequence = (last_sequence + 1) & MAX_SEQUENCE
        self.last_timestamp = timestamp


class ProducerState:
    """All producers of one partition."""

    __slots__ = ("begins_at", "entries", "transactions", "verifications")

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self.entries: dict[int, ProducerEntry] = {entry.producer_id: entry for entry in entries}
        self.begins_at = 0
        """In a branch whose own records do not begin yet: the offset where they do (see `begin_anew`)."""
        self.transactions = Transactions()
        self.verifications = Verifications()
        open_ones = [entry for entry in self.entries.values() if entry.transaction_start != NO_TRANSACTION]
        for entry in sorted(open_ones, key=lambda entry: entry.transaction_start):
            self.transactions.begin(entry.producer_id, entry.transaction_start)

    def check(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int, transactional: bool = False
    ) -> WrittenBatch | None:
        """None when the batch may be appended; the batch as it was written when this is a repetition of it. Else raises
        KafkaError."""
        entry = self.entries.get(producer_id)
        if entry is None:
            return None
        if epoch == entry.epoch:
            if first_sequence != entry.next_sequence:
                for written in entry.batches:
                    if written[0] == first_sequence and written[1] == last_sequence:
                        return WrittenBatch(*written)
                raise out_of_order(producer_id, first_sequence, entry.last_sequence)
        elif epoch < entry.epoch:
            raise fenced(entry, epoch)
        elif first_sequence != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} begins epoch {epoch} with sequence {first_sequence} instead of 0",
            )
        if entry.transaction_start != NO_TRANSACTION and not transactional:
            raise outside_transaction(entry)
        return None

    def written_before(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int
    ) -> WrittenBatch | None:
        """The batch as it was written, if this is its repetition."""
        entry = self.entries.get(producer_id)
        if entry is not None and entry.epoch == epoch:
            for written in entry.batches:
                if written[0] == first_sequence and written[1] == last_sequence:
                    return WrittenBatch(*written)
        return None

    def has_all_before(self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int) -> bool:
        """Whether a batch is the producer's next, or a repetition."""
        entry = self.entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            return False
        if entry.next_sequence == first_sequence:
            return True
        return self.written_before(producer_id, epoch, first_sequence, last_sequence) is not None

    def check_epoch(self, producer_id: int, epoch: int, transactional: bool) -> None:
        """Checks a batch of the broker, which has no sequence."""
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        if epoch < entry.epoch:
            raise fenced(entry, epoch)
        if entry.transaction_start != NO_TRANSACTION and not transactional:
            raise outside_transaction(entry)

    def check_marker(self, marker: Marker) -> None:
        """Raises KafkaError if the marker may not end the transaction.

        From transaction version 2 on each transaction has its own epoch, and its marker the next one. A marker whose
        epoch is not greater belongs to an earlier transaction, unless it repeats the last one.
        """
        entry = self.entries.get(marker.producer_id)
        if entry is None:
            return
        epoch = marker.producer_epoch
        if epoch < entry.epoch:
            raise fenced(entry, epoch)
        if epoch == entry.epoch and marker.transaction_version >= 2 and entry.transaction_start != NO_TRANSACTION:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the marker of producer {entry.producer_id} has epoch {epoch}, like the transaction that is open now",
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of coordinator epoch {marker.coordinator_epoch} after one of {entry.coordinator_epoch}",
            )

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction is open that a batch of this epoch belongs to."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.transaction_start != NO_TRANSACTION and entry.epoch == epoch

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, bumps_epoch: bool
    ) -> VerificationGuard | None:
        """The guard to append the first batch of a transaction with, once the coordinator has confirmed the
        transaction; None when the transaction is open here already."""
        self.check_epoch(producer_id, epoch, transactional=True)
        if self.has_open_transaction(producer_id, epoch):
            return None
        return self.verifications.begin(producer_id, epoch, sequence, bumps_epoch)

    def begin_anew(self, end_offset: int) -> None:
        """Forget the producers of the parent when the own part of a branch begins: there the same producer begins with
        sequence 0. No transaction is open at that offset, unless an unclean election has shortened the shared part."""
        if 0 < self.begins_at <= end_offset:
            self.begins_at = 0
            self.entries = {
                producer_id: entry
                for producer_id, entry in self.entries.items()
                if entry.transaction_start != NO_TRANSACTION
            }

    def with_verifications(self, former: "ProducerState") -> "ProducerState":
        """This state, rebuilt from the log, with the verifications of the one before: they are not in the log."""
        self.verifications = former.verifications
        return self

    def append(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        last_offset_delta: int,
        last_offset: int,
        timestamp: int,
        transactional: bool,
    ) -> None:
        """Note a data batch that is in the log."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, epoch)
        entry.add(epoch, first_sequence, last_offset_delta, last_offset, timestamp)
        if transactional:
            if self.verifications:
                self.verifications.end(producer_id)
            if entry.transaction_start == NO_TRANSACTION:
                entry.transaction_start = last_offset - last_offset_delta
                self.transactions.begin(producer_id, entry.transaction_start)

    def end_transaction(
        self, producer_id: int, epoch: int, coordinator_epoch: int, timestamp: int, offset: int, committed: bool
    ) -> AbortedTransaction | None:
        """Note a marker at `offset`; its entry in the transaction index, if it aborts a transaction."""
        if self.verifications:
            self.verifications.end_before(producer_id, epoch)
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, epoch)
        if epoch != entry.epoch:
            entry.epoch = epoch
            entry.batches.clear()
            entry.next_sequence = 0
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        if entry.transaction_start == NO_TRANSACTION:
            return None
        entry.transaction_start = NO_TRANSACTION
        first_offset, last_stable_offset = self.transactions.end(producer_id, offset)
        return None if committed else AbortedTransaction(producer_id, first_offset, offset, last_stable_offset)

    def forget_before(self, offset: int) -> None:
        """Forget producers without a batch from an offset on, unless a transaction of theirs is open."""
        for producer_id, entry in tuple(self.entries.items()):
            is_later = bool(entry.batches) and entry.batches[-1][2] >= offset
            if not is_later and entry.transaction_start == NO_TRANSACTION:
                del self.entries[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that were idle too long, and verifications without a result; returns how many producers."""
        self.verifications.expire(now_ms, expiration_ms)
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.transaction_start == NO_TRANSACTION and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        return len(expired)


def out_of_order(producer_id: int, first_sequence: int, last_sequence: int) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {producer_id} sent sequence {first_sequence} after {last_sequence}",
    )


def fenced(entry: ProducerEntry, epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {entry.producer_id} writes with epoch {epoch}, but epoch {entry.epoch} has been seen",
    )


def outside_transaction(entry: ProducerEntry) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE,
        f"producer {entry.producer_id} has an open transaction that began at offset {entry.transaction_start},"
        " and writes outside of it",
    )


class _Verification:
    __slots__ = ("bumps_epoch", "epoch", "guard", "least_sequence", "since_ms")

    def __init__(self, epoch: int, sequence: int, bumps_epoch: bool) -> None:
        self.guard = VerificationGuard()
        self.epoch = epoch
        self.least_sequence = sequence
        self.bumps_epoch = bumps_epoch
        self.since_ms: int | None = None
        """When `expire` first saw it; a log has no clock."""


class Verifications:
    """Producers for which the transaction coordinator is asked whether their transaction has this partition (KIP-890).

    A guard is handed out before the request to the coordinator, and is needed to append the batch. A marker that is
    written meanwhile takes it away, so that a stale response does not open a transaction that is never ended. The least
    sequence that waits for a response is appended first: a later one, verified earlier, would put it out of order.
    """

    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, _Verification] = {}

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def begin(self, producer_id: int, epoch: int, sequence: int, bumps_epoch: bool) -> VerificationGuard:
        """The guard of the pending verification, or of one that begins now."""
        under_way = self._by_producer.get(producer_id)
        if under_way is None:
            under_way = self._by_producer[producer_id] = _Verification(epoch, sequence, bumps_epoch)
        elif epoch > under_way.epoch:
            under_way.epoch, under_way.least_sequence, under_way.bumps_epoch = epoch, sequence, bumps_epoch
        elif epoch == under_way.epoch:
            under_way.least_sequence = min(under_way.least_sequence, sequence)
            under_way.bumps_epoch &= bumps_epoch  # if in doubt, a marker ends it
        return under_way.guard

    def is_current(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        under_way = self._by_producer.get(producer_id)
        return under_way is not None and under_way.guard is guard

    def check_sequence(self, producer_id: int, sequence: int, *, has_batches: bool) -> None:
        """OUT_OF_ORDER_SEQUENCE_NUMBER for a batch that overtakes another, or is not a producer's first.

        `has_batches`: whether the partition knows batches of the producer. A producer that bumps its epoch with every
        transaction begins each at 0.
        """
        under_way = self._by_producer.get(producer_id)
        if under_way is None:
            return
        if under_way.bumps_epoch and sequence != 0 and not has_batches:
            raise out_of_order(producer_id, sequence, -1)
        if sequence > under_way.least_sequence:
            raise out_of_order(producer_id, sequence, under_way.least_sequence - 1)

    def end(self, producer_id: int) -> None:
        """The transaction has begun."""
        self._by_producer.pop(producer_id, None)

    def end_before(self, producer_id: int, marker_epoch: int) -> None:
        """A marker was written.

        Where each transaction has its own epoch, the marker has the one after it. So a producer that is verified with
        this epoch begins its next transaction already: it got the response to EndTxn before the marker was written.
        """
        under_way = self._by_producer.get(producer_id)
        if under_way is not None and not (under_way.bumps_epoch and under_way.epoch >= marker_epoch):
            del self._by_producer[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget verifications without a result."""
        for producer_id, under_way in list(self._by_producer.items()):
            if under_way.since_ms is None:
                under_way.since_ms = now_ms
            elif now_ms - under_way.since_ms >= expiration_ms:
                del self._by_producer[producer_id]
