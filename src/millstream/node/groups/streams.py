"""Handlers of StreamsGroupHeartbeat (88) and StreamsGroupDescribe (89); creation of internal topics of applications.

The group decides which internal topics are missing (`core/streams/topology.py`). A heartbeat does not wait for their
creation: the next one finds them. Errors are kept for some time, and members get them as the detail of the status.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from millstream.common.background_tasks import BackgroundTasks
from millstream.config.table.topic import MIRROR_PREFIX
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.wire_types import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from millstream.node.cluster.topic_creation import InternalTopics
from millstream.node.environment import Environment
from millstream.node.groups.coordinator import GroupCoordinator
from millstream.node.groups.core.classic.group import Client
from millstream.node.groups.core.group import ALL_GROUP_OPERATIONS
from millstream.node.groups.core.streams.groups import HeartbeatResult
from millstream.node.groups.core.streams.topology import InternalTopic, StatusCode
from millstream.node.metadata.topics import NewTopic
from millstream.node.server.request import Context, Response
from millstream.node.server.service import Peer

_log = logging.getLogger("millstream.groups")
_ERROR_SECONDS = 10.0
"""How long an error is kept, and the topic is not created again: two heartbeat intervals, as in Kafka."""
_MAX_ERRORS = 1000
_SHOWN_ERRORS = 3


class StreamsTopics:
    """Creates internal topics of applications in the background."""

    def __init__(self, topics: InternalTopics, environment: Environment) -> None:
        self._topics = topics
        self._loop = environment.loop
        self._background = BackgroundTasks()
        self._being_created: set[str] = set()
        self._errors: dict[str, tuple[float, str]] = {}
        """For each topic that could not be created: when it may be tried again, and the message."""

    def create(self, missing: Iterable[InternalTopic]) -> None:
        self._forget_old_errors()
        wanted = [
            topic for topic in missing if topic.name not in self._being_created and topic.name not in self._errors
        ]
        if wanted:
            self._being_created.update(topic.name for topic in wanted)
            self._background.start(self._create_all(wanted), loop=self._loop)

    async def _create_all(self, wanted: Sequence[InternalTopic]) -> None:
        try:
            for topic in wanted:
                await self._create(topic)
        finally:
            self._being_created.difference_update(topic.name for topic in wanted)

    async def _create(self, topic: InternalTopic) -> None:
        try:
            await self._topics.ensure_topic(
                NewTopic(
                    name=topic.name,
                    partition_count=topic.partition_count,
                    replication_factor=topic.replication_factor,
                    configs=dict(topic.configs),
                )
            )
        except KafkaError as error:
            _log.warning("streams_topic_not_created topic=%s error=%s", topic.name, error)
            if len(self._errors) >= _MAX_ERRORS:
                self._errors.pop(next(iter(self._errors)))
            self._errors[topic.name] = (self._loop.time() + _ERROR_SECONDS, error.message or error.code.name)

    def errors(self, names: Iterable[str]) -> dict[str, str]:
        self._forget_old_errors()
        return {name: self._errors[name][1] for name in names if name in self._errors}

    def _forget_old_errors(self) -> None:
        now = self._loop.time()
        for name in [name for name, (until, _) in self._errors.items() if until <= now]:
            del self._errors[name]

    def close(self) -> None:
        self._background.cancel()


class StreamsGroupHandlers:
    def __init__(
        self,
        groups: GroupCoordinator,
        topics: StreamsTopics,
        is_enabled: Callable[[], bool],
        may_create: Callable[[Peer, str], bool] | None = None,
    ) -> None:
        """`is_enabled` returns whether the cluster has the feature. `may_create` returns whether a client may create a
        topic; None if there is no authorizer."""
        self._groups = groups
        self._topics = topics
        self._is_enabled = is_enabled
        self._may_create = may_create

    async def streams_group_heartbeat(self, request: StreamsGroupHeartbeatRequest, context: Context) -> Response:
        client = Client(context.client_id, f"/{context.peer.host}")
        try:
            self._check_enabled()
            result: HeartbeatResult = await self._groups.run(
                request.group_id, lambda shard, now_ms: shard.streams.heartbeat(request, client, now_ms)
            )
        except KafkaError as error:
            return {"error_code": error.code, "error_message": error.message, "status": None}
        if result.missing:
            self._create(result, context.peer)
        return result.response

    def _check_enabled(self) -> None:
        if not self._is_enabled():
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "Streams groups are not enabled: the feature streams.version of the cluster is at level 0.",
            )

    def _create(self, result: HeartbeatResult, peer: Peer) -> None:
        """Creates the missing topics, if the client may. All of them or none, as in Kafka."""
        names = [topic.name for topic in result.missing]
        refused = [] if self._may_create is None else [name for name in names if not self._may_create(peer, name)]
        # What is a mirror is not for a member to say: the broker creates the topic with its own rights.
        refused += [
            each.name for each in result.missing if any(n.startswith(MIRROR_PREFIX) for n in dict(each.configs))
        ]
        if refused:
            _add_detail(result.response, f"Unauthorized to CREATE on topics {', '.join(refused)}.")
            return
        self._topics.create(result.missing)
        errors = self._topics.errors(names)
        if errors:
            shown = ", ".join(f"{name} ({message})" for name, message in list(errors.items())[:_SHOWN_ERRORS])
            more = f" and {len(errors) - _SHOWN_ERRORS} more" if len(errors) > _SHOWN_ERRORS else ""
            _add_detail(result.response, f"Creation failed: {shown}{more}.")

    async def streams_group_describe(self, request: StreamsGroupDescribeRequest, context: Context) -> Response:
        rows = []
        # Each group once: the response is much longer than the request.
        for group_id in dict.fromkeys(request.group_ids):
            row = await self._described(group_id)
            if request.include_authorized_operations and not row.get("error_code"):
                row["authorized_operations"] = ALL_GROUP_OPERATIONS
            rows.append(row)
            await asyncio.sleep(0)  # let other tasks run
        return {"groups": rows}

    async def _described(self, group_id: str) -> dict[str, Any]:
        try:
            self._check_enabled()
            if not group_id:
                raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id is empty.")
            return await self._groups.read(group_id, lambda shard: shard.streams.describe(group_id))
        except KafkaError as error:
            return {"group_id": group_id, "error_code": error.code, "error_message": error.message}


def _add_detail(response: dict[str, Any], detail: str) -> None:
    for status in response["status"]:
        if status["status_code"] == StatusCode.MISSING_INTERNAL_TOPICS:
            status["status_detail"] = f"{status['status_detail']}; {detail}"
