"""Publication of committed metadata to the listeners, in order and once: a snapshot, then batches; and snapshots of it.

A long log is published in steps, so that a node that catches up can serve other requests in between.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Protocol

from millstream.common.lazy_dataclass import dataclass
from millstream.node.consensus.quorum.metadata_log import CommittedBatch, MetadataLog
from millstream.node.consensus.quorum.snapshots import SnapshotContent
from millstream.node.consensus.raft.messages import LogPosition
from millstream.node.consensus.raft.voter_set import VoterSet
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import MetadataRecord
from millstream.node.metadata.snapshot import snapshot_records

_log = logging.getLogger("millstream.quorum")
_BATCHES_PER_TURN = 1000
_RECORDS_PER_TURN = 10_000


class QuorumListener(Protocol):
    """A listener of the quorum. Listeners are called in the order of subscription, on the event loop."""

    def committed(self, records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        """The next records in order, one batch or several; the last has this offset and epoch."""
        ...

    def reset(self, image_records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        """A snapshot replaces everything: the state as of `offset`."""
        ...

    def leader_changed(self, leader_id: int | None, epoch: int) -> None: ...

    def leading(self, epoch: int) -> None:
        """This node leads, and everything that earlier leaders committed was published before this call."""
        ...

    def no_longer_leading(self) -> None: ...


class Publication:
    def __init__(
        self, log: MetadataLog, loop: asyncio.AbstractEventLoop, guarded: Callable[[Callable[[], None]], None]
    ) -> None:
        """`guarded` runs a step that the loop calls, and handles its exceptions."""
        self._log = log
        self._loop = loop
        self._guarded = guarded
        self.listeners: list[QuorumListener] = []
        self.next_offset = 0
        self._target = 0
        self._leading: tuple[int, int] | None = None
        """(epoch, offset): leadership to report once everything below the offset is published."""
        self._has_reported_leading = False
        self._continues = False
        self.is_starting = True
        """At the start everything is published at once: the loop serves no requests yet."""
        self._appended: deque[CommittedBatch] = deque()
        """Batches that this leader appended and that are not published: they need not be read from the log."""
        self.last_record_ms = 0
        self.bytes_since_snapshot = 0

    def appended(self, batch: CommittedBatch) -> None:
        """This leader appended it; it is not committed yet."""
        self._appended.append(batch)

    def forget_appended(self) -> None:
        """The log was truncated or replaced: batches to publish are read from it."""
        self._appended.clear()

    def advance(self, end_offset: int) -> None:
        """Everything below is committed."""
        self._target = max(self._target, end_offset)
        if not self._continues:
            self._go_on()

    def leading(self, epoch: int, high_watermark: int) -> None:
        self._leading = epoch, high_watermark
        self.advance(high_watermark)

    def no_longer_leading(self) -> None:
        self._leading = None
        self.forget_appended()
        if self._has_reported_leading:
            self._has_reported_leading = False
            for listener in self.listeners:
                listener.no_longer_leading()

    def leader_changed(self, leader_id: int | None, epoch: int) -> None:
        for listener in self.listeners:
            listener.leader_changed(leader_id, epoch)

    def reset(self, snapshot: LogPosition, content: SnapshotContent) -> None:
        _log.info("snapshot_loaded snapshot=%s records=%d", snapshot, len(content.records))
        self.forget_appended()
        self.next_offset = snapshot.offset
        self.last_record_ms = content.last_contained_log_timestamp
        self.bytes_since_snapshot = 0
        for listener in self.listeners:
            listener.reset(content.records, offset=snapshot.offset - 1, epoch=snapshot.epoch)

    def _go_on(self) -> None:
        self._continues = False
        log = self._log
        target = min(self._target, log.end.offset)
        if self.next_offset < log.start.offset:
            return  # a snapshot was installed, and its event comes next
        # The checkpointed high watermark must not be above the flushed offset.
        log.partition.high_watermark = max(min(target, log.flushed_offset), log.start.offset)
        while self.next_offset < target:
            self._publish(self._own_batches(target) or log.batches(self.next_offset, target))
            if self.next_offset < target and not self.is_starting:
                self._continues = True
                self._loop.call_soon(self._guarded, self._go_on)
                return
        if self._leading is not None and self.next_offset >= self._leading[1]:
            (epoch, _), self._leading = self._leading, None
            self._has_reported_leading = True
            for listener in self.listeners:
                listener.leading(epoch)

    def _publish(self, batches: Iterable[CommittedBatch]) -> None:
        """One step, in as few calls as possible: an image is not copied for every small batch."""
        records: list[MetadataRecord] = []
        offset = epoch = -1
        for batch in islice(batches, _BATCHES_PER_TURN):
            if records and (batch.epoch != epoch or len(records) >= _RECORDS_PER_TURN):
                self._notify(records, offset, epoch)
                if len(records) >= _RECORDS_PER_TURN:
                    return
                records = []
            self.next_offset = batch.last_offset + 1
            self.last_record_ms = batch.timestamp
            self.bytes_since_snapshot += batch.size
            if batch.records:
                offset, epoch = batch.last_offset, batch.epoch
                records += batch.records
        if records:
            self._notify(records, offset, epoch)

    def _notify(self, records: Sequence[MetadataRecord], offset: int, epoch: int) -> None:
        for listener in self.listeners:
            listener.committed(records, offset=offset, epoch=epoch)

    def _own_batches(self, target: int) -> list[CommittedBatch]:
        """The next batches that this leader appended, if no others come before them."""
        found: list[CommittedBatch] = []
        next_offset = self.next_offset
        for batch in islice(self._appended, _BATCHES_PER_TURN):
            if batch.last_offset >= target or batch.last_offset + 1 - len(batch.records) != next_offset:
                break  # not committed, or control records are in between
            found.append(batch)
            next_offset = batch.last_offset + 1
        while self._appended and self._appended[0].last_offset < max(next_offset, self.next_offset):
            self._appended.popleft()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRetention:
    """Limits on the log and snapshots before the newest snapshot; -1 is no limit."""

    bytes: int = 100 << 20
    ms: int = 7 * 24 * 60 * 60 * 1000


class SnapshotWriter:
    """Writes the committed image as a snapshot, and removes the log before older snapshots."""

    def __init__(self, log: MetadataLog, retention: MetadataRetention, environment: Environment) -> None:
        self._metadata_log = log
        self._retention = retention
        self._environment = environment
        self._under_way = False

    async def write(
        self, image: MetadataImage, last_record_ms: int, kraft_version: int, voters: VoterSet | None
    ) -> bool:
        """False if the image has no changes, or could not be written."""
        log = self._metadata_log
        snapshot = LogPosition(image.offset + 1, image.epoch)
        latest = log.latest_snapshot
        if image.pending is not None:
            return False  # a snapshot has only records that have taken effect
        if self._under_way or image.offset < 0 or (latest is not None and latest.offset >= snapshot.offset):
            return False
        now_ms = self._environment.clock.now_ms()

        def write() -> int:
            content = SnapshotContent(last_record_ms, kraft_version, voters, tuple(snapshot_records(image)))
            return log.snapshots.write(snapshot, content, now_ms)

        self._under_way = True
        try:
            size = await self._environment.offload(write)
        except OSError as error:
            # No harm: the log stays longer.
            _log.error("snapshot_not_written snapshot=%s error=%s", snapshot, error)
            return False
        finally:
            self._under_way = False
        if snapshot.offset < log.start.offset:
            log.snapshots.discard(snapshot)  # a newer one was fetched meanwhile
            return False
        log.snapshots.add(snapshot)
        _log.info("snapshot_written snapshot=%s bytes=%d", snapshot, size)
        return True

    def trim(self) -> bool:
        """Moves the begin of the log to the next snapshot while it is above the limits of size or age; whether it
        moved."""
        log, limits = self._metadata_log, self._retention
        begin = log.start
        while len(log.snapshots.ids) > 1:
            oldest, following = log.snapshots.ids[:2]
            kept_bytes = log.partition.size_bytes + sum(map(log.snapshots.size, log.snapshots.ids))
            age_ms = self._environment.clock.now_ms() - log.snapshots.last_contained_ms(oldest)
            if not (0 <= limits.bytes < kept_bytes or 0 <= limits.ms < age_ms):
                break
            if following.offset > (log.partition.high_watermark or 0):
                break  # its records are not all in the log on this disk
            log.begin_at(following)
        return log.start != begin
