"""Detection of batches with a right checksum whose records cannot be read (ADR 25).

Batches of plain topics are not decompressed when they are produced, so one with malformed records may be in a log. A
consumer of such a batch fetches the same offset again and again. So the broker counts: a batch that was sent several
times from the same position is decompressed once, in a thread. If it cannot be read, consumers get INVALID_RECORD at
its offsets, and responses end before it. Not CORRUPT_MESSAGE: clients take that for a retriable error, and some retry
it silently. The log and the metrics name the offset to continue from.
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
"""A batch that was sent so often from the same position is decompressed."""
_SOUND = -990
"""The count of a batch that was found to be sound: it is decompressed again after as many reads."""
MAX_COUNTED = 4096
"""Positions in one generation; two are kept. A reader that comes back after more other reads is not counted."""
MAX_KNOWN = 64
"""Unreadable batches that are remembered for one partition; those with the highest offsets are kept."""

_log = logging.getLogger("millstream.fetch")

FilePosition = tuple[str, int]
"""The path of a segment, and a position in it."""


class Unreadable(NamedTuple):
    """A batch that was found to be unreadable."""

    first: int
    last: int
    producer_id: int
    reason: str


class UnreadableBatchError(KafkaError):
    """A consumer fetches an offset in an unreadable batch."""

    def __init__(self, batch: Unreadable) -> None:
        super().__init__(
            ErrorCode.INVALID_RECORD,
            f"offsets {batch.first} to {batch.last} cannot be read ({batch.reason}): continue from {batch.last + 1}",
        )


class UnreadableBatches:
    """The unreadable batches of one partition."""

    __slots__ = ("_firsts", "batches")

    def __init__(self) -> None:
        self.batches: list[Unreadable] = []
        """By offset."""
        self._firsts: list[int] = []

    def add(self, found: Iterable[Unreadable]) -> list[Unreadable]:
        """Adds batches; returns those that were not known."""
        known = {each.first: each for each in self.batches}
        new = [each for each in found if each.first not in known]
        known.update((each.first, each) for each in new)
        self.batches = [known[first] for first in sorted(known)][-MAX_KNOWN:]
        self._firsts = [each.first for each in self.batches]
        return new

    def has(self, first: int) -> bool:
        """Whether the batch that begins at this offset is unreadable."""
        at = bisect_right(self._firsts, first)
        return at > 0 and self._firsts[at - 1] == first

    def limit(self, offset: int, up_to: int) -> int:
        """How far a consumer may read from `offset`; UnreadableBatchError if it is in a batch that cannot be read."""
        at = bisect_right(self._firsts, offset)
        if at and offset <= self.batches[at - 1].last:
            raise UnreadableBatchError(self.batches[at - 1])
        return min(up_to, self._firsts[at]) if at < len(self._firsts) else up_to


class ReadPartition(Protocol):
    """A partition that consumers read."""

    unreadable: UnreadableBatches | None

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def leader_epoch(self) -> int: ...


class RepeatedReads:
    """Counts how often batches are sent from the same position, and decompresses them when that is too often."""

    def __init__(self, environment: Environment, limits: Callable[[], OpeningLimits]) -> None:
        self._environment = environment
        self._limits = limits
        self._counts: dict[FilePosition, int] = {}
        self._older: dict[FilePosition, int] = {}
        self._is_looking = False

    def note(self, partition: ReadPartition, records: Slice) -> None:
        """Counts a slice that is sent to a consumer. Two dictionary lookups, because every response comes here."""
        place = records.file.path, records.position
        counts = self._counts
        count = counts.get(place)
        if count is None:
            if len(counts) >= MAX_COUNTED:
                self._older, self._counts = counts, {}
                counts = self._counts
            count = self._older.pop(place, 0)
        counts[place] = count = count + 1
        if count >= SUSPICIOUS and not self._is_looking:
            self._begin(place, partition, records)

    def _begin(self, place: FilePosition, partition: ReadPartition, records: Slice) -> None:
        """One check at a time, because it may decompress a whole response."""
        self._is_looking = True
        epoch, limits = partition.leader_epoch, self._limits()

        def found(done: "asyncio.Future[list[Unreadable]]") -> None:
            self._is_looking = False
            if done.cancelled():
                return
            self._counts[place] = _SOUND
            error = done.exception()
            if error is not None:
                # The disk may have failed: it is checked again after more reads.
                _log.warning("suspicious_batch_not_opened partition=%s error=%r", partition.topic_partition, error)
            elif partition.leader_epoch == epoch:
                note_unreadable(partition, done.result())

        self._environment.offload(lambda: unreadable_in(records, limits)).add_done_callback(found)


def unreadable_in(records: Slice, limits: OpeningLimits) -> list[Unreadable]:
    """The unreadable batches of a slice; runs in a thread. Batches above the limits are not checked."""
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
    """Remembers the unreadable batches of a partition, and logs them."""
    if not found:
        return
    if partition.unreadable is None:
        partition.unreadable = UnreadableBatches()
    for each in partition.unreadable.add(found):
        _log.warning(
            "batch_unreadable topic=%s partition=%d offsets=%d-%d producer_id=%d reason=%r: consumers get "
            "INVALID_RECORD at these offsets; to continue, let them seek to offset %d, or stop them and run "
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
