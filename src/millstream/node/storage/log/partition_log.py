"""The log of one partition: append, read, shorten, flush.

Promises: an append is whole or not at all; batches are opaque (headers only, never records); reads never pass what was
written. Runs on one thread (the event loop); what may block comes back as a `Job` or waits in `Slice.prepare`.
Deliberately elsewhere: judging batches (`batch_admission`), noting them (`written`), who may begin a transaction
(`verification`), what is undecided (`transactions`) and what was aborted (`transaction_index`), opening a log
(`log_loader`), repair (`recovery`), reading (`log_reader`), when to roll (`rolling`), retention rules (`retention`),
search by time (`time_search`), truncation (`truncation`).
"""

import logging
from typing import NamedTuple
from uuid import UUID

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Origin, TopicPartition, VerificationGuard
from millstream.formats.records.batch import HEADER, LOG_OVERHEAD, PLACEMENT, TRANSACTIONAL_BIT, Bytes
from millstream.formats.records.opening import WIDEST, OpeningLimits
from millstream.node.storage.disk import Disk, FileCache, Job, removal
from millstream.node.storage.file_formats import LEADER_EPOCHS
from millstream.node.storage.index.offset_index import MAX_RELATIVE_OFFSET
from millstream.node.storage.index.time_search import TimeSearch
from millstream.node.storage.index.transaction_index import EndMarker, build_marker, collect_aborted
from millstream.node.storage.log import log_reader, rolling
from millstream.node.storage.log.batch_admission import (
    LOG_APPEND_TIME,
    Header,
    admit,
    admit_transactional,
    convert,
    read_headers,
    recompression_of,
    too_large,
    wants_conversion,
)
from millstream.node.storage.log.flushing import flush_job
from millstream.node.storage.log.leader_epochs import LeaderEpochs
from millstream.node.storage.log.log_reader import Slice, empty_slice
from millstream.node.storage.log.producer_snapshots import SnapshotFiles
from millstream.node.storage.log.producer_state import ProducerState, Verifications, WrittenBatch
from millstream.node.storage.log.segment import Segment
from millstream.node.storage.log.segment_list import SegmentList
from millstream.node.storage.log.truncation import restart, truncate
from millstream.node.storage.log.written import note_written

_log = logging.getLogger("millstream.storage")

NO_APPEND_TIME = -1
QUICK_REPLAY_BYTES = 1 << 20
"""A segment up to this size is walked at the next start faster than its empty snapshot is written now."""

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
        "_cache",
        "_config",
        "_converts",
        "_epochs_unsaved",
        "_write_failed",
        "cleaned_offset",
        "damaged_from",
        "directory",
        "directory_changed",
        "disk",
        "epoch_changes",
        "epoch_changes_flushed",
        "epochs",
        "failure",
        "high_watermark",
        "is_placed",
        "log_end_offset",
        "log_start_offset",
        "opens_batches",
        "producers",
        "recovery_point",
        "segments",
        "snapshots",
        "topic_id",
        "topic_partition",
        "truncations",
        "unflushed_since_ms",
        "verifications",
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
        segments: SegmentList,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        epochs: LeaderEpochs,
        producers: ProducerState,
        snapshots: SnapshotFiles,
    ) -> None:
        self.disk = disk
        self._cache = cache
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.segments = segments
        # What is on stable storage, what may be read, what was written: recovery point and high watermark <= end.
        self.log_start_offset = log_start_offset
        self.recovery_point = recovery_point
        self.high_watermark: int | None = None
        """Set by replication; None while nobody but this node keeps the partition."""
        self.log_end_offset = log_end_offset
        self.epochs = epochs
        self.epoch_changes, self.epoch_changes_flushed = 1, 0
        """How often the file of the epochs was written, and which of these a flush has brought to stable storage."""
        self._epochs_unsaved = False
        """Whether the file knows epochs that were cut off: there was no room to say so."""
        self.producers = producers
        self.snapshots = snapshots
        self.verifications = Verifications()
        self.failure: str | None = None
        """Why the log takes no writes, if it does not."""
        self._write_failed = False
        """Whether the last attempt to write found no room or a broken disk."""
        self.truncations = 0
        self.damaged_from: int | None = None
        """Where damage begins, or a part is lost, behind which recovery has kept what is sound."""
        self.cleaned_offset = 0
        """Where the dirty part begins: a compacted log has been cleaned up to here."""
        self.unflushed_since_ms: int | None = None
        self.directory_changed = True
        self.is_placed = False
        """Whether its directory, and the topic id in it, are known to be on stable storage: the first flush sees to
        it."""

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
        return sum(segment.size for segment in self.segments)

    @property
    def readable_end(self) -> int:
        """The high watermark, or the log's end where nothing is replicated."""
        return self.log_end_offset if self.high_watermark is None else min(self.high_watermark, self.log_end_offset)

    # Transactions

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the first transaction begins that is open, or whose end may not be committed; None when there is none.

        Nothing from there on may be shown to `read_committed`.
        """
        transactions = self.producers.transactions
        if not transactions.ongoing and not transactions.ended:  # the usual case, and every fetch asks
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
            raise self._storage_error(error) from error

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, bumps_epoch: bool
    ) -> VerificationGuard | None:
        """The guard that the first batch of a transaction is to be appended with, once the coordinator has said that it
        knows the transaction; None when the transaction is open here, and was verified before."""
        producers = self.producers
        producers.check_epoch(producer_id, epoch, transactional=True)
        if producers.has_open_transaction(producer_id, epoch):
            return None
        return self.verifications.begin(producer_id, epoch, sequence, bumps_epoch)

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
        """Append what a client sent, or a broker's own: one whole batch in a writable buffer, stamped in place.

        With `needs_guard` the first batch of a transaction is taken only with the guard of its verification.
        """
        config = self._config
        log_append_time = now_ms if config.message_timestamp_type == LOG_APPEND_TIME else NO_APPEND_TIME
        try:
            header, repeated = admit(batch, config, self.producers, now_ms, origin)
            if header[5] & TRANSACTIONAL_BIT and header[9] >= 0:
                repeated = admit_transactional(header, self.producers, self.verifications, guard, needs_guard)
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
            if transactional and self.verifications:
                self.verifications.end(producer_id)
            self.producers.append(producer_id, epoch, sequence, delta, last_offset, timestamp, transactional)
        self.log_end_offset = last_offset + 1
        return Appended(base_offset, last_offset, log_append_time, self.log_start_offset, False)

    def judge(self, batch: memoryview, now_ms: int) -> None:
        """Raises what `append` would refuse a client's batch for by its header, checksum and sequence; of a batch in a
        transaction no more than the header is judged."""
        try:
            admit(batch, self._config, self.producers, now_ms, Origin.CLIENT)
        except KafkaError as error:
            self._check_failed_write(error)
            raise

    def _check_failed_write(self, error: KafkaError) -> None:
        """Raises another error for a batch that was refused because the one before it could not be written."""
        if self._write_failed and error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # The batch before it is the one that found no room. Its producer sends both again, in order; told that
            # they are out of order it would begin a new epoch, and send again what other partitions have already.
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: what comes before could not be written"
            ) from error

    def append_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        leader_epoch: int,
        now_ms: int,
        transaction_version: int,
    ) -> Appended:
        """End the transaction of a producer. Ending it once more the same way does no harm."""
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
        has_append_time = self._config.message_timestamp_type == LOG_APPEND_TIME
        marker = EndMarker(committed, coordinator_epoch)
        batch = build_marker(marker, producer_id, producer_epoch, now_ms, log_append_time=has_append_time)
        offset = self.log_end_offset
        _pack_placement(batch, 0, offset, len(batch) - LOG_OVERHEAD, leader_epoch)
        self._write(batch, len(batch), offset, offset, now_ms, leader_epoch, now_ms)
        self._note_written([HEADER.unpack_from(batch)], memoryview(batch))
        return Appended(offset, offset, now_ms if has_append_time else NO_APPEND_TIME, self.log_start_offset, False)

    def append_as_follower(self, batches: Bytes, *, now_ms: int) -> Appended:
        """Append what a leader sent: offsets and epochs stay as they are, and the leader has judged the rest."""
        headers = read_headers(batches)
        next_offset = self.log_end_offset
        first_offset = headers[0][0]
        if first_offset < next_offset == self.log_start_offset <= first_offset + headers[0][6]:
            # Empty, and begun in the middle of a batch, as the leader's log may begin too: batches are kept whole.
            self.restart_at(first_offset, now_ms)
            next_offset = first_offset
        for header in headers:
            if header[0] < next_offset:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"the leader sent offset {header[0]}, the log ends at {next_offset}"
                )
            next_offset = header[0] + header[6] + 1
        base_offset, last_offset = first_offset, next_offset - 1
        greatest_timestamp = max(header[8] for header in headers)
        self._write(batches, len(batches), base_offset, last_offset, greatest_timestamp, headers[0][2], now_ms)
        self._note_written(headers, memoryview(batches))
        return Appended(base_offset, last_offset, NO_APPEND_TIME, self.log_start_offset, False)

    def assign_leader_epoch(self, epoch: int) -> None:
        """Note that this node leads from the log's end on, before anything is written in the epoch."""
        if epoch > self.epochs.latest:
            try:
                self.begin_epoch(epoch, self.log_end_offset)
            except OSError as error:
                raise self._storage_error(error) from error

    def _repeated(self, written: WrittenBatch, log_append_time: int) -> Appended:
        _, _, last_offset, delta, timestamp = written
        append_time = timestamp if log_append_time >= 0 else NO_APPEND_TIME
        return Appended(last_offset - delta, last_offset, append_time, self.log_start_offset, True)

    def _note_written(self, headers: list[Header], batches: memoryview) -> None:
        try:
            note_written(self, headers, batches)
        except OSError as error:
            self._write_failed = True
            raise self._storage_error(error) from error

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
        """Roll if it is time, then write at the end of the active segment; on failure the log is as before."""
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
                or rolling.is_due(segment, config, greatest_timestamp, now_ms)
            ):
                self._make_room(base_offset, last_offset, now_ms)
                segment = self.segments.active
            if leader_epoch > self.epochs.latest:
                self.begin_epoch(leader_epoch, base_offset)
            elif self._epochs_unsaved:
                self.save_epochs()  # what the file has begins here would count for what is written now
            segment.log.get().write_at(segment.size, batches)
        except OSError as error:
            self._undo_write(segment, error)
            raise self._storage_error(error) from error
        self._write_failed = False
        if self.unflushed_since_ms is None:
            self.unflushed_since_ms = now_ms

    def _undo_write(self, segment: Segment, error: OSError) -> None:
        # Nothing points past segment.size, so the next append overwrites what a failed one left. Cutting it off as well
        # spares recovery the guess, and gives a full disk its room back.
        self._write_failed = True
        _log.error("append_failed partition=%s segment=%s error=%s", self.topic_partition, segment.log.path, error)
        try:
            segment.file().truncate(segment.size)
        except OSError:
            pass

    # Segments

    def _make_room(self, base_offset: int, last_offset: int, now_ms: int) -> None:
        self.roll(now_ms)
        if last_offset - self.segments.active.base_offset > MAX_RELATIVE_OFFSET:
            # A follower may begin far from the offset that its empty segment is named for.
            segment = Segment(self.disk, self._cache, self.directory, base_offset, now_ms)
            segment.create()
            self.segments.replace_active(segment)

    def roll(self, now_ms: int) -> None:
        """Seal the active segment and start the next at the log's end; nothing to do while it is empty."""
        if self.segments.active.size == 0:
            return
        segment = Segment(self.disk, self._cache, self.directory, self.log_end_offset, now_ms)
        segment.create()
        # From here on nothing may fail: snapshot and indexes are shortcuts, and a full disk has no room for them.
        try:
            self.snapshots.write(self.log_end_offset, self.producers)
        except OSError as error:
            _log.warning("snapshot_not_written partition=%s error=%s", self.topic_partition, error)
        for sealed in self.segments:
            if sealed.index is not None:
                self._seal(sealed)
        self.segments.add(segment)
        self.directory_changed = True

    def _seal(self, segment: Segment) -> None:
        try:
            segment.seal()
        except OSError as error:
            _log.warning(
                "indexes_not_written segment=%s error=%s: kept in memory until the next roll", segment.log.path, error
            )

    def make_segment(self, base_offset: int, now_ms: int) -> Segment:
        """One of this log's segments, which is not part of it yet."""
        return Segment(self.disk, self._cache, self.directory, base_offset, now_ms)

    def drop_segments(self, count: int) -> Job:
        """Take the oldest segments out of the log; the job removes their files. Readers in flight keep theirs."""
        assert count < len(self.segments), "the active segment stays"
        paths: list[str] = []
        try:
            for _ in range(count):
                paths += self.segments.drop_first()
        except OSError as error:
            _log.error("segment_not_dropped partition=%s error=%s", self.topic_partition, error)
        first = self.segments[0].base_offset
        paths += self.snapshots.forget_before(first)
        if self.log_start_offset < first:
            self._move_start(first)
        return removal(self.disk, f"remove_segments partition={self.topic_partition} count={count}", paths)

    # Reading

    def read(self, offset: int, max_bytes: int, *, up_to: int, at_least_one: bool) -> Slice:
        """Batches from the one that holds `offset` on, before `up_to`, all in one segment.

        A first batch larger than `max_bytes` comes whole if `at_least_one`, else nothing does. The last batch may be
        cut short where the index knows no boundary nearby, as in Kafka.
        """
        log_end = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic_partition} is not within {self.log_start_offset} to {log_end}",
            )
        if offset >= up_to or offset == log_end:
            return empty_slice()
        try:
            return log_reader.read(self.segments, log_end, offset, max_bytes, up_to, at_least_one)
        except OSError as error:
            raise self._storage_error(error) from error

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch that the log knows, or -1."""
        return self.epochs.latest

    def end_offset_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) as OffsetForLeaderEpoch wants it; (-1, -1) when unknown."""
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
        """Cut off the end so that nothing at or after `offset` is left; returns where the log now ends."""
        try:
            if offset < self.log_end_offset:
                truncate(self, max(offset, self.log_start_offset))
                if self.damaged_from is not None and self.log_end_offset <= self.damaged_from:
                    self.damaged_from = None
            elif self.epochs.truncate_from_end(self.log_end_offset):
                # An epoch that was led here and in which nothing was written: no other log knows of it.
                self.save_shortened_epochs()
        except OSError as error:
            self.fail(f"truncating to {offset} failed: {error}")
            raise self._storage_error(error) from error
        return self.log_end_offset

    def forget_epochs_after(self, epoch: int) -> int | None:
        """Forget epochs that no leader can have had yet; the offset at which the first of them began, if there was one.

        An epoch stands outside of its batch's checksum: one that is damaged passes for another.
        """
        kept = [entry for entry in self.epochs.entries() if entry[0] <= epoch]
        forgotten = self.epochs.entries()[len(kept) :]
        if not forgotten:
            return None
        self.epochs = LeaderEpochs(kept)
        self.save_shortened_epochs()
        return forgotten[0][1]

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Remove everything and go on at `offset`, as a follower does whose leader has nothing so old any more."""
        segment = Segment(self.disk, self._cache, self.directory, offset, now_ms)
        is_beyond = offset > self.segments.active.base_offset
        if is_beyond:
            try:
                segment.create()  # that needs room: without, nothing has changed
            except OSError as error:
                raise self._storage_error(error) from error
        try:
            restart(self, segment, is_created=is_beyond)
            self.damaged_from = None
        except OSError as error:
            self.fail(f"starting anew at {offset} failed: {error}")
            raise self._storage_error(error) from error

    def _move_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.recovery_point = max(self.recovery_point, offset)
        if self.epochs.truncate_from_start(offset):
            try:
                self.save_epochs()
            except OSError as error:
                # The file then knows more epochs than it need; loading cuts them off again.
                _log.warning("leader_epochs_not_saved partition=%s error=%s", self.topic_partition, error)

    # Durability

    @property
    def flush_due(self) -> bool:
        """Whether `flush.messages` asks for a flush now."""
        return self.log_end_offset - self.recovery_point >= self._config.flush_messages

    def is_flush_due(self, now_ms: int) -> bool:
        """Whether `flush.ms` has passed since the first unflushed append, or sealed segments wait to be flushed."""
        if self.failure is not None:
            return False
        if self.recovery_point < self.segments.active.base_offset:
            return True
        since = self.unflushed_since_ms
        return (
            since is not None and now_ms - since >= self._config.flush_ms and self.recovery_point < self.log_end_offset
        )

    def flush_job(self) -> Job | None:
        """Bring everything up to the present end to stable storage; None when it is there already."""
        return flush_job(self)

    def close(self) -> None:
        """Write what makes the next start quick. The caller flushes afterwards, and writes the checkpoints."""
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
        """Let go of all files; reads in flight keep theirs."""
        for segment in self.segments:
            segment.close()

    def fail(self, reason: str) -> None:
        """Take no more writes until the log is opened anew."""
        _log.error("log_failed partition=%s reason=%s", self.topic_partition, reason)
        self.failure = reason

    def _storage_error(self, error: OSError) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: {error}")

    def save_epochs(self) -> None:
        self.disk.write_atomically(f"{self.directory}/{LEADER_EPOCHS}", self.epochs.to_bytes(), durable=False)
        self._epochs_saved()

    def save_shortened_epochs(self) -> None:
        """After a cut. Without room it is put off to the next append: loading cuts the same epochs off again."""
        try:
            self.save_epochs()
        except OSError as error:
            _log.warning("leader_epochs_not_saved partition=%s error=%s", self.topic_partition, error)
            self._epochs_unsaved = True

    def _epochs_saved(self) -> None:
        self.epoch_changes += 1
        self._epochs_unsaved = False

    def begin_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that an epoch begins, in memory and in its file, or in neither."""
        before = self.epochs
        self.epochs = LeaderEpochs(before.entries())
        self.epochs.assign(epoch, start_offset)
        try:
            if before.latest < 0:
                # The first entry of a log, made without the detour of a replacement: there is nothing to lose yet.
                self.disk.write_bytes(f"{self.directory}/{LEADER_EPOCHS}", self.epochs.to_bytes())
                self._epochs_saved()
            else:
                self.save_epochs()
        except OSError:
            self.epochs = before  # what memory knows, the file knows
            raise
