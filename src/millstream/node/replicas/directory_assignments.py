"""Tells the controller in which log directory each replica of this node is (`AssignReplicasToDirs`, KIP-858)."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.environment import Environment
from millstream.node.replicas.isr_changes import ControllerRequests

_log = logging.getLogger("millstream.replication")
_RETRY_SECONDS = 0.5
_MAX_ROWS = 2000

Key = tuple[UUID, int]
_DROPPED = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
"""The replica does not exist any more."""


class DirectoryAssignments:
    """Sends the log directories of replicas to the controller, many in one request, until it has them."""

    def __init__(
        self, link: ControllerRequests, node_id: int, broker_epoch: Callable[[], int], environment: Environment
    ) -> None:
        self._link = link
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._environment = environment
        self._wanted: dict[Key, UUID] = {}
        self._waiting: dict[Key, list[asyncio.Future[bool]]] = {}
        self._sending: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_settled(self) -> bool:
        return not self._wanted

    def assign(self, topic_id: UUID, partition: int, directory: UUID) -> "asyncio.Future[bool]":
        """Done when the controller has it: True, or False if the replica does not exist any more."""
        key = topic_id, partition
        self._wanted.pop(key, None)
        self._wanted[key] = directory
        told: asyncio.Future[bool] = self._environment.loop.create_future()
        self._waiting.setdefault(key, []).append(told)
        if self._sending is None and not self._closed:
            self._sending = asyncio.ensure_future(self._send_all(), loop=self._environment.loop)
        return told

    def close(self) -> None:
        self._closed = True
        self._wanted.clear()
        if self._sending is not None:
            self._sending.cancel()
        for told in [each for waiting in self._waiting.values() for each in waiting]:
            told.cancel()
        self._waiting.clear()

    async def _send_all(self) -> None:
        try:
            while self._wanted:
                batch = dict(list(self._wanted.items())[:_MAX_ROWS])
                try:
                    has_all = self._settle(batch, await self._send(batch))
                except (KafkaError, OSError) as error:
                    _log.warning("directories_not_assigned error=%s", error)
                    has_all = False
                if not has_all:
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            self._sending = None

    async def _send(self, batch: dict[Key, UUID]) -> dict[tuple[UUID, Key], int]:
        """The error codes by directory and partition."""
        rows: dict[UUID, dict[UUID, list[int]]] = {}
        for (topic_id, index), directory in batch.items():
            rows.setdefault(directory, {}).setdefault(topic_id, []).append(index)
        fields: dict[str, Any] = {
            "broker_id": self._node_id,
            "broker_epoch": self._broker_epoch(),
            "directories": [
                {
                    "id_": directory,
                    "topics": [
                        {"topic_id": topic_id, "partitions": [{"partition_index": index} for index in indexes]}
                        for topic_id, indexes in topics.items()
                    ],
                }
                for directory, topics in rows.items()
            ],
        }
        response = await self._link.request("assign_replicas_to_dirs", fields)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), "the controller refused the directories of replicas")
        return {
            (directory.id_, (topic.topic_id, row.partition_index)): row.error_code
            for directory in response.directories
            for topic in directory.topics
            for row in topic.partitions
        }

    def _settle(self, batch: dict[Key, UUID], codes: dict[tuple[UUID, Key], int]) -> bool:
        """Whether the controller has all of them."""
        has_all = True
        for key, directory in batch.items():
            code = codes.get((directory, key), ErrorCode.UNKNOWN_SERVER_ERROR)
            if code and code not in _DROPPED:
                has_all = False
                continue
            if self._wanted.get(key) == directory:
                del self._wanted[key]
                for told in self._waiting.pop(key, ()):
                    if not told.done():
                        told.set_result(code == ErrorCode.NONE)
        return has_all
