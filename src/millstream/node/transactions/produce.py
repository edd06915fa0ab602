"""Produce in a transaction: verifies with the coordinator that the partition belongs to the transaction (KIP-890).

A request whose partitions are all verified is appended at once. Any other request waits for the coordinator. Later
requests of the same producer wait too, on every connection, so that sequences stay in order. Requests that wait
together are verified by one request to the coordinator.

    arrived ──verified, no earlier request waits──> appended ──> response
       └──────> waiting (its bytes are copied) ──response of the coordinator──> appended ──> response

Also here: `ProduceCall`, the produce request that all stages of `data/produce.py` pass on, and `refused`. The package
`data` imports this one, so they cannot be there.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from struct import Struct
from typing import Any, Protocol

from millstream.common.background_tasks import BackgroundTasks
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicPartition, VerificationGuard
from millstream.formats.protocol.produce import FIRST_WITH_TOPIC_ID, PartitionData, PartitionResult, ProduceRequest
from millstream.formats.records.batch import ATTRIBUTES_START, HEADER, HEADER_SIZE, TRANSACTIONAL_BIT
from millstream.node.environment import Environment
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.server.request import ProduceResults
from millstream.node.storage.log.appended import Appended
from millstream.node.transactions.verification import FIRST_PRODUCE_THAT_ADDS, for_producer

Deliver = Callable[[ProduceResults], None]
Produced = tuple[ProduceResults, Callable[[Deliver], None] | None]
"""Results; with a function that delivers them later if they are not final yet."""

MAX_WAITING_BYTES = 256 << 20
"""Limit of the requests that wait for coordinators. Requests above it are refused with a retriable error."""

_ALL_IN_SYNC = -1
_FLAGS_BYTE = ATTRIBUTES_START + 1
_PRODUCER = Struct(">qh")
"""Producer id and epoch in a batch's header, and where they are."""
_PRODUCER_START = 43
_log = logging.getLogger("millstream.transactions")


class Verification(Protocol):
    """Verifies partitions with the transaction coordinator, on this or another broker."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Awaitable[dict[TopicPartition, ErrorCode]]: ...


class Verified:
    """The result of the verification for the partitions of a request; needed to append its batches."""

    __slots__ = ("_epochs", "_errors", "_guards", "_needs_guard")

    def __init__(self, needs_guard: bool) -> None:
        self._needs_guard = needs_guard
        self._guards: dict[Partition, VerificationGuard] = {}
        self._epochs: dict[Partition, int] = {}
        self._errors: dict[Partition, KafkaError] = {}

    def guarded(self) -> list[Partition]:
        return list(self._guards)

    def guard(self, partition: Partition, guard: VerificationGuard) -> None:
        self._guards[partition] = guard
        self._epochs[partition] = partition.leader_epoch

    def refuse(self, partition: Partition, error: KafkaError) -> None:
        self._errors[partition] = error

    def append(self, partition: Partition, batches: memoryview, now_ms: int) -> Appended:
        if self._errors and partition in self._errors:
            raise self._errors[partition]
        guard = self._guards.get(partition) if self._guards else None
        if guard is not None and partition.leader_epoch != self._epochs[partition]:
            # The log may have changed since; the earlier one was verified.
            raise partition.not_leader()
        return partition.append(batches, now_ms, guard=guard, needs_guard=self._needs_guard)


_ALREADY_VERIFIED = Verified(needs_guard=True)
"""For transactions that are open in all partitions of a request: no verification is needed."""


class ProduceCall:
    """A produce request on its way to the log: its bytes, and the results of the stages before the append."""

    __slots__ = ("buffer", "by_broker", "opened", "request", "verified", "version")

    def __init__(self, request: ProduceRequest, version: int, buffer: bytearray, by_broker: bool = False) -> None:
        self.request = request
        self.version = version
        self.buffer = buffer
        self.by_broker = by_broker
        """Whether another broker sends it; only brokers write to internal topics."""
        self.opened: Mapping[int, Any] = {}
        """The batches that had to be opened, by their number in the request (`data/batch_opening`)."""
        self.verified: Verified | None = None
        """None outside of transactions."""

    def own_bytes(self) -> None:
        """Copies the batches: the connection reuses its buffer as soon as the request was handled."""
        self.request, self.buffer = copied(self.request, self.buffer)


Append = Callable[[ProduceCall], Produced]
Refuse = Callable[[ProduceCall, KafkaError], ProduceResults]
"""Refuses a request as a whole, with the batches that its producer sent after it."""


class _Batches:
    """The transactional batches of a request, and their producer."""

    __slots__ = ("epoch", "partitions", "producer_id", "transactional_id")

    def __init__(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.epoch = epoch
        self.partitions: list[tuple[Partition, int]] = []
        """Partitions with a replica on this node, with the first sequence for each."""

    def has_same_producer(self, other: "_Batches") -> bool:
        return (self.transactional_id, self.epoch) == (other.transactional_id, other.epoch)


class _WaitingRequest:
    """A request that waits for its coordinator, or for an earlier request of its producer."""

    __slots__ = ("append", "batches", "call", "deliver", "size")

    def __init__(self, call: ProduceCall, batches: _Batches, append: Append) -> None:
        call.own_bytes()
        self.call = call
        self.append = append
        self.batches = batches
        self.size = len(call.buffer)
        self.deliver: Deliver | None = None

    def wait(self, deliver: Deliver) -> None:
        self.deliver = deliver


class TransactionalProduce:
    """Verifies the partitions of transactional produce requests, and keeps the requests of a producer in order."""

    def __init__(
        self,
        partitions: PartitionTable,
        verification: Verification,
        environment: Environment,
        is_enabled: Callable[[], bool],
    ) -> None:
        """`is_enabled` returns whether partitions are verified for producers that add them with AddPartitionsToTxn."""
        self._partitions = partitions
        self._verification = verification
        self._environment = environment
        self._is_enabled = is_enabled
        self._queues: dict[int, deque[_WaitingRequest]] = {}
        """The waiting requests of each producer, in order of arrival."""
        self._waiting_bytes = 0
        self._tasks = BackgroundTasks()

    def verify(self, call: ProduceCall, append: Append, refuse: Refuse) -> Produced:
        """Appends the request, now or when the coordinator has verified its partitions."""
        request, version, buffer = call.request, call.version, call.buffer
        if self._continues_transaction(request, version, buffer):
            call.verified = _ALREADY_VERIFIED
            return append(call)
        try:
            batches = self._batches(request, version, buffer)
        except KafkaError as error:
            return refused(request, error), None
        if batches is None:
            call.verified = Verified(False)
            return append(call)
        queue = self._queues.get(batches.producer_id)
        if queue is None:
            verified = call.verified = Verified(self._is_enabled())
            self._begin_verification(batches, version, verified)
            if not verified.guarded():
                return append(call)
        waiting = _WaitingRequest(call, batches, append)
        if self._waiting_bytes + waiting.size > MAX_WAITING_BYTES:
            too_much = KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, "too many requests wait for their transaction coordinators: try again"
            )
            return refuse(call, too_much), None
        self._waiting_bytes += waiting.size
        if queue is not None:
            queue.append(waiting)
        else:
            self._queues[batches.producer_id] = deque((waiting,))
            self._tasks.start(self._drain(batches.producer_id), loop=self._environment.loop)
        return [], waiting.wait

    def _continues_transaction(self, request: ProduceRequest, version: int, buffer: bytearray) -> bool:
        """Whether all batches are of one producer whose transaction is open in their partitions: the usual case."""
        topics = self._partitions.by_id if version >= FIRST_WITH_TOPIC_ID else self._partitions.by_name
        first: tuple[int, int] | None = None
        for topic, datas in request.topics:
            known = topics.get(topic)
            if known is None:
                return False
            for data in datas:
                partition, start = known.get(data.partition), data.start
                if (
                    partition is None
                    or data.end - start < HEADER_SIZE
                    or not buffer[start + _FLAGS_BYTE] & TRANSACTIONAL_BIT
                ):
                    return False
                producer = _PRODUCER.unpack_from(buffer, start + _PRODUCER_START)
                if first is None:
                    first = producer
                elif producer != first:
                    return False
                if not partition.has_open_transaction(*producer):
                    return False
        return first is not None and request.acks == _ALL_IN_SYNC and first[0] not in self._queues

    def _batches(self, request: ProduceRequest, version: int, buffer: bytearray) -> _Batches | None:
        """The request's transactional batches; None if it has none. A transactional id alone makes no transaction."""
        topics = self._partitions.by_id if version >= FIRST_WITH_TOPIC_ID else self._partitions.by_name
        found: _Batches | None = None
        for topic, datas in request.topics:
            known = topics.get(topic)
            for data in datas:
                if data.end - data.start < HEADER_SIZE:
                    continue  # the log refuses it with the reason
                header = HEADER.unpack_from(buffer, data.start)
                attributes, producer_id, epoch, sequence = header[5], header[9], header[10], header[11]
                if not attributes & TRANSACTIONAL_BIT or producer_id < 0:
                    continue
                if found is None:
                    assert request.transactional_id is not None
                    found = _Batches(request.transactional_id.decode(errors="replace"), producer_id, epoch)
                elif (found.producer_id, found.epoch) != (producer_id, epoch):
                    raise KafkaError(
                        ErrorCode.INVALID_PRODUCER_ID_MAPPING, "all batches of a transaction must have one producer id"
                    )
                partition = known.get(data.partition) if known is not None else None
                if partition is not None:
                    found.partitions.append((partition, sequence))
        if found is not None and request.acks != _ALL_IN_SYNC:
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, "in a transaction acks must be all (-1)")
        return found

    def _begin_verification(self, batches: _Batches, version: int, verified: Verified) -> None:
        """Finds the partitions to verify. A partition that refuses does so again at the append."""
        adds = version >= FIRST_PRODUCE_THAT_ADDS
        if not adds and not self._is_enabled():
            return
        for partition, sequence in batches.partitions:
            try:
                guard = partition.begin_verification(batches.producer_id, batches.epoch, sequence, bumps_epoch=adds)
            except KafkaError as error:
                verified.refuse(partition, error)
            else:
                if guard is not None:
                    verified.guard(partition, guard)

    # Requests that wait

    async def _drain(self, producer_id: int) -> None:
        """Appends the waiting requests of a producer until there are none."""
        queue = self._queues[producer_id]
        try:
            while queue:
                together = self._verified_together(queue)
                verdicts = await self._verify(together)
                for waiting, verified in zip(together, verdicts, strict=True):
                    queue.popleft()
                    self._append(waiting, verified)
        finally:
            # Without its task, no later request may wait in the queue.
            del self._queues[producer_id]
            for waiting in queue:
                self._refuse_waiting(waiting)

    @staticmethod
    def _verified_together(queue: deque[_WaitingRequest]) -> list[_WaitingRequest]:
        """The first requests of the queue that one request to the coordinator verifies."""
        first = queue[0]
        together: list[_WaitingRequest] = []
        for waiting in queue:
            if waiting.call.version != first.call.version or not waiting.batches.has_same_producer(first.batches):
                break
            together.append(waiting)
        return together

    async def _verify(self, together: list[_WaitingRequest]) -> list[Verified]:
        first = together[0]
        verdicts = []
        unverified: dict[TopicPartition, None] = {}
        for waiting in together:
            verified = Verified(self._is_enabled())
            self._begin_verification(waiting.batches, waiting.call.version, verified)
            unverified.update((partition.topic_partition, None) for partition in verified.guarded())
            verdicts.append(verified)
        if not unverified:
            return verdicts
        batches = first.batches
        errors: Mapping[TopicPartition, ErrorCode]
        try:
            errors = await self._verification.verify(
                batches.transactional_id,
                batches.producer_id,
                batches.epoch,
                list(unverified),
                adds=first.call.version >= FIRST_PRODUCE_THAT_ADDS,
            )
        except Exception:
            _log.exception("verification_failed transactional_id=%s", batches.transactional_id)
            errors = dict.fromkeys(unverified, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for verified in verdicts:
            for partition in verified.guarded():
                error = errors.get(partition.topic_partition, ErrorCode.INVALID_TXN_STATE)
                if error != ErrorCode.NONE:
                    verified.refuse(partition, _refusal(error, first.call.version))
        return verdicts

    def _append(self, waiting: _WaitingRequest, verified: Verified) -> None:
        self._waiting_bytes -= waiting.size
        deliver, call = waiting.deliver, waiting.call
        assert deliver is not None, "the caller waits for the results"
        call.verified = verified
        try:
            results, wait = waiting.append(call)
        except Exception:
            _log.exception("produce_failed transactional_id=%s", waiting.batches.transactional_id)
            unknown = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "see the broker's log")
            results, wait = refused(call.request, unknown), None
        if wait is not None:
            wait(deliver)
        else:
            deliver(results)

    def _refuse_waiting(self, waiting: _WaitingRequest) -> None:
        self._waiting_bytes -= waiting.size
        if waiting.deliver is not None:
            stopping = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "the broker is stopping")
            waiting.deliver(refused(waiting.call.request, stopping))

    def close(self) -> None:
        self._tasks.cancel()


def refused(request: ProduceRequest, error: KafkaError) -> ProduceResults:
    """The results that refuse a request as a whole."""
    return [
        (topic, [PartitionResult(data.partition, error.code, message=error.message) for data in datas])
        for topic, datas in request.topics
    ]


def _refusal(error: ErrorCode, version: int) -> KafkaError:
    code = for_producer(error, version)
    if error == ErrorCode.INVALID_TXN_STATE:
        return KafkaError(code, "the partition was not added to the transaction")
    if code != error:
        return KafkaError(code, f"the transaction coordinator could not verify the partition: {error.name}")
    return KafkaError(code, f"the transaction coordinator refused the partition: {error.name}")


def copied(request: ProduceRequest, buffer: bytearray) -> tuple[ProduceRequest, bytearray]:
    """The request, with a copy of its batches."""
    copy = bytearray()
    view = memoryview(buffer)
    topics = []
    for topic, datas in request.topics:
        moved = []
        for data in datas:
            moved.append(PartitionData(data.partition, len(copy), len(copy) + data.end - data.start))
            copy += view[data.start : data.end]
        topics.append((topic, moved))
    return request.with_topics(topics), copy
