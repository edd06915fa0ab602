"""Batches that were refused for a reason that passes, so that none which was sent behind them is taken before them.

A producer has up to five batches under way. If the first is refused (this node does not know yet that it leads, too few
replicas are in sync, the disk is full) and the reason is gone when the second arrives, the log takes that one wherever
it does not know the producer: any sequence may be its first there. The first is then out of order for ever, and
librdkafka takes the success of a later batch for that of all before it: it tells its user of a delivery that never was
(confluent-kafka-go issue 921; Kafka has this gap). And where the log knows the producer, a refusal for the sequence
makes clients begin a new epoch, in which they repeat what may be in the log already (librdkafka issue 4953).

So what comes behind a refused batch is refused for the same reason: clients then send all of it again, in order.

Batches that a new leader must not take yet, because the one before them went to the old leader and must come again.

A leader that is cut off from its followers answers that the time is up. librdkafka lets a moment pass before it sends
such a batch again; if it turns to the new leader in that moment, it sends there what comes next before it. By Kafka's
rules the new leader answers OUT_OF_ORDER_SEQUENCE_NUMBER, for which librdkafka begins a new epoch and repeats in it
what may be in the log already; or it takes the batch, if it does not know the producer, since any sequence may be the
first, and librdkafka takes that for the success of all before it. The one doubles records, the other loses them.

So where a partition has had another leader not long ago, a batch that leaves a gap is refused for a reason that passes:
the client waits for what is under way and sends all of it again, in order. Whoever does not fill the gap in time gets
Kafka's answer.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import HEADER, HEADER_SIZE, MAX_SEQUENCE, Bytes, is_behind
from millstream.node.storage.log.producer_state import ProducerState

REMEMBERED_S = 30.0
"""As long as clients wait for an answer by default: what was under way with the refused batch has come by then."""
MAX_REMEMBERED = 10_000

BatchKey = tuple[bytes, int, int]
"""Topic as the request names it, partition, producer: of partitions, too, that are not known here yet."""


class RefusedBatch(NamedTuple):
    epoch: int
    sequence: int
    code: ErrorCode
    until: float


class RetryOrderGuard:
    """Of each producer and partition the first that was refused, until it comes again."""

    __slots__ = ("_first", "_now")

    def __init__(self, now: Callable[[], float]) -> None:
        self._first: dict[BatchKey, RefusedBatch] = {}
        """In the order of their ends, which is that of their beginnings."""
        self._now = now

    def __bool__(self) -> bool:
        return bool(self._first)

    def note(self, topic: bytes, index: int, batch: Bytes, code: ErrorCode) -> None:
        """This batch was refused."""
        if not code.retriable or len(batch) < HEADER_SIZE:
            return
        header = HEADER.unpack_from(batch)
        producer_id, epoch, sequence = header[9], header[10], header[11]
        if producer_id < 0 or sequence < 0:
            return
        self._forget_old()
        key = topic, index, producer_id
        known = self._first.get(key)
        if known is not None:
            if epoch < known.epoch or (epoch == known.epoch and is_behind(sequence, known.sequence)):
                return
            del self._first[key]
        elif len(self._first) >= MAX_REMEMBERED:
            del self._first[next(iter(self._first))]
        self._first[key] = RefusedBatch(epoch, sequence, code, self._now() + REMEMBERED_S)

    def check(self, topic: bytes, index: int, batch: Bytes, producers: ProducerState) -> None:
        """Raises KafkaError for a batch that would overtake a refused one; called when nothing else is against it."""
        self._forget_old()
        if len(batch) < HEADER_SIZE:
            return
        header = HEADER.unpack_from(batch)
        delta, producer_id, epoch, sequence = header[6], header[9], header[10], header[11]
        key = topic, index, producer_id
        known = self._first.get(key)
        if known is None or epoch < known.epoch:
            return
        if epoch == known.epoch and sequence != known.sequence:
            if not is_behind(sequence, known.sequence):
                return
            # The refused one may have been taken elsewhere meanwhile, and have come here with the log.
            if not producers.has_all_before(producer_id, epoch, sequence, (sequence + delta) & MAX_SEQUENCE):
                raise KafkaError(
                    known.code,
                    f"sequence {sequence} of producer {producer_id} comes after {known.sequence}, which was refused:"
                    " send that one again first",
                )
        del self._first[key]  # if this one is refused again, it is noted again

    def _forget_old(self) -> None:
        now = self._now()
        while self._first:
            oldest = next(iter(self._first))
            if self._first[oldest].until > now:
                return
            del self._first[oldest]


NEW_LEADER_S = 360.0
"""Clients ask for metadata every five minutes if nothing makes them ask before: so late they may come over."""
GAP_TIMEOUT_S = 60.0
"""No client waits longer for the answer of an old leader by default: Java's 30 s, librdkafka 60 s."""
MAX_REMEMBERED_GAPS = 10_000

_log = logging.getLogger("millstream.broker")

GapKey = tuple[bytes, int, int]
"""Topic as the request names it, partition, producer."""


class Gap(NamedTuple):
    epoch: int
    missing: int
    """The sequence that should come next."""
    since: float


class LeaderChangeGapGuard:
    __slots__ = ("_gaps", "_now")

    def __init__(self, now: Callable[[], float]) -> None:
        self._gaps: dict[GapKey, Gap] = {}
        self._now = now

    def check(self, topic: bytes, index: int, batch: Bytes, producers: ProducerState) -> None:
        """Raises KafkaError for a batch behind one that may still come."""
        if len(batch) < HEADER_SIZE:
            return
        header = HEADER.unpack_from(batch)
        producer_id, epoch, sequence = header[9], header[10], header[11]
        if producer_id < 0 or sequence < 0:
            return
        entry = producers.entries.get(producer_id)
        missing = entry.next_sequence if entry is not None and entry.epoch == epoch else 0
        key = topic, index, producer_id
        if not is_behind(sequence, missing) or (entry is not None and epoch < entry.epoch):
            self._gaps.pop(key, None)
            return
        now = self._now()
        gap = self._gaps.get(key)
        if gap is None or (gap.epoch, gap.missing) != (epoch, missing):
            if len(self._gaps) >= MAX_REMEMBERED_GAPS:
                del self._gaps[next(iter(self._gaps))]
            self._gaps[key] = Gap(epoch, missing, now)
            _log.info(
                "gap_refused topic=%s partition=%d producer=%d epoch=%d sequence=%d missing=%d",
                topic, index, producer_id, epoch, sequence, missing,
            )  # fmt: skip
        elif now - gap.since > GAP_TIMEOUT_S:
            return
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"sequence {sequence} of producer {producer_id} is here before {missing}, which may be on its way to the"
            " leader before this one: send that one first",
        )
