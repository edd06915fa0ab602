"""Membership of a consumer group (KIP-848): the coordinator assigns partitions, heartbeats keep the member alive.

A revoked partition is given up and confirmed with the next heartbeat, before another member gets it. The owner may keep
it for a while to commit the records it handed out; the coordinator waits for that, up to a limit. A member that was
fenced joins again by itself, and its owner is notified that all partitions are gone.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar
from uuid import UUID

from anyio import CapacityLimiter, to_thread

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.gateway.http.errors import ApiError, error_for_code
from millstream.raw_client import Cluster, CoordinatorKind, SetupError, TopicPartition, WireError
from millstream.raw_client.errors import error_code

_JOIN_EPOCH, _LEAVE_EPOCH = 0, -1
_NO_EPOCH = -1
"""Commits that are not by a member of the group."""
_REBALANCE_TIMEOUT_MS = 30_000
_HANDOVER_SECONDS = 20.0
"""How long revoked partitions are kept. Less than the rebalance timeout, after which the member would be fenced."""
_RETRY_SECONDS = 1.0
_LAST_COMMIT_WITH_NAMES = 9
_FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH})
_FINAL = frozenset(
    {
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_GROUP_ID,
    }
)
"""Errors that are not retriable."""

_log = logging.getLogger(__name__)
Result = TypeVar("Result")
Metadata = Mapping[TopicPartition, str]
"""Texts that are committed with offsets."""


class Owner(Protocol):
    """The reader of the assigned partitions."""

    def leaving(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """They are revoked. Returns those with uncommitted records; `GroupMember.release` follows for these."""

    def staying(self, partitions: Collection[TopicPartition]) -> None:
        """They are assigned again before they were released."""

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """They are given up: no records of them may be handed out any more."""

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """They are assigned."""


class FencedError(Exception):
    """This member was fenced: the group continues without it."""


def _commit(
    cluster: Cluster,
    group: str,
    epoch: int,
    member_id: str,
    offsets: Mapping[TopicPartition, int],
    metadata: Metadata,
) -> None:
    """Blocks. FencedError if the group does not know this member."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for partition, offset in offsets.items():
        row = {
            "partition_index": partition.partition,
            "committed_offset": offset,
            "committed_metadata": metadata.get(partition, ""),
        }
        rows.setdefault(partition.topic, []).append(row)
    response = cluster.call_coordinator(
        group,
        CoordinatorKind.GROUP,
        "offset_commit",
        at_most=_LAST_COMMIT_WITH_NAMES,
        group_id=group,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        topics=[{"name": name, "partitions": found} for name, found in rows.items()],
    )
    for topic in response.topics:
        for row in topic.partitions:
            code = error_code(row.error_code)
            if code in _FENCED or code is ErrorCode.GROUP_ID_NOT_FOUND:
                raise FencedError
            if row.error_code:
                found = error_for_code(code, f"the offset for {topic.name}-{row.partition_index} was refused")
                raise ApiError(found.status, f"{found.message} ({code.name})", found.hint, code=found.code)


class ManualMember:
    """Partitions that the caller assigned itself. It is no member of the group, but commits offsets for it."""

    member_id = ""
    failure: ApiError | None = None
    pattern: str | None = None

    def __init__(
        self, cluster: Cluster, threads: CapacityLimiter, group: str, partitions: Collection[TopicPartition]
    ) -> None:
        self._cluster = cluster
        self._threads = threads
        self.group = group
        self.partitions = frozenset(partitions)
        self.topics = tuple(sorted({partition.topic for partition in partitions}))

    def reads(self, topic: str) -> bool:
        return topic in self.topics

    async def leave(self) -> None:
        pass

    async def commit(self, offsets: Mapping[TopicPartition, int], metadata: Metadata = MappingProxyType({})) -> None:
        """FencedError if the group has members, WireError if the coordinator cannot be reached."""
        await to_thread.run_sync(
            lambda: _commit(self._cluster, self.group, _NO_EPOCH, "", offsets, metadata), limiter=self._threads
        )

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing is revoked here."""


class GroupMember:
    """Runs in the event loop; requests to the cluster are sent in `threads`."""

    def __init__(self, cluster: Cluster, threads: CapacityLimiter, group: str, owner: Owner) -> None:
        self._cluster = cluster
        self._threads = threads
        self._owner = owner
        self.group = group
        self.member_id = str(uuid.uuid4())
        self.epoch = _JOIN_EPOCH
        self.topics: tuple[str, ...] = ()
        self.pattern: str | None = None
        """A regular expression (RE2) in place of names of topics."""
        self.failure: ApiError | None = None
        """Why this member has failed for good, or None."""
        self.partitions: frozenset[TopicPartition] = frozenset()
        self._leaving: frozenset[TopicPartition] = frozenset()
        self._names: dict[UUID, str] = {}
        self._tell_all = True
        self._one_call = asyncio.Lock()
        """The epoch changes with heartbeats: a commit during a heartbeat would use an old one."""
        self._kick = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._interval_s = 0.0
        self._left = False

    def reads(self, topic: str) -> bool:
        return topic in (self.topics if self.pattern is None else self._names.values())

    async def join(self, topics: Collection[str], pattern: str | None = None) -> None:
        """Joins, or changes the topics. ApiError or WireError if the cluster refuses."""
        self.topics = tuple(sorted(topics))
        self.pattern = pattern
        self._tell_all = True
        self.failure = None
        await self._beat()
        if self.failure is not None:
            raise self.failure
        if self._left:  # left while this waited
            return
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self._keep_beating())
        self._kick.set()

    async def leave(self) -> None:
        """Never raises: if the coordinator cannot be reached, the session of the member times out there."""
        self._left = True
        try:
            async with self._one_call:  # a join in progress must not complete after the leave
                if self._beating is not None:
                    self._beating.cancel()  # not before: its thread would continue unobserved
                self._give_up(self.partitions)
                if self.epoch != _JOIN_EPOCH:
                    await self._heartbeat({"member_epoch": _LEAVE_EPOCH, "topic_partitions": None})
        except WireError as error:
            _log.info("consumer_leave_failed group=%s reason=%s", self.group, error)

    async def commit(self, offsets: Mapping[TopicPartition, int], metadata: Metadata = MappingProxyType({})) -> None:
        """FencedError if the member was fenced, WireError if the coordinator cannot be reached."""
        async with self._one_call:
            is_member = bool(self.topics) or self.pattern is not None
            epoch, member_id = (self.epoch, self.member_id) if is_member else (_NO_EPOCH, "")
            try:
                await self._in_thread(lambda: _commit(self._cluster, self.group, epoch, member_id, offsets, metadata))
            except FencedError:
                self._kick.set()
                raise

    # Heartbeats

    async def _keep_beating(self) -> None:
        while self.failure is None:
            self._kick.clear()
            try:
                await self._beat()
                pause_s = self._interval_s
            except WireError as error:
                _log.info("consumer_heartbeat_failed group=%s reason=%s", self.group, error)
                pause_s = _RETRY_SECONDS
            except ApiError as error:
                self.failure = error
                return
            except Exception:  # heartbeats must not stop for a bug of the gateway
                _log.exception("consumer_heartbeat_broken group=%s", self.group)
                pause_s = _RETRY_SECONDS
            try:
                await asyncio.wait_for(self._kick.wait(), pause_s)
            except TimeoutError:
                pass

    async def _beat(self) -> None:
        async with self._one_call:
            response = await self._heartbeat(self._heartbeat_fields())
            code = error_code(response.error_code)
            if code in _FENCED or (code is ErrorCode.GROUP_ID_NOT_FOUND and self.epoch != _JOIN_EPOCH):
                self._give_up(self.partitions)
                self.epoch, self._tell_all = _JOIN_EPOCH, True
                response = await self._heartbeat(self._heartbeat_fields())
                code = error_code(response.error_code)
            if code in _FINAL:
                self._fail(code, response.error_message)
            elif code is ErrorCode.NONE:
                self._tell_all = False
                self.epoch = response.member_epoch
                self._interval_s = max(0.1, response.heartbeat_interval_ms / 1000)
                if response.assignment is not None:
                    await self._take(response.assignment)
            else:  # a retriable error
                self._interval_s = _RETRY_SECONDS

    def _heartbeat_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"member_epoch": self.epoch}
        if self._tell_all or self.epoch == _JOIN_EPOCH:
            fields |= {
                "rebalance_timeout_ms": _REBALANCE_TIMEOUT_MS,
                "subscribed_topic_names": list(self.topics),
                "topic_partitions": self._owned_rows(),
            }
            if self.pattern is not None:
                fields["subscribed_topic_regex"] = self.pattern
        else:
            fields |= {"subscribed_topic_names": None, "topic_partitions": self._owned_rows()}
        return fields

    def _owned_rows(self) -> list[dict[str, Any]]:
        ids = {name: topic_id for topic_id, name in self._names.items()}
        rows: dict[UUID, list[int]] = {}
        for partition in sorted(self.partitions):
            rows.setdefault(ids[partition.topic], []).append(partition.partition)
        return [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in rows.items()]

    async def _heartbeat(self, fields: dict[str, Any]) -> Message:
        try:
            return await self._in_thread(
                lambda: self._cluster.call_coordinator(
                    self.group,
                    CoordinatorKind.GROUP,
                    "consumer_group_heartbeat",
                    group_id=self.group,
                    member_id=self.member_id,
                    **fields,
                )
            )
        except SetupError as error:
            if "consumer group heartbeat" not in str(error):
                raise
            raise ApiError(
                501,
                f"the cluster does not support the consumer group protocol of KIP-848: {error}",
                "HTTP consumers need Millstream or Kafka 4.0 or later",
                code=50101,
            ) from None

    async def _take(self, assignment: Message) -> None:
        rows = {row.topic_id: row.partitions for row in assignment.topic_partitions}
        if any(topic_id not in self._names for topic_id in rows):
            names = self.topics if self.pattern is None else None
            topics = await self._in_thread(lambda: self._cluster.topics(names))
            self._names |= {info.topic_id: info.name for info in topics.values()}
        wanted = frozenset(
            TopicPartition(self._names[topic_id], number)
            for topic_id, numbers in rows.items()
            if topic_id in self._names
            for number in numbers
        )
        # An unknown topic is new or was deleted: the next heartbeat requests the whole assignment.
        self._tell_all = any(topic_id not in self._names for topic_id in rows)
        new, going = wanted - self.partitions, self.partitions - wanted - self._leaving
        back = self._leaving & wanted
        if back:
            self._leaving -= back
            self._owner.staying(sorted(back))
        kept = frozenset(self._owner.leaving(sorted(going))) if going else frozenset()
        if kept:
            self._leaving |= kept
            asyncio.get_running_loop().call_later(_HANDOVER_SECONDS, self.release, kept)
        self._give_up(going - kept)
        self.partitions |= new
        if new:
            self._owner.assigned(sorted(new))
        if new or going - kept:
            self._kick.set()  # the coordinator waits for the confirmation

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Gives up revoked partitions that were kept."""
        done = self._leaving & frozenset(partitions)
        if done:
            self._give_up(done)
            self._kick.set()

    def _give_up(self, partitions: Collection[TopicPartition]) -> None:
        self.partitions -= frozenset(partitions)
        self._leaving -= frozenset(partitions)
        if partitions:
            self._owner.revoked(sorted(partitions))

    def _fail(self, code: ErrorCode, message: str | None) -> None:
        found = error_for_code(code, f"group {self.group!r}: {message or code.name}")
        status = 409 if code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_MAX_SIZE_REACHED) else found.status
        hint = "choose another group" if status == 409 else found.hint
        self.failure = ApiError(status, found.message, hint, code=found.code if status != 409 else 40903)
        self._give_up(self.partitions)

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await to_thread.run_sync(call, limiter=self._threads)
