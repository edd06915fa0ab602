"""Produce: append each partition's batches to its log, and answer as `acks` asks.

The append itself happens while the request's buffer is at hand; only the answer may wait: for the in-sync replicas with
acks=all, for an fsync in group-commit mode. Differences from Kafka: batches are not opened, but for topics that need it
(`opened_produce`), so a fault inside a compressed or large batch whose CRC is right is found when it is read (ADR 25);
and who waits for replicas is told at once, not after the timeout, that too few are left. What is of a transaction goes
through `transactional_produce` first. What comes behind a refused batch of its producer is refused as well
(`refused_batches`), and so is what a new leader gets before that which went to the old one (`sequence_gaps`), where
Kafka might take it.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from millstream.formats.model.errors import ErrorCode, InvalidRecordsError, KafkaError
from millstream.formats.protocol.produce import FIRST_WITH_TOPIC_ID, PartitionResult, ProduceRequest
from millstream.formats.records.batch import ATTRIBUTES_START, TRANSACTIONAL_BIT
from millstream.node.data.batch_opening import Opened, OpenedBatches, OpenedProduce
from millstream.node.environment import Environment
from millstream.node.metadata.image import PartitionState
from millstream.node.replicas.acknowledgement import may_acknowledge, when_acknowledged
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.replicas.refused_batches import RetryOrderGuard
from millstream.node.replicas.sequence_gaps import LeaderChangeGapGuard
from millstream.node.server.request import ProduceResults
from millstream.node.transactions.produce import Outcome, TransactionalProduce, Verified, refused

_NOTHING_OPENED: OpenedBatches = {}
Results = ProduceResults
Answer = Callable[[Results], None]
_FLAGS = ATTRIBUTES_START + 1
"""The byte of a batch that says whether it is of a transaction."""
_LOOK_S = 0.5
_LOOKS = 4
"""After how many looks a write that is still not committed is given up by a leader that has lost the controller. A
leader whose followers fetch gets there within one."""
_OF_THE_LOG = frozenset(
    (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
    )
)
"""What a log refuses because of what it has from the producer. Clients take it as final, and another leader's log may
say something else."""


class PartitionDirectory(Protocol):
    def state_elsewhere(self, topic: bytes, by_id: bool, index: int) -> PartitionState | None:
        """A partition that this node has no replica of, if there is one."""
        ...


class Awaited(NamedTuple):
    """A row of the answer that is not final before its partition has got somewhere."""

    partition: Partition
    rows: list[PartitionResult]
    at: int
    end_offset: int


class ProduceHandler:
    def __init__(
        self,
        partitions: PartitionTable,
        environment: Environment,
        cluster: PartitionDirectory,
        transactional: TransactionalProduce,
        opening: OpenedProduce,
    ) -> None:
        self._opening = opening
        self._partitions = partitions
        self._environment = environment
        self._cluster = cluster
        self._transactional = transactional
        self._refused = RetryOrderGuard(environment.loop.time)
        self._gaps = LeaderChangeGapGuard(environment.loop.time)
        self.waiting: set[PendingAck] = set()
        """Answers that wait for replicas or the disk."""
        self.errors: dict[int, int] = {}
        """How often partitions were answered with which error."""
        self._looking: asyncio.TimerHandle | None = None

    def append(
        self, request: ProduceRequest, version: int, buffer: bytearray, *, by_broker: bool = False
    ) -> tuple[Results, Callable[[Answer], None] | None]:
        """Appends everything and returns the results, with a way to wait for them if they are not final yet."""
        if not -1 <= request.acks <= 1:
            error = KafkaError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks} is not a choice: use 0, 1 or all (-1)"
            )
            return refused(request, error), None
        if request.transactional_id is None and self._opening.stays_closed(request, version):
            return self._append(request, version, buffer, by_broker, None, _NOTHING_OPENED)

        def append(request: ProduceRequest, buffer: bytearray, opened: OpenedBatches) -> Outcome:
            if request.transactional_id is not None:
                return self._transactional.append(request, version, buffer, _Appender(self, opened))
            return self._append(request, version, buffer, by_broker, None, opened)

        return self._opening.take(request, version, buffer, append, self.refuse, by_broker=by_broker)

    def refuse(self, request: ProduceRequest, buffer: bytearray, error: KafkaError) -> Results:
        """Refuses a request as a whole, and all that its producer has sent behind it."""
        whole = memoryview(buffer)
        for topic, datas in request.topics:
            for index, start, end in datas:
                self._refused.note(topic, index, whole[start:end], error.code)
        return refused(request, error)

    def _append(
        self,
        request: ProduceRequest,
        version: int,
        buffer: bytearray,
        by_broker: bool,
        verified: Verified | None,
        opened: OpenedBatches,
    ) -> Outcome:
        """`opened` is what was found in the batches that had to be opened, by their number in the request."""
        results: Results = []
        awaited: list[Awaited] = []
        by_id = version >= FIRST_WITH_TOPIC_ID
        topics = self._partitions.by_id if by_id else self._partitions.by_name
        now_ms = self._environment.clock.now_ms()
        whole = memoryview(buffer)
        wants_all = request.acks == -1
        earlier, guard = self._refused, self._opening.guard
        number = -1
        for topic, datas in request.topics:
            known = topics.get(topic)
            topic_results: list[PartitionResult] = []
            for index, start, end in datas:
                number += 1
                partition = known.get(index) if known is not None else None
                if partition is None:
                    row = self._not_here(topic, by_id, index, known is None)
                    earlier.note(topic, index, whole[start:end], ErrorCode(row.error))
                    self.errors[row.error] = self.errors.get(row.error, 0) + 1
                    topic_results.append(row)
                    continue
                try:
                    if partition.is_internal and not by_broker:
                        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "only brokers write to internal topics")
                    if not partition.is_leader:
                        raise partition.not_leader()
                    log = partition.log
                    if wants_all:
                        partition.check_enough_in_sync()
                    batch = whole[start:end]
                    if earlier:
                        earlier.check(topic, index, whole[start:end], log.producers)
                    if partition.new_leader_until and partition.is_new_leader:
                        self._gaps.check(topic, index, whole[start:end], log.producers)
                    if log.opens_batches or guard:
                        batch = self._as_opened(topic, partition, by_broker, batch, opened.get(number))
                    if verified is not None:
                        appended = verified.append(partition, batch, now_ms)
                    elif end - start > _FLAGS and buffer[start + _FLAGS] & TRANSACTIONAL_BIT:
                        raise KafkaError(
                            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                            "a batch of a transaction comes with a transactional id",
                        )
                    else:
                        appended = partition.append(batch, now_ms)
                except KafkaError as caught:
                    error = caught
                    if error.code in _OF_THE_LOG and partition.is_in_doubt:
                        error = partition.doubted(error)
                    earlier.note(topic, index, whole[start:end], error.code)
                    self.errors[error.code] = self.errors.get(error.code, 0) + 1
                    topic_results.append(_failed(partition, error))
                    continue
                end_offset = appended[1] + 1
                if not may_acknowledge(partition, end_offset, acks_all=wants_all):
                    awaited.append(Awaited(partition, topic_results, len(topic_results), end_offset))
                topic_results.append(
                    PartitionResult(index, 0, appended[0], appended.log_append_time, appended.log_start_offset)
                )
            results.append((topic, topic_results))
        if not awaited:
            return results, None
        if request.acks == 0:
            for each in awaited:
                each.partition.when_flushed(each.partition.log.log_end_offset, lambda error: None)
            return results, None
        loop = self._environment.loop

        def wait(answer: Answer) -> None:
            PendingAck(results, awaited, wants_all, request.timeout_ms, answer, loop, self.waiting)
            if self._looking is None:
                self._looking = loop.call_later(_LOOK_S, self._look)

        return results, wait

    def _look(self) -> None:
        """As long as anything waits: whether it waits in vain, since another node may lead."""
        self._looking = None
        for pending in tuple(self.waiting):
            pending.look()
        if self.waiting:
            self._looking = self._environment.loop.call_later(_LOOK_S, self._look)

    def _as_opened(
        self, topic: bytes, partition: Partition, by_broker: bool, batch: memoryview, opened: Opened | None
    ) -> memoryview:
        """The batch as the topic takes it; raises what was found to be wrong with it."""
        if opened is None:
            if self._opening.missing(topic, partition, by_broker):
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    "settings or leaders changed while the batch waited: send it again",
                )
            return batch
        if opened.fault is not None:
            raise opened.fault
        return batch if opened.converted is None else memoryview(opened.converted)

    def _not_here(self, topic: bytes, by_id: bool, index: int, topic_unknown: bool) -> PartitionResult:
        state = self._cluster.state_elsewhere(topic, by_id, index)
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
    return PartitionResult(index, error.code, message=error.message, current_leader=partition.leader_to_name)


class _Appender:
    """Takes a request of a transaction whose batches were opened, as far as that was needed."""

    __slots__ = ("_handler", "_opened")

    def __init__(self, handler: ProduceHandler, opened: OpenedBatches) -> None:
        self._handler = handler
        self._opened = opened

    def append_verified(self, request: ProduceRequest, version: int, buffer: bytearray, verified: Verified) -> Outcome:
        return self._handler._append(request, version, buffer, False, verified, self._opened)

    def refuse(self, request: ProduceRequest, buffer: bytearray, error: KafkaError) -> Results:
        return self._handler.refuse(request, buffer, error)


class PendingAck:
    """An answer that waits for several partitions to be committed, on disk, or both."""

    def __init__(
        self,
        results: Results,
        awaited: list[Awaited],
        acks_all: bool,
        timeout_ms: int,
        answer: Answer,
        loop: asyncio.AbstractEventLoop,
        waiting: "set[PendingAck]",
    ) -> None:
        self._results = results
        self._waiting = waiting
        waiting.add(self)
        self._acks_all = acks_all
        self._looks = 0
        self._answer = answer
        self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._give_up)
        # All of them are open before the first is waited for: some may be done at once.
        self._open = dict(enumerate(awaited))
        self._waiters = [
            when_acknowledged(each.partition, each.end_offset, self._done(number), acks_all=acks_all)
            for number, each in enumerate(awaited)
        ]

    def _done(self, number: int) -> Callable[[KafkaError | None], None]:
        def callback(error: KafkaError | None) -> None:
            awaited = self._open.pop(number, None)
            if awaited is None:
                return  # the time was up
            if error is not None:
                awaited.rows[awaited.at] = _failed(awaited.partition, error)
            if not self._open:
                self._timer.cancel()
                self._waiting.discard(self)
                self._answer(self._results)

        return callback

    def look(self) -> None:
        """Called now and then. A leader that has waited for its followers for long and has lost the controller, too,
        was probably deposed: the client should look for the new leader, and not wait until its own time is up.

        The write may be in the log, and may be committed there, as with every leader that is deposed.
        """
        self._looks += 1
        if self._looks < _LOOKS or not self._acks_all:
            return
        for number, awaited in tuple(self._open.items()):
            if awaited.partition.is_in_doubt:
                self._waiters[number].cancel()
                self._done(number)(awaited.partition.doubted("appended, but not committed here"))

    def _give_up(self) -> None:
        late, self._open = self._open, {}
        self._waiting.discard(self)
        for waiter in self._waiters:
            waiter.cancel()
        for awaited in late.values():
            awaited.rows[awaited.at] = _failed(
                awaited.partition,
                KafkaError(ErrorCode.REQUEST_TIMED_OUT, "appended, but not known to be safe within the timeout"),
            )
        self._answer(self._results)
