"""Produce requests with schema ids that this broker has not heard of: they wait until it has read what is registered.

    judged ──every id is known, nobody waits before it──> appended
       └──────> held (its bytes are copied) ──the schemas are read to the end──> appended, or refused for good
                                            ──they cannot be read now──────────> refused, and may come again

What comes for the same partitions meanwhile is held as well, so that nothing overtakes. All that has gathered is served
by one reading.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from millstream.api.request import ProduceResults
from millstream.broker.handlers.transactional_produce import Answer, Outcome, copied
from millstream.broker.schema_guard import SchemaGuard, UnknownSchemaError, Verdicts
from millstream.environment import Environment
from millstream.model.errors import ErrorCode, KafkaError
from millstream.protocol.produce import ProduceRequest

MOST_HELD_BYTES = 64 << 20
"""Clients are told to come again with what is more than that."""
_log = logging.getLogger("millstream.schemas")


class Schemas(Protocol):
    def catch_up(self) -> Awaitable[None]: ...
    def keep_fresh(self) -> None: ...
    def close(self) -> None: ...


class _Held:
    __slots__ = ("answer", "append", "buffer", "refuse", "request")

    def __init__(self, request: ProduceRequest, buffer: bytearray) -> None:
        self.request, self.buffer = copied(request, buffer)
        self.answer: Answer = lambda results: None
        """Nobody waits for it with acks=0."""
        self.append: Callable[[ProduceRequest, bytearray, Verdicts | None], Outcome]
        self.refuse: Callable[[ProduceRequest, bytearray, KafkaError], ProduceResults]

    def wait(self, answer: Answer) -> None:
        self.answer = answer


class GuardedProduce:
    def __init__(self, guard: SchemaGuard, schemas: Schemas, environment: Environment) -> None:
        self.guard = guard
        self._schemas = schemas
        self._loop = environment.loop
        self._held: list[_Held] = []
        self._places: Counter[tuple[bytes, int]] = Counter()
        """Partitions for which something is held."""
        self._bytes = 0
        self._work: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        """Whether requests must come here first: a topic is guarded, or somebody waits."""
        return bool(self.guard) or bool(self._held)

    def take(
        self,
        request: ProduceRequest,
        buffer: bytearray,
        append: Callable[[ProduceRequest, bytearray, Verdicts | None], Outcome],
        refuse: Callable[[ProduceRequest, bytearray, KafkaError], ProduceResults],
    ) -> Outcome:
        """Appends it now, or when more is known of what it carries."""
        verdicts = self.guard.judge(request, buffer)
        if verdicts is not None:
            self._schemas.keep_fresh()
        if not self._must_wait(request, verdicts):
            return append(request, buffer, verdicts)
        held = _Held(request, buffer)
        if self._bytes + len(held.buffer) > MOST_HELD_BYTES:
            too_much = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "too many requests wait for schemas: try again")
            return refuse(request, buffer, too_much), None
        held.append, held.refuse = append, refuse
        self._bytes += len(held.buffer)
        self._held.append(held)
        self._places.update(_places(request))
        if self._work is None:
            self._work = self._loop.create_task(self._serve())
        return [], held.wait

    def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
        self._schemas.close()

    def _must_wait(self, request: ProduceRequest, verdicts: Verdicts | None) -> bool:
        if self._held and any(place in self._places for place in _places(request)):
            return True
        return verdicts is not None and _has_unknown(verdicts)

    async def _serve(self) -> None:
        try:
            while self._held:
                gathered = len(self._held)
                trouble: KafkaError | None = None
                try:
                    await self._schemas.catch_up()
                except KafkaError as error:
                    trouble = error
                for _ in range(gathered):
                    self._finish(self._held[0], trouble)
        finally:
            self._work = None
            stopping = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "the broker is stopping")
            while self._held:
                held = self._let_go(self._held[0])
                held.answer(held.refuse(held.request, held.buffer, stopping))

    def _finish(self, held: _Held, trouble: KafkaError | None) -> None:
        self._let_go(held)
        try:
            verdicts = self.guard.judge(held.request, held.buffer)
            if trouble is not None and verdicts is not None and _has_unknown(verdicts):
                results, wait = held.refuse(held.request, held.buffer, trouble), None
            else:
                results, wait = held.append(held.request, held.buffer, verdicts)
        except Exception:
            _log.exception("produce_failed")
            unknown = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "see the broker's log")
            results, wait = held.refuse(held.request, held.buffer, unknown), None
        if wait is not None:
            wait(held.answer)
        else:
            held.answer(results)

    def _let_go(self, held: _Held) -> _Held:
        self._held.remove(held)
        self._bytes -= len(held.buffer)
        self._places -= Counter(_places(held.request))
        return held


def _places(request: ProduceRequest) -> list[tuple[bytes, int]]:
    return [(topic, index) for topic, datas in request.topics for index, _, _ in datas]


def _has_unknown(verdicts: Verdicts) -> bool:
    return any(isinstance(fault, UnknownSchemaError) for fault in verdicts.values())
