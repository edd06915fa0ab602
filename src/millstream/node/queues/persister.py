"""Access to the state of share-partitions, on this broker or another; and its creation and deletion for share groups.

`SharePersister` is used by share-partition leaders and group coordinators. It retries for some time while the share
coordinator moves, loads or cannot be reached; all its requests are idempotent. Writes of one share-partition stay in
order; writes that wait go into the next request together.

`ShareGroupStates` initializes the state of partitions that a share group starts to read, and deletes the state that is
not needed any more. The group's records say which states are not initialized yet, so the next group coordinator
continues. Members get an assignment only when its state is initialized (`ready`). So a leader never finds the state of
an earlier group of the same name.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from millstream.common.background_tasks import BackgroundTasks
from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.cluster.cluster_view import BrokerChannels, ClusterView
from millstream.node.environment import Environment
from millstream.node.groups.coordinator import GroupCoordinator
from millstream.node.groups.core.shard import GroupShard
from millstream.node.groups.core.share_group import TopicPartitionId
from millstream.node.groups.core.share_groups import Partitions
from millstream.node.metadata.topic_names import SHARE_GROUP_STATE_TOPIC
from millstream.node.queues.coordinator import ShareCoordinator, StoredState
from millstream.node.queues.core.runs import RecordState, StateBatch
from millstream.node.queues.core.state import UNINITIALIZED, ShareKey, next_epoch

_TIMEOUT_SECONDS = 10.0
_REQUEST_TIMEOUT_SECONDS = 6.0
_LEADER_CHECK_SECONDS = 0.25
_FIRST_PAUSE_SECONDS = 0.02
_MAX_PAUSE_SECONDS = 0.5
_RETRIABLE = frozenset(
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

    def has_same_epochs(self, other: "_Write") -> bool:
        return (self.state_epoch, self.leader_epoch) == (other.state_epoch, other.leader_epoch)


class SharePersister:
    def __init__(
        self, view: ClusterView, local: ShareCoordinator, peers: BrokerChannels, environment: Environment
    ) -> None:
        self._view = view
        self._local = local
        self._peers = peers
        self._loop = environment.loop
        self._waiting: dict[ShareKey, deque[_Write]] = {}
        """Writes that were not made at once, for each share-partition with writes in progress."""
        self._tasks = BackgroundTasks()

    async def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> None:
        await self._request(
            key,
            lambda: self._local.initialize(key, state_epoch, start_offset),
            "initialize_share_group_state",
            {"state_epoch": state_epoch, "start_offset": start_offset},
            lambda row: None,
        )

    async def read(self, key: ShareKey, leader_epoch: int) -> StoredState:
        """The state for a new leader; INVALID_REQUEST if there is none."""
        return await self._request(
            key,
            lambda: self._local.read(key, leader_epoch),
            "read_share_group_state",
            {"leader_epoch": leader_epoch},
            lambda row: StoredState(
                row.state_epoch, leader_epoch, row.start_offset, -1, [_batch(each) for each in row.state_batches]
            ),
        )

    async def delete(self, key: ShareKey) -> None:
        if SHARE_GROUP_STATE_TOPIC in self._view.image.topics:
            await self._request(key, lambda: self._local.delete(key), "delete_share_group_state", {}, lambda row: None)

    async def summary(self, key: ShareKey) -> StoredState | None:
        """The state without single records; None if there is none."""
        return await self._request(
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
        if key not in self._waiting and self._is_local(key):
            try:
                # A coordinator on this broker keeps the order of calls.
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
                if error.code not in _RETRIABLE:
                    raise
        done: asyncio.Future[KafkaError | None] = self._loop.create_future()
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = deque()
            self._tasks.start(self._write_all(key, waiting), loop=self._loop)
        waiting.append(_Write(state_epoch, leader_epoch, start_offset, complete_count, batches, done))
        error_or_none = await done
        if error_or_none is not None:
            raise error_or_none

    async def _write_all(self, key: ShareKey, waiting: "deque[_Write]") -> None:
        try:
            while waiting:
                together = [waiting.popleft()]
                while waiting and waiting[0].has_same_epochs(together[0]):
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
        await self._request(
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

    # On this broker, or on another

    def _is_local(self, key: ShareKey) -> bool:
        return SHARE_GROUP_STATE_TOPIC in self._view.image.topics and self._local.leader_of(key) == self._view.node_id

    async def _request(
        self,
        key: ShareKey,
        local: "Callable[[], Awaitable[T]]",
        api: str,
        fields: Mapping[str, Any],
        read: "Callable[[Message], T]",
    ) -> T:
        deadline = self._loop.time() + _TIMEOUT_SECONDS
        pause_s = _FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._local.ensure_topic()
                broker_id = self._local.leader_of(key)
                if broker_id == self._view.node_id:
                    return await local()
                return read(await self._request_remote(broker_id, key, api, fields))
            except KafkaError as error:
                if error.code not in _RETRIABLE:
                    raise
                failure = error
            except OSError as error:
                failure = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"share coordinator: {error}")
            if self._loop.time() + pause_s >= deadline:
                raise failure
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_SECONDS)

    async def _request_remote(self, broker_id: int, key: ShareKey, api: str, fields: Mapping[str, Any]) -> Message:
        request = {
            "group_id": key.group_id,
            "topics": [{"topic_id": key.topic_id, "partitions": [{"partition": key.partition, **fields}]}],
        }
        response = await self._while_leader(
            broker_id, key, self._peers.request(broker_id, api, request, timeout_s=_REQUEST_TIMEOUT_SECONDS)
        )
        for topic in response.results:
            for row in topic.partitions:
                if row.error_code:
                    raise KafkaError(ErrorCode(row.error_code), row.error_message or "")
                found: Message = row
                return found
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {broker_id} sent no row for {key}")

    async def _while_leader(self, broker_id: int, key: ShareKey, request: "Coroutine[Any, Any, Message]") -> Message:
        """The response of a broker, unless another broker becomes the leader: a broker that hangs never responds."""
        pending = asyncio.ensure_future(request)
        try:
            while not pending.done():
                await asyncio.wait((pending,), timeout=_LEADER_CHECK_SECONDS)
                if not pending.done() and self._local.leader_of(key) != broker_id:
                    raise KafkaError(ErrorCode.NOT_COORDINATOR, f"broker {broker_id} does not keep this state any more")
            return pending.result()
        finally:
            pending.cancel()


def _batch(row: Message) -> StateBatch:
    return StateBatch(row.first_offset, row.last_offset, RecordState(row.delivery_state), row.delivery_count)


_READY_TIMEOUT_SECONDS = 5.0
_CHANGES_AT_ONCE = 50
_FIRST_RETRY_SECONDS = 0.1
_MAX_RETRY_SECONDS = 10.0
_FIRST_SECOND = 1_577_836_800
"""2020-01-01: epochs of states count seconds from here."""

_log = logging.getLogger("millstream.share")


@dataclass(slots=True, eq=False)
class _StateChange:
    shard: GroupShard
    initializes: bool
    """Otherwise it deletes the state."""
    epoch: int = 0
    """The epoch of a new state."""


class ShareGroupStates:
    def __init__(
        self,
        persister: SharePersister,
        groups: GroupCoordinator,
        forget: Callable[[str, Iterable[TopicPartitionId]], None],
        environment: Environment,
    ) -> None:
        """`forget` is called with share-partitions whose state is replaced, in case this broker leads them."""
        self._persister = persister
        self._groups = groups
        self._forget = forget
        self._environment = environment
        self._changes: dict[str, dict[TopicPartitionId, _StateChange]] = {}
        self._tasks: dict[str, asyncio.Future[None]] = {}
        self._updates: dict[str, asyncio.Future[None]] = {}
        self._last_epoch = 0
        groups.on_share_state = self._changed
        groups.on_shard_closed = self._shard_closed

    def _changed(self, shard: GroupShard, group_id: str, initializing: Partitions, removed: Partitions) -> None:
        changes = self._changes.setdefault(group_id, {})
        self._last_epoch = max(self._last_epoch + 1, self._environment.clock.now_ms() // 1000 - _FIRST_SECOND)
        for at in initializing:
            changes[at] = _StateChange(shard, initializes=True, epoch=self._last_epoch)
        for at in removed:
            changes[at] = _StateChange(shard, initializes=False)
        self._forget(group_id, [*initializing, *removed])
        if group_id not in self._tasks:
            task = asyncio.ensure_future(self._run_changes(group_id), loop=self._environment.loop)
            self._tasks[group_id] = task
            task.add_done_callback(_ended)

    def _shard_closed(self, shard: GroupShard) -> None:
        """The next coordinator of the groups continues from their records; this one stops."""
        for group_id, changes in self._changes.items():
            for at, change in tuple(changes.items()):
                if change.shard is shard:
                    del changes[at]
            self._notify(group_id)

    async def ready(self, group_id: str) -> None:
        """Returns when all state that the group's members read is initialized; COORDINATOR_NOT_AVAILABLE after the
        timeout."""
        if not self._is_initializing(group_id):
            return
        try:
            async with asyncio.timeout(_READY_TIMEOUT_SECONDS):
                while self._is_initializing(group_id):
                    update = self._updates.get(group_id)
                    if update is None:
                        update = self._updates[group_id] = self._environment.loop.create_future()
                    await asyncio.shield(update)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the state of share group {group_id} is being initialized"
            ) from None

    def _is_initializing(self, group_id: str) -> bool:
        return any(change.initializes for change in self._changes.get(group_id, {}).values())

    # In the background

    async def _run_changes(self, group_id: str) -> None:
        try:
            await self._apply_changes(group_id)
        finally:
            self._tasks.pop(group_id, None)
            self._changes.pop(group_id, None)
            self._notify(group_id)

    async def _apply_changes(self, group_id: str) -> None:
        pause_s = _FIRST_RETRY_SECONDS
        while changes := self._changes.get(group_id):
            some = list(changes.items())[:_CHANGES_AT_ONCE]
            results = await asyncio.gather(*(self._apply(ShareKey(group_id, *at), change) for at, change in some))
            done = [(at, change) for (at, change), is_done in zip(some, results, strict=True) if is_done]
            made = await self._record_initialized(group_id, [each for each in done if each[1].initializes])
            for at, change in done:
                if changes.get(at) is change and (not change.initializes or made):
                    del changes[at]
            self._notify(group_id)
            if len(done) < len(some) or not made:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_RETRY_SECONDS)
            else:
                pause_s = _FIRST_RETRY_SECONDS

    async def _apply(self, key: ShareKey, change: _StateChange) -> bool:
        try:
            if change.initializes:
                await self._initialize(key, change.epoch)
            else:
                await self._persister.delete(key)
        except KafkaError as error:
            _log.warning("share_state_change_failed key=%s initializes=%s error=%s", key, change.initializes, error)
            return False
        return True

    async def _initialize(self, key: ShareKey, epoch: int) -> None:
        """In an epoch above that of any earlier state of the same name, so that a leader with that state is refused."""
        earlier = await self._persister.summary(key)
        if earlier is not None:
            epoch = max(epoch, next_epoch(earlier.state_epoch))
        await self._persister.initialize(key, epoch, UNINITIALIZED)

    async def _record_initialized(self, group_id: str, made: "list[tuple[TopicPartitionId, _StateChange]]") -> bool:
        """Writes to the group which states are initialized; False if that must be retried."""
        for shard in dict.fromkeys(change.shard for _, change in made):
            partitions = [at for at, change in made if change.shard is shard]
            try:
                await self._groups.run_on(shard, lambda now_ms: shard.share.state_initialized(group_id, partitions))  # noqa: B023
            except KafkaError as error:
                if error.code != ErrorCode.NOT_COORDINATOR:
                    _log.warning("share_state_not_noted group=%s error=%s", group_id, error)
                    return False
        return True

    def _notify(self, group_id: str) -> None:
        update = self._updates.pop(group_id, None)
        if update is not None and not update.done():
            update.set_result(None)

    def close(self) -> None:
        for task in tuple(self._tasks.values()):
            task.cancel()


def _ended(task: "asyncio.Future[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("share_state_changes_failed", exc_info=error)
