"""What a group coordinator sees to at the share coordinator: state is made for what a share group begins to read, and
deleted when nobody needs it any more.

The group's records say what is still to be made, so whoever coordinates the group next goes on with it. Members hear of
an assignment only when its state is there (`ready`): what a leader finds is this group's own, and never what an earlier
group of the same name left behind.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.environment import Environment
from millstream.node.groups.core.group_shard import GroupShard
from millstream.node.groups.core.share.share_groups import Partitions
from millstream.node.groups.core.share.simple_assignor import TopicPartitionId
from millstream.node.groups.group_coordinator import GroupCoordinator
from millstream.node.queues.core.share_state import UNINITIALIZED, ShareKey
from millstream.node.queues.share_persister import SharePersister

_PATIENCE_S = 5.0
_AT_ONCE = 50
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_FIRST_SECOND = 1_577_836_800
"""2020 began: epochs of states are counted from here."""
_LARGEST_EPOCH = (1 << 31) - 1

_log = logging.getLogger("millstream.share")


@dataclass(slots=True, eq=False)
class _Errand:
    shard: GroupShard
    makes: bool
    """Or else deletes."""
    epoch: int = 0
    """Of the state that is made."""


class ShareGroupStates:
    def __init__(
        self,
        persister: SharePersister,
        groups: GroupCoordinator,
        forget: Callable[[str, Iterable[TopicPartitionId]], None],
        environment: Environment,
    ) -> None:
        """`forget` is told of share-partitions whose state is another from now on, in case this broker leads them."""
        self._persister = persister
        self._groups = groups
        self._forget = forget
        self._environment = environment
        self._errands: dict[str, dict[TopicPartitionId, _Errand]] = {}
        self._tasks: dict[str, asyncio.Future[None]] = {}
        self._news: dict[str, asyncio.Future[None]] = {}
        self._last_epoch = 0
        groups.on_share_state = self._changed
        groups.on_shard_closed = self._shard_closed

    def _changed(self, shard: GroupShard, group_id: str, begun: Partitions, gone: Partitions) -> None:
        errands = self._errands.setdefault(group_id, {})
        self._last_epoch = max(self._last_epoch + 1, self._environment.clock.now_ms() // 1000 - _FIRST_SECOND)
        for at in begun:
            errands[at] = _Errand(shard, makes=True, epoch=self._last_epoch)
        for at in gone:
            errands[at] = _Errand(shard, makes=False)
        self._forget(group_id, [*begun, *gone])
        if group_id not in self._tasks:
            task = asyncio.ensure_future(self._see_to(group_id), loop=self._environment.loop)
            self._tasks[group_id] = task
            task.add_done_callback(_ended)

    def _shard_closed(self, shard: GroupShard) -> None:
        """Whoever coordinates its groups next goes by the records, not by what is under way here."""
        for group_id, errands in self._errands.items():
            for at, errand in tuple(errands.items()):
                if errand.shard is shard:
                    del errands[at]
            self._tell(group_id)

    async def ready(self, group_id: str) -> None:
        """Returns when all state that the group's members read is there; COORDINATOR_NOT_AVAILABLE if it takes long."""
        if not self._is_making(group_id):
            return
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while self._is_making(group_id):
                    news = self._news.get(group_id)
                    if news is None:
                        news = self._news[group_id] = self._environment.loop.create_future()
                    await asyncio.shield(news)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the state of share group {group_id} is being made"
            ) from None

    def _is_making(self, group_id: str) -> bool:
        return any(errand.makes for errand in self._errands.get(group_id, {}).values())

    # In the background

    async def _see_to(self, group_id: str) -> None:
        try:
            await self._see_to_all(group_id)
        finally:
            self._tasks.pop(group_id, None)
            self._errands.pop(group_id, None)
            self._tell(group_id)

    async def _see_to_all(self, group_id: str) -> None:
        pause_s = _FIRST_PAUSE_S
        while errands := self._errands.get(group_id):
            some = list(errands.items())[:_AT_ONCE]
            results = await asyncio.gather(*(self._do(ShareKey(group_id, *at), errand) for at, errand in some))
            done = [(at, errand) for (at, errand), is_done in zip(some, results, strict=True) if is_done]
            made = await self._note(group_id, [each for each in done if each[1].makes])
            for at, errand in done:
                if errands.get(at) is errand and (not errand.makes or made):
                    del errands[at]
            self._tell(group_id)
            if len(done) < len(some) or not made:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                pause_s = _FIRST_PAUSE_S

    async def _do(self, key: ShareKey, errand: _Errand) -> bool:
        try:
            if errand.makes:
                await self._make(key, errand.epoch)
            else:
                await self._persister.delete(key)
        except KafkaError as error:
            _log.warning("share_state_errand_failed key=%s makes=%s error=%s", key, errand.makes, error)
            return False
        return True

    async def _make(self, key: ShareKey, epoch: int) -> None:
        """In an epoch that no earlier state of the same name was in: a leader that still has it is refused."""
        earlier = await self._persister.summary(key)
        if earlier is not None:
            epoch = max(epoch, earlier.state_epoch + 1)
        await self._persister.initialize(key, min(epoch, _LARGEST_EPOCH), UNINITIALIZED)

    async def _note(self, group_id: str, made: "list[tuple[TopicPartitionId, _Errand]]") -> bool:
        """Has the group note what was made; False if that has to be tried again."""
        for shard in dict.fromkeys(errand.shard for _, errand in made):
            partitions = [at for at, errand in made if errand.shard is shard]
            try:
                await self._groups.run_on(shard, lambda now_ms: shard.share.made(group_id, partitions))  # noqa: B023
            except KafkaError as error:
                if error.code != ErrorCode.NOT_COORDINATOR:
                    _log.warning("share_state_not_noted group=%s error=%s", group_id, error)
                    return False
        return True

    def _tell(self, group_id: str) -> None:
        news = self._news.pop(group_id, None)
        if news is not None and not news.done():
            news.set_result(None)

    def close(self) -> None:
        for task in tuple(self._tasks.values()):
            task.cancel()


def _ended(task: "asyncio.Future[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("share_state_errands_failed", exc_info=error)
