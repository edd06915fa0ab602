"""Produce in a transaction: the first batch in a partition is taken once the coordinator knows of it (KIP-890).

A request that needs no question is appended on the spot. One that does waits, and so does everything of the same
producer that comes after it, on whatever connection: sequences stay in order. What has gathered by then is asked about
together, so a producer waits for its coordinator once and not once for each partition.

    arrived ──nothing to ask, nobody waits──> appended ──> answered
       └──────> waiting (its bytes are copied) ──the coordinator has answered──> appended ──> answered
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from struct import Struct
from typing import Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicPartition, VerificationGuard
from millstream.formats.model.ordered_set import OrderedSet
from millstream.formats.protocol.produce import FIRST_WITH_TOPIC_ID, PartitionData, PartitionResult, ProduceRequest
from millstream.formats.records.batch import ATTRIBUTES_START, HEADER, HEADER_SIZE, TRANSACTIONAL_BIT
from millstream.node.environment import Environment
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.server.request import ProduceResults
from millstream.node.storage.log.partition_log import Appended
from millstream.node.transactions.verification import FIRST_THAT_ADDS, for_producer

Answer = Callable[[ProduceResults], None]
Outcome = tuple[ProduceResults, Callable[[Answer], None] | None]
"""Results, with a way to wait for them if they are not final yet."""

MOST_WAITING_BYTES = 256 << 20
"""What may wait for coordinators at a time; clients are told to come again with what is more than that."""

_ALL_IN_SYNC = -1
_FLAGS = ATTRIBUTES_START + 1
_WRITER = Struct(">qh")
"""Producer id and epoch in a batch's header, and where they are."""
_WRITER_START = 43
_log = logging.getLogger("millstream.transactions")


class Verification(Protocol):
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
    """What is known of a request's partitions when its batches are appended."""

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
            # The log may be another one since: what was asked about is the earlier one.
            raise partition.not_leader()
        return partition.append(batches, now_ms, guard=guard, needs_guard=self._needs_guard)


_OPEN = Verified(needs_guard=True)
"""For batches of transactions that are open where they go: there is nothing to know."""


class Appender(Protocol):
    """Takes a request's batches, as `Verified` allows it."""

    def append_verified(
        self, request: ProduceRequest, version: int, buffer: bytearray, verified: Verified
    ) -> Outcome: ...

    def refuse(self, request: ProduceRequest, buffer: bytearray, error: KafkaError) -> ProduceResults:
        """Refuses a request as a whole, and all that its producer has sent behind it."""
        ...


class _Batches:
    """The batches of a request that are of a transaction, and whose they are."""

    __slots__ = ("epoch", "of", "producer_id", "transactional_id")

    def __init__(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.epoch = epoch
        self.of: list[tuple[Partition, int]] = []
        """Partitions that are here, with the first sequence for each."""

    def is_of_the_same(self, other: "_Batches") -> bool:
        return (self.transactional_id, self.epoch) == (other.transactional_id, other.epoch)


class _Waiting:
    __slots__ = ("answer", "appender", "batches", "buffer", "request", "size", "version")

    def __init__(
        self, request: ProduceRequest, version: int, buffer: bytearray, batches: _Batches, appender: Appender
    ) -> None:
        self.version = version
        self.appender = appender
        self.batches = batches
        self.request, self.buffer = copied(request, buffer)
        self.size = len(self.buffer)
        self.answer: Answer | None = None

    def wait(self, answer: Answer) -> None:
        self.answer = answer


class TransactionalProduce:
    def __init__(
        self,
        partitions: PartitionTable,
        verification: Verification,
        environment: Environment,
        is_enabled: Callable[[], bool],
    ) -> None:
        """`is_enabled` says whether partitions are verified for producers that add them by themselves beforehand."""
        self._partitions = partitions
        self._verification = verification
        self._environment = environment
        self._is_enabled = is_enabled
        self._queues: dict[int, deque[_Waiting]] = {}
        """For each producer that waits: its requests in the order in which they came."""
        self._waiting_bytes = 0
        self._tasks: OrderedSet[asyncio.Future[None]] = OrderedSet()

    def append(self, request: ProduceRequest, version: int, buffer: bytearray, appender: Appender) -> Outcome:
        if self._goes_on(request, version, buffer):
            return appender.append_verified(request, version, buffer, _OPEN)
        try:
            batches = self._batches(request, version, buffer)
        except KafkaError as error:
            return refused(request, error), None
        if batches is None:
            return appender.append_verified(request, version, buffer, Verified(False))
        queue = self._queues.get(batches.producer_id)
        if queue is None:
            verified = Verified(self._is_enabled())
            self._begin(batches, version, verified)
            if not verified.guarded():
                return appender.append_verified(request, version, buffer, verified)
        waiting = _Waiting(request, version, buffer, batches, appender)
        if self._waiting_bytes + waiting.size > MOST_WAITING_BYTES:
            too_much = KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, "too many requests wait for their transaction coordinators: try again"
            )
            return appender.refuse(request, buffer, too_much), None
        self._waiting_bytes += waiting.size
        if queue is not None:
            queue.append(waiting)
        else:
            self._queues[batches.producer_id] = deque((waiting,))
            task = asyncio.ensure_future(self._work(batches.producer_id), loop=self._environment.loop)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return [], waiting.wait

    def _goes_on(self, request: ProduceRequest, version: int, buffer: bytearray) -> bool:
        """Whether all batches are of one producer whose transaction is open where they go: most requests are so."""
        topics = self._partitions.by_id if version >= FIRST_WITH_TOPIC_ID else self._partitions.by_name
        first: tuple[int, int] | None = None
        for topic, datas in request.topics:
            known = topics.get(topic)
            if known is None:
                return False
            for index, start, end in datas:
                partition = known.get(index)
                if partition is None or end - start < HEADER_SIZE or not buffer[start + _FLAGS] & TRANSACTIONAL_BIT:
                    return False
                writer = _WRITER.unpack_from(buffer, start + _WRITER_START)
                if first is None:
                    first = writer
                elif writer != first:
                    return False
                if not partition.has_open_transaction(*writer):
                    return False
        return first is not None and request.acks == _ALL_IN_SYNC and first[0] not in self._queues

    def _batches(self, request: ProduceRequest, version: int, buffer: bytearray) -> _Batches | None:
        """The request's transactional batches; None if it has none: the id alone makes no transaction."""
        topics = self._partitions.by_id if version >= FIRST_WITH_TOPIC_ID else self._partitions.by_name
        found: _Batches | None = None
        for topic, datas in request.topics:
            known = topics.get(topic)
            for index, start, end in datas:
                if end - start < HEADER_SIZE:
                    continue  # the log says what is wrong with it
                header = HEADER.unpack_from(buffer, start)
                attributes, producer_id, epoch, sequence = header[5], header[9], header[10], header[11]
                if not attributes & TRANSACTIONAL_BIT or producer_id < 0:
                    continue
                if found is None:
                    assert request.transactional_id is not None
                    found = _Batches(request.transactional_id.decode(errors="replace"), producer_id, epoch)
                elif (found.producer_id, found.epoch) != (producer_id, epoch):
                    raise KafkaError(
                        ErrorCode.INVALID_PRODUCER_ID_MAPPING, "the batches of a transaction are of one producer"
                    )
                partition = known.get(index) if known is not None else None
                if partition is not None:
                    found.of.append((partition, sequence))
        if found is not None and request.acks != _ALL_IN_SYNC:
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, "in a transaction acks must be all (-1)")
        return found

    def _begin(self, batches: _Batches, version: int, verified: Verified) -> None:
        """Notes what must be asked about; partitions that refuse will do so again when it comes to the append."""
        adds = version >= FIRST_THAT_ADDS
        if not adds and not self._is_enabled():
            return
        for partition, sequence in batches.of:
            try:
                guard = partition.begin_verification(batches.producer_id, batches.epoch, sequence, bumps_epoch=adds)
            except KafkaError as error:
                verified.refuse(partition, error)
            else:
                if guard is not None:
                    verified.guard(partition, guard)

    # Those who wait

    async def _work(self, producer_id: int) -> None:
        """Brings the requests of a producer into the log, as long as there are any."""
        queue = self._queues[producer_id]
        try:
            while queue:
                together = self._first_of_a_kind(queue)
                verdicts = await self._verify(together)
                for waiting, verified in zip(together, verdicts, strict=True):
                    queue.popleft()
                    self._append(waiting, verified)
        finally:
            # Nobody else may come to wait behind a task that is gone.
            del self._queues[producer_id]
            for waiting in queue:
                self._give_up(waiting)

    @staticmethod
    def _first_of_a_kind(queue: deque[_Waiting]) -> list[_Waiting]:
        """The requests at the head that one question serves."""
        first = queue[0]
        together: list[_Waiting] = []
        for waiting in queue:
            if waiting.version != first.version or not waiting.batches.is_of_the_same(first.batches):
                break
            together.append(waiting)
        return together

    async def _verify(self, together: list[_Waiting]) -> list[Verified]:
        first = together[0]
        verdicts = []
        asked: dict[TopicPartition, None] = {}
        for waiting in together:
            verified = Verified(self._is_enabled())
            self._begin(waiting.batches, waiting.version, verified)
            asked.update((partition.topic_partition, None) for partition in verified.guarded())
            verdicts.append(verified)
        if not asked:
            return verdicts
        batches = first.batches
        errors: Mapping[TopicPartition, ErrorCode]
        try:
            errors = await self._verification.verify(
                batches.transactional_id,
                batches.producer_id,
                batches.epoch,
                list(asked),
                adds=first.version >= FIRST_THAT_ADDS,
            )
        except Exception:
            _log.exception("verification_failed transactional_id=%s", batches.transactional_id)
            errors = dict.fromkeys(asked, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for verified in verdicts:
            for partition in verified.guarded():
                error = errors.get(partition.topic_partition, ErrorCode.INVALID_TXN_STATE)
                if error != ErrorCode.NONE:
                    verified.refuse(partition, _refusal(error, first.version))
        return verdicts

    def _append(self, waiting: _Waiting, verified: Verified) -> None:
        self._waiting_bytes -= waiting.size
        answer = waiting.answer
        assert answer is not None, "whoever is told to wait does so"
        try:
            results, wait = waiting.appender.append_verified(waiting.request, waiting.version, waiting.buffer, verified)
        except Exception:
            _log.exception("produce_failed transactional_id=%s", waiting.batches.transactional_id)
            unknown = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "see the broker's log")
            results, wait = refused(waiting.request, unknown), None
        if wait is not None:
            wait(answer)
        else:
            answer(results)

    def _give_up(self, waiting: _Waiting) -> None:
        self._waiting_bytes -= waiting.size
        if waiting.answer is not None:
            stopping = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "the broker is stopping")
            waiting.answer(refused(waiting.request, stopping))

    def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()


def refused(request: ProduceRequest, error: KafkaError) -> ProduceResults:
    """The answer that refuses a request as a whole."""
    return [
        (topic, [PartitionResult(index, error.code, message=error.message) for index, _, _ in datas])
        for topic, datas in request.topics
    ]


def _refusal(error: ErrorCode, version: int) -> KafkaError:
    told = for_producer(error, version)
    if error == ErrorCode.INVALID_TXN_STATE:
        return KafkaError(told, "the partition was not added to the transaction")
    if told != error:
        return KafkaError(told, f"the transaction coordinator could not say yes: {error.name}")
    return KafkaError(told, f"the transaction coordinator says no: {error.name}")


def copied(request: ProduceRequest, buffer: bytearray) -> tuple[ProduceRequest, bytearray]:
    """The request with a buffer of its own: the connection's is used again as soon as we return."""
    copy = bytearray()
    view = memoryview(buffer)
    topics = []
    for topic, datas in request.topics:
        moved = []
        for index, start, end in datas:
            moved.append(PartitionData(index, len(copy), len(copy) + end - start))
            copy += view[start:end]
        topics.append((topic, moved))
    return request._replace(topics=topics), copy
