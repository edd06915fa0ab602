"""The log of one partition: append, read, truncate, flush.

An append is written whole or not at all. Batches are opaque: only headers are read, never records. Reads return only
written batches. It runs on one thread (the event loop): work that may block is returned as a `Job`, or waits in
`Slice.prepare`.

In other modules: validation of batches (`batch_admission`), producers and open transactions (`producer_state`), aborted
transactions (`transaction_index`), the segments (`segment_list`), what is flushed (`flushing`), the leader epochs
(`leader_epochs`), reading (`log_reader`), opening a log (`loader`), repair (`recovery`), retention (`retention`),
search by time (`time_search`), and the part that is no longer on this disk (`tiered_part`).
"""

import logging
from typing import Final
from uuid import UUID

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker, Origin, TopicPartition, VerificationGuard
from millstream.formats.records.batch import HEADER, LOG_OVERHEAD, PLACEMENT, TRANSACTIONAL_BIT, Bytes
from millstream.formats.records.opening import WIDEST, OpeningLimits
from millstream.node.storage.disk import Disk, Job, removal
from millstream.node.storage.index.offset_index import MAX_RELATIVE_OFFSET
from millstream.node.storage.index.time_search import TimeSearch
from millstream.node.storage.index.transaction_index import (
    AbortedTransaction,
    EndMarker,
    build_marker,
    collect_aborted,
)
from millstream.node.storage.log import log_reader
from millstream.node.storage.log.appended import NO_APPEND_TIME, Appended
from millstream.node.storage.log.batch_admission import (
    LOG_APPEND_TIME,
    Header,
    admit,
    admit_transactional,
    check_order,
    convert,
    read_headers,
    recompression_of,
    too_large,
    wants_conversion,
)
from millstream.node.storage.log.flushing import FlushState, failed_job
from millstream.node.storage.log.leader_epochs import LeaderEpochFile, LeaderEpochs
from millstream.node.storage.log.log_reader import Slice, empty_slice
from millstream.node.storage.log.producer_snapshots import SnapshotFiles, note_batch, rebuild_producers
from millstream.node.storage.log.producer_state import ProducerState, WrittenBatch
from millstream.node.storage.log.restarting import restart, restart_from_tier
from millstream.node.storage.log.segment import Segment
from millstream.node.storage.log.segment_list import SegmentList
from millstream.node.storage.log.tiered_part import TieredPart, TierStart, tier_of

_log = logging.getLogger("millstream.storage")

QUICK_REPLAY_BYTES = 1 << 20
"""A segment up to this size is read at the next start faster than its empty snapshot is written now."""

_pack_placement: Final = PLACEMENT.pack_into


class PartitionLog:
    __slots__ = (
        "_config",
        "_converts",
        "_has_leftover",
        "_write_failed",
        "cleaned_offset",
        "damaged_from",
        "directory",
        "disk",
        "epoch_file",
        "failure",
        "flush_state",
        "high_watermark",
        "local_start_offset",
        "log_end_offset",
        "log_start_offset",
        "opens_batches",
        "producers",
        "segments",
        "snapshots",
        "tier",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        *,
        disk: Disk,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        segments: SegmentList,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        epochs: LeaderEpochs,
        producers: ProducerState,
        snapshots: SnapshotFiles,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.segments = segments
        self.log_start_offset = log_start_offset
        self.local_start_offset = max(log_start_offset, segments[0].base_offset)
        """Where the part on this disk begins: the same, unless segments before it were moved to the tier."""
        self.log_end_offset = log_end_offset
        self.tier: TieredPart | None = None
        self.high_watermark: int | None = None
        """Set by replication; None while the partition has one replica."""
        self.producers = producers
        self.snapshots = snapshots
        self.failure: str | None = None
        """Why the log accepts no writes; None if it does."""
        self.damaged_from: int | None = None
        """The offset where a damaged or lost part begins, if recovery has kept sound batches behind it."""
        self.cleaned_offset = 0
        """Where the dirty part begins: a compacted log has been cleaned up to here."""
        self.epoch_file = LeaderEpochFile(disk, directory, epochs)
        self.flush_state = FlushState(disk, directory, recovery_point)
        self._write_failed = False
        self._has_leftover = False
        """A failed write left bytes behind the end of the active segment, and they could not be removed."""
        """Whether the last attempt to write found no room or a broken disk."""
        producers.begin_anew(log_end_offset)

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._converts = wants_conversion(config)
        self.opens_batches = "compact" in config.cleanup_policy or recompression_of(config) is not None

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def readable_end(self) -> int:
        """The high watermark, or the log's end where nothing is replicated."""
        return self.log_end_offset if self.high_watermark is None else min(self.high_watermark, self.log_end_offset)

    @property
    def recovery_point(self) -> int:
        """Everything below is on stable storage."""
        return self.flush_state.recovery_point

    @recovery_point.setter
    def recovery_point(self, offset: int) -> None:
        self.flush_state.recovery_point = offset

    @property
    def truncations(self) -> int:
        """How often the log was cut: work in a thread that began before a truncation is stale."""
        return self.flush_state.truncations

    @property
    def epochs(self) -> LeaderEpochs:
        return self.epoch_file.epochs

    # Transactions

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of a transaction that is open, or whose marker may not be committed; None when there is none.
        Consumers with `read_committed` may not read from there on."""
        transactions = self.producers.transactions
        if not transactions.ongoing and not transactions.ended:  # the usual case, and every fetch comes here
            return None
        first = transactions.first_unstable(self.readable_end)
        return None if first is None else max(first, self.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """How far `read_committed` may read."""
        unstable = self.first_unstable_offset
        return self.readable_end if unstable is None else min(unstable, self.readable_end)

    def open_transactions(self) -> dict[int, int]:
        """First offset by producer id, in the order of the offsets."""
        return dict(self.producers.transactions.ongoing)

    def aborted_transactions(self, fetch_offset: int, up_to: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions with records in [fetch_offset, up_to)."""
        try:
            return [
                (found.producer_id, found.first_offset) for found in collect_aborted(self.segments, fetch_offset, up_to)
            ]
        except OSError as error:
            raise self.storage_error(error) from error

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, bumps_epoch: bool
    ) -> VerificationGuard | None:
        """See `ProducerState.begin_verification`."""
        return self.producers.begin_verification(producer_id, epoch, sequence, bumps_epoch)

    # Appending

    def append(
        self,
        batch: bytearray | memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        guard: VerificationGuard | None = None,
        needs_guard: bool = False,
    ) -> Appended:
        """Append one whole batch of a client or of the broker. Offset and epoch are written into its buffer.

        With `needs_guard` the first batch of a transaction is accepted only with the guard of its verification.
        """
        config = self._config
        log_append_time = now_ms if config.message_timestamp_type == LOG_APPEND_TIME else NO_APPEND_TIME
        try:
            header, repeated = admit(batch, config, self.producers, now_ms, origin)
            if header[5] & TRANSACTIONAL_BIT and header[9] >= 0:
                repeated = admit_transactional(header, self.producers, guard, needs_guard)
        except KafkaError as error:
            self._check_failed_write(error)
            raise
        if repeated is not None:
            return self._repeated(repeated, log_append_time)
        if self._converts:
            batch = convert(batch, config, now_ms)
            header = HEADER.unpack_from(batch)
            if len(batch) > config.max_message_bytes:
                raise too_large(len(batch), config)
        _, length, _, _, _, attributes, delta, _, timestamp, producer_id, epoch, sequence, _ = header
        base_offset = self.log_end_offset
        last_offset = base_offset + delta
        size = length + LOG_OVERHEAD
        _pack_placement(batch, 0, base_offset, length, leader_epoch)
        self._write(batch, size, base_offset, last_offset, timestamp, leader_epoch, now_ms)
        self.segments.active.note(base_offset, last_offset, size, timestamp, config.index_interval_bytes)
        if producer_id >= 0:
            transactional = attributes & TRANSACTIONAL_BIT != 0
            self.producers.append(producer_id, epoch, sequence, delta, last_offset, timestamp, transactional)
        self.log_end_offset = last_offset + 1
        return Appended(base_offset, last_offset, log_append_time, self.log_start_offset, False)

    def validate(self, batch: memoryview, now_ms: int) -> None:
        """Raises the error with which `append` would refuse a client's batch for its header, checksum or sequence. For
        a batch in a transaction only the header is validated."""
        try:
            admit(batch, self._config, self.producers, now_ms, Origin.CLIENT)
        except KafkaError as error:
            self._check_failed_write(error)
            raise

    def _check_failed_write(self, error: KafkaError) -> None:
        """Raises another error for a batch that was refused because the batch before it could not be written."""
        if self._write_failed and error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # After this error the producer sends both again, in order. After OUT_OF_ORDER_SEQUENCE_NUMBER it would
            # begin a new epoch, and send again records that other partitions have already.
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: the batch before this one could not be written"
            ) from error

    def append_marker(self, marker: Marker, *, leader_epoch: int, now_ms: int) -> Appended:
        """Append the marker that ends the transaction of a producer. Idempotent."""
        self.producers.check_marker(marker)
        has_append_time = self._config.message_timestamp_type == LOG_APPEND_TIME
        batch = build_marker(
            EndMarker(marker.committed, marker.coordinator_epoch),
            marker.producer_id,
            marker.producer_epoch,
            now_ms,
            log_append_time=has_append_time,
        )
        offset = self.log_end_offset
        _pack_placement(batch, 0, offset, len(batch) - LOG_OVERHEAD, leader_epoch)
        self._write(batch, len(batch), offset, offset, now_ms, leader_epoch, now_ms)
        self._note_written([HEADER.unpack_from(batch)], memoryview(batch))
        return Appended(offset, offset, now_ms if has_append_time else NO_APPEND_TIME, self.log_start_offset, False)

    def append_as_follower(self, batches: Bytes, *, now_ms: int) -> Appended:
        """Append batches of the leader, which has validated them. Offsets and epochs stay as they are."""
        headers = read_headers(batches)
        next_offset = self.log_end_offset
        first_offset = headers[0][0]
        if first_offset < next_offset == self.log_start_offset <= first_offset + headers[0][6]:
            # The log is empty and begins in the middle of a batch, like the leader's. Batches are kept whole.
            self.restart_at(first_offset, now_ms)
            next_offset = first_offset
        last_offset = check_order(headers, next_offset)
        greatest_timestamp = max(header[8] for header in headers)
        self._write(batches, len(batches), first_offset, last_offset, greatest_timestamp, headers[0][2], now_ms)
        self._note_written(headers, memoryview(batches))
        return Appended(first_offset, last_offset, NO_APPEND_TIME, self.log_start_offset, False)

    def assign_leader_epoch(self, epoch: int) -> None:
        """Note that this node leads from the log's end on, before anything is written in the epoch."""
        if epoch > self.epochs.latest:
            try:
                self.epoch_file.begin(epoch, self.log_end_offset)
            except OSError as error:
                raise self.storage_error(error) from error

    def _repeated(self, written: WrittenBatch, log_append_time: int) -> Appended:
        _, _, last_offset, delta, timestamp = written
        append_time = timestamp if log_append_time >= 0 else NO_APPEND_TIME
        return Appended(last_offset - delta, last_offset, append_time, self.log_start_offset, True)

    def _note_written(self, headers: list[Header], batches: memoryview) -> None:
        """Move the log's end behind batches that were just written to the active segment. If a file has no room for its
        part, the batches are removed again: without the entry of an aborted transaction its records would be readable,
        and an epoch that is in no file would belong to other records after a restart."""
        first_offset = self.log_end_offset
        try:
            aborted = self._note_batches(headers, batches)
            if aborted:
                self.segments.active.aborted.append(aborted)
        except OSError as error:
            _log.error("append_taken_back partition=%s offset=%d error=%s", self.topic_partition, first_offset, error)
            self.truncate_to(first_offset)
            self._write_failed = True
            raise self.storage_error(error) from error

    def _note_batches(self, headers: list[Header], batches: memoryview) -> list[AbortedTransaction]:
        segment, interval_bytes = self.segments.active, self._config.index_interval_bytes
        position = 0
        aborted = []
        for header in headers:
            base_offset, length, epoch = header[:3]
            last_offset = base_offset + header[6]
            size = length + LOG_OVERHEAD
            if epoch > self.epochs.latest:
                self.epoch_file.begin(epoch, base_offset)
            if base_offset != self.log_end_offset:
                segment.forget_tail()  # its table finds offsets only where there are no gaps
            segment.note(base_offset, last_offset, size, header[8], interval_bytes)
            self.log_end_offset = last_offset + 1
            found = note_batch(self.producers, header, batches[position : position + size])
            if found is not None:
                aborted.append(found)
            position += size
        if self.producers.begins_at:
            self.producers.begin_anew(self.log_end_offset)
        if self.producers.transactions:
            _ = self.first_unstable_offset  # forgets transactions whose markers are committed
        return aborted

    def _write(
        self,
        batches: Bytes,
        total: int,
        base_offset: int,
        last_offset: int,
        greatest_timestamp: int,
        leader_epoch: int,
        now_ms: int,
    ) -> None:
        """Roll if it is due, then write at the end of the active segment; on failure the log is as before."""
        if self.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)
        config = self._config
        if total > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{total} bytes do not fit in a segment of {config.segment_bytes} (segment.bytes)",
            )
        segment = self.segments.active
        try:
            if (
                segment.size + total > config.segment_bytes
                or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
                or segment.is_roll_due(config, greatest_timestamp, now_ms)
            ):
                self._make_room(base_offset, last_offset, now_ms)
                segment = self.segments.active
            self._remove_leftover()
            if leader_epoch > self.epochs.latest:
                self.epoch_file.begin(leader_epoch, base_offset)
            else:
                self.epoch_file.repair()
            segment.log.get().write_at(segment.size, batches)
        except OSError as error:
            self._undo_write(segment, error)
            raise self.storage_error(error) from error
        self._write_failed = False
        if self.flush_state.unflushed_since_ms is None:
            self.flush_state.unflushed_since_ms = now_ms

    def _undo_write(self, segment: Segment, error: OSError) -> None:
        # A full disk gets its room back. A disk that fails may refuse this too: then it is done before the next write.
        self._write_failed = self._has_leftover = True
        _log.error("append_failed partition=%s segment=%s error=%s", self.topic_partition, segment.log.path, error)
        try:
            self._remove_leftover()
        except OSError:
            pass

    def _remove_leftover(self) -> None:
        """Remove what a failed write left. A file must end with its last batch before anything is written to it, before
        it is sealed, and before a stop that counts as clean: the next start does not expect a torn batch there."""
        if self._has_leftover:
            active = self.segments.active
            active.file().truncate(active.size)
            self._has_leftover = False

    # Segments

    def _make_room(self, base_offset: int, last_offset: int, now_ms: int) -> None:
        self.roll(now_ms)
        if last_offset - self.segments.active.base_offset > MAX_RELATIVE_OFFSET:
            # A follower may begin far from the offset in the name of its empty segment.
            self.segments.replace_active(self.segments.create(base_offset, now_ms))

    def roll(self, now_ms: int) -> None:
        """Seal the active segment and start the next at the log's end; does nothing while it is empty."""
        if self.segments.active.size == 0:
            return
        self._remove_leftover()
        segment = self.segments.create(self.log_end_offset, now_ms)
        # From here on nothing may fail: snapshot and indexes can be rebuilt, and a full disk has no room for them.
        try:
            self.snapshots.write(self.log_end_offset, self.producers)
        except OSError as error:
            _log.warning("snapshot_not_written partition=%s error=%s", self.topic_partition, error)
        self.segments.roll_to(segment)
        self.flush_state.directory_changed()

    def drop_segments(self, count: int) -> Job:
        """Take the oldest segments out of the log; the job removes their files. Reads in flight keep theirs."""
        assert count < len(self.segments), "the active segment stays"
        paths: list[str] = []
        try:
            for _ in range(count):
                paths += self.segments.drop_first()
        except OSError as error:
            _log.error("segment_not_dropped partition=%s error=%s", self.topic_partition, error)
        first = self.segments[0].base_offset
        paths += self.snapshots.forget_before(first)
        if self.tier is not None and first <= self.tier.end_offset:
            self.place_local_start()
        elif self.log_start_offset < first:
            self._move_start(first)
        return removal(self.disk, f"remove_segments partition={self.topic_partition} count={count}", paths)

    # Reading

    def read(self, offset: int, max_bytes: int, *, up_to: int, at_least_one: bool) -> Slice:
        """Batches from the one that holds `offset` on, before `up_to`, all in one segment.

        With `at_least_one`, a first batch larger than `max_bytes` is returned whole, else nothing is. The last batch
        may be cut short where the index has no boundary nearby, as in Kafka.
        """
        log_end = self.log_end_offset
        if not self.local_start_offset <= offset <= log_end:
            if self.log_start_offset <= offset <= log_end:
                return tier_of(self).read(offset, max_bytes, up_to=up_to, at_least_one=at_least_one)
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic_partition} is not within {self.log_start_offset} to {log_end}",
            )
        if offset >= up_to or offset == log_end:
            return empty_slice()
        try:
            return log_reader.read(self.segments, log_end, offset, max_bytes, up_to, at_least_one)
        except OSError as error:
            raise self.storage_error(error) from error

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest

    def end_offset_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) if unknown."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

    def time_search(self, limits: OpeningLimits = WIDEST) -> TimeSearch:
        """The log as it is now, to be searched by time in a thread."""
        return TimeSearch(self.segments, self.log_start_offset, limits)

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
        """Remove everything at and after `offset`; returns where the log now ends."""
        try:
            offset = max(offset, self.log_start_offset)
            if offset < self.segments[0].base_offset:
                # The records before it are only in the tier: the log is empty, and goes on there.
                start = self.log_start_offset
                epochs = [(epoch, begin) for epoch, begin in self.epochs.entries() if begin < offset]
                self.restart_at(offset, self.segments.active.created_ms)
                self.epoch_file.replace(epochs)  # a leader compares them with those of the tier
                self.log_start_offset = start
            elif offset < self.log_end_offset:
                self._truncate(offset)
            else:
                # An epoch that was led here without a write: no other log knows of it.
                self.epoch_file.truncate_from_end(self.log_end_offset)
        except OSError as error:
            self.fail(f"truncating to {offset} failed: {error}")
            raise self.storage_error(error) from error
        return self.log_end_offset

    def _truncate(self, offset: int) -> None:
        self.flush_state.truncations += 1
        last_batch, end = self.segments.truncate_to(offset)
        self.flush_state.truncated(last_batch)
        self.log_end_offset = end
        self.cleaned_offset = min(self.cleaned_offset, end)
        self.log_start_offset = min(self.log_start_offset, end)
        self.place_local_start()
        if self.high_watermark is not None:
            self.high_watermark = min(self.high_watermark, end)
        self.epoch_file.truncate_from_end(end)
        self.snapshots.remove_after(end)
        rebuilt = rebuild_producers(
            self.disk, self.directory, self.segments, self.snapshots.offsets, self.log_start_offset
        )
        self.producers = rebuilt.with_verifications(self.producers)
        self.producers.begin_anew(end)
        if self.damaged_from is not None and end <= self.damaged_from:
            self.damaged_from = None
        self._seal_cut()

    def _seal_cut(self) -> None:
        """A power cut may bring back some of the bytes that were cut, between records that were written over the
        others. Their checksums would be right. So the next records go into a new file, or the cut is on stable storage
        first: for an empty file, and if the disk has no room for another."""
        active = self.segments.active
        try:
            self.roll(active.created_ms)
        except OSError as error:
            _log.warning("cut_not_sealed partition=%s error=%s: flushed instead", self.topic_partition, error)
        if active is self.segments.active:
            active.file().sync()

    def forget_epochs_after(self, epoch: int) -> int | None:
        """Forget epochs that no leader can have had yet; the offset at which the first of them began, None if there was
        none. The checksum of a batch does not cover its epoch, so a damaged epoch looks like another one."""
        return self.epoch_file.forget_after(epoch)

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Removes everything and continues at `offset`: for a follower whose leader's log begins there."""
        restart(self, offset, now_ms)

    def restart_from_tier(self, start: TierStart, now_ms: int) -> None:
        """Removes everything and continues at the end of the tier."""
        restart_from_tier(self, start, now_ms)

    def begin_at(self, log_start_offset: int) -> None:
        """Set the start of the log, where the tier knows it better than this disk."""
        self.log_start_offset = min(log_start_offset, self.log_end_offset)
        self.place_local_start()

    def place_local_start(self) -> None:
        self.local_start_offset = max(self.log_start_offset, self.segments[0].base_offset)

    def _move_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.place_local_start()
        self.recovery_point = max(self.recovery_point, offset)
        self.epoch_file.truncate_from_start(offset)

    # Durability

    @property
    def flush_due(self) -> bool:
        """Whether `flush.messages` requires a flush now."""
        return self.log_end_offset - self.recovery_point >= self._config.flush_messages

    def is_flush_due(self, now_ms: int) -> bool:
        """Whether `flush.ms` has passed since the first unflushed append, or sealed segments are not flushed."""
        return self.failure is None and self.flush_state.is_due(
            self.segments, self.log_end_offset, self._config.flush_ms, now_ms
        )

    def unflushed_bytes(self) -> int:
        """How many bytes may not be on stable storage yet."""
        return self.flush_state.unflushed_bytes(self.segments, self.log_end_offset)

    def flush_job(self) -> Job | None:
        """Bring everything up to the present end to stable storage; None when it is there already. On a log that has
        failed, a job that fails with the same reason."""
        name = f"flush partition={self.topic_partition}"
        if self.failure is None:
            return self.flush_state.job(name, self.segments, self.epoch_file, lambda: self.log_end_offset, self.fail)
        return failed_job(name, self.failure) if self.recovery_point < self.log_end_offset else None

    def close(self) -> None:
        """Write indexes and a snapshot for a quick next start. The caller flushes and writes checkpoints afterwards."""
        self._remove_leftover()
        active = self.segments.active
        for segment in self.segments:
            if segment.size:
                segment.write_indexes()
        if self.log_end_offset not in self.snapshots.offsets:
            if self.producers.entries or active.size > QUICK_REPLAY_BYTES:
                self.snapshots.write(self.log_end_offset, self.producers)
            self.snapshots.remove_strays({*self.segments.bases, self.log_end_offset})
        self.release()

    def release(self) -> None:
        """Close all files; reads in flight keep theirs."""
        for segment in self.segments:
            segment.close()

    def move_to(self, copy: "PartitionLog") -> None:
        """Go on with the files of an equal log in another directory. Readers of the old files keep them open."""
        old = self.segments
        truncations = self.truncations + 1  # work in threads on the old files is stale
        self.directory, self.segments, self.snapshots = copy.directory, copy.segments, copy.snapshots
        self.epoch_file, self.flush_state = copy.epoch_file, copy.flush_state
        self.flush_state.truncations = truncations
        self.place_local_start()
        successors = {segment.base_offset: segment for segment in self.segments}
        for segment in old:
            segment.dropped, segment.successor = True, successors.get(segment.base_offset)
            segment.close()

    def fail(self, reason: str) -> None:
        """Accept no more writes until the log is opened again."""
        _log.error("log_failed partition=%s reason=%s", self.topic_partition, reason)
        self.failure = reason

    def storage_error(self, error: OSError) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: {error}")
