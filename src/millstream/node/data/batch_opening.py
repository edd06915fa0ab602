"""Opens batches before they are appended, for the topics that need it.

Compacted topics need a key in each record, topics with `millstream.*.schema.validation` a registered schema id, topics
with their own `compression.type` another codec. Batches for all other topics stay closed.

    arrived ──nothing to open, or little, and no earlier request waits──> appended
       └──────> held (its bytes are copied) ──its turn──> headers checked ──> opened in a thread ──> appended
                                                              │                    └──schema id not known───────┐
                                                              └──refused: never opened    schemas are read ─────┘

Later requests for the same partitions are held too, so that no request overtakes another. Each partition has a queue.
The request that is first in all of its queues is opened next, a few at a time. A connection is not read while it has a
request here, so it has at most one.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from millstream.common.background_tasks import BackgroundTasks
from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, InvalidRecordsError, KafkaError
from millstream.formats.protocol.produce import FIRST_WITH_TOPIC_ID, PartitionData, ProduceRequest
from millstream.formats.records.batch import HEADER_SIZE, Bytes, has_valid_checksum, is_plausible, read_header
from millstream.formats.records.opening import (
    SMALL_BYTES,
    SMALL_RECORDS,
    BeyondLimitsError,
    OpeningLimits,
    check,
    opened,
)
from millstream.node.data.schema_validation import (
    MAX_RECORD_ERRORS,
    SchemaGuard,
    UnknownSchemaError,
    WantedSchemas,
    schema_fault,
)
from millstream.node.environment import Environment
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.server.request import DeferredResults
from millstream.node.storage.log.batch_admission import Recompression, recompress, recompression_of, refusal
from millstream.node.transactions.produce import Append, Deliver, ProduceCall, Produced, Refuse

_NO_KEY = "a compacted topic takes only records with a key"


class RequiredChecks(NamedTuple):
    """Why the batches of a log are opened: keys to check, schemas to check, another codec."""

    keys: bool
    schemas: WantedSchemas | None
    recompression: Recompression | None


class Opened(NamedTuple):
    """The result of opening a batch."""

    fault: KafkaError | None = None
    """Why it is refused."""
    converted: bytearray | None = None
    """The batch in the topic's codec, if that is another one than the sender's."""
    size: int = 0
    """Bytes of the records, decompressed; the limit if they could not be decompressed."""


def required_checks(config: LogConfig, schemas: WantedSchemas | None) -> RequiredChecks | None:
    """The checks that a log's settings require; None if its batches stay closed."""
    keys = "compact" in config.cleanup_policy
    recompression = recompression_of(config)
    if not keys and schemas is None and recompression is None:
        return None
    return RequiredChecks(keys, schemas, recompression)


def open_batch(batch: Bytes, checks: RequiredChecks, limits: OpeningLimits, most: int = MAX_RECORD_ERRORS) -> Opened:
    """Opens a batch whose header and checksum are right. Raises BeyondLimitsError; any other fault is in the result.
    Uses only its arguments: it may run in a thread.

    A fault names at most `most` records, and one at least: clients drop those, and keep the others.
    """
    most = max(1, most)
    header = read_header(batch)
    converted: bytearray | None = None
    size = limits.max_bytes
    try:
        with opened(header, batch, limits) as records:
            size = len(records)
            keyless = check(header, records, needs_keys=checks.keys, most=most)
            if keyless:
                return Opened(_without_keys(keyless, header.record_count, most), size=size)
            if checks.schemas is not None:
                fault = schema_fault(header, records, checks.schemas, most)
                if fault is not None:
                    return Opened(fault, size=size)
            if checks.recompression is not None and checks.recompression.codec != header.codec:
                converted = recompress(batch, header, records, checks.recompression)
    except BeyondLimitsError:
        raise
    except KafkaError as error:
        return Opened(error, size=size)
    return Opened(None, converted, size)


def _without_keys(keyless: list[int], count: int, most: int) -> InvalidRecordsError:
    least = "at least " if len(keyless) >= most else ""
    message = (
        f"{least}{len(keyless)} of {count} records have no key, record {keyless[0]} is the first: {_NO_KEY}. "
        "Send the others again without them"
    )
    return InvalidRecordsError(message, tuple((number, _NO_KEY) for number in keyless))


def _named_record_count(opened: Opened) -> int:
    """The number of records that the fault names."""
    return len(opened.fault.records) if isinstance(opened.fault, InvalidRecordsError) else 0


def framing_fault(batch: Bytes, config: LogConfig, now_ms: int) -> KafkaError | None:
    """The fault in a batch's header, size or checksum; None if it can be opened."""
    if len(batch) >= HEADER_SIZE:
        header = read_header(batch)
        if (
            is_plausible(header)
            and header.size == len(batch)
            and header.record_count > 0
            and header.record_count == header.last_offset_delta + 1
            and has_valid_checksum(batch, 0, header)
        ):
            return None
    return refusal(batch, config, now_ms)


MAX_HELD_BYTES = 256 << 20
"""Limit of the held requests. Requests above it are refused with a retriable error."""
_SMALL_CONVERTED_BYTES = 16 << 10
"""Compression is slower than a check: only so much of one request is recompressed on the event loop."""
_log = logging.getLogger("millstream.produce")

OpenedBatches = Mapping[int, Opened]
"""By the number of the batch in its request."""
Plan = dict[int, tuple[Partition, RequiredChecks]]
TopicAndIndex = tuple[bytes, int]


class Schemas(Protocol):
    def catch_up(self) -> Awaitable[None]: ...
    def keep_fresh(self) -> None: ...
    def close(self) -> None: ...


class _HeldRequest(DeferredResults):
    """A request that waits until its batches were opened."""

    __slots__ = ("append", "call", "deliver", "is_done", "partitions", "refuse")

    def __init__(self, call: ProduceCall, append: Append, refuse: Refuse) -> None:
        super().__init__()
        call.own_bytes()
        self.call = call
        self.append = append
        self.refuse = refuse
        self.is_done = False
        self.partitions = dict.fromkeys(_partitions(call.request))
        self.deliver: Deliver = lambda results: None
        """Stays so with acks=0: no client waits."""

    def __call__(self, deliver: Deliver) -> None:
        self.deliver = deliver


class BatchOpening:
    """Opens the batches of produce requests: small ones at once, others in a thread, in order for each partition."""

    def __init__(
        self,
        partitions: PartitionTable,
        guard: SchemaGuard,
        schemas: Schemas,
        environment: Environment,
        limits: Callable[[], OpeningLimits],
    ) -> None:
        self.guard = guard
        self._partitions = partitions
        self._schemas = schemas
        self._environment = environment
        self._limits = limits
        self._queues: dict[TopicAndIndex, deque[_HeldRequest]] = {}
        """By partition: the held requests in order of arrival."""
        self._bytes = 0
        self._tasks = BackgroundTasks()
        self._reading: asyncio.Task[None] | None = None
        self._next_reading: asyncio.Task[None] | None = None

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def needs_no_opening(self, request: ProduceRequest, version: int) -> bool:
        """Whether no batch of a request has to be opened, and no earlier request is held: the usual case."""
        if self._queues or self.guard.topics:
            return False
        topics = self._partitions.by_id if version >= FIRST_WITH_TOPIC_ID else self._partitions.by_name
        for topic, datas in request.topics:
            known = topics.get(topic)
            if known is None:
                continue
            for data in datas:
                partition = known.get(data.partition)
                if partition is not None:
                    log = partition.opened_log
                    if log is None or log.opens_batches:
                        return False
        return True

    def append_when_opened(self, call: ProduceCall, append: Append, refuse: Refuse) -> Produced:
        """Calls `append` with the request: now if that is possible, else when its batches were opened."""
        plan = self._plan(call)
        if not self._queues or not any(each in self._queues for each in _partitions(call.request)):
            if not plan:
                return append(call)
            opened = self._open_small(call, plan)
            if opened is not None and not _has_unknown(opened):
                call.opened = opened
                return append(call)
        held = _HeldRequest(call, append, refuse)
        if self._bytes and self._bytes + len(call.buffer) > MAX_HELD_BYTES:
            too_much = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "too many requests wait to be opened: try again")
            return refuse(call, too_much), None
        self._bytes += len(call.buffer)
        for each in held.partitions:
            self._queues.setdefault(each, deque()).append(held)
        self._begin_if_first(held)
        return [], held

    def is_needed(self, topic: bytes, partition: Partition, by_broker: bool) -> bool:
        """Whether the batches for this partition have to be opened."""
        return self._required_checks(topic, partition, by_broker) is not None

    def close(self) -> None:
        """Refuses the held requests."""
        for task in (*self._tasks, self._reading, self._next_reading):
            if task is not None:
                task.cancel()
        stopping = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "the broker is stopping")
        queues, self._queues = self._queues, {}
        for held in dict.fromkeys(held for queue in queues.values() for held in queue):
            if not held.is_done:
                self._finish(held, {}, stopping)
        self._schemas.close()

    # Batches to open

    def _plan(self, call: ProduceCall) -> Plan:
        """The batches of a request that have to be opened, by their number, and the checks for each."""
        plan: Plan = {}
        topics = self._partitions.by_id if call.version >= FIRST_WITH_TOPIC_ID else self._partitions.by_name
        number = 0
        for topic, datas in call.request.topics:
            known = topics.get(topic)
            if known is not None:
                for at, data in enumerate(datas, number):
                    partition = known.get(data.partition)
                    if partition is not None:
                        checks = self._required_checks(topic, partition, call.by_broker)
                        if checks is not None:
                            plan[at] = partition, checks
            number += len(datas)
        return plan

    def _required_checks(self, topic: bytes, partition: Partition, by_broker: bool) -> RequiredChecks | None:
        if not partition.is_leader or partition.is_mirror or (partition.is_internal and not by_broker):
            return None  # the append refuses it
        schemas = self.guard.wanted(topic) if self.guard.topics and not by_broker else None
        try:
            log = partition.log
        except KafkaError:
            return None  # the append refuses it
        return required_checks(log.config, schemas) if log.opens_batches or schemas is not None else None

    def _open_small(self, call: ProduceCall, plan: Plan) -> OpenedBatches | None:
        """Opens the batches at once if they are small, all of them together; None if they are not."""
        opened: dict[int, Opened] = {}
        view = memoryview(call.buffer)
        now_ms = self._environment.clock.now_ms()
        left, left_bytes, left_records, left_converted = SMALL_BYTES, SMALL_BYTES, SMALL_RECORDS, _SMALL_CONVERTED_BYTES
        left_named = MAX_RECORD_ERRORS
        for number, data in enumerate(_datas(call.request)):
            if number not in plan:
                continue
            partition, checks = plan[number]
            left -= data.end - data.start
            if left < 0 or len(opened) >= SMALL_RECORDS:
                return None
            batch = view[data.start : data.end]
            fault = framing_fault(batch, partition.log.config, now_ms)
            if fault is not None:
                opened[number] = Opened(fault)
            else:
                is_converted = checks.recompression is not None
                limits = OpeningLimits(min(left_bytes, left_converted) if is_converted else left_bytes, left_records)
                header = read_header(batch)
                if not header.codec and header.size - HEADER_SIZE > limits.max_bytes:
                    return None
                try:
                    found = opened[number] = open_batch(batch, checks, limits, left_named)
                except BeyondLimitsError:
                    return None
                left_named -= _named_record_count(found)
                left_bytes -= found.size
                left_records -= header.record_count
                if is_converted:
                    left_converted -= found.size
            if checks.schemas is not None:
                self._schemas.keep_fresh()
        return opened

    # Held requests

    def _begin_if_first(self, held: _HeldRequest) -> None:
        if all(self._queues[each][0] is held for each in held.partitions):
            self._tasks.start(self._serve(held), loop=self._environment.loop)

    async def _serve(self, held: _HeldRequest) -> None:
        opened: OpenedBatches = {}
        try:
            opened, failure = await self._opened(held)
        except Exception:
            _log.exception("opening_failed")
            failure = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "see the broker's log")
        if not held.is_done:
            self._finish(held, opened, failure)
            self._remove(held)

    async def _opened(self, held: _HeldRequest) -> tuple[OpenedBatches, KafkaError | None]:
        """The opened batches, and the error that refuses the request as a whole."""
        failure: KafkaError | None = None
        call = held.call
        has_read = False
        while True:
            plan = self._plan(call)
            opened = self._open_small(call, plan)
            if opened is None:
                opened = await self._open_in_thread(call, plan)
            if plan != self._plan(call):
                continue  # settings or leaders changed meanwhile
            if not _has_unknown(opened):
                return opened, None
            if has_read:
                return opened, failure
            try:
                await self._catch_up()
            except KafkaError as error:
                failure = error
            has_read = True

    async def _open_in_thread(self, call: ProduceCall, plan: Plan) -> OpenedBatches:
        opened: dict[int, Opened] = {}
        view = memoryview(call.buffer)
        left_named = MAX_RECORD_ERRORS
        for number, data in enumerate(_datas(call.request)):
            if number not in plan:
                continue
            partition, checks = plan[number]
            batch = view[data.start : data.end]
            try:
                if call.request.acks == -1:
                    partition.check_enough_in_sync()
                partition.log.validate(batch, self._environment.clock.now_ms())
                work = partial(open_batch, batch, checks, self._limits(), left_named)
                found = opened[number] = await self._environment.open_in_turn(work)
                left_named -= _named_record_count(found)
            except KafkaError as error:
                opened[number] = Opened(error)
        return opened

    async def _catch_up(self) -> None:
        """Reads the schemas. One read serves all requests that wait before it begins."""
        if self._next_reading is None:
            self._next_reading = self._environment.loop.create_task(self._read_after(self._reading))
        await asyncio.shield(self._next_reading)

    async def _read_after(self, earlier: "asyncio.Task[None] | None") -> None:
        if earlier is not None:
            await asyncio.wait((earlier,))
        self._reading, self._next_reading = self._next_reading, None
        try:
            await self._schemas.catch_up()
        finally:
            self._reading = None

    def _finish(self, held: _HeldRequest, opened: OpenedBatches, failure: KafkaError | None) -> None:
        held.is_done = True
        call = held.call
        self._bytes -= len(call.buffer)
        call.opened = opened
        try:
            if failure is not None:
                results, wait = held.refuse(call, failure), None
            else:
                results, wait = held.append(call)
        except Exception:
            _log.exception("produce_failed")
            unknown = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "see the broker's log")
            results, wait = held.refuse(call, unknown), None
        if wait is not None:
            wait(held.deliver)
        else:
            held.deliver(results)
        held.read_pause.end()

    def _remove(self, held: _HeldRequest) -> None:
        """Removes a request from its queues, and begins with the next ones."""
        following: dict[_HeldRequest, None] = {}
        for partition in held.partitions:
            queue = self._queues.get(partition)
            if queue is None:
                continue  # `close` removed all queues
            assert queue[0] is held, "a request is opened when it is first in its queues"
            queue.popleft()
            if queue:
                following[queue[0]] = None
            else:
                del self._queues[partition]
        for each in following:
            self._begin_if_first(each)


def _partitions(request: ProduceRequest) -> list[TopicAndIndex]:
    return [(topic, data.partition) for topic, datas in request.topics for data in datas]


def _datas(request: ProduceRequest) -> list[PartitionData]:
    return [data for _, datas in request.topics for data in datas]


def _has_unknown(opened: OpenedBatches) -> bool:
    return any(isinstance(each.fault, UnknownSchemaError) for each in opened.values())
