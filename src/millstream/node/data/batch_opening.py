"""What a topic wants to know of a batch before it takes it, and the opening that finds it out.

Compacted topics want a key in every record, topics with `millstream.*.schema.validation` a registered schema id, topics
with a `compression.type` of their own another codec. No other topic has its batches opened. The functions touch nothing
but their arguments, so that they may run in a thread.

Produce requests whose batches must be opened before they are taken: those for compacted topics, for topics with
schema validation, and for topics with a codec of their own (`broker.batch_opening`).

    arrived ──nothing to open, or little, and none waits before it──> appended
       └──────> held (its bytes are copied) ──its turn──> judged by headers ──> opened in a thread ──> appended
                                                              │                    └──a schema id is not known──┐
                                                              └──refused: never opened    schemas are read ─────┘

What comes for the same partitions meanwhile is held as well, so that nothing overtakes. Each partition has its line:
the request that is first in all of its lines is opened next, a few at a time. A connection is not read on before its
request has left the line, so it has one request there at most.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, Protocol

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, InvalidRecordsError, KafkaError
from millstream.formats.model.ordered_set import OrderedSet
from millstream.formats.protocol.produce import FIRST_WITH_TOPIC_ID, ProduceRequest
from millstream.formats.records.batch import HEADER_SIZE, Bytes, has_valid_checksum, is_plausible, read_header
from millstream.formats.records.opening import SMALL, SMALL_BYTES, BeyondLimitsError, OpeningLimits, check, opened
from millstream.node.data.schema_validation import (
    MOST_TOLD,
    SchemaGuard,
    UnknownSchemaError,
    WantedSchemas,
    schema_fault,
)
from millstream.node.environment import Environment
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.server.request import ProduceResults, TurnTaker
from millstream.node.storage.log.batch_admission import Recompression, recompress, recompression_of, refusal
from millstream.node.transactions.produce import Answer, Outcome, copied

_NO_KEY = "a compacted topic takes only records with a key"


class Wanted(NamedTuple):
    keys: bool
    schemas: WantedSchemas | None
    recompression: Recompression | None


class Opened(NamedTuple):
    """What became of a batch."""

    fault: KafkaError | None = None
    """Why it cannot be taken."""
    converted: bytearray | None = None
    """The batch as the topic wants it, if that is not as it was sent."""


def wanted_of(config: LogConfig, schemas: WantedSchemas | None) -> Wanted | None:
    """None if batches for a log with these settings stay closed."""
    keys = "compact" in config.cleanup_policy
    recompression = recompression_of(config)
    if not keys and schemas is None and recompression is None:
        return None
    return Wanted(keys, schemas, recompression)


def open_batch(batch: Bytes, wanted: Wanted, limits: OpeningLimits) -> Opened:
    """Opens a batch whose header and checksum the log has found to be right. Raises BeyondLimitsError; everything else
    that is wrong is the result."""
    header = read_header(batch)
    converted: bytearray | None = None
    try:
        with opened(header, batch, limits) as records:
            keyless = check(header, records, needs_keys=wanted.keys, most=MOST_TOLD)
            if keyless:
                return Opened(_without_keys(keyless, header.record_count))
            if wanted.schemas is not None:
                fault = schema_fault(header, records, wanted.schemas)
                if fault is not None:
                    return Opened(fault)
            if wanted.recompression is not None and wanted.recompression.codec != header.codec:
                converted = recompress(batch, header, records, wanted.recompression)
    except BeyondLimitsError:
        raise
    except KafkaError as error:
        return Opened(error)
    return Opened(None, converted)


def _without_keys(keyless: list[int], count: int) -> InvalidRecordsError:
    least = "at least " if len(keyless) == MOST_TOLD else ""
    message = (
        f"{least}{len(keyless)} of {count} records have no key, record {keyless[0]} is the first: {_NO_KEY}. "
        "Send the others again without them"
    )
    return InvalidRecordsError(message, tuple((number, _NO_KEY) for number in keyless))


def framing_fault(batch: Bytes, config: LogConfig, now_ms: int) -> KafkaError | None:
    """What is wrong with a batch before it can be opened at all: its header, its size, its checksum."""
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


MOST_HELD_BYTES = 256 << 20
"""Clients are told to come again with what is more than that."""
_SMALL_CONVERTED_BYTES = 16 << 10
"""Compressing takes longer than looking: no more than this is done on the event loop."""
_log = logging.getLogger("millstream.produce")

OpenedBatches = dict[int, Opened]
"""By the number of the batch in its request."""
Plan = dict[int, tuple[Partition, Wanted]]
Append = Callable[[ProduceRequest, bytearray, OpenedBatches], Outcome]
Refuse = Callable[[ProduceRequest, bytearray, KafkaError], ProduceResults]
Place = tuple[bytes, int]


class Schemas(Protocol):
    def catch_up(self) -> Awaitable[None]: ...
    def keep_fresh(self) -> None: ...
    def close(self) -> None: ...


class _Held(TurnTaker):
    __slots__ = ("answer", "append", "buffer", "by_broker", "is_done", "places", "refuse", "request", "version")

    def __init__(self, request: ProduceRequest, version: int, buffer: bytearray, by_broker: bool) -> None:
        super().__init__()
        self.request, self.buffer = copied(request, buffer)
        self.version = version
        self.by_broker = by_broker
        self.is_done = False
        self.places = dict.fromkeys(_places(request))
        self.answer: Answer = lambda results: None
        """No client waits for it with acks=0."""
        self.append: Append
        self.refuse: Refuse

    def __call__(self, answer: Answer) -> None:
        self.answer = answer


class OpenedProduce:
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
        self._lines: dict[Place, deque[_Held]] = {}
        """By partition: those that wait, in the order in which they came."""
        self._bytes = 0
        self._tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._reading: asyncio.Task[None] | None = None
        self._next_reading: asyncio.Task[None] | None = None

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def stays_closed(self, request: ProduceRequest, version: int) -> bool:
        """Whether no batch of a request is opened, and none waits before it: the usual case, and every request asks."""
        if self._lines or self.guard:
            return False
        topics = self._partitions.by_id if version >= FIRST_WITH_TOPIC_ID else self._partitions.by_name
        for topic, datas in request.topics:
            known = topics.get(topic)
            if known is None:
                continue
            for index, _, _ in datas:
                partition = known.get(index)
                if partition is not None:
                    log = partition.opened_log
                    if log is None or log.opens_batches:
                        return False
        return True

    def take(
        self,
        request: ProduceRequest,
        version: int,
        buffer: bytearray,
        append: Append,
        refuse: Refuse,
        *,
        by_broker: bool = False,
    ) -> Outcome:
        """Appends it now, or when its turn has come and it was opened."""
        plan = self._plan(request, version, by_broker)
        if not self._lines or not any(place in self._lines for place in _places(request)):
            if not plan:
                return append(request, buffer, {})
            opened = self._open_small(request, buffer, plan)
            if opened is not None and not _has_unknown(opened):
                return append(request, buffer, opened)
        held = _Held(request, version, buffer, by_broker)
        if self._bytes and self._bytes + len(held.buffer) > MOST_HELD_BYTES:
            too_much = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "too many requests wait to be opened: try again")
            return refuse(request, buffer, too_much), None
        held.append, held.refuse = append, refuse
        self._bytes += len(held.buffer)
        for place in held.places:
            self._lines.setdefault(place, deque()).append(held)
        self._begin_if_first(held)
        return [], held

    def missing(self, topic: bytes, partition: Partition, by_broker: bool) -> bool:
        """Whether a batch for this partition, which was not opened, should have been."""
        return self._wanted(topic, partition, by_broker) is not None

    def close(self) -> None:
        """Refuses whatever still waits."""
        for task in (*self._tasks, self._reading, self._next_reading):
            if task is not None:
                task.cancel()
        stopping = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "the broker is stopping")
        lines, self._lines = self._lines, {}
        for held in dict.fromkeys(held for line in lines.values() for held in line):
            if not held.is_done:
                self._finish(held, {}, stopping)
        self._schemas.close()

    # What is to be opened

    def _plan(self, request: ProduceRequest, version: int, by_broker: bool) -> Plan:
        """Which batches of a request are opened, by their number, and what for."""
        plan: Plan = {}
        topics = self._partitions.by_id if version >= FIRST_WITH_TOPIC_ID else self._partitions.by_name
        number = 0
        for topic, datas in request.topics:
            known = topics.get(topic)
            if known is not None:
                for at, (index, _, _) in enumerate(datas, number):
                    partition = known.get(index)
                    if partition is not None:
                        wanted = self._wanted(topic, partition, by_broker)
                        if wanted is not None:
                            plan[at] = partition, wanted
            number += len(datas)
        return plan

    def _wanted(self, topic: bytes, partition: Partition, by_broker: bool) -> Wanted | None:
        if not partition.is_leader or (partition.is_internal and not by_broker):
            return None  # it will be refused
        schemas = self.guard.wanted(topic) if self.guard and not by_broker else None
        try:
            log = partition.log
        except KafkaError:
            return None  # it will be refused
        return wanted_of(log.config, schemas) if log.opens_batches or schemas is not None else None

    def _open_small(self, request: ProduceRequest, buffer: bytearray, plan: Plan) -> OpenedBatches | None:
        """Opens everything on the spot if that is little; None if it is not."""
        opened: OpenedBatches = {}
        view = memoryview(buffer)
        now_ms = self._environment.clock.now_ms()
        left = SMALL_BYTES
        for number, (_, start, end) in enumerate(_datas(request)):
            if number not in plan:
                continue
            partition, wanted = plan[number]
            left -= end - start
            if left < 0 or len(opened) >= SMALL.max_records:
                return None
            batch = view[start:end]
            fault = framing_fault(batch, partition.log.config, now_ms)
            try:
                limits = SMALL if wanted.recompression is None else SMALL._replace(max_bytes=_SMALL_CONVERTED_BYTES)
                opened[number] = open_batch(batch, wanted, limits) if fault is None else Opened(fault)
            except BeyondLimitsError:
                return None
            if wanted.schemas is not None:
                self._schemas.keep_fresh()
        return opened

    # Those who wait

    def _begin_if_first(self, held: _Held) -> None:
        if all(self._lines[place][0] is held for place in held.places):
            task = self._environment.loop.create_task(self._serve(held))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, held: _Held) -> None:
        opened: OpenedBatches = {}
        try:
            opened, trouble = await self._opened(held)
        except Exception:
            _log.exception("opening_failed")
            trouble = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "see the broker's log")
        if not held.is_done:
            self._finish(held, opened, trouble)
            self._let_go(held)

    async def _opened(self, held: _Held) -> tuple[OpenedBatches, KafkaError | None]:
        """What was found in the batches; with it what is wrong with the request as a whole."""
        trouble: KafkaError | None = None
        has_read = False
        while True:
            plan = self._plan(held.request, held.version, held.by_broker)
            opened = self._open_small(held.request, held.buffer, plan)
            if opened is None:
                opened = await self._open_in_thread(held, plan)
            if plan != self._plan(held.request, held.version, held.by_broker):
                continue  # settings or leaders changed meanwhile
            if not _has_unknown(opened):
                return opened, None
            if has_read:
                return opened, trouble
            try:
                await self._catch_up()
            except KafkaError as error:
                trouble = error
            has_read = True

    async def _open_in_thread(self, held: _Held, plan: Plan) -> OpenedBatches:
        opened: OpenedBatches = {}
        view = memoryview(held.buffer)
        for number, (_, start, end) in enumerate(_datas(held.request)):
            if number not in plan:
                continue
            partition, wanted = plan[number]
            batch = view[start:end]
            try:
                if held.request.acks == -1:
                    partition.check_enough_in_sync()
                partition.log.judge(batch, self._environment.clock.now_ms())
                work = partial(open_batch, batch, wanted, self._limits())
                opened[number] = await self._environment.open_in_turn(work)
            except KafkaError as error:
                opened[number] = Opened(error)
        return opened

    async def _catch_up(self) -> None:
        """Has the schemas read. One reading serves all that wait for it before it begins."""
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

    def _finish(self, held: _Held, opened: OpenedBatches, trouble: KafkaError | None) -> None:
        held.is_done = True
        self._bytes -= len(held.buffer)
        try:
            if trouble is not None:
                results, wait = held.refuse(held.request, held.buffer, trouble), None
            else:
                results, wait = held.append(held.request, held.buffer, opened)
        except Exception:
            _log.exception("produce_failed")
            unknown = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "see the broker's log")
            results, wait = held.refuse(held.request, held.buffer, unknown), None
        if wait is not None:
            wait(held.answer)
        else:
            held.answer(results)
        held.turn_is_over()

    def _let_go(self, held: _Held) -> None:
        """Leaves the lines; who is first now is next."""
        next_ones: dict[_Held, None] = {}
        for place in held.places:
            line = self._lines.get(place)
            if line is None:
                continue  # all lines were closed meanwhile
            assert line[0] is held, "who is served is first in all lines"
            line.popleft()
            if line:
                next_ones[line[0]] = None
            else:
                del self._lines[place]
        for each in next_ones:
            self._begin_if_first(each)


def _places(request: ProduceRequest) -> list[Place]:
    return [(topic, index) for topic, datas in request.topics for index, _, _ in datas]


def _datas(request: ProduceRequest) -> list[tuple[int, int, int]]:
    return [data for _, datas in request.topics for data in datas]


def _has_unknown(opened: OpenedBatches) -> bool:
    return any(isinstance(each.fault, UnknownSchemaError) for each in opened.values())
