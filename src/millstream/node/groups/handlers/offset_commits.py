"""OffsetCommit (8), OffsetFetch (9), TxnOffsetCommit (28), OffsetDelete (47): where groups are in their topics."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.groups.group_coordinator import GroupCoordinator
from millstream.node.groups.transactional_offsets import TransactionalOffsets
from millstream.node.server.request import Context, Response
from millstream.node.server.splitting import Level, Split, in_parts
from millstream.node.server.turns import Turnstile

_OFFSETS = Split((Level("topics", "topics", ("name", "topic_id")), Level("partition_indexes", "partitions")), once=True)
_FIRST_FETCH_WITH_GROUPS = 8
_FIRST_FETCH_WITH_ERROR = 2
_FIRST_TRANSACTIONAL_THAT_KNOWS_LOADING = 2
"""Older producers fall over a coordinator that loads, but not over one that is not there (KAFKA-7296)."""


class OffsetCommitHandlers:
    def __init__(self, groups: GroupCoordinator, transactional: TransactionalOffsets) -> None:
        self._groups = groups
        self._transactional = transactional
        self._turnstile = Turnstile()

    def offset_commit(self, request: Message, context: Context) -> Response | Awaitable[Response]:
        return self._groups.respond(
            request.group_id,
            lambda shard, now_ms: shard.offsets.commit(request, context.version, now_ms),
            lambda error: {"topics": [_refused(topic, error.code) for topic in request.topics]},
        )

    async def txn_offset_commit(self, request: Message, context: Context) -> Response:
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

    async def offset_fetch(self, request: Message, context: Context) -> Response:
        if context.version >= _FIRST_FETCH_WITH_GROUPS:
            rows = []
            for wanted in _once_each(request.groups):
                rows.append(await self._fetched(wanted, context.version, request.require_stable))
                await asyncio.sleep(0)  # others have their turn
            return {"groups": rows}
        group = await self._fetched(request, context.version, request.require_stable)
        code = group["error_code"]
        topics = [{name: topic[name] for name in ("name", "partitions")} for topic in group["topics"]]
        if code and context.version < _FIRST_FETCH_WITH_ERROR:
            # There is no place for the group's error, so each partition tells it.
            topics = [
                {"name": topic.name, "partitions": [_unfetched(index, code) for index in topic.partition_indexes]}
                for topic in request.topics
            ]
        return {"topics": topics, "error_code": code}

    async def _fetched(self, group: Message, version: int, require_stable: bool) -> dict[str, Any]:
        async def fetched(part: Message) -> Response:
            return await self._groups.read(
                group.group_id, lambda shard: shard.offsets.fetch(part, version, require_stable=require_stable)
            )

        try:
            return await in_parts(_OFFSETS, fetched, group, self._turnstile)
        except KafkaError as error:
            return {"group_id": group.group_id, "topics": [], "error_code": error.code}

    async def offset_delete(self, request: Message, context: Context) -> Response:
        try:
            if not request.group_id:
                raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
            return await self._groups.run(request.group_id, lambda shard, now_ms: shard.offsets.delete(request, now_ms))
        except KafkaError as error:
            return {"error_code": error.code, "topics": []}


def _once_each(groups: list[Message]) -> list[Message]:
    """A group named often is answered once; or a small request could ask for an answer of gigabytes.

    As in Kafka, some of its offsets may be asked for beside all of them.
    """
    first: dict[tuple[str, bool], Message] = {}
    for group in groups:
        first.setdefault((group.group_id, group.topics is None), group)
    return list(first.values())


def _refused(topic: Message, code: int) -> dict[str, Any]:
    return {"topic_id": topic.topic_id, "name": topic.name, "partitions": _refused_rows(topic, code)}


def _refused_rows(topic: Message, code: int) -> list[dict[str, Any]]:
    if code == ErrorCode.UNKNOWN_SERVER_ERROR:  # the log did not take it: all of it in one batch is too large
        code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return [{"partition_index": partition.partition_index, "error_code": code} for partition in topic.partitions]


def _unfetched(index: int, code: int) -> dict[str, Any]:
    return {"partition_index": index, "committed_offset": -1, "metadata": "", "error_code": code}
