"""The state of share-partitions as their leaders and group coordinators reach it: here, or over the wire where another
broker keeps it.

What meets a share coordinator that is moving, loading or not to be reached is tried again for a while; all requests are
of a kind for which arriving twice does no harm. Writes for one share-partition are kept in order. What has to wait goes
together into the next request.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.peer_requests import PeerRequests
from millstream.node.environment import Environment
from millstream.node.queues.core.record_state import RecordState, StateBatch
from millstream.node.queues.core.share_state import ShareKey
from millstream.node.queues.share_coordinator import STATE_TOPIC, ShareCoordinator, StoredState

_PATIENCE_S = 10.0
_REQUEST_S = 6.0
_LOOK_S = 0.25
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_ASKED_AGAIN = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
    )
)
T = TypeVar("T")


@dataclass(slots=True)
class _Write:
    state_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    batches: Sequence[StateBatch]
    done: "asyncio.Future[KafkaError | None]"

    def follows_on(self, other: "_Write") -> bool:
        return (self.state_epoch, self.leader_epoch) == (other.state_epoch, other.leader_epoch)


class SharePersister:
    def __init__(
        self, view: ClusterView, local: ShareCoordinator, peers: PeerRequests, environment: Environment
    ) -> None:
        self._view = view
        self._local = local
        self._peers = peers
        self._loop = environment.loop
        self._waiting: dict[ShareKey, deque[_Write]] = {}
        """Writes that could not be made on the spot, for each share-partition that has any under way."""
        self._tasks: set[asyncio.Future[None]] = set()

    async def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> None:
        await self._ask(
            key,
            lambda: self._local.initialize(key, state_epoch, start_offset),
            "initialize_share_group_state",
            {"state_epoch": state_epoch, "start_offset": start_offset},
            lambda row: None,
        )

    async def read(self, key: ShareKey, leader_epoch: int) -> StoredState:
        """The state as a leader needs it that takes over; INVALID_REQUEST if there is none."""
        return await self._ask(
            key,
            lambda: self._local.read(key, leader_epoch),
            "read_share_group_state",
            {"leader_epoch": leader_epoch},
            lambda row: StoredState(
                row.state_epoch, leader_epoch, row.start_offset, -1, [_batch(each) for each in row.state_batches]
            ),
        )

    async def delete(self, key: ShareKey) -> None:
        if STATE_TOPIC in self._view.image.topics:
            await self._ask(key, lambda: self._local.delete(key), "delete_share_group_state", {}, lambda row: None)

    async def summary(self, key: ShareKey) -> StoredState | None:
        """Where the state is, without what it knows of single records; None if there is none."""
        return await self._ask(
            key,
            lambda: self._local.summary(key),
            "read_share_group_state_summary",
            {"leader_epoch": -1},
            lambda row: StoredState(
                row.state_epoch, row.leader_epoch, row.start_offset, row.delivery_complete_count, []
            ),
        )

    # Writes

    async def write(
        self,
        key: ShareKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        if key not in self._waiting and self._is_here(key):
            try:
                # A coordinator on this broker takes them in the order in which they come.
                await self._local.write(
                    key,
                    state_epoch=state_epoch,
                    leader_epoch=leader_epoch,
                    start_offset=start_offset,
                    complete_count=complete_count,
                    batches=batches,
                )
                return
            except KafkaError as error:
                if error.code not in _ASKED_AGAIN:
                    raise
        done: asyncio.Future[KafkaError | None] = self._loop.create_future()
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = deque()
            task = asyncio.ensure_future(self._write_all(key, waiting), loop=self._loop)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        waiting.append(_Write(state_epoch, leader_epoch, start_offset, complete_count, batches, done))
        error_or_none = await done
        if error_or_none is not None:
            raise error_or_none

    async def _write_all(self, key: ShareKey, waiting: "deque[_Write]") -> None:
        try:
            while waiting:
                together = [waiting.popleft()]
                while waiting and waiting[0].follows_on(together[0]):
                    together.append(waiting.popleft())
                failure: KafkaError | None = None
                try:
                    await self._write_together(key, together)
                except KafkaError as error:
                    failure = error
                for each in together:
                    if not each.done.done():
                        each.done.set_result(failure)
        finally:
            del self._waiting[key]

    async def _write_together(self, key: ShareKey, writes: list[_Write]) -> None:
        first = writes[0]
        start = max(each.start_offset for each in writes)
        complete = next((each.complete_count for each in reversed(writes) if each.complete_count >= 0), -1)
        batches = [batch for each in writes for batch in each.batches]
        await self._ask(
            key,
            lambda: self._local.write(
                key,
                state_epoch=first.state_epoch,
                leader_epoch=first.leader_epoch,
                start_offset=start,
                complete_count=complete,
                batches=batches,
            ),
            "write_share_group_state",
            {
                "state_epoch": first.state_epoch,
                "leader_epoch": first.leader_epoch,
                "start_offset": start,
                "delivery_complete_count": complete,
                "state_batches": [
                    {"first_offset": low, "last_offset": high, "delivery_state": state, "delivery_count": count}
                    for low, high, state, count in batches
                ],
            },
            lambda row: None,
        )

    # Here or there

    def _is_here(self, key: ShareKey) -> bool:
        return STATE_TOPIC in self._view.image.topics and self._local.leader_of(key) == self._view.node_id

    async def _ask(
        self,
        key: ShareKey,
        here: "Callable[[], Awaitable[T]]",
        api: str,
        fields: Mapping[str, Any],
        read: "Callable[[Message], T]",
    ) -> T:
        deadline = self._loop.time() + _PATIENCE_S
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._local.ensure_topic()
                broker_id = self._local.leader_of(key)
                if broker_id == self._view.node_id:
                    return await here()
                return read(await self._ask_there(broker_id, key, api, fields))
            except KafkaError as error:
                if error.code not in _ASKED_AGAIN:
                    raise
                failure = error
            except OSError as error:
                failure = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"share coordinator: {error}")
            if self._loop.time() + pause_s >= deadline:
                raise failure
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _ask_there(self, broker_id: int, key: ShareKey, api: str, fields: Mapping[str, Any]) -> Message:
        request = {
            "group_id": key.group_id,
            "topics": [{"topic_id": key.topic_id, "partitions": [{"partition": key.partition, **fields}]}],
        }
        answer = await self._while_it_leads(
            broker_id, key, self._peers.request(broker_id, api, request, timeout_s=_REQUEST_S)
        )
        for topic in answer.results:
            for row in topic.partitions:
                if row.error_code:
                    raise KafkaError(ErrorCode(row.error_code), row.error_message or "")
                found: Message = row
                return found
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {broker_id} said nothing of {key}")

    async def _while_it_leads(self, broker_id: int, key: ShareKey, request: "Coroutine[Any, Any, Message]") -> Message:
        """The answer of a broker, unless another takes its place meanwhile: one that hangs never says so."""
        asked = asyncio.ensure_future(request)
        try:
            while not asked.done():
                await asyncio.wait((asked,), timeout=_LOOK_S)
                if not asked.done() and self._local.leader_of(key) != broker_id:
                    raise KafkaError(ErrorCode.NOT_COORDINATOR, f"broker {broker_id} keeps this state no longer")
            return asked.result()
        finally:
            asked.cancel()


def _batch(row: Message) -> StateBatch:
    return StateBatch(row.first_offset, row.last_offset, RecordState(row.delivery_state), row.delivery_count)
