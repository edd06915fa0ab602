"""Produce: append each partition's batches to its log, and respond as `acks` requires.

`ProduceHandler.append` is the one entry. A request passes these stages:

    append ──> [BatchOpening.take: some topics need their batches opened] ──> [TransactionalProduce.verify: only with
    a transactional id] ──> _append: the batches go to the logs ──> PendingAck: waits for replicas or the disk

Most requests need neither of the stages in brackets. They are appended while the request is in the connection's buffer;
only the response may wait: for the in-sync replicas with acks=all, for an fsync with `flush.before.ack`.

Differences from Kafka: batches are not opened, except for topics that need it. So a fault inside a batch whose CRC is
right is found when it is read (ADR 25). When too few replicas are left in sync, the response comes at once and not
after the timeout. Batches after a refused batch of their producer are refused too (`RetryOrderGuard`), and so are
batches that a new leader receives before the ones sent to the old leader (`LeaderChangeGapGuard`); Kafka may accept
both.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from millstream.formats.model.errors import ErrorCode, InvalidRecordsError, KafkaError
from millstream.formats.model.ordered_set import OrderedSet
from millstream.formats.protocol.produce import FIRST_WITH_TOPIC_ID, PartitionResult, ProduceRequest
from millstream.formats.records.batch import ATTRIBUTES_START, TRANSACTIONAL_BIT, read_header
from millstream.node.data.batch_opening import BatchOpening, Opened, OpenedBatches
from millstream.node.data.conditions import UnexpectedEndError, check_condition
from millstream.node.environment import Environment
from millstream.node.replicas.acknowledgement import may_acknowledge, when_acknowledged
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionDirectory, PartitionTable
from millstream.node.replicas.retry_order import LeaderChangeGapGuard, RetryOrderGuard
from millstream.node.server.request import ProduceResults
from millstream.node.storage.log.batch_admission import MAX_NAMED_RECORDS, invalid_timestamps
from millstream.node.transactions.produce import Append, Deliver, ProduceCall, Produced, Refuse, refused

Results = ProduceResults
_FLAGS_BYTE: Final = ATTRIBUTES_START + 1
"""The byte of a batch with the transactional flag."""
_MIN_NAMED_RECORDS_PER_BATCH = 32
"""A batch with wrong timestamps counts as at least this many of the `MAX_NAMED_RECORDS` of a request, because opening a
batch has a cost too. So the records of few batches of a request are named."""
_CHECK_INTERVAL_SECONDS = 0.5
_MAX_CHECKS = 4
"""A leader without contact to the controller gives a pending write up after this many checks. If followers fetch, a
write is committed before the first check."""
_CONDITION_REFUSED = "refused because of records that are not committed: the condition may still be met"
_LOG_STATE_ERRORS = frozenset(
    (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.OFFSET_OUT_OF_RANGE,  # of a condition
    )
)
"""Errors that depend on the log's end, or its state of the producer. Clients treat them as final, but the log of
another leader may accept the batch."""


class Verifies(Protocol):
    """The stage of requests with a transactional id (`TransactionalProduce`)."""

    def verify(self, call: ProduceCall, append: Append, refuse: Refuse) -> Produced: ...


class Awaited(NamedTuple):
    """A result that is final when its partition is committed up to an offset, or flushed."""

    partition: Partition
    rows: list[PartitionResult]
    at: int
    """The index of the result in `rows`."""
    end_offset: int
    what: str = "appended"
    """What happened to the batch. For the error message if the result does not become final."""


class ProduceHandler:
    """Handles Produce (0) for all connections."""

    def __init__(
        self,
        partitions: PartitionTable,
        environment: Environment,
        cluster: PartitionDirectory,
        transactional: Verifies,
        opening: BatchOpening,
    ) -> None:
        self._opening = opening
        self._partitions = partitions
        self._environment = environment
        self._cluster = cluster
        self._transactional = transactional
        self._retry_order = RetryOrderGuard(environment.loop.time)
        self._gaps = LeaderChangeGapGuard(environment.loop.time)
        self.waiting: OrderedSet[PendingAck] = OrderedSet()
        """Responses that wait for replicas or the disk."""
        self.errors: dict[int, int] = {}
        """Number of refused batches by error code."""
        self._check_timer: asyncio.TimerHandle | None = None

    def append(self, request: ProduceRequest, version: int, buffer: bytearray, *, by_broker: bool = False) -> Produced:
        """Appends all batches. Returns the results, and a function that delivers them later if they are not final."""
        if not -1 <= request.acks <= 1:
            error = KafkaError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks} is not a choice: use 0, 1 or all (-1)"
            )
            return refused(request, error), None
        if request.conditions is not None and request.acks != -1:
            error = KafkaError(
                ErrorCode.INVALID_REQUIRED_ACKS,
                f"acks={request.acks} with an expected offset: use all (-1), or another leader may break the condition",
            )
            return refused(request, error), None
        call = ProduceCall(request, version, buffer, by_broker)
        if request.transactional_id is None and self._opening.needs_no_opening(request, version):
            return self._append(call)
        return self._opening.append_when_opened(call, self._verify, self._refuse)

    def _verify(self, call: ProduceCall) -> Produced:
        """The stage after the batches were opened."""
        if call.request.transactional_id is None:
            return self._append(call)
        return self._transactional.verify(call, self._append, self._refuse)

    def _refuse(self, call: ProduceCall, error: KafkaError) -> Results:
        """Refuses a request as a whole, with the batches that its producer sent after it."""
        whole = memoryview(call.buffer)
        for topic, datas in call.request.topics:
            for data in datas:
                self._retry_order.note(topic, data.partition, whole[data.start : data.end], error.code)
        return refused(call.request, error)

    def _append(self, call: ProduceCall) -> Produced:
        """The last stage: each partition's batches go to its log."""
        request, buffer, by_broker, verified = call.request, call.buffer, call.by_broker, call.verified
        opened: OpenedBatches = call.opened
        results: Results = []
        awaited: list[Awaited] = []
        by_id = call.version >= FIRST_WITH_TOPIC_ID
        topics = self._partitions.by_id if by_id else self._partitions.by_name
        now_ms = self._environment.clock.now_ms()
        whole = memoryview(buffer)
        wants_all = request.acks == -1
        retry_order, schema_guard = self._retry_order, self._opening.guard
        conditions = request.conditions
        may_name = MAX_NAMED_RECORDS
        number = -1
        for topic, datas in request.topics:
            known = topics.get(topic)
            topic_results: list[PartitionResult] = []
            for data in datas:
                index, start, end = data.partition, data.start, data.end
                number += 1
                partition = known.get(index) if known is not None else None
                if partition is None:
                    row = self._not_here(topic, by_id, index, known is None)
                    retry_order.note(topic, index, whole[start:end], ErrorCode(row.error))
                    self.errors[row.error] = self.errors.get(row.error, 0) + 1
                    topic_results.append(row)
                    continue
                try:
                    if partition.is_write_protected:
                        partition.check_may_write(by_broker=by_broker)
                    if not partition.is_leader:
                        raise partition.not_leader()
                    log = partition.log
                    if wants_all:
                        partition.check_enough_in_sync()
                    batch = whole[start:end]
                    if retry_order:
                        retry_order.check(topic, index, whole[start:end], log.producers)
                    if partition.new_leader_until and partition.is_new_leader:
                        self._gaps.check(topic, index, whole[start:end], log.producers)
                    if conditions is not None:
                        check_condition(conditions.get((topic, index)), log, batch)
                    if log.opens_batches or schema_guard.topics:
                        batch = self._as_opened(topic, partition, by_broker, batch, opened.get(number))
                    if verified is not None:
                        appended = verified.append(partition, batch, now_ms)
                    elif end - start > _FLAGS_BYTE and buffer[start + _FLAGS_BYTE] & TRANSACTIONAL_BIT:
                        raise KafkaError(
                            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                            "a transactional batch needs a transactional id in its request",
                        )
                    else:
                        appended = partition.append(batch, now_ms)
                except KafkaError as caught:
                    error = caught
                    if error.code in _LOG_STATE_ERRORS and partition.is_in_doubt:
                        error = partition.doubt_error(error)
                    elif error.code == ErrorCode.INVALID_TIMESTAMP and may_name > 0:
                        batch = whole[start:end]
                        may_name -= max(_MIN_NAMED_RECORDS_PER_BATCH, read_header(batch).record_count)
                        if may_name >= 0:
                            error = invalid_timestamps(batch, partition.log.config, now_ms) or error
                    retry_order.note(topic, index, whole[start:end], error.code)
                    self.errors[error.code] = self.errors.get(error.code, 0) + 1
                    row = _failed(partition, error)
                    if isinstance(error, UnexpectedEndError):
                        row.end_offset = error.end_offset
                        if error.refused_until > partition.high_watermark:
                            at = len(topic_results)
                            awaited.append(
                                Awaited(partition, topic_results, at, error.refused_until, _CONDITION_REFUSED)
                            )
                    topic_results.append(row)
                    continue
                end_offset = appended.last_offset + 1
                if not may_acknowledge(partition, end_offset, acks_all=wants_all):
                    awaited.append(Awaited(partition, topic_results, len(topic_results), end_offset))
                result = PartitionResult(
                    index, 0, appended.base_offset, appended.log_append_time, appended.log_start_offset
                )
                if conditions is not None and (topic, index) in conditions:
                    result.end_offset = end_offset
                topic_results.append(result)
            results.append((topic, topic_results))
        if not awaited:
            return results, None
        if request.acks == 0:
            for each in awaited:
                each.partition.when_flushed(each.partition.log.log_end_offset, lambda error: None)
            return results, None
        loop = self._environment.loop

        def wait(deliver: Deliver) -> None:
            PendingAck(results, awaited, wants_all, request.timeout_ms, deliver, loop, self.waiting)
            if self._check_timer is None:
                self._check_timer = loop.call_later(_CHECK_INTERVAL_SECONDS, self._check_waiting)

        return results, wait

    def _check_waiting(self) -> None:
        """Runs while responses wait: another node may lead their partitions now."""
        self._check_timer = None
        for pending in tuple(self.waiting):
            pending.check()
        if self.waiting:
            self._check_timer = self._environment.loop.call_later(_CHECK_INTERVAL_SECONDS, self._check_waiting)

    def _as_opened(
        self, topic: bytes, partition: Partition, by_broker: bool, batch: memoryview, opened: Opened | None
    ) -> memoryview:
        """The batch in the form that the topic needs; raises the fault that was found in it."""
        if opened is None:
            if self._opening.is_needed(topic, partition, by_broker):
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    "settings or leaders changed while the batch waited: send it again",
                )
            return batch
        if opened.fault is not None:
            raise opened.fault
        return batch if opened.converted is None else memoryview(opened.converted)

    def _not_here(self, topic: bytes, by_id: bool, index: int, topic_unknown: bool) -> PartitionResult:
        state = self._cluster.state_in_metadata(topic, by_id, index)
        if state is not None:
            return PartitionResult(
                index,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                message="this node has no replica of the partition: refresh metadata",
                current_leader=(state.leader, state.leader_epoch),
            )
        if by_id and topic_unknown:
            return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_ID, message="no topic has this id: refresh metadata")
        return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message="no such topic or partition")


def _failed(partition: Partition, error: KafkaError) -> PartitionResult:
    index = partition.topic_partition.partition
    if isinstance(error, InvalidRecordsError):
        return PartitionResult(index, error.code, message=error.message, record_errors=error.records)
    if error.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return PartitionResult(index, error.code, message=error.message)
    return PartitionResult(index, error.code, message=error.message, current_leader=partition.leader_for_clients)


class PendingAck:
    """A response that waits until its partitions are committed, flushed, or both."""

    def __init__(
        self,
        results: Results,
        awaited: list[Awaited],
        acks_all: bool,
        timeout_ms: int,
        deliver: Deliver,
        loop: asyncio.AbstractEventLoop,
        waiting: "OrderedSet[PendingAck]",
    ) -> None:
        self._results = results
        self._waiting = waiting
        waiting.add(self)
        self._acks_all = acks_all
        self._checks = 0
        self._deliver = deliver
        self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._give_up)
        # Filled before the first wait begins: some partitions may be done at once.
        self._open = dict(enumerate(awaited))
        self._waiters = [
            when_acknowledged(each.partition, each.end_offset, self._done(number), acks_all=acks_all)
            for number, each in enumerate(awaited)
        ]

    def _done(self, number: int) -> Callable[[KafkaError | None], None]:
        def callback(error: KafkaError | None) -> None:
            awaited = self._open.pop(number, None)
            if awaited is None:
                return  # timed out
            if error is not None:
                awaited.rows[awaited.at] = _failed(awaited.partition, error)
            if not self._open:
                self._timer.cancel()
                self._waiting.discard(self)
                self._deliver(self._results)

        return callback

    def check(self) -> None:
        """Gives the write up when its followers are late and this node has lost the controller.

        Another node probably leads the partition: the client should refresh its metadata and not wait for its timeout.
        The write may still be committed, as with every leader that is replaced.
        """
        self._checks += 1
        if self._checks < _MAX_CHECKS or not self._acks_all:
            return
        for number, awaited in tuple(self._open.items()):
            if awaited.partition.is_in_doubt:
                self._waiters[number].cancel()
                self._done(number)(awaited.partition.doubt_error(f"{awaited.what}, but not committed here"))

    def _give_up(self) -> None:
        late, self._open = self._open, {}
        self._waiting.discard(self)
        for waiter in self._waiters:
            waiter.cancel()
        for awaited in late.values():
            awaited.rows[awaited.at] = _failed(
                awaited.partition,
                KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{awaited.what}, but not acknowledged by the in-sync replicas, or not flushed, within the timeout",
                ),
            )
        self._deliver(self._results)
