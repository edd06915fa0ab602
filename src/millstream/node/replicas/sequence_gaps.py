"""Batches that a new leader must not take yet, because the one before them went to the old leader and must come again.

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
from millstream.formats.records.batch import HEADER, HEADER_SIZE, Bytes, is_behind
from millstream.node.storage.log.producer_state import ProducerState

NEW_LEADER_S = 360.0
"""Clients ask for metadata every five minutes if nothing makes them ask before: so late they may come over."""
PATIENCE_S = 60.0
"""No client waits longer for the answer of an old leader by default: Java's 30 s, librdkafka 60 s."""
_MOST_REMEMBERED = 10_000

_log = logging.getLogger("millstream.broker")

Key = tuple[bytes, int, int]
"""Topic as the request names it, partition, producer."""


class Gap(NamedTuple):
    epoch: int
    missing: int
    """The sequence that should come next."""
    since: float


class LeaderChangeGapGuard:
    __slots__ = ("_gaps", "_now")

    def __init__(self, now: Callable[[], float]) -> None:
        self._gaps: dict[Key, Gap] = {}
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
            if len(self._gaps) >= _MOST_REMEMBERED:
                del self._gaps[next(iter(self._gaps))]
            self._gaps[key] = Gap(epoch, missing, now)
            _log.info(
                "gap_refused topic=%s partition=%d producer=%d epoch=%d sequence=%d missing=%d",
                topic, index, producer_id, epoch, sequence, missing,
            )  # fmt: skip
        elif now - gap.since > PATIENCE_S:
            return
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"sequence {sequence} of producer {producer_id} is here before {missing}, which may be on its way to the"
            " leader before this one: send that one first",
        )
