"""Where a pure coordinator meets the log: one partition of an internal topic, and the state machine that lives in it.

The shell replays the partition into the state when leadership arrives, appends what operations decide and replays that,
answers when it is committed, and wakes the state machine's timers. All state is in the log; the shell has none.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from millstream.broker.partition import Partition
from millstream.coordinator.outcome import CoordinatorRecord, Outcome, Reply
from millstream.coordinator.timers import Timers
from millstream.environment import Environment
from millstream.model.errors import ErrorCode, KafkaError
from millstream.records.batch import iterate_headers
from millstream.records.key_values import iterate_key_values
from millstream.records.record import Record, build_batch
from millstream.storage.slice import Slice

_log = logging.getLogger("millstream.coordinator")
_READ_BYTES = 4 << 20
R = TypeVar("R")


class StateMachine(Protocol):
    """What the shell needs of a coordinator's state."""

    timers: Timers

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Applies one record; must accept whatever is in the log, and pass over what it does not know."""
        ...

    def loaded(self, now_ms: int) -> None:
        """All records were replayed: set timers, begin sessions."""
        ...


class CoordinatorShell:
    def __init__(
        self,
        partition: Partition,
        state: StateMachine,
        environment: Environment,
        on_replayed: Callable[[], None] | None = None,
    ) -> None:
        """`on_replayed` is called between the last `replay` and `loaded`, in a thread: it may take its time."""
        self.partition = partition
        self.state = state
        self._environment = environment
        self._on_replayed = on_replayed
        self._loading: asyncio.Task[None] | None = None
        self.is_loaded = False
        self._alarm: asyncio.TimerHandle | None = None
        self._closed = False
        self._waiting: set[asyncio.Future[Any]] = set()
        state.timers.on_earlier = self._set_alarm

    # Loading

    async def load(self) -> None:
        """Rebuilds the state from the log; whoever needs it meanwhile waits for the same load."""
        if self.is_loaded:
            return
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        # The log belongs to the event loop, so it is asked here. The bytes it names are read and replayed in a thread:
        # nobody else sees the state before it is loaded.
        log = self.partition.log
        position, end = log.log_start_offset, self.partition.high_watermark
        while position < end:
            piece = log.read(position, _READ_BYTES, up_to=end, at_least_one=True)
            reached = await self._environment.offload(partial(self._replay, piece, position))
            if reached <= position:
                break
            position = reached
        if self._on_replayed is not None and end > log.log_start_offset:
            await self._environment.offload(self._on_replayed)
        self.state.loaded(self._environment.clock.now_ms())
        self.is_loaded = True
        self._set_alarm()

    def _replay(self, piece: Slice, position: int) -> int:
        """Replays whole batches; returns the offset behind the last of them."""
        piece.prepare()
        data = memoryview(piece.read())
        replay = self.state.replay
        for at, header in iterate_headers(data):
            position = header.last_offset + 1
            if header.is_control:
                continue
            for key, value in iterate_key_values(header, data[at : at + header.size]):
                if key is not None:
                    replay(key, value)
        return position

    # Operations

    async def run(self, operation: "Callable[[int], Outcome[R]]") -> R:
        """Runs an operation at the present time and returns its answer; KafkaError if it could not be written."""
        await self.load()
        answer = self.run_now(operation)
        return await self.awaited(answer) if isinstance(answer, Reply) else answer

    def run_now(self, operation: "Callable[[int], Outcome[R]]") -> "R | Reply[R]":
        """The same without waiting, for a state that is loaded: what costs least for the most frequent requests."""
        assert self.is_loaded
        if self._closed:
            raise _gone()
        outcome = operation(self._environment.clock.now_ms())
        self._write(outcome)
        return outcome.answer

    async def awaited(self, answer: "Reply[R]") -> R:
        """The answer when it is there; KafkaError (NOT_COORDINATOR) if the shell is closed before."""
        waiting: asyncio.Future[R | KafkaError] = self._environment.loop.create_future()
        answer.when_resolved(lambda value: None if waiting.done() else waiting.set_result(value))
        self._waiting.add(waiting)
        try:
            given = await waiting
        finally:
            self._waiting.discard(waiting)
        if isinstance(given, KafkaError):
            raise given
        return given

    def _write(self, outcome: "Outcome[Any]") -> None:
        if outcome.records:
            try:
                self._append(outcome.records)
            except KafkaError as error:
                if outcome.on_committed is not None:
                    outcome.on_committed(error)
                raise
            for key, value in outcome.records:
                self.state.replay(key, value)
        if outcome.on_committed is not None:
            outcome.on_committed(None)

    def _append(self, records: "list[CoordinatorRecord] | Any") -> None:
        now_ms = self._environment.clock.now_ms()
        rows = [Record(key=key, value=value, timestamp=now_ms) for key, value in records]
        try:
            self.partition.append(memoryview(build_batch(rows)), now_ms)
        except KafkaError as error:
            _log.error("append_failed partition=%s error=%s", self.partition.topic_partition, error)
            # To a client, a coordinator that cannot write is one that is not there for the moment.
            too_large = error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
            code = ErrorCode.UNKNOWN_SERVER_ERROR if too_large else ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise KafkaError(code, error.message) from error

    # Time

    def _set_alarm(self) -> None:
        if not self.is_loaded or self._closed:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        deadline_ms = self.state.timers.next_deadline_ms
        if deadline_ms is not None:
            delay = max(0, deadline_ms - self._environment.clock.now_ms()) / 1000
            self._alarm = self._environment.loop.call_later(delay, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now_ms = self._environment.clock.now_ms()
        while (action := self.state.timers.take_due(now_ms)) is not None:
            try:
                outcome = action(now_ms)
                if outcome is not None:
                    self._write(outcome)
            except KafkaError:
                pass  # logged where it happened; the state machine sets its timer again or lets it be
            except Exception:
                _log.exception("timer_failed partition=%s", self.partition.topic_partition)
        self._set_alarm()

    def close(self) -> None:
        """The partition is no longer ours: nothing happens any more, and whoever waits is told to look elsewhere."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(_gone())


def _gone() -> KafkaError:
    return KafkaError(ErrorCode.NOT_COORDINATOR, "this broker coordinates the group no longer")
