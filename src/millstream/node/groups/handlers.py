"""Handlers of the APIs of groups, except those of streams groups (`streams.py`).

Membership: JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14), ConsumerGroupHeartbeat (68) and
ConsumerGroupDescribe (69). Administration: DescribeGroups (15), ListGroups (16), DeleteGroups (42). Offsets:
OffsetCommit (8), OffsetFetch (9), TxnOffsetCommit (28), OffsetDelete (47).

With TxnOffsetCommit a producer writes to a partition of `__consumer_offsets`, so that partition is part of its
transaction. The first commit there is verified with the transaction coordinator (KIP-890), and the marker ends it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicPartition, VerificationGuard
from millstream.formats.protocol.schema import Message
from millstream.formats.protocol.wire_types import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestTopics,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroups,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopics,
)
from millstream.formats.records.batch import NO_SEQUENCE
from millstream.node.coordination.core.state_machine import CoordinatorResult
from millstream.node.coordination.runtime import CoordinatorRuntime
from millstream.node.groups.coordinator import GroupCoordinator
from millstream.node.groups.core.classic.group import Client
from millstream.node.groups.core.group import ALL_GROUP_OPERATIONS
from millstream.node.groups.core.shard import GroupShard
from millstream.node.server.long_requests import Level, Split, Turnstile, in_parts
from millstream.node.server.request import Context, Response
from millstream.node.server.service import Peer

_FIRST_LEAVE_WITH_MEMBERS = 3
_FIRST_SYNC_WITH_PROTOCOL = 5

Operation = Callable[[GroupShard, int], CoordinatorResult[dict[str, Any]]]


class ClassicGroupHandlers:
    """JoinGroup, SyncGroup, Heartbeat, LeaveGroup: members of classic groups."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    async def join_group(self, request: JoinGroupRequest, context: Context) -> Response:
        client = Client(context.client_id, f"/{context.peer.host}")
        response = await self._respond(
            request, lambda shard, now_ms: shard.classic.join(request, client, context.version, now_ms)
        )
        if response["error_code"] == ErrorCode.GROUP_MAX_SIZE_REACHED:
            return {**response, "member_id": ""}
        return {"member_id": request.member_id, **response}

    async def sync_group(self, request: SyncGroupRequest, context: Context) -> Response:
        if context.version >= _FIRST_SYNC_WITH_PROTOCOL and None in (request.protocol_type, request.protocol_name):
            return {"error_code": ErrorCode.INCONSISTENT_GROUP_PROTOCOL}
        return await self._respond(request, lambda shard, now_ms: shard.classic.sync(request, now_ms))

    def heartbeat(self, request: HeartbeatRequest, context: Context) -> Response | Awaitable[Response]:
        if not request.group_id:
            return {"error_code": ErrorCode.INVALID_GROUP_ID}
        return self._groups.respond(
            request.group_id,
            lambda shard, now_ms: shard.classic.heartbeat(request, now_ms),
            lambda error: {"error_code": error.code},
        )

    async def leave_group(self, request: LeaveGroupRequest, context: Context) -> Response:
        if context.version >= _FIRST_LEAVE_WITH_MEMBERS:
            leaving = [(member.member_id, member.group_instance_id) for member in request.members]
        else:
            leaving = [(request.member_id, None)]
        try:
            check_group_id(request.group_id)
            rows = await self._groups.run(
                request.group_id, lambda shard, now_ms: shard.classic.leave(request.group_id, leaving, now_ms)
            )
        except KafkaError as error:
            return {"error_code": error.code, "members": []}
        if context.version >= _FIRST_LEAVE_WITH_MEMBERS:
            return {"members": rows}
        return {"error_code": rows[0]["error_code"]}

    async def _respond(self, request: JoinGroupRequest | SyncGroupRequest, operation: Operation) -> dict[str, Any]:
        try:
            check_group_id(request.group_id)
            return await self._groups.run(request.group_id, operation)
        except KafkaError as error:
            return {"error_code": error.code}


def check_group_id(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")


class ConsumerGroupHandlers:
    """ConsumerGroupHeartbeat and ConsumerGroupDescribe: members of consumer groups."""

    def __init__(self, groups: GroupCoordinator, may_describe: Callable[[Peer, str], bool] | None = None) -> None:
        """`may_describe` returns whether a client may describe a topic; None if there is no authorizer."""
        self._groups = groups
        self._may_describe = may_describe

    def consumer_group_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: Context
    ) -> Response | Awaitable[Response]:
        client = Client(context.client_id, f"/{context.peer.host}")

        def heartbeat(shard: GroupShard, now_ms: int) -> CoordinatorResult[dict[str, Any]]:
            if self._may_describe is None:
                return shard.consumer.heartbeat(request, client, context.version, now_ms)
            shard.consumer.checks_rights = True
            shard.consumer.may_describe = partial(self._may_describe, context.peer)
            try:
                return shard.consumer.heartbeat(request, client, context.version, now_ms)
            finally:
                shard.consumer.may_describe = None

        def refuse(error: KafkaError) -> dict[str, Any]:
            return {"error_code": error.code, "error_message": error.message}

        if request.subscribed_topic_regex:
            return self._learn_and_respond(request, heartbeat, refuse)
        return self._groups.respond(request.group_id, heartbeat, refuse)

    async def _learn_and_respond(
        self,
        request: ConsumerGroupHeartbeatRequest,
        heartbeat: Callable[[GroupShard, int], CoordinatorResult[dict[str, Any]]],
        refuse: Callable[[KafkaError], dict[str, Any]],
    ) -> Response:
        with suppress(KafkaError):  # an invalid expression is refused by the heartbeat itself
            await self._groups.learn_pattern(request.group_id, request.subscribed_topic_regex or "")
        response = self._groups.respond(request.group_id, heartbeat, refuse)
        return response if isinstance(response, dict) else await response

    async def consumer_group_describe(self, request: ConsumerGroupDescribeRequest, context: Context) -> Response:
        # Each group once: the response is much longer than the request.
        rows = []
        for group_id in dict.fromkeys(request.group_ids):
            row = await self._described(group_id)
            if request.include_authorized_operations and not row.get("error_code"):
                row["authorized_operations"] = ALL_GROUP_OPERATIONS
            rows.append(row)
            await asyncio.sleep(0)  # let other tasks run
        return {"groups": rows}

    async def _described(self, group_id: str) -> dict[str, Any]:
        try:
            if not group_id:
                raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id is empty.")
            return await self._groups.read(group_id, lambda shard: shard.consumer.describe(group_id))
        except KafkaError as error:
            return {"group_id": group_id, "error_code": error.code, "error_message": error.message}


class GroupAdminHandlers:
    """DescribeGroups, ListGroups, DeleteGroups."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    async def describe_groups(self, request: DescribeGroupsRequest, context: Context) -> Response:
        rows = []
        # Each group once: the response is much longer than the request.
        for group_id in dict.fromkeys(request.groups):
            row = await self._described(group_id, context.version)
            if request.include_authorized_operations:
                row["authorized_operations"] = ALL_GROUP_OPERATIONS
            rows.append(row)
            await asyncio.sleep(0)  # let other tasks run
        return {"groups": rows}

    async def _described(self, group_id: str, version: int) -> dict[str, Any]:
        try:
            return await self._groups.read(group_id, lambda shard: shard.classic.describe(group_id, version))
        except KafkaError as error:
            return {"group_id": group_id, "error_code": error.code, "error_message": error.message}

    async def list_groups(self, request: ListGroupsRequest, context: Context) -> Response:
        states = frozenset(state.lower() for state in request.states_filter)
        types = frozenset(kind.lower() for kind in request.types_filter)
        try:
            listed = await self._groups.read_all(lambda shard: shard.list_groups(states, types))
        except KafkaError as error:
            return {"error_code": error.code, "groups": []}
        return {"groups": [row for rows in listed for row in rows]}

    async def delete_groups(self, request: DeleteGroupsRequest, context: Context) -> Response:
        rows = []
        for group_id in dict.fromkeys(request.groups_names):
            code = ErrorCode.NONE
            try:
                await self._delete(group_id)
            except KafkaError as error:
                code = error.code
            await asyncio.sleep(0)
            rows.append({"group_id": group_id, "error_code": code})
        return {"results": rows}

    async def _delete(self, group_id: str) -> None:
        is_gone = False
        while not is_gone:
            is_gone = await self._groups.run(group_id, lambda shard, now_ms: shard.delete_group(group_id, now_ms))
            await asyncio.sleep(0)


FIRST_COMMIT_THAT_ADDS = 5
"""The first version of TxnOffsetCommit that adds the partition to the transaction (transaction version 2)."""
_FIRST_WITH_ABORTABLE = 4


class Verification(Protocol):
    """Verifies partitions with the transaction coordinator, on this or another broker."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Awaitable[dict[TopicPartition, ErrorCode]]: ...


class TransactionalOffsets:
    """Offsets that a producer commits in its transaction."""

    def __init__(
        self, groups: GroupCoordinator, verification: Verification, is_verification_enabled: Callable[[], bool]
    ) -> None:
        self._groups = groups
        self._verification = verification
        self._is_verification_enabled = is_verification_enabled

    async def commit(self, request: TxnOffsetCommitRequest, version: int) -> dict[str, Any]:
        """TxnOffsetCommit; KafkaError if the whole request is refused."""
        check_group_id(request.group_id)
        if request.producer_id < 0 or request.producer_epoch < 0:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "the producer id and the producer epoch must not be negative"
            )
        runtime = await self._groups.runtime_of(request.group_id)
        guard = await self._verified(runtime, request, version)
        return await self._groups.run_in(
            runtime, lambda shard, now_ms: shard.offsets.commit_in_transaction(request, now_ms), guard
        )

    async def _verified(
        self, runtime: CoordinatorRuntime, request: TxnOffsetCommitRequest, version: int
    ) -> VerificationGuard | None:
        adds = version >= FIRST_COMMIT_THAT_ADDS
        if not adds and not self._is_verification_enabled():
            return None
        partition = runtime.partition
        producer_id, epoch = request.producer_id, request.producer_epoch
        try:
            guard = partition.begin_verification(producer_id, epoch, NO_SEQUENCE, bumps_epoch=adds)
        except KafkaError as error:
            if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error
            raise
        if guard is None:
            return None  # the transaction is open in this partition
        topic_partition = partition.topic_partition
        results = await self._verification.verify(
            request.transactional_id, producer_id, epoch, [topic_partition], adds=adds
        )
        error_code = results.get(topic_partition, ErrorCode.INVALID_TXN_STATE)
        if error_code != ErrorCode.NONE:
            raise KafkaError(
                for_offset_commit(error_code, version), f"the transaction coordinator responded with {error_code.name}"
            )
        return guard


def for_offset_commit(error: ErrorCode, version: int) -> ErrorCode:
    """The error that a client gets for its version of TxnOffsetCommit."""
    if error == ErrorCode.NETWORK_EXCEPTION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error == ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return error


_OFFSETS = Split((Level("topics", "topics", ("name", "topic_id")), Level("partition_indexes", "partitions")), once=True)
_FIRST_FETCH_WITH_GROUPS = 8
_FIRST_FETCH_WITH_ERROR = 2
_FIRST_TRANSACTIONAL_THAT_KNOWS_LOADING = 2
"""Older producers do not retry COORDINATOR_LOAD_IN_PROGRESS, but do retry COORDINATOR_NOT_AVAILABLE (KAFKA-7296)."""


class CommittedOffsetHandlers:
    """OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete."""

    def __init__(self, groups: GroupCoordinator, transactional: TransactionalOffsets) -> None:
        self._groups = groups
        self._transactional = transactional
        self._turnstile = Turnstile()

    def offset_commit(self, request: OffsetCommitRequest, context: Context) -> Response | Awaitable[Response]:
        return self._groups.commit(
            request.group_id,
            lambda shard, now_ms: shard.offsets.commit(request, context.version, now_ms),
            lambda error: {"topics": [_refused(topic, error.code) for topic in request.topics]},
        )

    async def txn_offset_commit(self, request: TxnOffsetCommitRequest, context: Context) -> Response:
        try:
            return await self._transactional.commit(request, context.version)
        except KafkaError as error:
            code = error.code
            if (
                code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                and context.version < _FIRST_TRANSACTIONAL_THAT_KNOWS_LOADING
            ):
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return {
                "topics": [{"name": topic.name, "partitions": _refused_rows(topic, code)} for topic in request.topics]
            }

    async def offset_fetch(self, request: OffsetFetchRequest, context: Context) -> Response:
        if context.version >= _FIRST_FETCH_WITH_GROUPS:
            rows = []
            for wanted in _once_each(request.groups):
                rows.append(await self._fetched(wanted, context.version, request.require_stable))
                await asyncio.sleep(0)  # let other tasks run
            return {"groups": rows}
        group = await self._fetched(request, context.version, request.require_stable)
        code = group["error_code"]
        topics = [{name: topic[name] for name in ("name", "partitions")} for topic in group["topics"]]
        if code and context.version < _FIRST_FETCH_WITH_ERROR:
            # These versions have no field for the group's error, so each partition has it.
            topics = [
                {"name": topic.name, "partitions": [_unfetched(index, code) for index in topic.partition_indexes]}
                for topic in request.topics or ()
            ]
        return {"topics": topics, "error_code": code}

    async def _fetched(self, group: Any, version: int, require_stable: bool) -> dict[str, Any]:
        async def fetched(part: Message) -> Response:
            return await self._groups.read(
                group.group_id, lambda shard: shard.offsets.fetch(part, version, require_stable=require_stable)
            )

        try:
            return await in_parts(_OFFSETS, fetched, group, self._turnstile)
        except KafkaError as error:
            return {"group_id": group.group_id, "topics": [], "error_code": error.code}

    async def offset_delete(self, request: OffsetDeleteRequest, context: Context) -> Response:
        try:
            check_group_id(request.group_id)
            return await self._groups.run(request.group_id, lambda shard, now_ms: shard.offsets.delete(request, now_ms))
        except KafkaError as error:
            return {"error_code": error.code, "topics": []}


def _once_each(groups: list[OffsetFetchRequestGroups]) -> list[OffsetFetchRequestGroups]:
    """Each group once, so that a small request cannot cause a response of gigabytes.

    As in Kafka, a request may have some offsets of a group beside all of them.
    """
    first: dict[tuple[str, bool], OffsetFetchRequestGroups] = {}
    for group in groups:
        first.setdefault((group.group_id, group.topics is None), group)
    return list(first.values())


def _refused(topic: OffsetCommitRequestTopics, code: int) -> dict[str, Any]:
    return {"topic_id": topic.topic_id, "name": topic.name, "partitions": _refused_rows(topic, code)}


def _refused_rows(topic: OffsetCommitRequestTopics | TxnOffsetCommitRequestTopics, code: int) -> list[dict[str, Any]]:
    if code == ErrorCode.UNKNOWN_SERVER_ERROR:  # the batch of all offsets is too large for the log
        code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return [{"partition_index": partition.partition_index, "error_code": code} for partition in topic.partitions]


def _unfetched(index: int, code: int) -> dict[str, Any]:
    return {"partition_index": index, "committed_offset": -1, "metadata": "", "error_code": code}
