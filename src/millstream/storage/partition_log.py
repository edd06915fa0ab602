"""The log of one partition: append, read, truncate, and what it remembers between them.

Promises: an append is whole or not at all; batches are opaque (headers only, never records); reads never pass what was
written. Runs on one thread (the event loop); what may block comes back as a `Job` or waits in `Slice.prepare`. Opening
a log is in `log_loader`, repair in `recovery`, retention rules in `retention`, search by time in `time_search`.
"""

import logging
from bisect import bisect_right
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from millstream.config.log_config import LogConfig
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import TopicPartition
from millstream.records.batch import HEADER, HEADER_SIZE, MAGIC_V2, MAX_SEQUENCE, PLACEMENT, TRANSACTIONAL_BIT
from millstream.storage import time_search
from millstream.storage.batch_admission import refusal
from millstream.storage.batch_conversion import LOG_APPEND_TIME, convert, wants_conversion
from millstream.storage.disk import Disk, File
from millstream.storage.file_cache import FileCache
from millstream.storage.file_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    offset_file,
)
from millstream.storage.job import Job, removal
from millstream.storage.leader_epochs import LeaderEpochs
from millstream.storage.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from millstream.storage.offset_index import MAX_RELATIVE_OFFSET
from millstream.storage.producer_replay import note_batch, rebuild_producers
from millstream.storage.producer_snapshot import encode_snapshot
from millstream.storage.producer_state import ProducerState, WrittenBatch, out_of_order
from millstream.storage.segment import Segment
from millstream.storage.slice import Bounds, Slice, empty_slice, extent
from millstream.storage.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from millstream.storage.time_search import FoundOffset

logger = logging.getLogger("millstream.storage")

SEARCH_BLOCK_BYTES = 8192
NO_APPEND_TIME = -1
_REFUSED_ATTRIBUTES = 0x28  # control batch, LogAppendTime
_FOREVER = 1 << 63

_unpack_header = HEADER.unpack_from
_pack_placement = PLACEMENT.pack_into


class Appended(NamedTuple):
    """Where an append went. `log_append_time` is -1 unless the topic's timestamps are LogAppendTime."""

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool


class PartitionLog:
    __slots__ = (
        "_active",
        "_bases",
        "_cache",
        "_config",
        "_converts",
        "_directory_changed",
        "_disk",
        "_failure",
        "_snapshots",
        "_truncations",
        "_unflushed_since_ms",
        "directory",
        "epochs",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "recovery_point",
        "segments",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        *,
        disk: Disk,
        cache: FileCache,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        segments: list[Segment],
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        epochs: LeaderEpochs,
        producers: ProducerState,
        snapshots: list[int],
    ) -> None:
        self._disk = disk
        self._cache = cache
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self.high_watermark: int | None = None
        """Set by replication; None while nobody but this node keeps the partition."""
        self.epochs = epochs
        self.producers = producers
        self._snapshots = snapshots
        self._failure: str | None = None
        self._truncations = 0
        self._unflushed_since_ms: int | None = None
        self._directory_changed = True
        self._config = config
        self._converts = wants_conversion(config)

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._converts = wants_conversion(config)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def readable_end(self) -> int:
        """The high watermark, or the log's end where nothing is replicated."""
        return self.log_end_offset if self.high_watermark is None else min(self.high_watermark, self.log_end_offset)

    @property
    def flush_due(self) -> bool:
        """Whether `flush.messages` asks for a flush now."""
        return self.log_end_offset - self.recovery_point >= self._config.flush_messages

    # Appending

    def append(self, batches: bytearray | memoryview, *, leader_epoch: int, now_ms: int) -> Appended:
        """Append what a client sent: one or more whole batches in a writable buffer, stamped in place."""
        config = self._config
        total = len(batches)
        view = memoryview(batches)
        log_append_time = NO_APPEND_TIME
        if config.message_timestamp_type == LOG_APPEND_TIME:
            log_append_time, latest, earliest = now_ms, _FOREVER, -_FOREVER
        else:
            latest = now_ms + config.message_timestamp_after_max_ms
            earliest = now_ms - config.message_timestamp_before_max_ms
        max_length = config.max_message_bytes - 12

        headers: list[tuple[int, ...]] = []
        repeated: WrittenBatch | None = None
        position = 0
        while position < total:
            if total - position < HEADER_SIZE:
                raise refusal(batches, position, config, now_ms)
            header = _unpack_header(batches, position)
            (
                _,
                length,
                _,
                magic,
                crc,
                attributes,
                delta,
                base_timestamp,
                max_timestamp,
                producer_id,
                epoch,
                sequence,
                count,
            ) = header
            end = position + 12 + length
            if (
                magic != MAGIC_V2
                or length < 49
                or length > max_length
                or end > total
                or crc32c(view[position + 21 : end]) != crc
                or attributes & _REFUSED_ATTRIBUTES
                or attributes & 7 > 4
                or count != delta + 1
                or delta < 0
                or max_timestamp > latest
                or (base_timestamp < earliest and base_timestamp != -1)
                or (producer_id >= 0 and (sequence < 0 or epoch < 0))
            ):
                raise refusal(batches, position, config, now_ms)
            if producer_id >= 0:
                repeated = self._check_sequence(
                    headers, producer_id, epoch, sequence, (sequence + delta) & MAX_SEQUENCE
                )
                if repeated is not None:
                    first = repeated.last_offset - repeated.offset_delta
                    append_time = repeated.timestamp if log_append_time >= 0 else NO_APPEND_TIME
                    return Appended(first, repeated.last_offset, append_time, self.log_start_offset, True)
            headers.append(header)
            position = end
        if not headers:
            raise refusal(batches, 0, config, now_ms)

        if self._converts:
            batches = convert(batches, config, now_ms)
            headers = self._headers_of(batches)
            total = len(batches)
            for header in headers:
                if header[1] > max_length:
                    raise KafkaError(
                        ErrorCode.MESSAGE_TOO_LARGE,
                        f"in the topic's codec the batch has {header[1] + 12} bytes; {max_length + 12} are allowed",
                    )

        base_offset = offset = self.log_end_offset
        position = 0
        greatest_timestamp = -1
        for header in headers:
            length = header[1]
            _pack_placement(batches, position, offset, length, leader_epoch)
            offset += header[6] + 1
            position += length + 12
            if header[8] > greatest_timestamp:
                greatest_timestamp = header[8]

        self._write(batches, total, offset - 1, greatest_timestamp, leader_epoch, base_offset, now_ms)

        segment = self._active
        interval = config.index_interval_bytes
        next_offset = base_offset
        for header in headers:
            last_offset = next_offset + header[6]
            segment.note(next_offset, last_offset, header[1] + 12, header[8], interval)
            producer_id = header[9]
            if producer_id >= 0:
                self.producers.append(
                    producer_id,
                    header[10],
                    header[11],
                    header[6],
                    last_offset,
                    header[8],
                    bool(header[5] & TRANSACTIONAL_BIT),
                )
            next_offset = last_offset + 1
        self.log_end_offset = offset
        return Appended(base_offset, offset - 1, log_append_time, self.log_start_offset, False)

    def append_as_follower(self, batches: bytearray | memoryview | bytes, *, now_ms: int) -> Appended:
        """Append what a leader sent: offsets and epochs stay as they are, and the leader has judged the rest."""
        total = len(batches)
        view = memoryview(batches)
        headers = self._headers_of(batches)
        next_offset = self.log_end_offset
        position = 0
        greatest_timestamp = -1
        for header in headers:
            end = position + 12 + header[1]
            if header[3] != MAGIC_V2 or crc32c(view[position + 21 : end]) != header[4]:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch at byte {position} from the leader is damaged")
            if header[0] < next_offset:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"the leader sent offset {header[0]}, the log ends at {next_offset}"
                )
            next_offset = header[0] + header[6] + 1
            greatest_timestamp = max(greatest_timestamp, header[8])
            position = end
        first = headers[0]
        self._write(batches, total, next_offset - 1, greatest_timestamp, first[2], first[0], now_ms)
        segment = self._active
        position = 0
        for header in headers:
            size = header[1] + 12
            last_offset = header[0] + header[6]
            if header[2] > self.epochs.latest:
                self._assign_epoch(header[2], header[0])
            segment.note(header[0], last_offset, size, header[8], self._config.index_interval_bytes)
            note_batch(self.producers, header, view[position : position + size])
            position += size
        self.log_end_offset = next_offset
        return Appended(first[0], next_offset - 1, NO_APPEND_TIME, self.log_start_offset, False)

    def assign_leader_epoch(self, epoch: int) -> None:
        """Note that this node leads from the log's end on, before anything is written in the epoch."""
        if epoch > self.epochs.latest:
            self._assign_epoch(epoch, self.log_end_offset)

    def _check_sequence(
        self, headers: list[tuple[int, ...]], producer_id: int, epoch: int, first_sequence: int, last_sequence: int
    ) -> WrittenBatch | None:
        for header in reversed(headers):
            if header[9] == producer_id:
                # An earlier batch of the same request, not in the log yet.
                previous_last = (header[11] + header[6]) & MAX_SEQUENCE
                if header[10] != epoch or first_sequence != (previous_last + 1) & MAX_SEQUENCE:
                    raise out_of_order(producer_id, first_sequence, previous_last)
                return None
        return self.producers.check(producer_id, epoch, first_sequence, last_sequence)

    def _headers_of(self, batches: bytearray | memoryview | bytes) -> list[tuple[int, ...]]:
        headers = []
        position, total = 0, len(batches)
        while position < total:
            if total - position < HEADER_SIZE:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "less than a batch header at the end")
            header = _unpack_header(batches, position)
            size = header[1] + 12
            if size < HEADER_SIZE or size > total - position:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at byte {position} is not whole")
            headers.append(header)
            position += size
        if not headers:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "no batch was sent")
        return headers

    def _write(
        self,
        batches: bytearray | memoryview | bytes,
        total: int,
        last_offset: int,
        greatest_timestamp: int,
        leader_epoch: int,
        base_offset: int,
        now_ms: int,
    ) -> None:
        """Roll if it is time, then write at the end of the active segment; on failure the log is as before."""
        if self._failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._failure)
        config = self._config
        if total > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{total} bytes do not fit in a segment of {config.segment_bytes} (segment.bytes)",
            )
        segment = self._active
        size = segment.size
        try:
            if size:
                first_timestamp = segment.first_timestamp
                if first_timestamp is None:
                    first_timestamp = segment.read_first_timestamp()
                if (
                    size + total > config.segment_bytes
                    or self._is_due_by_time(segment, first_timestamp, greatest_timestamp, now_ms)
                    or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
                    or self._is_index_full(segment)
                ):
                    self.roll(now_ms)
                    segment = self._active
                    size = 0
            if not size and last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                self._replace_empty_active(base_offset, now_ms)
                segment = self._active
            if leader_epoch > self.epochs.latest:
                self._assign_epoch(leader_epoch, base_offset)
            segment.log.get().write_at(size, batches)
        except OSError as error:
            self._undo_write(segment, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: {error}") from error
        if self._unflushed_since_ms is None:
            self._unflushed_since_ms = now_ms

    def _undo_write(self, segment: Segment, error: OSError) -> None:
        # Nothing points past segment.size, so the next append overwrites what a failed one left. Cutting it off as well
        # spares recovery the guess, and gives a full disk its room back.
        logger.error("append_failed partition=%s segment=%s error=%s", self.topic_partition, segment.log.path, error)
        try:
            segment.log.get().truncate(segment.size)
        except OSError:
            pass

    def _is_due_by_time(self, segment: Segment, first_timestamp: int | None, timestamp: int, now_ms: int) -> bool:
        if first_timestamp is not None and first_timestamp >= 0:
            return timestamp - first_timestamp > self._config.segment_ms
        return now_ms - segment.created_ms > self._config.segment_ms

    def _is_index_full(self, segment: Segment) -> bool:
        room = self._config.segment_index_bytes
        # One place is kept for the closing time entry.
        return (
            len(segment.index or ()) >= room // OFFSET_ENTRY_SIZE
            or len(segment.times or ()) >= room // TIME_ENTRY_SIZE - 1
        )

    # Segments

    def roll(self, now_ms: int) -> None:
        """Seal the active segment and start the next at the log's end."""
        if self._active.size == 0:
            return
        self._write_snapshot()
        new = Segment(self._disk, self._cache, self.directory, self.log_end_offset, now_ms)
        self._active.write_indexes()
        new.create()
        self._active.seal()
        self.segments.append(new)
        self._bases.append(new.base_offset)
        self._active = new
        self._directory_changed = True

    def is_roll_due(self, now_ms: int) -> bool:
        """Whether an idle active segment without timestamps has waited for `segment.ms`."""
        segment = self._active
        return segment.size > 0 and self._is_due_by_time(segment, segment.read_first_timestamp(), now_ms, now_ms)

    def _replace_empty_active(self, base_offset: int, now_ms: int) -> None:
        # A follower may start far from where its empty segment was named.
        new = Segment(self._disk, self._cache, self.directory, base_offset, now_ms)
        new.create()
        old = self.segments.pop()
        self._bases.pop()
        for path in old.files():
            self._disk.remove(path)
        self.segments.append(new)
        self._bases.append(base_offset)
        self._active = new

    def drop_segments(self, count: int) -> Job:
        """Take the oldest segments out of the log; the job removes their files. Readers in flight keep theirs."""
        dropped = self.segments[:count]
        assert count < len(self.segments), "the active segment stays"
        paths: list[str] = []
        for segment in dropped:
            paths += self._mark_deleted(segment)
            self.segments.pop(0)
            self._bases.pop(0)
        first = self._bases[0]
        for offset in [offset for offset in self._snapshots if offset < first]:
            self._snapshots.remove(offset)
            paths.append(offset_file(self.directory, offset, SNAPSHOT_SUFFIX))
        if self.log_start_offset < first:
            self._move_start(first)
        return removal(self._disk, f"remove_segments partition={self.topic_partition} count={count}", paths)

    def _mark_deleted(self, segment: Segment) -> list[str]:
        renamed = []
        for path in segment.files():
            self._disk.rename(path, path + DELETED_SUFFIX)
            renamed.append(path + DELETED_SUFFIX)
        segment.close()
        return renamed

    def _move_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.recovery_point = max(self.recovery_point, offset)
        if self.epochs.truncate_from_start(offset):
            self._save_epochs()

    # Reading

    def read(self, offset: int, max_bytes: int, *, up_to: int, at_least_one: bool) -> Slice:
        """Whole batches from the one that holds `offset`, before `up_to`; one larger than `max_bytes` only if
        `at_least_one`."""
        log_end = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic_partition} is not within {self.log_start_offset} to {log_end}",
            )
        if offset >= up_to or offset >= log_end:
            return empty_slice()
        segment = self._active
        slot = len(self.segments) - 1
        end_offset = log_end
        if offset < segment.base_offset:
            slot = bisect_right(self._bases, offset) - 1
            if slot < 0:
                slot = 0  # below the first segment only if its first offsets were cut away
            segment = self.segments[slot]
            end_offset = self._bases[slot + 1]

        start = segment.position_of(offset)
        end = segment.size if up_to >= end_offset else segment.position_of(up_to)
        if start is None or end is None or end <= start:
            return self._search(slot, Bounds(offset, max_bytes, up_to, at_least_one))
        length = end - start
        file = segment.log.get()
        if length > max_bytes:
            length = extent(segment, start, end, Bounds(offset, max_bytes, up_to, at_least_one), file)
            if length == 0:
                return empty_slice()
        return self._slice(segment, file, start, length, end_offset)

    def _slice(self, segment: Segment, file: File, start: int, length: int, end_offset: int) -> Slice:
        if start >= segment.trusted_from and segment is self._active:
            vouched = True
        else:
            low, high = segment.verified
            vouched = low <= start < high
            if vouched:
                length = min(length, high - start)
                if segment is not self._active and file.modified_ns() != segment.sealed_modified_ns:
                    vouched = False
        if vouched and file.is_resident(start, length):
            return Slice(file, start, length, True)
        return Slice(file, start, length, False, ((segment, end_offset),))

    def _search(self, slot: int, bounds: Bounds) -> Slice:
        """Find the start by index, here if that needs no disk, else in `Slice.prepare`."""
        segment = self.segments[slot]
        candidates = [
            (candidate, self._bases[at + 1] if at + 1 < len(self._bases) else self.log_end_offset)
            for at, candidate in enumerate(self.segments[slot:], slot)
        ]
        if segment.index_is_open():
            file = segment.log.get()
            if file.is_resident(segment.search_start(bounds.offset), SEARCH_BLOCK_BYTES):
                found = segment.find(bounds.offset)
                if found is not None:
                    end_offset = candidates[0][1]
                    end = bounds.end_position(segment, end_offset)
                    length = extent(segment, found[0], end, bounds, file)
                    if length == 0:
                        return empty_slice()
                    return self._slice(segment, file, found[0], length, end_offset)
        length = min(bounds.max_bytes, segment.size)
        return Slice(segment.log.get(), 0, length, False, candidates, bounds)

    def end_offset_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) as OffsetForLeaderEpoch wants it; (-1, -1) when unknown."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

    def offset_by_timestamp(self, timestamp: int) -> FoundOffset | None:
        """The first record at or after `timestamp`."""
        return time_search.offset_by_timestamp(self, timestamp)

    def max_timestamp_offset(self) -> FoundOffset | None:
        """The record with the greatest timestamp."""
        return time_search.max_timestamp_offset(self)

    # Shortening

    def delete_records_before(self, offset: int) -> None:
        """Move the start of the log; maintenance removes the segments that this empties."""
        if offset > self.readable_end or offset < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"records of {self.topic_partition} can be deleted up to {self.readable_end}, not {offset}",
            )
        if offset > self.log_start_offset:
            self._move_start(offset)

    def truncate_to(self, offset: int) -> int:
        """Cut off the end so that nothing at or after `offset` is left; returns where the log now ends."""
        if offset >= self.log_end_offset:
            return self.log_end_offset
        offset = max(offset, self.log_start_offset)
        try:
            return self._truncate(offset)
        except OSError as error:
            self._fail(f"truncating to {offset} failed: {error}")
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: {error}") from error

    def _truncate(self, offset: int) -> int:
        self._truncations += 1
        while len(self.segments) > 1 and self._active.base_offset > offset:
            for path in self._mark_deleted(self._active):
                self._disk.remove(path)
            self.segments.pop()
            self._bases.pop()
            self._active = self.segments[-1]
        active = self._active
        active.reactivate()
        found = active.find(offset) if active.size else None
        end = offset
        if found is not None:
            header = _unpack_header(active.file().read_at(found[0], HEADER_SIZE))
            end = min(offset, header[0])  # a batch is kept whole or not at all
            active.truncate(found[0], end)
        elif active.size:
            end = active.read_end_offset()
        self.log_end_offset = max(end, active.base_offset)
        self.recovery_point = min(self.recovery_point, self.log_end_offset)
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        if self.high_watermark is not None:
            self.high_watermark = min(self.high_watermark, self.log_end_offset)
        if self.epochs.truncate_from_end(self.log_end_offset):
            self._save_epochs()
        for stale in [snapshot for snapshot in self._snapshots if snapshot > self.log_end_offset]:
            self._snapshots.remove(stale)
            self._disk.remove(offset_file(self.directory, stale, SNAPSHOT_SUFFIX))
        self.producers = rebuild_producers(
            self._disk, self.directory, self.segments, self._snapshots, self.log_start_offset
        )
        return self.log_end_offset

    # Durability

    def flush_job(self) -> Job | None:
        """Bring everything up to the present end to stable storage; None when it is there already."""
        target = self.log_end_offset
        if self.recovery_point >= target or self._failure is not None:
            return None
        slot = max(bisect_right(self._bases, self.recovery_point) - 1, 0)
        unflushed = self.segments[slot:]
        files = [segment.log.get() for segment in unflushed]
        sealed = [segment.path(suffix) for segment in unflushed[:-1] for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        directory_changed = self._directory_changed
        truncations = self._truncations
        disk, directory = self._disk, self.directory

        def run() -> None:
            for file in files:
                file.sync()
            for path in sealed:
                if disk.exists(path):
                    disk.open(path).sync()
            if directory_changed:
                disk.sync_directory(directory)

        def done(result: OSError | None) -> None:
            if result is not None:
                # The kernel reports a failed write-back once and may drop the pages: a later fsync would succeed
                # without them. Nothing this process still believes about the file is safe, so the log takes no more
                # until reopened.
                self._fail(f"fsync failed: {result}; the partition takes no writes until the broker restarts")
            elif truncations == self._truncations:
                self.recovery_point = max(self.recovery_point, target)
                if target == self.log_end_offset:
                    self._unflushed_since_ms = None
                if directory_changed and self.segments and self.segments[-1] is unflushed[-1]:
                    self._directory_changed = False

        return Job(f"flush partition={self.topic_partition} up_to={target}", run, done)

    def is_flush_due(self, now_ms: int) -> bool:
        """Whether `flush.ms` has passed since the first unflushed append, or sealed segments wait to be flushed."""
        since = self._unflushed_since_ms
        if self.recovery_point < self._active.base_offset:
            return True
        return (
            since is not None and now_ms - since >= self._config.flush_ms and self.recovery_point < self.log_end_offset
        )

    def close(self) -> None:
        """Write what makes the next start quick: indexes and producers. The caller flushes first, and writes the
        checkpoints."""
        self._active.write_indexes()
        self._write_snapshot()
        bases = set(self._bases)
        for offset in [offset for offset in self._snapshots if offset not in bases and offset != self.log_end_offset]:
            self._snapshots.remove(offset)
            self._disk.remove(offset_file(self.directory, offset, SNAPSHOT_SUFFIX))
        self.release()

    def release(self) -> None:
        """Let go of all files; reads in flight keep theirs."""
        for segment in self.segments:
            segment.close()

    @property
    def failure(self) -> str | None:
        """Why the log takes no writes, if it does not."""
        return self._failure

    def _fail(self, reason: str) -> None:
        logger.error("log_failed partition=%s reason=%s", self.topic_partition, reason)
        self._failure = reason

    def _write_snapshot(self) -> None:
        offset = self.log_end_offset
        data = encode_snapshot(self.producers.entries.values())
        self._disk.write_atomically(offset_file(self.directory, offset, SNAPSHOT_SUFFIX), data, durable=False)
        if offset not in self._snapshots:
            self._snapshots.append(offset)

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        updated = LeaderEpochs(self.epochs.entries())
        updated.assign(epoch, start_offset)
        self._disk.write_atomically(f"{self.directory}/{LEADER_EPOCHS}", updated.to_bytes(), durable=False)
        self.epochs = updated  # only now: what memory knows, the file knows

    def _save_epochs(self) -> None:
        self._disk.write_atomically(f"{self.directory}/{LEADER_EPOCHS}", self.epochs.to_bytes(), durable=False)
