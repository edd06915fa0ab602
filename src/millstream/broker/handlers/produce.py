"""Produce: append each partition's batches to its log, and answer as `acks` asks.

The append itself happens while the request's buffer is at hand; only the answer may wait, for an fsync in group-commit
mode. Differences from Kafka: batches are never opened, so a fault inside a batch whose CRC is right is the consumer's
to find (docs/DESIGN.md, decision 2).
"""

import asyncio
from collections.abc import Callable

from millstream.api.request import ProduceResults
from millstream.broker.partition import Partition
from millstream.broker.partition_table import PartitionTable
from millstream.environment import Environment
from millstream.model.errors import ErrorCode, KafkaError
from millstream.protocol.produce import FIRST_WITH_TOPIC_ID, PartitionResult, ProduceRequest
from millstream.records.record import read_batches

Results = ProduceResults
Answer = Callable[[Results], None]


class ProduceHandler:
    def __init__(self, partitions: PartitionTable, environment: Environment) -> None:
        self._partitions = partitions
        self._environment = environment

    def append(
        self, request: ProduceRequest, version: int, buffer: bytearray
    ) -> tuple[Results, Callable[[Answer], None] | None]:
        """Appends everything and returns the results, with a way to wait for them if they are not final yet."""
        results: Results = []
        awaited: list[Partition] = []
        refusal = self._refusal(request)
        by_id = version >= FIRST_WITH_TOPIC_ID
        topics = self._partitions.by_id if by_id else self._partitions.by_name
        now_ms = self._environment.clock.now_ms()
        whole = memoryview(buffer)
        for topic, datas in request.topics:
            known = topics.get(topic)
            topic_results = []
            for index, start, end in datas:
                if refusal is not None:
                    topic_results.append(PartitionResult(index, refusal.code, message=refusal.message))
                    continue
                partition = known.get(index) if known is not None else None
                if partition is None:
                    topic_results.append(_unknown(index, known is None and by_id))
                    continue
                try:
                    if partition.is_internal:
                        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "only the broker writes to internal topics")
                    if request.acks == -1:
                        _check_replicas(partition)
                    if "compact" in partition.log.config.cleanup_policy:
                        _check_keys(whole[start:end])
                    appended = partition.append(whole[start:end], now_ms)
                except KafkaError as error:
                    topic_results.append(PartitionResult(index, error.code, message=error.message))
                    continue
                log = partition.log
                if log.config.flush_before_ack or log.flush_due:
                    awaited.append(partition)
                topic_results.append(
                    PartitionResult(index, 0, appended[0], appended.log_append_time, appended.log_start_offset)
                )
            results.append((topic, topic_results))
        if not awaited:
            return results, None
        if request.acks == 0:
            for partition in awaited:
                partition.when_flushed(partition.log.log_end_offset, lambda error: None)
            return results, None
        return results, lambda answer: self._when_durable(results, awaited, request.timeout_ms, answer)

    def _refusal(self, request: ProduceRequest) -> KafkaError | None:
        if not -1 <= request.acks <= 1:
            return KafkaError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks} is not a choice: use 0, 1 or all (-1)"
            )
        if request.transactional_id is not None:
            return KafkaError(
                ErrorCode.INVALID_TXN_STATE, "this broker has no transactions yet: produce without transactional.id"
            )
        return None

    def _when_durable(self, results: Results, awaited: list[Partition], timeout_ms: int, answer: Answer) -> None:
        """Calls `answer` when every awaited partition is on disk, or with what is known when the time is up."""
        DurableAck(results, awaited, timeout_ms, answer, self._environment.loop)


def _check_keys(batches: memoryview) -> None:
    """Compaction keeps the latest record of each key, so there must be one. No other topic has its batches opened."""
    for _, records in read_batches(batches):
        if any(record.key is None for record in records):
            raise KafkaError(ErrorCode.INVALID_RECORD, "a compacted topic takes only records with a key")


def _check_replicas(partition: Partition) -> None:
    """With acks=all a write that too few replicas would hold is refused rather than risked."""
    wanted = partition.log.config.min_insync_replicas
    if wanted > partition.in_sync_count:
        raise KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"min.insync.replicas={wanted}, but only {partition.in_sync_count} replica is in sync",
        )


def _unknown(index: int, by_id: bool) -> PartitionResult:
    if by_id:
        return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_ID, message="no topic has this id: refresh metadata")
    return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message="no such topic or partition here")


class DurableAck:
    """An answer that waits for the fsync of several partitions."""

    def __init__(
        self,
        results: Results,
        awaited: list[Partition],
        timeout_ms: int,
        answer: Callable[[Results], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._results = results
        self._answer = answer
        self._missing = {id(partition): partition for partition in awaited}
        self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._give_up)
        for partition in list(self._missing.values()):
            partition.when_flushed(partition.log.log_end_offset, self._flushed(partition))

    def _flushed(self, partition: Partition) -> Callable[[KafkaError | None], None]:
        def callback(error: KafkaError | None) -> None:
            if self._missing.pop(id(partition), None) is None:
                return  # the time was up
            if error is not None:
                self._replace(partition, error)
            if not self._missing:
                self._timer.cancel()
                self._answer(self._results)

        return callback

    def _give_up(self) -> None:
        late = list(self._missing.values())
        self._missing.clear()
        for partition in late:
            self._replace(
                partition,
                KafkaError(ErrorCode.REQUEST_TIMED_OUT, "appended, but not known to be on disk within the timeout"),
            )
        self._answer(self._results)

    def _replace(self, partition: Partition, error: KafkaError) -> None:
        name = partition.topic_partition.topic.encode()
        keys = (name, partition.topic_id.bytes)
        for topic, rows in self._results:
            if topic in keys:
                for at, row in enumerate(rows):
                    if row.partition == partition.topic_partition.partition and not row.error:
                        rows[at] = PartitionResult(row.partition, error.code, message=error.message)
