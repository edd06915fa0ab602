"""`__cluster_metadata-0`: the log that holds the cluster's metadata, written by a quorum of one.

The format is KRaft's: each term of a leader is an epoch that begins with a LeaderChange control record; `quorum-state`
names the epoch before anything is written in it.
"""

import json
from collections.abc import Iterator, Sequence
from uuid import UUID

from millstream.environment import Environment
from millstream.metadata.record_codec import decode_record, encode_record
from millstream.metadata.records import MetadataRecord
from millstream.metadata.topic_names import CLUSTER_METADATA_TOPIC
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import TopicName, TopicPartition
from millstream.protocol.schema import Schema
from millstream.records.record import Record, build_batch, read_batches
from millstream.storage.disk import Disk
from millstream.storage.partition_log import PartitionLog

METADATA_PARTITION = TopicPartition(TopicName(CLUSTER_METADATA_TOPIC), 0)
METADATA_TOPIC_ID = UUID(int=1)
"""The id Kafka reserves for this topic."""

_LEADER_CHANGE_KEY = b"\x00\x00\x00\x02"  # version 0, type 2
_LEADER_CHANGE = Schema(
    """record 2 leader_change 0-0 flexible:0+
  version int16 0+
  leader_id int32 0+
  voters []{} 0+
    voter_id int32 0+
  granting_voters []{} 0+
    voter_id int32 0+"""
)
_READ_BYTES = 1 << 20


class MetadataLog:
    def __init__(self, log: PartitionLog, disk: Disk, node_id: int) -> None:
        self._log = log
        self._disk = disk
        self._node_id = node_id
        self.epoch = 0

    @property
    def next_offset(self) -> int:
        return self._log.log_end_offset

    def replay(self) -> Iterator[tuple[int, int, list[MetadataRecord]]]:
        """Everything that was decided so far, batch by batch: last offset, epoch, records."""
        position = self._log.log_start_offset
        while position < self._log.log_end_offset:
            piece = self._log.read(position, _READ_BYTES, up_to=self._log.log_end_offset, at_least_one=True)
            piece.prepare()
            data = piece.read()
            for header, records in read_batches(data):
                position = header.last_offset + 1
                self.epoch = max(self.epoch, header.leader_epoch)
                if not header.is_control:
                    decoded = [decode_record(record.value or b"") for record in records]
                    yield header.last_offset, header.leader_epoch, decoded

    def begin_epoch(self, now_ms: int) -> None:
        """Starts this node's term as leader."""
        self.epoch += 1
        state = {
            "leaderId": self._node_id,
            "leaderEpoch": self.epoch,
            "votedId": self._node_id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": self._node_id}],
            "data_version": 0,
        }
        self._disk.write_atomically(f"{self._log.directory}/quorum-state", json.dumps(state).encode())
        voters = [{"voter_id": self._node_id}]
        change = {"version": 0, "leader_id": self._node_id, "voters": voters, "granting_voters": voters}
        record = Record(key=_LEADER_CHANGE_KEY, value=_LEADER_CHANGE.encode(change, 0), timestamp=now_ms)
        self._append_batch([record], now_ms, is_control=True)
        self._flush()

    def write(self, records: Sequence[MetadataRecord], now_ms: int) -> int:
        """Appends and waits for the disk; for the start, when there is nobody to keep waiting."""
        last_offset = self._append(records, now_ms)
        self._flush()
        return last_offset

    def append_unflushed(self, records: Sequence[MetadataRecord], now_ms: int) -> int:
        """Appends records as one batch; they count once `flush` has put them on disk."""
        return self._append(records, now_ms)

    async def flush(self, environment: Environment) -> None:
        job = self._log.flush_job()
        if job is not None:
            failure = await environment.offload(job.run)
            job.done(failure)
            _check(failure)

    def _append(self, records: Sequence[MetadataRecord], now_ms: int) -> int:
        rows = [Record(key=None, value=encode_record(record), timestamp=now_ms) for record in records]
        return self._append_batch(rows, now_ms, is_control=False)

    def _append_batch(self, rows: list[Record], now_ms: int, *, is_control: bool) -> int:
        batch = build_batch(rows, base_offset=self._log.log_end_offset, leader_epoch=self.epoch, control=is_control)
        return self._log.append_as_follower(batch, now_ms=now_ms).last_offset

    def _flush(self) -> None:
        job = self._log.flush_job()
        if job is not None:
            failure = job.run()
            job.done(failure)
            _check(failure)


def _check(failure: OSError | None) -> None:
    if failure is not None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"metadata cannot be made durable: {failure}")
