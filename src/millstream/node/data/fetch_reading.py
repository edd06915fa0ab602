"""Reads the logs for a fetch: what a consumer or a follower may read of each partition, within the request's limits.

Consumers read committed records; with `read_committed` only up to the last stable offset, together with the list of
aborted transactions. No batch is opened or copied: the results are file ranges.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.fetch import FIRST_WITH_TOPIC_ID, FetchPartition, FetchRequest, PartitionResult
from millstream.node.data.fetch_sessions import Key
from millstream.node.metadata.image import PartitionState
from millstream.node.replicas.local_partition import Role
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.replicas.throttle import ReplicaThrottle
from millstream.node.replicas.unreadable_batches import RepeatedReads, UnreadableBatchError
from millstream.node.server.request import Refusals
from millstream.node.storage.log.log_reader import Slice, aborted_among
from millstream.node.storage.log.partition_log import PartitionLog

FIRST_FROM_FOLLOWERS: Final = 11
"""The first version whose consumers can read from followers."""
READ_UNCOMMITTED: Final = 0

Row = tuple[Key, PartitionResult]


class Cluster(Protocol):
    """The state of other nodes that a fetch needs."""

    @property
    def leader_throttle(self) -> ReplicaThrottle: ...

    def cluster_id(self) -> str | None: ...

    def state_in_metadata(self, topic: bytes, by_id: bool, index: int) -> PartitionState | None: ...

    def has_stale_epoch(self, broker_id: int, broker_epoch: int) -> bool: ...

    def has_future_epoch(self, broker_id: int, broker_epoch: int) -> bool: ...

    def is_alive(self, broker_id: int) -> bool: ...

    def rack_of(self, broker_id: int) -> str | None: ...

    def selects_by_rack(self) -> bool:
        """Whether consumers are sent to a replica in their rack (`replica.selector.class`)."""
        ...


class ReadResult:
    """The results of one read of the logs."""

    __slots__ = ("has_errors", "must_respond", "rows", "size")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.size = 0
        self.must_respond = False
        """Whether there is something to send besides records."""
        self.has_errors = False
        """Whether there are errors that are sent only when the fetch has waited its time."""

    def refused(self, key: Key, row: PartitionResult) -> None:
        self.rows.append((key, row))
        self.must_respond = True


class FetchReader:
    """Reads partitions for fetches."""

    def __init__(self, partitions: PartitionTable, cluster: Cluster, max_bytes: int, repeated: RepeatedReads) -> None:
        self.partitions = partitions
        self.cluster = cluster
        self._repeated = repeated
        self._max_bytes = max_bytes
        self.errors: dict[int, int] = {}
        """Number of failed reads by error code."""

    def read(
        self,
        wanted: Iterable[tuple[Key, FetchPartition]],
        request: FetchRequest,
        version: int,
        *,
        is_arrival: bool,
        refusals: Refusals | None = None,
    ) -> ReadResult:
        """Reads each partition once, within the request's limits.

        At the first read, `is_arrival`, the fetch offset of a follower is stored: it has everything before it.
        `refusals` has the topics that the client may not read.
        """
        result = ReadResult()
        left = min(request.max_bytes, self._max_bytes)
        by_id = version >= FIRST_WITH_TOPIC_ID
        topics = self.partitions.by_id if by_id else self.partitions.by_name
        is_replica = request.replica_id >= 0
        for key, fetch in wanted:
            if refusals is not None and (code := refusals[key[0]]):
                result.refused(key, PartitionResult(fetch.partition, code))
                continue
            topic = topics.get(key[0])
            partition = topic.get(fetch.partition) if topic is not None else None
            if partition is None:
                result.refused(key, self._not_here(key, by_id, topic is None))
                continue
            try:
                if is_replica:
                    row = self._read_for_replica(partition, fetch, request, left, not result.size, is_arrival)
                else:
                    row = self._read_for_consumer(partition, fetch, request, version, left, not result.size)
            except UnreadableBatchError as error:
                # Not at once: some clients retry without a pause.
                result.rows.append((key, _refusal(partition, fetch, error)))
                result.has_errors = True
                continue
            except (KafkaError, OSError) as error:
                result.refused(key, _refusal(partition, fetch, error))
                continue
            if row.diverging_epoch is not None or row.preferred_read_replica >= 0:
                result.must_respond = True
            elif row.records is not None:
                result.size += row.records.length
                left -= row.records.length
            result.rows.append((key, row))
        return result

    def _not_here(self, key: Key, by_id: bool, topic_unknown: bool) -> PartitionResult:
        topic, index = key
        state = self.cluster.state_in_metadata(topic, by_id, index)
        if state is not None:
            leader = state.leader, state.leader_epoch
            return PartitionResult(index, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=leader)
        if by_id and topic_unknown:
            return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_ID)
        return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _read_for_consumer(
        self,
        partition: Partition,
        fetch: FetchPartition,
        request: FetchRequest,
        version: int,
        left: int,
        at_least_one: bool,
    ) -> PartitionResult:
        """Committed records: all of them on the leader; on a follower up to the high watermark that it knows."""
        if not partition.is_leader and (partition.role is not Role.FOLLOWER or version < FIRST_FROM_FOLLOWERS):
            raise partition.not_leader()
        log = partition.log
        if fetch.current_leader_epoch != partition.leader_epoch:
            partition.check_leader_epoch(fetch.current_leader_epoch)
        committed, stable = partition.high_watermark, partition.last_stable_offset
        if fetch.last_fetched_epoch >= 0:
            diverging = _divergence(log, fetch)
            if diverging is not None:
                if partition.is_in_doubt:
                    raise partition.doubt_error("a consumer would go back")
                return PartitionResult(
                    fetch.partition, 0, committed, stable, log.log_start_offset, diverging_epoch=diverging
                )
        if request.rack_id and partition.is_leader and self.cluster.selects_by_rack():
            preferred = self._nearest(partition, request.rack_id.decode(errors="replace"), fetch.fetch_offset)
            if preferred >= 0:
                return PartitionResult(fetch.partition, 0, committed, stable, log.log_start_offset, None, preferred)
        only_committed = request.isolation_level != READ_UNCOMMITTED
        up_to = stable if only_committed else committed
        if partition.unreadable is not None and log.log_start_offset <= fetch.fetch_offset < up_to:
            up_to = partition.unreadable.limit(fetch.fetch_offset, up_to)
        records: Slice | None = None
        if fetch.fetch_offset == up_to:
            pass  # at the end of the log: the usual case
        elif left > 0 or at_least_one:
            records = log.read(
                fetch.fetch_offset, min(fetch.max_bytes, max(left, 0)), up_to=up_to, at_least_one=at_least_one
            )
        aborted: list[tuple[int, int]] | None = None
        if only_committed:
            aborted = [] if records is None else aborted_among(log, records, fetch.fetch_offset, up_to)
        return PartitionResult(fetch.partition, 0, committed, stable, log.log_start_offset, aborted, -1, records)

    def _read_for_replica(
        self,
        partition: Partition,
        fetch: FetchPartition,
        request: FetchRequest,
        left: int,
        at_least_one: bool,
        is_arrival: bool,
    ) -> PartitionResult:
        """All records up to the log's end, for a replica of the partition."""
        partition.check_is_leader()
        log = partition.log
        partition.check_leader_epoch(fetch.current_leader_epoch)
        broker_id, broker_epoch = request.replica_id, request.replica_epoch
        if self.cluster.has_stale_epoch(broker_id, broker_epoch):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker_id} has registered again since")
        partition.check_follower(broker_id, broker_epoch)
        if fetch.last_fetched_epoch >= 0:
            diverging = _divergence(log, fetch)
            if diverging is not None:
                return PartitionResult(
                    fetch.partition, 0, partition.high_watermark, -1, log.log_start_offset, diverging_epoch=diverging
                )
        records: Slice | None = None
        if fetch.fetch_offset != log.log_end_offset:
            if log.log_start_offset <= fetch.fetch_offset < log.local_start_offset:
                raise KafkaError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, f"{fetch.fetch_offset} is in the tier")
            is_throttled = self._is_throttled(partition, broker_id)
            if (left > 0 or at_least_one) and not is_throttled:
                records = log.read(
                    fetch.fetch_offset,
                    min(fetch.max_bytes, max(left, 0)),
                    up_to=log.log_end_offset,
                    at_least_one=at_least_one,
                )
            elif not log.log_start_offset <= fetch.fetch_offset <= log.log_end_offset:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{fetch.fetch_offset} is not in the log")
        if is_arrival:
            partition.fetched_by(broker_id, broker_epoch, fetch.fetch_offset, fetch.log_start_offset)
        committed, stable = partition.high_watermark, partition.last_stable_offset
        return PartitionResult(fetch.partition, 0, committed, stable, log.log_start_offset, None, -1, records)

    def _is_throttled(self, partition: Partition, broker_id: int) -> bool:
        throttle, at = self.cluster.leader_throttle, partition.topic_partition
        is_throttled = (
            broker_id not in partition.in_sync()
            and throttle.is_throttled(at.topic, at.partition)
            and throttle.is_exceeded()
        )
        throttle.pauses += is_throttled
        return is_throttled

    def count_sent(self, rows: list[Row], request: FetchRequest, by_id: bool) -> None:
        """Counts the bytes sent, and those sent to throttled replicas."""
        topics = self.partitions.by_id if by_id else self.partitions.by_name
        is_replica = request.replica_id >= 0
        for (topic, index), row in rows:
            if row.error:
                self.errors[row.error] = self.errors.get(row.error, 0) + 1
            records = row.records
            if not isinstance(records, Slice) or not records.length:
                continue
            partition = topics.get(topic, {}).get(index)
            if partition is None:
                continue
            traffic = partition.traffic
            if not is_replica:
                traffic.sent_bytes += records.length
                traffic.sent_records += records.count
                self._repeated.note(partition, records)
                continue
            traffic.replica_sent_bytes += records.length
            throttle = self.cluster.leader_throttle
            if throttle.is_throttled(partition.topic_partition.topic, index):
                throttle.record(records.length)

    def _nearest(self, partition: Partition, rack: str, offset: int) -> int:
        """The most advanced replica in the consumer's rack that has the offset; -1 for the leader."""
        cluster = self.cluster
        if cluster.rack_of(partition.leader_id) == rack:
            return -1
        best, reached = -1, -1
        for broker_id, follower in partition.followers().items():
            if (
                follower.log_end > reached
                and 0 <= follower.log_start <= offset <= follower.log_end
                and broker_id in partition.in_sync()
                and cluster.is_alive(broker_id)
                and cluster.rack_of(broker_id) == rack
            ):
                best, reached = broker_id, follower.log_end
        return best


def _divergence(log: PartitionLog, fetch: FetchPartition) -> tuple[int, int] | None:
    """The diverging epoch and offset, if the reader's last epoch does not match this log."""
    epoch, end = log.end_offset_of_epoch(fetch.last_fetched_epoch)
    if epoch < 0 or end < 0 or fetch.fetch_offset < log.log_start_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{fetch.fetch_offset} is not in the log")
    return (epoch, end) if end < fetch.fetch_offset or epoch < fetch.last_fetched_epoch else None


def _refusal(partition: Partition, fetch: FetchPartition, error: KafkaError | OSError) -> PartitionResult:
    code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
    if (
        code == ErrorCode.OFFSET_OUT_OF_RANGE
        and partition.is_in_doubt
        and fetch.fetch_offset >= partition.log.log_start_offset
    ):
        # Final for a consumer: it would reset its offset. Another node may have the offset.
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
        return PartitionResult(fetch.partition, code, current_leader=partition.leader_for_clients)
    return PartitionResult(fetch.partition, code)
