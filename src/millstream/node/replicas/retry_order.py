"""Guards that keep the batches of a producer in order when some of them were refused, or went to another leader.

A producer has up to five batches in flight. If the first is refused with a retriable error (this node does not know yet
that it leads, too few replicas are in sync, the disk is full) and the second arrives when the reason is gone, the log
would append the second wherever it does not know the producer, because any sequence may be its first there. The first
is out of order from then on, and librdkafka takes the success of a later batch for that of all before it: it reports a
delivery that never happened (confluent-kafka-go issue 921; Kafka has this gap). And where the log knows the producer, a
sequence error makes clients begin a new epoch, in which they repeat records that may be in the log already (librdkafka
issue 4953). So `RetryOrderGuard` refuses batches behind a refused one with the same error: clients then send all of
them again, in order.

A leader that is cut off from its followers responds with a timeout. librdkafka waits a moment before it sends such a
batch again; if it finds the new leader in that moment, it sends the next batch there first. By Kafka's rules the new
leader responds OUT_OF_ORDER_SEQUENCE_NUMBER, after which librdkafka repeats records in a new epoch; or it appends the
batch, if it does not know the producer, and librdkafka takes that for the success of all before it. The one duplicates
records, the other loses them. So `LeaderChangeGapGuard` refuses a batch that leaves a gap with a retriable error, if
the partition has had another leader not long ago: the client sends all of its batches again, in order. If the gap is
not filled in time, the client gets Kafka's response.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import HEADER, HEADER_SIZE, MAX_SEQUENCE, Bytes, is_behind
from millstream.node.storage.log.producer_state import ProducerState

REMEMBERED_SECONDS = 30.0
"""How long a refused batch is remembered. Clients wait as long for a response by default, so batches that were in
flight with it have arrived by then."""
MAX_REMEMBERED_BATCHES = 10_000

BatchKey = tuple[bytes, int, int]
"""Topic as in the request, partition number, producer id. The partition need not be known here yet."""


class RefusedBatch(NamedTuple):
    """A batch by its producer epoch and sequence, the error that it got, and until when that is remembered."""

    epoch: int
    sequence: int
    code: ErrorCode
    until: float


class RetryOrderGuard:
    """Remembers the first refused batch of each producer and partition, until it arrives again."""

    __slots__ = ("_first", "_now")

    def __init__(self, now: Callable[[], float]) -> None:
        self._first: dict[BatchKey, RefusedBatch] = {}
        """In the order of `until`."""
        self._now = now

    def __bool__(self) -> bool:
        return bool(self._first)

    def note(self, topic: bytes, index: int, batch: Bytes, code: ErrorCode) -> None:
        """Remember a batch that was refused."""
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
        elif len(self._first) >= MAX_REMEMBERED_BATCHES:
            del self._first[next(iter(self._first))]
        self._first[key] = RefusedBatch(epoch, sequence, code, self._now() + REMEMBERED_SECONDS)

    def check(self, topic: bytes, index: int, batch: Bytes, producers: ProducerState) -> None:
        """Raises KafkaError for a batch that would overtake a refused one; called last, for a valid batch."""
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
            # Another leader may have appended the refused one meanwhile, so that it is in the log.
            if not producers.has_all_before(producer_id, epoch, sequence, (sequence + delta) & MAX_SEQUENCE):
                raise KafkaError(
                    known.code,
                    f"sequence {sequence} of producer {producer_id} comes after {known.sequence}, which was refused:"
                    " send that batch again first",
                )
        del self._first[key]  # if it is refused again, it is remembered again

    def _forget_old(self) -> None:
        now = self._now()
        while self._first:
            oldest = next(iter(self._first))
            if self._first[oldest].until > now:
                return
            del self._first[oldest]


NEW_LEADER_SECONDS = 360.0
"""How long a leader counts as new. Clients request metadata at least every five minutes: they may come so late."""
GAP_TIMEOUT_SECONDS = 60.0
"""How long a gap is refused. By default no client waits longer for the old leader: Java 30 s, librdkafka 60 s."""
MAX_REMEMBERED_GAPS = 10_000

_log = logging.getLogger("millstream.broker")


class Gap(NamedTuple):
    """A sequence that has not arrived although a later one has."""

    epoch: int
    missing: int
    """The next expected sequence."""
    since: float


class LeaderChangeGapGuard:
    """Refuses batches of a producer that came to a new leader before an earlier batch, until that one arrives."""

    __slots__ = ("_gaps", "_now")

    def __init__(self, now: Callable[[], float]) -> None:
        self._gaps: dict[BatchKey, Gap] = {}
        self._now = now

    def check(self, topic: bytes, index: int, batch: Bytes, producers: ProducerState) -> None:
        """Raises KafkaError for a batch behind one that may still arrive."""
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
        elif now - gap.since > GAP_TIMEOUT_SECONDS:
            return
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"sequence {sequence} of producer {producer_id} arrived before {missing}, which may be in flight to the"
            " leader before this one: send that batch first",
        )
