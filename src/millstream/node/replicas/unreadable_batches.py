"""Batches whose checksum is right and whose records cannot be read (ADR 25).

Batches of plain topics are not opened when they are taken, so one with nonsense inside may be in a log. A consumer that
gets such a batch fetches the same offset again, for ever. So the broker counts: what was sent several times from the
same place is opened once, in a thread. If it cannot be read, consumers get INVALID_RECORD at its offsets, and responses
end before it. Not CORRUPT_MESSAGE: clients take that for an error that passes, and some retry it without a word. The
log and the metrics name the offset to go on from.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicPartition
from millstream.formats.records.opening import BeyondLimitsError, OpeningLimits, check, opened
from millstream.node.environment import Environment
from millstream.node.storage.log.batch_scan import walk_headers
from millstream.node.storage.log.log_reader import Slice

SUSPICIOUS = 10
"""Sent so often from the same place, a batch is opened."""
_SOUND = -990
"""What the count of a batch becomes that was found to be sound: it is opened again after as many reads."""
MOST_COUNTED = 4096
"""Places in one generation; two are kept. A reader that comes back after more other reads than that is not counted."""
MOST_KNOWN = 64
"""Unreadable batches that are remembered for one partition; those with the highest offsets stay."""

_log = logging.getLogger("millstream.fetch")

Place = tuple[str, int]
"""A file of a log, and a position in it."""


class Unreadable(NamedTuple):
    """A batch that was found to be unreadable."""

    first: int
    last: int
    producer_id: int
    reason: str


class UnreadableBatchError(KafkaError):
    """A consumer asks for an offset in such a batch."""

    def __init__(self, batch: Unreadable) -> None:
        super().__init__(
            ErrorCode.INVALID_RECORD,
            f"offsets {batch.first} to {batch.last} cannot be read ({batch.reason}): go on from {batch.last + 1}",
        )


class UnreadableBatches:
    """What is known of one partition."""

    __slots__ = ("_firsts", "batches")

    def __init__(self) -> None:
        self.batches: list[Unreadable] = []
        """By offset."""
        self._firsts: list[int] = []

    def add(self, found: Iterable[Unreadable]) -> list[Unreadable]:
        """Returns those that were not known."""
        known = {each.first: each for each in self.batches}
        new = [each for each in found if each.first not in known]
        known.update((each.first, each) for each in new)
        self.batches = [known[first] for first in sorted(known)][-MOST_KNOWN:]
        self._firsts = [each.first for each in self.batches]
        return new

    def has(self, first: int) -> bool:
        """Whether the batch that begins at this offset is one."""
        at = bisect_right(self._firsts, first)
        return at > 0 and self._firsts[at - 1] == first

    def limit(self, offset: int, up_to: int) -> int:
        """How far a consumer may read from `offset`; UnreadableBatchError if it is in a batch that cannot be read."""
        at = bisect_right(self._firsts, offset)
        if at and offset <= self.batches[at - 1].last:
            raise UnreadableBatchError(self.batches[at - 1])
        return min(up_to, self._firsts[at]) if at < len(self._firsts) else up_to


class ReadPartition(Protocol):
    """What is needed of a partition that consumers read."""

    unreadable: UnreadableBatches | None

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def leader_epoch(self) -> int: ...


class RepeatedReads:
    """Counts how often consumers are sent what lies at the same place, and has it opened when that is too often."""

    def __init__(self, environment: Environment, limits: Callable[[], OpeningLimits]) -> None:
        self._environment = environment
        self._limits = limits
        self._counts: dict[Place, int] = {}
        self._older: dict[Place, int] = {}
        self._is_looking = False

    def note(self, partition: ReadPartition, records: Slice) -> None:
        """A consumer is sent these. Every response comes through here, so this is two looks into a dictionary."""
        place = records.file.path, records.position
        counts = self._counts
        count = counts.get(place)
        if count is None:
            if len(counts) >= MOST_COUNTED:
                self._older, self._counts = counts, {}
                counts = self._counts
            count = self._older.pop(place, 0)
        counts[place] = count = count + 1
        if count >= SUSPICIOUS and not self._is_looking:
            self._begin(place, partition, records)

    def _begin(self, place: Place, partition: ReadPartition, records: Slice) -> None:
        """One look at a time: it may have to decompress a whole response."""
        self._is_looking = True
        epoch, limits = partition.leader_epoch, self._limits()

        def found(done: "asyncio.Future[list[Unreadable]]") -> None:
            self._is_looking = False
            if done.cancelled():
                return
            self._counts[place] = _SOUND
            error = done.exception()
            if error is not None:
                # Not readable now is not the same as unreadable: it is looked at again when it is read on.
                _log.warning("suspicious_batch_not_opened partition=%s error=%r", partition.topic_partition, error)
            elif partition.leader_epoch == epoch:
                note_unreadable(partition, done.result())

        self._environment.offload(lambda: unreadable_in(records, limits)).add_done_callback(found)


def unreadable_in(records: Slice, limits: OpeningLimits) -> list[Unreadable]:
    """The batches of a slice that cannot be read; for a thread. What is beyond the limits is not judged."""
    found = []
    for position, header in walk_headers(records.file, records.position, records.position + records.length):
        if header.is_control or not header.record_count:
            continue
        try:
            with opened(header, records.file.read_at(position, header.size), limits) as content:
                check(header, content)
        except BeyondLimitsError:
            continue
        except KafkaError as error:
            found.append(Unreadable(header.base_offset, header.last_offset, header.producer_id, error.message))
    return found


def note_unreadable(partition: ReadPartition, found: list[Unreadable]) -> None:
    """Remembers what was found in a partition, and says so."""
    if not found:
        return
    if partition.unreadable is None:
        partition.unreadable = UnreadableBatches()
    for each in partition.unreadable.add(found):
        _log.warning(
            "batch_unreadable topic=%s partition=%d offsets=%d-%d producer_id=%d reason=%r: consumers get "
            "INVALID_RECORD at these offsets; to go on, let them seek to offset %d, or stop them and run "
            "`millstream group reset-offsets GROUP --topic %s:%d --to-offset %d --execute`",
            *partition.topic_partition,
            each.first,
            each.last,
            each.producer_id,
            each.reason,
            each.last + 1,
            *partition.topic_partition,
            each.last + 1,
        )
