"""Which producers are being verified: whether the transaction coordinator knows of the transaction they want to begin
in this partition (KIP-890).

A guard is handed out before the coordinator is asked, and is shown when the batch is appended. A marker that is written
meanwhile takes it away, so that an answer which is no longer true opens no transaction that nobody would ever end.
The least sequence that waited for an answer comes first: a later one, verified earlier, would put it out of order.
"""

from millstream.formats.model.identifiers import VerificationGuard
from millstream.node.storage.log.producer_state import out_of_order


class _Verification:
    __slots__ = ("bumps_epoch", "epoch", "guard", "least_sequence", "since_ms")

    def __init__(self, epoch: int, sequence: int, bumps_epoch: bool) -> None:
        self.guard = VerificationGuard()
        self.epoch = epoch
        self.least_sequence = sequence
        self.bumps_epoch = bumps_epoch
        self.since_ms: int | None = None
        """When upkeep first saw it; a log has no clock."""


class Verifications:
    """Those of one partition."""

    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, _Verification] = {}

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def begin(self, producer_id: int, epoch: int, sequence: int, bumps_epoch: bool) -> VerificationGuard:
        """The guard of the verification under way, or of one that begins now."""
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

        `has_batches`: whether the partition remembers any of the producer. One that bumps its epoch with every
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

        Where each transaction has its own epoch, the marker has the one after it. So a producer that is verified under
        this epoch already begins its next transaction: it was told of the end before the marker came.
        """
        under_way = self._by_producer.get(producer_id)
        if under_way is not None and not (under_way.bumps_epoch and under_way.epoch >= marker_epoch):
            del self._by_producer[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget those that came to nothing."""
        for producer_id, under_way in list(self._by_producer.items()):
            if under_way.since_ms is None:
                under_way.since_ms = now_ms
            elif now_ms - under_way.since_ms >= expiration_ms:
                del self._by_producer[producer_id]
