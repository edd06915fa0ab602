"""Topics that the broker creates: internal topics when they are needed, and `auto.create.topics.enable`."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.controller_link import ControllerLink
from millstream.node.environment import Environment
from millstream.node.metadata.topics import MAX_PARTITIONS_PER_REQUEST, NewTopic, TopicCreation, internal_topic
from millstream.node.server.auditing import Auditor
from millstream.node.server.service import Peer

_CREATION_TIMEOUT_SECONDS = 3.0
"""The maximum wait of a client. Its other requests on the connection wait too, and it retries anyway."""
_AT_ONCE = 50
"""The maximum number of topics in one request to the controller."""


class AutomaticTopicCreation:
    def __init__(self, link: ControllerLink, auditor: Auditor) -> None:
        self._link = link
        self._auditor = auditor

    async def create_with_defaults(self, names: list[str], peer: Peer) -> dict[str, KafkaError]:
        """Creates topics with default settings for a client; returns the errors by topic name."""
        failed = await self._create_all(names)
        if self._auditor.is_enabled and names:
            request = {"automatic": True, "topics": [{"name": name} for name in dict.fromkeys(names)]}
            rows = [{"name": name, "error_code": int(error.code)} for name, error in failed.items()]
            self._auditor.administration(peer, "create_topics", request, {"topics": rows})
        return failed

    async def _create_all(self, names: list[str]) -> dict[str, KafkaError]:
        wanted = [NewTopic(name=name) for name in dict.fromkeys(names)]
        if len(wanted) > MAX_PARTITIONS_PER_REQUEST:
            message = f"{len(wanted)} topics to create automatically; the limit is {MAX_PARTITIONS_PER_REQUEST}"
            return dict.fromkeys(names, KafkaError(ErrorCode.POLICY_VIOLATION, message))
        failed: dict[str, KafkaError] = {}
        for begin in range(0, len(wanted), _AT_ONCE):
            failed |= await self._create(wanted[begin : begin + _AT_ONCE])
        return failed

    async def _create(self, wanted: list[NewTopic]) -> dict[str, KafkaError]:
        try:
            results = await self._link.create_topics(wanted, timeout_s=_CREATION_TIMEOUT_SECONDS)
        except KafkaError as error:
            return {topic.name: error for topic in wanted}
        return {
            result.name: KafkaError(result.error, result.message or "")
            for result in results
            # Another request created the topic: no error.
            if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        }


_ENSURE_TIMEOUT_SECONDS = 2.0
"""The maximum wait of a client. Its other requests on the connection wait too, and it retries anyway."""
_THERE = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

_log = logging.getLogger("millstream.broker")


class TopicCreator(Protocol):
    """The part of ControllerLink that creates topics."""

    async def create_topics(self, topics: "list[NewTopic]") -> "list[TopicCreation]":
        """Creates topics, and waits until they are in this node's metadata."""
        ...


class InternalTopics:
    def __init__(self, view: ClusterView, creator: TopicCreator, environment: Environment) -> None:
        self._view = view
        self._creator = creator
        self._environment = environment
        self._being_made: dict[TopicName, asyncio.Future[None]] = {}

    async def ensure(
        self, name: TopicName, partition_count: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        """Creates the topic if it does not exist; raises COORDINATOR_NOT_AVAILABLE if this fails.

        With fewer brokers than replicas, each broker has one. The controller adds replicas when brokers are added.
        """
        if name in self._view.image.topics:
            return
        try:
            async with asyncio.timeout(_ENSURE_TIMEOUT_SECONDS):
                await self.ensure_topic(
                    internal_topic(name, self._view.image, partition_count, replication_factor, configs)
                )
        except TimeoutError:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} is still being created") from None
        except KafkaError as error:
            _log.error("topic_not_created topic=%s error=%s", name, error)
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} cannot be created: {error.message}"
            ) from error

    async def ensure_topic(self, topic: NewTopic) -> None:
        """Creates a user topic if it does not exist, with its own replication factor; raises the controller's error."""
        name = TopicName(topic.name)
        if name in self._view.image.topics:
            return
        making = self._being_made.get(name)
        if making is None:  # concurrent callers wait for the same request
            making = asyncio.ensure_future(self._make(topic), loop=self._environment.loop)
            self._being_made[name] = making
            making.add_done_callback(lambda done: self._made(name, done))
        await asyncio.shield(making)

    def _made(self, name: TopicName, done: "asyncio.Future[None]") -> None:
        self._being_made.pop(name, None)
        if not done.cancelled():
            done.exception()  # retrieved here too: all callers may have been cancelled

    async def _make(self, topic: NewTopic) -> None:
        (result,) = await self._creator.create_topics([topic])
        if result.error not in _THERE:
            raise KafkaError(result.error, result.message or result.error.name)
        if TopicName(topic.name) not in self._view.image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} is not in this broker's metadata yet")
