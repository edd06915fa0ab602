"""The coordinator runtime: runs the state machine of one partition of a coordinator's topic.

`CoordinatorRuntime` exists while this broker leads the partition in one leader epoch. It replays the partition into the
state machine. It appends the records of operations, replays them at once, and runs due timers. All durable state is in
the log.

The state may be ahead of the committed log. No client sees that: a response, also to a read, is sent only after all
records that the state was built from may be acknowledged. That means that they are committed and, where the topic
requires it, flushed. So the next leader, or this broker after a power failure, has every record that a response was
based on. If appended records can no longer be committed here, the runtime is closed together with its state.

Operations whose results do not depend on each other, such as commits of offsets, may be *gathered*: their records are
appended as one batch at the end of the turn of the event loop, or before anything else looks at the state. Until then
they are not in the state either.

Records of a transaction are appended with the producer's id and epoch. They are pending until the marker is written.
The runtime writes the marker too, so that the state follows the order of the log.

`CoordinatorShards` has the runtimes of all partitions of a topic that this broker leads. It loads them in the
background when the broker becomes leader, so that timers run without requests. It closes them when the broker is not
the leader any more. `java_hash` selects the partition.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

from millstream.common.background_tasks import BackgroundTasks
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker, Origin, TopicName, VerificationGuard
from millstream.formats.records.opening import OpeningLimits
from millstream.formats.records.record import build_key_value_batch
from millstream.node.coordination.core.state_machine import (
    CoordinatorRecord,
    CoordinatorResult,
    DeferredResponse,
    StateMachine,
    TransactionParticipant,
)
from millstream.node.coordination.replay import (
    DEFAULT_LIMITS,
    Slices,
    replay_batches,
)
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataDelta
from millstream.node.replicas.acknowledgement import may_acknowledge, when_acknowledged
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.storage.log.log_reader import Slice


class MonotonicWallClock:
    """The wall clock, which jumps forward with adjustments but never back: deadlines in the log stay in order."""

    __slots__ = ("_ahead_ms", "_clock", "_loop")

    def __init__(self, environment: Environment) -> None:
        self._clock = environment.clock
        self._loop = environment.loop
        self._ahead_ms = self._difference_ms()

    def now_ms(self) -> int:
        ahead_ms = self._difference_ms()
        if ahead_ms > self._ahead_ms:
            self._ahead_ms = ahead_ms
        return int(self._loop.time() * 1000) + self._ahead_ms

    def _difference_ms(self) -> int:
        """The difference between the clock and the loop's time, which never jumps."""
        return self._clock.now_ms() - int(self._loop.time() * 1000)


_MAX_TIMER_WAIT_SECONDS = 5.0
"""The longest time between two checks of due timers, because the wall clock may jump."""

_log = logging.getLogger("millstream.coordinator")
_READ_BYTES = 4 << 20
_SLICES_PER_TURN = 1000
"""Slices of a replay that one call to a thread processes."""
DEFAULT_COMMIT_TIMEOUT_MS = 5000
_TOO_LARGE = frozenset((ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE))
_NO_LONGER_LEADER = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))
_TRANSACTION_ERRORS = frozenset(
    (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
)
"""Errors of the log that a producer or a transaction coordinator gets unchanged."""
_MOST_GATHERED_RECORDS = 500
_MOST_GATHERED_BYTES = 64 << 10
R = TypeVar("R")

OnDone = Callable[[KafkaError | None], None]


class GatheredResult:
    """Records that wait for the end of the turn, and what is called when they may be acknowledged or are refused."""

    __slots__ = ("on_done", "records")

    def __init__(self, records: Sequence[CoordinatorRecord], on_done: OnDone) -> None:
        self.records = records
        self.on_done = on_done


class CoordinatorRuntime:
    """Runs the state machine of one partition, in one leader epoch."""

    def __init__(
        self,
        partition: Partition,
        state: StateMachine,
        environment: Environment,
        on_replayed: Callable[[], None] | None = None,
        *,
        participant: TransactionParticipant | None = None,
        commit_timeout_ms: Callable[[], int] = lambda: DEFAULT_COMMIT_TIMEOUT_MS,
        needs_guard: Callable[[], bool] = lambda: False,
        limits: Callable[[], OpeningLimits] = lambda: DEFAULT_LIMITS,
    ) -> None:
        """`on_replayed` is called in a thread, after the last `replay` and before `loaded`.

        `participant` is the same state machine, if it takes part in transactions. `needs_guard` tells whether the first
        record of a transaction is refused unless it was verified. `limits` bound one batch that is replayed.
        """
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state = state
        self._participant = participant
        self._needs_guard = needs_guard
        self._limits = limits
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the runtime has closed itself because its records cannot be committed here."""
        self._environment = environment
        self._time = MonotonicWallClock(environment)
        self._on_replayed = on_replayed
        self._commit_timeout_ms = commit_timeout_ms
        self._loading: asyncio.Task[None] | None = None
        self.is_loaded = False
        self._timer: asyncio.TimerHandle | None = None
        self.is_closed = False
        self._commit: asyncio.Future[KafkaError | None] | None = None
        """The last write that was not acknowledged at once: done when all records up to it may be acknowledged."""
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self._gathered: list[GatheredResult] = []
        self._gathered_records = self._gathered_bytes = 0
        self._ends_turn = False
        """Whether the end of this turn of the loop writes what was gathered."""
        self._deliveries = BackgroundTasks()
        state.timers.on_earlier = self._set_timer

    # Loading

    async def load(self) -> None:
        """Rebuilds the state from the log. Concurrent callers share one load."""
        if self.is_loaded:
            return
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        # The event loop owns the log, so the log is read here. The bytes are replayed in a thread. No other code sees
        # the state before it is loaded.
        log = self.partition.log
        position, end = log.log_start_offset, log.log_end_offset
        # All records in the log must be committed before they are replayed. A new leader does not know the last high
        # watermark of the earlier leader: records above it may have been acknowledged, or may still be lost. The same
        # holds for records that a killed process had not flushed.
        await self._wait_until_safe(end)
        while position < end and not self.is_closed:
            piece = log.read(position, _READ_BYTES, up_to=end, at_least_one=True)
            reached = await self._replay(piece, position)
            if reached <= position:
                break
            position = reached
        if self._on_replayed is not None and end > log.log_start_offset:
            await self._environment.offload(self._on_replayed)
        if self.is_closed:
            raise _not_coordinator()
        self.state.loaded(self._time.now_ms())
        self.is_loaded = True
        self._set_timer()

    async def _wait_until_safe(self, end: int) -> None:
        if may_acknowledge(self.partition, end):
            return
        safe: asyncio.Future[KafkaError | None] = self._environment.loop.create_future()
        self._waiting[safe] = None
        when_acknowledged(self.partition, end, lambda error: _resolve(safe, error))
        try:
            error = await safe
        finally:
            self._waiting.pop(safe, None)
        if error is not None:
            raise _not_coordinator()

    async def _replay(self, piece: Slice, position: int) -> int:
        """Replays whole batches in a thread, slice by slice. Returns the offset after the last batch."""
        slices = self._slices(piece, position)
        while not self.is_closed:
            reached = await self._environment.offload(partial(self._advance, slices))
            if reached is not None:
                return reached
        return position

    def _slices(self, piece: Slice, position: int) -> Slices:
        piece.prepare()
        return (yield from replay_batches(piece.read(), position, self.state, self._participant, self._limits()))

    def _advance(self, slices: Slices) -> int | None:
        """The return value of the replay, if it has ended; else None."""
        yield_interpreter = self._environment.yield_interpreter
        try:
            for _ in range(_SLICES_PER_TURN):
                next(slices)
                yield_interpreter()
        except StopIteration as end:
            reached: int = end.value
            return reached
        return None

    # Operations

    async def run(
        self, operation: "Callable[[int], CoordinatorResult[R]]", guard: VerificationGuard | None = None
    ) -> R:
        """Runs an operation now and returns its response; KafkaError if it is refused or cannot be written.

        `guard` is needed for the first records of a transaction, see `Partition.begin_verification`.
        """
        await self.load()
        try:
            response = self.run_now(operation, guard)
        except KafkaError as error:
            refusal = error
        else:
            return await self.resolved(response)
        await self.settled()  # a refusal depends on the state, too
        raise refusal

    def run_now(
        self, operation: "Callable[[int], CoordinatorResult[R]]", guard: VerificationGuard | None = None
    ) -> "R | DeferredResponse[R]":
        """Runs an operation on loaded state without waiting.

        Unless `is_settled`, the response must go through `resolved` before it is sent, and a refusal must wait for
        `settled`.
        """
        if self._gathered:
            self.write_gathered()
        result = self.decide(operation)
        self._write(result, guard)
        return result.response

    def decide(self, operation: "Callable[[int], CoordinatorResult[R]]") -> "CoordinatorResult[R]":
        """The result of an operation on loaded state. Its records are not written yet."""
        assert self.is_loaded
        if self.is_closed:
            raise _not_coordinator()
        try:
            return operation(self._time.now_ms())
        except KafkaError as error:
            if not error.code.retriable and self.partition.is_in_doubt:
                raise _not_coordinator() from error  # a newer coordinator may decide differently
            raise

    def gather(self, records: Sequence[CoordinatorRecord], on_done: OnDone) -> None:
        """Writes the records with those of other operations of this turn of the event loop. `on_done` is called when
        they may be acknowledged, or with the error."""
        size = 0
        for key, value in records:
            size += len(key) + (0 if value is None else len(value))
        if self._gathered and (
            self._gathered_bytes + size > _MOST_GATHERED_BYTES
            or self._gathered_records + len(records) > _MOST_GATHERED_RECORDS
        ):
            self.write_gathered()
        self._gathered.append(GatheredResult(records, on_done))
        self._gathered_bytes += size
        self._gathered_records += len(records)
        if not self._ends_turn:
            self._ends_turn = True
            self._environment.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._ends_turn = False
        self.write_gathered()

    def write_gathered(self) -> None:
        """Writes what was gathered, as one batch in the order of the operations."""
        gathered = self._gathered
        if not gathered:
            return
        self._gathered = []
        self._gathered_records = self._gathered_bytes = 0
        error = self._write_together(gathered)
        if error is not None and error.code == ErrorCode.UNKNOWN_SERVER_ERROR and len(gathered) > 1:
            # Too large for the log: then it matters which of them is. All are written before the first response: that
            # may lead to more requests, which come after them.
            errors = [self._write_together([each]) for each in gathered]
            for each, its_error in zip(reversed(gathered), reversed(errors), strict=True):
                self._deliver([each], its_error)
            return
        self._deliver(gathered, error)

    def _write_together(self, gathered: list[GatheredResult]) -> KafkaError | None:
        if self.is_closed:
            return _not_coordinator()
        records: list[CoordinatorRecord] = []
        for each in gathered:
            records += each.records
        result: CoordinatorResult[None] = CoordinatorResult(None, records)
        try:
            self._write(result)
        except KafkaError as error:
            return error
        except Exception:  # all of them must get a response
            _log.exception("gathered_not_written partition=%s", self.partition.topic_partition)
            return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "internal error, see the log")
        return None

    def _deliver(self, gathered: list[GatheredResult], error: KafkaError | None) -> None:
        """Calls back, at once or when all records that the state was built from may be acknowledged."""
        if self.is_settled:
            _call_back(gathered, error)
        elif self.is_closed:
            _call_back(gathered, _not_coordinator())
        else:
            self._deliveries.start(self._deliver_later(gathered, error), loop=self._environment.loop)

    async def _deliver_later(self, gathered: list[GatheredResult], error: KafkaError | None) -> None:
        try:
            await self.settled()
        except KafkaError as lost:
            error = lost
        _call_back(gathered, error)

    async def end_transaction(self, marker: Marker) -> None:
        """Writes the marker of a transaction and applies it. Returns when the marker may be acknowledged."""
        await self.load()
        if self.is_closed:
            raise _not_coordinator()
        self.write_gathered()
        refusal: KafkaError | None = None
        try:
            self._append(lambda now_ms: self.partition.append_marker(marker, now_ms))
        except KafkaError as error:
            refusal = error
        if refusal is None and self._participant is not None:
            self._participant.end_transaction(marker.producer_id, marker.committed)
        await self.settled()
        if refusal is not None:
            raise refusal

    @property
    def is_current(self) -> bool:
        """Whether this broker leads the partition, still in the runtime's leader epoch."""
        partition = self.partition
        return partition.leader_epoch == self.leader_epoch and partition.is_leader and not self.is_closed

    @property
    def is_settled(self) -> bool:
        """Whether all records that the state was built from may be acknowledged."""
        return not self.is_closed and (self._commit is None or self._commit.done())

    async def resolved(self, response: "R | DeferredResponse[R]") -> R:
        """The response, when it may be sent; KafkaError (NOT_COORDINATOR) if the runtime is closed before."""
        given: R = await self._resolve_deferred(response) if isinstance(response, DeferredResponse) else response
        # The operation that resolved the response has appended its records by now.
        await self.settled()
        return given

    async def _resolve_deferred(self, response: "DeferredResponse[R]") -> R:
        waiting: asyncio.Future[R | KafkaError] = self._environment.loop.create_future()
        response.when_resolved(lambda value: _resolve(waiting, value))
        self._waiting[waiting] = None
        try:
            given = await waiting
        finally:
            self._waiting.pop(waiting, None)
        if isinstance(given, KafkaError):
            raise given
        return given

    async def settled(self) -> None:
        """Returns when all records that the state was built from may be acknowledged.

        NOT_COORDINATOR if that is impossible here; COORDINATOR_NOT_AVAILABLE after the timeout, when it is still
        unknown.
        """
        if self.is_settled:
            return
        if self.is_closed or self._commit is None:
            raise _not_coordinator()
        timeout_ms = self._commit_timeout_ms()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                error = await asyncio.shield(self._commit)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{self.partition.topic_partition}: not replicated or not flushed within {timeout_ms} ms",
            ) from None
        if error is not None:
            raise _not_coordinator()

    def when_settled(self, action: Callable[[], None]) -> None:
        """Calls `action` when all records that the state was built from are safe; never if they are lost."""
        if self.is_settled:
            action()
        elif self._commit is not None:
            self._commit.add_done_callback(lambda done: None if done.result() is not None else action())

    def _write(self, result: "CoordinatorResult[Any]", guard: VerificationGuard | None = None) -> None:
        if result.records:
            try:
                self._append(lambda now_ms: self._append_records(result, guard, now_ms))
            except KafkaError as error:
                if result.on_written is not None:
                    result.on_written(error)
                raise
            producer = result.producer
            if producer is None:
                for key, value in result.records:
                    self.state.replay(key, value)
            elif self._participant is not None:
                for key, value in result.records:
                    self._participant.replay_pending(producer.producer_id, producer.epoch, key, value)
        if result.on_written is not None:
            result.on_written(None)

    def _append_records(self, result: "CoordinatorResult[Any]", guard: VerificationGuard | None, now_ms: int) -> None:
        producer = result.producer
        if producer is None:
            self.partition.append(memoryview(build_key_value_batch(result.records, now_ms)), now_ms)
            return
        assert self._participant is not None, "only a participant writes in transactions"
        batch = build_key_value_batch(
            result.records,
            now_ms,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transactional=True,
        )
        self.partition.append(
            memoryview(batch), now_ms, origin=Origin.COORDINATOR, guard=guard, needs_guard=self._needs_guard()
        )

    def _append(self, append: Callable[[int], object]) -> None:
        partition = self.partition
        if partition.leader_epoch != self.leader_epoch:
            self._close_lost()
            raise _not_coordinator()
        try:
            partition.check_enough_in_sync()
            append(self._environment.clock.now_ms())
        except KafkaError as error:
            if error.code in _TRANSACTION_ERRORS:
                raise
            _log.error("append_failed partition=%s error=%s", partition.topic_partition, error)
            if error.code in _NO_LONGER_LEADER:
                self._close_lost()
                raise _not_coordinator() from error
            # For a client, a coordinator that cannot write is not available.
            code = ErrorCode.UNKNOWN_SERVER_ERROR if error.code in _TOO_LARGE else ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise KafkaError(code, error.message) from error
        end = partition.log.log_end_offset
        if not may_acknowledge(partition, end):
            commit: asyncio.Future[KafkaError | None] = self._environment.loop.create_future()
            self._commit = commit
            self._waiting[commit] = None
            when_acknowledged(partition, end, lambda error: self._committed(commit, error))

    def _committed(self, commit: "asyncio.Future[KafkaError | None]", error: KafkaError | None) -> None:
        self._waiting.pop(commit, None)
        _resolve(commit, error)
        if error is not None:
            _log.warning("not_committed partition=%s error=%s", self.partition.topic_partition, error)
            self._close_lost()

    # Time

    def _set_timer(self) -> None:
        if not self.is_loaded or self.is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self.state.timers.next_deadline_ms
        if deadline_ms is not None:
            # A clock that jumps forward makes deadlines due at once.
            delay = min(max(0, deadline_ms - self._time.now_ms()) / 1000, _MAX_TIMER_WAIT_SECONDS)
            self._timer = self._environment.loop.call_later(delay, self._run_due_timers)

    def _run_due_timers(self) -> None:
        self._timer = None
        self.write_gathered()
        now_ms = self._time.now_ms()
        while not self.is_closed and (action := self.state.timers.take_due(now_ms)) is not None:
            try:
                result = action(now_ms)
                if result is not None:
                    self._write(result)
            except KafkaError:
                pass  # already logged; the state machine sets its timer again, or not
            except Exception:
                _log.exception("timer_failed partition=%s", self.partition.topic_partition)
        self._set_timer()

    # Closing

    def _close_lost(self) -> None:
        if not self.is_closed:
            self.close()
            self.on_lost()

    def close(self) -> None:
        """Closes the runtime: the broker is not the leader any more. Waiting requests get NOT_COORDINATOR."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, {}
        for each in waiting:
            _resolve(each, _not_coordinator())
        gathered, self._gathered = self._gathered, []
        _call_back(gathered, _not_coordinator())


def _call_back(gathered: list[GatheredResult], error: KafkaError | None) -> None:
    # The last first: a connection sends its responses in order, so it sends all of them with the first one.
    for each in reversed(gathered):
        each.on_done(error)


def _resolve(future: "asyncio.Future[Any]", value: object) -> None:
    if not future.done():
        future.set_result(value)


def _not_coordinator() -> KafkaError:
    return KafkaError(ErrorCode.NOT_COORDINATOR, "this broker is not the coordinator any more")


@lru_cache(maxsize=10_000)
def java_hash(text: str) -> int:
    """Java's String.hashCode, made positive as Kafka does. It selects the partition of a coordinator's topic for a
    group, a transactional id or a share partition."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    if value >= 1 << 31:
        value = (1 << 32) - value
    return 0 if value == 1 << 31 else value


_LOAD_TIMEOUT_SECONDS = 5.0
"""How long a request waits for its shard to load before it gets COORDINATOR_LOAD_IN_PROGRESS."""
_MAX_CONCURRENT_LOADS = 4
_LOAD_RETRY_SECONDS = 2.0


class CoordinatorShards:
    """The runtimes of all partitions of one topic that this broker leads."""

    def __init__(
        self,
        topic: TopicName,
        partitions: PartitionTable,
        environment: Environment,
        new_runtime: Callable[[Partition], CoordinatorRuntime],
        log: logging.Logger,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._environment = environment
        self._new_runtime = new_runtime
        self._log = log
        self.runtimes: dict[int, CoordinatorRuntime] = {}
        """By partition index: the runtimes that are not closed, loaded or not."""
        self.on_closed: Callable[[CoordinatorRuntime], None] = lambda runtime: None
        self._background = BackgroundTasks()
        self._loads = asyncio.Semaphore(_MAX_CONCURRENT_LOADS)
        self._is_closed = False

    def led_partitions(self) -> list[int]:
        """Indexes of the topic's partitions that this broker leads."""
        partitions = self._partitions.by_name.get(self._topic.encode(), {})
        return [index for index, partition in partitions.items() if partition.is_leader]

    def all_loaded(self) -> list[CoordinatorRuntime]:
        """Runtimes that are loaded and current."""
        return [runtime for runtime in self.runtimes.values() if runtime.is_loaded and runtime.is_current]

    async def loaded(self, index: int) -> CoordinatorRuntime:
        """The loaded runtime of a partition; KafkaError if it cannot be loaded, or if another broker is the leader."""
        runtime = self._runtime(index)
        if runtime.is_loaded:
            return runtime
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_SECONDS):
                await runtime.load()
        except TimeoutError:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self._topic}-{index} is loading") from None
        except Exception as error:
            self._close(index, runtime)  # the next request loads it again
            if isinstance(error, KafkaError) and error.code == ErrorCode.NOT_COORDINATOR:
                raise
            self._log.error("shard_not_loaded partition=%s-%d error=%r", self._topic, index, error)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self._topic}-{index}: {error}") from None
        return runtime

    def _runtime(self, index: int) -> CoordinatorRuntime:
        runtime = self.runtimes.get(index)
        if runtime is not None and runtime.is_current:
            return runtime
        if runtime is not None:
            self._close(index, runtime)
        partition = self._partitions.by_name.get(self._topic.encode(), {}).get(index)
        if partition is None or not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker leads {self._topic}-{index}")
        created = self.runtimes[index] = self._new_runtime(partition)
        created.on_lost = lambda: self._on_lost(index, created)
        return created

    def _close(self, index: int, runtime: CoordinatorRuntime) -> None:
        if self.runtimes.get(index) is runtime:
            del self.runtimes[index]
        runtime.close()
        self.on_closed(runtime)

    def _on_lost(self, index: int, runtime: CoordinatorRuntime) -> None:
        self._close(index, runtime)
        self.in_background(self._load(index))

    # Life cycle

    def start(self) -> None:
        """Loads, in the background, a runtime for each partition that this broker leads."""
        for index, runtime in tuple(self.runtimes.items()):
            if not runtime.is_current:
                self._close(index, runtime)
        for index in self.led_partitions():
            if index not in self.runtimes:
                self._runtime(index)
                self.in_background(self._load(index))

    async def _load(self, index: int) -> None:
        """Retries until the runtime is loaded, while this broker is the leader."""
        while not self._is_closed:
            try:
                async with self._loads:
                    await self.loaded(index)
                return
            except KafkaError as error:
                if error.code == ErrorCode.NOT_COORDINATOR:
                    return
            await asyncio.sleep(_LOAD_RETRY_SECONDS)

    def follow(self, delta: MetadataDelta) -> None:
        """Follows changes of the topic and its leaders."""
        if any(topic.name == self._topic for topic in delta.deleted.values()):
            self._close_all()
        if self._topic in delta.created or self._topic in delta.changed:
            self.start()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self._background.start(work, loop=self._environment.loop)

    def _close_all(self) -> None:
        for index, runtime in tuple(self.runtimes.items()):
            self._close(index, runtime)

    def close(self) -> None:
        """Closes all runtimes. Waiting requests get NOT_COORDINATOR."""
        self._is_closed = True
        self._close_all()
