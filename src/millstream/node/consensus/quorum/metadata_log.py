"""`__cluster_metadata-0`: raft's log, on a partition log of storage, with its snapshots.

Batches are Kafka's, with metadata records or control records. Offset and epoch are outside of their checksums, so
followers have the same bytes as the leader. A record counts only when it is on stable storage: `flushed_offset` is the
log's recovery point. The log begins at 0 or at the end of one of the snapshots.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from millstream.config.setting import ConfigError
from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicPartition
from millstream.formats.records.batch import PLACEMENT, BatchHeader, iterate_headers, read_header
from millstream.formats.records.record import Record, build_batch, read_batches
from millstream.node.consensus.quorum.control_records import (
    KRaftVersion,
    LeaderChange,
    Voters,
    decode_control,
    encode_control,
)
from millstream.node.consensus.quorum.snapshots import IncomingSnapshot, SnapshotContent, Snapshots
from millstream.node.consensus.raft.log import (
    ControlRecord,
    CorruptFetchError,
    KRaftVersionRecord,
    LeaderChangeRecord,
    PlacedControlRecord,
    VotersRecord,
)
from millstream.node.consensus.raft.messages import LogPosition
from millstream.node.consensus.raft.voter_set import ReplicaKey
from millstream.node.environment import Environment
from millstream.node.metadata.records import CorruptMetadataError, MetadataRecord, decode_record, encode_record
from millstream.node.metadata.topic_names import CLUSTER_METADATA_TOPIC
from millstream.node.storage.disk import Disk, Job
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.partition_log import PartitionLog

METADATA_PARTITION = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
METADATA_TOPIC_ID = UUID(int=1)
"""The id Kafka reserves for this topic."""

_READ_BYTES = 1 << 20
_BEGINNING = LogPosition(0, 0)
_log = logging.getLogger("millstream.quorum")


class CommittedBatch(NamedTuple):
    last_offset: int
    epoch: int
    timestamp: int
    size: int
    """Bytes in the log."""
    records: list[MetadataRecord]
    """Empty for a control batch."""


def new_batch(records: Sequence[MetadataRecord], now_ms: int) -> bytearray:
    """Records as one batch, without offset and epoch."""
    return build_batch([Record(key=None, value=encode_record(record), timestamp=now_ms) for record in records])


class MetadataLog:
    """Implements raft's `RaftLog`."""

    def __init__(self, log: PartitionLog, snapshots: Snapshots, environment: Environment) -> None:
        self.partition = log
        self.snapshots = snapshots
        self._environment = environment
        self._incoming: IncomingSnapshot | None = None
        self._start = _BEGINNING
        self.installed: SnapshotContent | None = None
        """The content of the last snapshot that was installed, until the quorum takes it."""

    @classmethod
    def open(cls, logs: LogDirectory, disk: Disk, config: LogConfig, environment: Environment) -> "MetadataLog":
        """The log in a data directory, created if there is none; ConfigError if it is damaged."""
        now_ms = environment.clock.now_ms()
        committed = logs.checkpointed_high_watermark(METADATA_PARTITION) or 0
        if METADATA_PARTITION in logs.partitions:
            partition = logs.open(METADATA_PARTITION, config, now_ms)
        else:
            partition = logs.create(METADATA_PARTITION, METADATA_TOPIC_ID, config, now_ms)
        snapshots = Snapshots(disk, partition.directory)
        log = cls(partition, snapshots, environment)
        try:
            snapshots.load()
            log._settle(committed)
            job = partition.flush_job()
            if job is not None:
                # Records of the last process may be only in the page cache: they must not count before they are on
                # disk.
                job.done(failure := job.run())
                if failure is not None:
                    raise failure
        except (CorruptMetadataError, KafkaError, OSError) as error:
            raise unreadable(partition.directory, error) from None
        return log

    def _settle(self, committed: int) -> None:
        """Finds the begin of the log, and finishes steps that a crash interrupted."""
        partition, latest = self.partition, self.snapshots.latest
        if latest is not None and latest.offset > partition.log_end_offset:
            # A snapshot was fetched, and the old log was not removed yet.
            partition.restart_at(latest.offset, self._environment.clock.now_ms())
        if partition.log_end_offset < committed:
            raise CorruptMetadataError(
                f"it ends at offset {partition.log_end_offset}, and records up to {committed} were committed"
            )
        begin = partition.log_start_offset
        if begin > 0 or partition.segments[0].base_offset > 0:
            # Segments may be removed although the new start was not written; then the next snapshot has their records.
            at = next((each for each in self.snapshots.ids if each.offset >= begin), None)
            if at is None:
                raise CorruptMetadataError(f"it begins at offset {begin}, and no snapshot has the records before")
            self._start = at
        partition.high_watermark = self._start.offset
        if self._start.offset > 0:
            self.begin_at(self._start)
            if self._start.offset > begin:
                partition.delete_records_before(self._start.offset)

    # Properties for raft

    @property
    def start(self) -> LogPosition:
        return self._start

    @property
    def end(self) -> LogPosition:
        # Of the last record, and not the latest: an epoch is noted before its first record, whose append may fail.
        end_offset = self.partition.log_end_offset
        epoch = self.partition.epochs.epoch_of(end_offset - 1)
        return LogPosition(end_offset, epoch if epoch >= 0 else self._start.epoch)

    @property
    def flushed_offset(self) -> int:
        return min(self.partition.recovery_point, self.partition.log_end_offset)

    @property
    def latest_snapshot(self) -> LogPosition | None:
        return self.snapshots.latest

    def end_of_epoch(self, epoch: int) -> LogPosition:
        epochs = self.partition.epochs
        if epoch >= epochs.latest:
            return self.end
        known, end_offset = epochs.end_offset(epoch, self.partition.log_end_offset)
        first_epoch, first_offset = epochs.entries()[0]
        if end_offset <= first_offset and epoch < first_epoch:
            return self._start
        return LogPosition(end_offset, known)

    def control_records(self) -> Iterator[PlacedControlRecord]:
        """Reads and checks the whole log; CorruptMetadataError if it is damaged."""
        if self._start.offset > 0:
            yield from _placed(self.snapshots.read(self._start), self._start)
        for data in self._ranges(self._start.offset, self.partition.log_end_offset):
            yield from _control_records_of(data)

    # Appending

    def append_control(self, epoch: int, records: Sequence[ControlRecord], now_ms: int) -> int:
        now_ms = self._environment.clock.now_ms()  # raft's `now_ms` is not the time of day
        rows = [encode_control(_encodable(record), now_ms) for record in records]
        batch = build_batch(rows, base_offset=self.partition.log_end_offset, leader_epoch=epoch, control=True)
        return self.partition.append_as_follower(batch, now_ms=now_ms).base_offset

    def append_records(self, epoch: int, records: bytes | bytearray, now_ms: int) -> int:
        """`records` is a batch as `new_batch` makes it."""
        batch = bytearray(records)
        PLACEMENT.pack_into(batch, 0, self.partition.log_end_offset, read_header(batch).length, epoch)
        return self.partition.append_as_follower(batch, now_ms=self._environment.clock.now_ms()).last_offset

    def append_fetched(self, records: bytes) -> Sequence[PlacedControlRecord]:
        whole = records[: _whole_length(records)]
        if not whole:
            raise CorruptFetchError("no whole batch was sent")
        next_offset, epoch = self.partition.log_end_offset, self.end.epoch
        for _, header in iterate_headers(whole):
            if header.base_offset != next_offset or header.leader_epoch < epoch:
                raise CorruptFetchError(
                    f"a batch at offset {header.base_offset} of epoch {header.leader_epoch} does not follow on offset "
                    f"{next_offset} of epoch {epoch}"
                )
            next_offset, epoch = header.last_offset + 1, header.leader_epoch
        try:
            placed = list(_control_records_of(whole))
            self.partition.append_as_follower(whole, now_ms=self._environment.clock.now_ms())
        except (KafkaError, CorruptMetadataError) as error:
            # For example a full disk: the records are fetched again until there is room.
            _log.error("metadata_not_appended offset=%d error=%s", self.partition.log_end_offset, error)
            raise CorruptFetchError(str(error)) from None
        return placed

    def truncate_to(self, end_offset: int) -> None:
        _log.info("metadata_truncated from=%d to=%d", self.partition.log_end_offset, end_offset)
        self.partition.truncate_to(end_offset)

    def flush_job(self) -> Job | None:
        return self.partition.flush_job()

    # Reading

    def read(self, offset: int, max_bytes: int, *, below: int) -> bytes:
        piece = self.partition.read(offset, max_bytes, up_to=below, at_least_one=True)
        piece.prepare()
        try:
            data = piece.read()
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return data[: _whole_length(data, below)]

    def batches(self, offset: int, below: int) -> Iterator[CommittedBatch]:
        """The batches of the log; CorruptMetadataError if they cannot be read."""
        for data in self._ranges(offset, below):
            for header, rows in _records_of(data):
                records = [] if header.is_control else [decode_record(row.value or b"") for row in rows]
                yield CommittedBatch(
                    header.last_offset, header.leader_epoch, header.max_timestamp, header.size, records
                )

    def _ranges(self, offset: int, below: int) -> Iterator[bytes]:
        """Ranges of whole batches with right checksums."""
        while offset < below:
            try:
                data = self.read(offset, _READ_BYTES, below=below)
            except KafkaError as error:
                raise CorruptMetadataError(error.message) from None
            if not data:
                raise CorruptMetadataError(f"nothing can be read at offset {offset}")
            yield data
            offset = max(header.last_offset for _, header in iterate_headers(data)) + 1

    # Snapshots

    def read_snapshot(self, snapshot: LogPosition, position: int, max_bytes: int) -> tuple[int, bytes] | None:
        try:
            size = self.snapshots.size(snapshot)
            # The numbers are a client's. A position that no file has would be an error of the disk.
            is_inside = 0 <= position < size and max_bytes > 0
            return size, self.snapshots.read_piece(snapshot, position, max_bytes) if is_inside else b""
        except KeyError:
            return None

    def begin_snapshot(self, snapshot: LogPosition) -> int:
        if self._incoming is not None and self._incoming.id != snapshot:
            self._incoming.discard()  # another leader has another snapshot
        self._incoming = self.snapshots.receive(snapshot)
        return 0

    def write_snapshot(self, position: int, chunk: bytes) -> None:
        incoming = self._incoming
        assert incoming is not None and incoming.position == position, "chunks of a snapshot come in order"
        incoming.append(chunk)

    def install_snapshot(self) -> Sequence[PlacedControlRecord]:
        incoming, self._incoming = self._incoming, None
        assert incoming is not None, "no snapshot is being received"
        try:
            self.installed = incoming.finish()
        except CorruptMetadataError as error:
            raise CorruptFetchError(str(error)) from None
        self.snapshots.add(incoming.id)
        try:
            self.partition.restart_at(incoming.id.offset, self._environment.clock.now_ms())
        except KafkaError as error:
            if self.partition.failure is None:
                self.partition.fail(f"the log cannot go on at a snapshot: {error.message}")
            raise
        self._start = incoming.id
        self._remove(self.snapshots.forget_before(incoming.id))
        return list(_placed(self.installed, incoming.id))

    def begin_at(self, snapshot: LogPosition) -> None:
        """Removes older snapshots, and segments that end before the snapshot."""
        assert snapshot in self.snapshots.ids and snapshot.offset >= self._start.offset
        if snapshot.offset > self._start.offset:
            self.partition.delete_records_before(snapshot.offset)
            self._start = snapshot
        bases = self.partition.segments.bases
        dropped = sum(1 for base in bases[1:] if base <= snapshot.offset)
        if dropped:
            self._remove(self.partition.drop_segments(dropped))
        self._remove(self.snapshots.forget_before(snapshot))

    def _remove(self, job: Job | None) -> None:
        if job is not None:
            self._environment.offload(job.run).add_done_callback(lambda done: job.done(done.result()))


def unreadable(directory: str, error: Exception | str) -> ConfigError:
    """The error for a log with which this node cannot start or continue."""
    if isinstance(error, OSError) or (isinstance(error, KafkaError) and error.code == ErrorCode.KAFKA_STORAGE_ERROR):
        reason = error.message if isinstance(error, KafkaError) else error
        return ConfigError(
            f"the metadata log in {directory} cannot be read or written: {reason}; check the disk, then start this "
            "node again",
            name="log.dirs",
        )
    return ConfigError(
        f"the metadata log in {directory} cannot be read: {error}; restore it from a copy, or start with an empty data "
        "directory: in a cluster, the node then fetches everything from the other nodes",
        name="log.dirs",
    )


def _whole_length(data: bytes, below: int | None = None) -> int:
    """The length of the whole batches at the begin of the data, up to an offset if one is given."""
    end = 0
    for position, header in iterate_headers(data):
        if below is not None and header.last_offset >= below:
            break
        end = position + header.size
    return end


def _records_of(data: bytes) -> Iterator[tuple[BatchHeader, list[Record]]]:
    try:
        yield from read_batches(data)
    except KafkaError as error:
        raise CorruptMetadataError(error.message) from None


def _control_records_of(data: bytes) -> Iterator[PlacedControlRecord]:
    for position, header in iterate_headers(data):
        if not header.is_control:
            continue
        for _, rows in _records_of(data[position : position + header.size]):
            for row in rows:
                match decode_control(row):
                    case LeaderChange(leader_id, voters_then, granting):
                        ids = (tuple(key.id for key in keys) for keys in (voters_then, granting))
                        yield PlacedControlRecord(row.offset, LeaderChangeRecord(leader_id, *ids))
                    case KRaftVersion(level):
                        yield PlacedControlRecord(row.offset, KRaftVersionRecord(level))
                    case Voters(voters):
                        yield PlacedControlRecord(row.offset, VotersRecord(voters))


def _placed(content: SnapshotContent, snapshot: LogPosition) -> Iterator[PlacedControlRecord]:
    if content.kraft_version > 0:
        yield PlacedControlRecord(snapshot.offset - 1, KRaftVersionRecord(content.kraft_version))
    if content.voters is not None:
        yield PlacedControlRecord(snapshot.offset - 1, VotersRecord(content.voters))


def _encodable(record: ControlRecord) -> LeaderChange | KRaftVersion | Voters:
    match record:
        case LeaderChangeRecord(leader_id, voters, granting):
            return LeaderChange(leader_id, tuple(map(ReplicaKey, voters)), tuple(map(ReplicaKey, granting)))
        case KRaftVersionRecord(version):
            return KRaftVersion(version)
        case VotersRecord(voter_set):
            return Voters(voter_set)
