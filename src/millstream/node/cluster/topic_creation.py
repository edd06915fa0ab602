"""Topics made on the way: what `auto.create.topics.enable` does when a client asks for topics that are not there.

The topics that the cluster makes for itself, when they are first needed.
"""

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

_CREATION_TIMEOUT_SECONDS = 3.0
"""How long a client is kept waiting: what else it asked on the connection waits too, and it asks again anyway."""
_AT_ONCE = 50
"""Topics in one request to the controller."""


class AutomaticTopicCreation:
    def __init__(self, link: ControllerLink) -> None:
        self._link = link

    async def create_with_defaults(self, names: list[str]) -> dict[str, KafkaError]:
        """Makes the topics with default settings; what went wrong, by name."""
        wanted = [NewTopic(name=name) for name in dict.fromkeys(names)]
        if len(wanted) > MAX_PARTITIONS_PER_REQUEST:
            message = f"{len(wanted)} topics to create on the way; the limit is {MAX_PARTITIONS_PER_REQUEST}"
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
            # Someone else was faster: then it is there.
            if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        }


_ENSURE_TIMEOUT_SECONDS = 2.0
"""How long a client is kept waiting: what else it asked on the connection waits too, and it asks again anyway."""
_THERE = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

_log = logging.getLogger("millstream.broker")


class TopicCreator(Protocol):
    """The link to the controller."""

    async def create_topics(self, topics: "list[NewTopic]") -> "list[TopicCreation]":
        """Makes them, and waits until they are in this node's metadata."""
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
        """Makes the topic unless it is there; COORDINATOR_NOT_AVAILABLE if that is not possible now.

        With fewer brokers than replicas wanted, each has one; the controller adds others as brokers come.
        """
        if name in self._view.image.topics:
            return
        try:
            async with asyncio.timeout(_ENSURE_TIMEOUT_SECONDS):
                await self.ensure_as_asked(
                    internal_topic(name, self._view.image, partition_count, replication_factor, configs)
                )
        except TimeoutError:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} is still being made") from None
        except KafkaError as error:
            _log.error("topic_not_created topic=%s error=%s", name, error)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} cannot be made: {error.message}") from error

    async def ensure_as_asked(self, topic: NewTopic) -> None:
        """The same for a topic of the users, with as many replicas as it says; KafkaError as the controller says."""
        name = TopicName(topic.name)
        if name in self._view.image.topics:
            return
        making = self._being_made.get(name)
        if making is None:  # whoever comes meanwhile waits for the same request
            making = asyncio.ensure_future(self._make(topic), loop=self._environment.loop)
            self._being_made[name] = making
            making.add_done_callback(lambda done: self._made(name, done))
        await asyncio.shield(making)

    def _made(self, name: TopicName, done: "asyncio.Future[None]") -> None:
        self._being_made.pop(name, None)
        if not done.cancelled():
            done.exception()  # whoever waits is told; nobody may wait any more

    async def _make(self, topic: NewTopic) -> None:
        (result,) = await self._creator.create_topics([topic])
        if result.error not in _THERE:
            raise KafkaError(result.error, result.message or result.error.name)
        if TopicName(topic.name) not in self._view.image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} is not known here yet")
