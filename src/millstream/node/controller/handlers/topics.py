"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37): what the controller decides, put on the wire."""

import asyncio
from typing import Any

from millstream.config.broker_config import BrokerConfig
from millstream.config.describe import describe_topic
from millstream.formats.model.errors import KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.controller.active_controller import ActiveController
from millstream.node.controller.refusals import refuse
from millstream.node.metadata.topics import (
    MAX_PARTITIONS_PER_REQUEST,
    NewPartitions,
    NewTopic,
    TopicCreation,
    TopicReference,
    check_request_size,
    create_partitions,
    create_topics,
    delete_topics,
    partitions_asked_for,
)
from millstream.node.server.request import Context, Response

_PARTITIONS_PER_DECISION = 500
_TOPICS_PER_DECISION = 20


class TopicHandlers:
    def __init__(self, controller: ActiveController) -> None:
        self._controller = controller

    async def create_topics(self, request: Message, context: Context) -> Response:
        rows: list[dict[str, Any]] = []
        try:
            topics = _new_topics(request)
            await asyncio.sleep(0)  # there can be thousands; others have their turn
            check_request_size(sum(partitions_asked_for(topic, self._controller.config) for topic in topics))
        except KafkaError as error:
            return refuse("create_topics", request, error)
        for part in _in_parts(topics, self._controller.config):
            await asyncio.sleep(0)
            results = await self._create(part, validate_only=request.validate_only)
            await asyncio.sleep(0)
            rows += [self._created(result) for result in results]
        return {"topics": rows}

    async def _create(self, topics: list[NewTopic], *, validate_only: bool) -> tuple[TopicCreation, ...]:
        return await self._controller.decide(
            lambda image, config, randomness: create_topics(
                image, topics, config, randomness, validate_only=validate_only
            )
        )

    def _created(self, result: TopicCreation) -> dict[str, Any]:
        row: dict[str, Any] = {
            "name": result.name,
            "topic_id": result.topic_id,
            "error_code": result.error,
            "error_message": result.message,
            "num_partitions": result.partition_count,
            "replication_factor": result.replication_factor,
        }
        if not result.error:
            row["configs"] = [
                {
                    "name": entry.name,
                    "value": entry.value,
                    "read_only": entry.read_only,
                    "config_source": entry.source,
                    "is_sensitive": entry.sensitive,
                }
                for entry in describe_topic(result.configs, self._controller.config)
            ]
        return row

    async def delete_topics(self, request: Message, context: Context) -> Response:
        if context.version >= 6:
            references = [TopicReference(name=topic.name, topic_id=topic.topic_id) for topic in request.topics]
        else:
            references = [TopicReference(name=name) for name in request.topic_names]
        results = await self._controller.decide(
            lambda image, config, randomness: delete_topics(image, references, config)
        )
        return {
            "responses": [
                {
                    "name": result.name,
                    "topic_id": result.topic_id,
                    "error_code": result.error,
                    "error_message": result.message,
                }
                for result in results
            ]
        }

    async def create_partitions(self, request: Message, context: Context) -> Response:
        wanted = [
            NewPartitions(
                name=topic.name,
                count=topic.count,
                assignments=None if topic.assignments is None else [row.broker_ids for row in topic.assignments],
            )
            for topic in request.topics
        ]
        results = await self._controller.decide(
            lambda image, config, randomness: create_partitions(
                image, wanted, config, randomness, validate_only=request.validate_only
            )
        )
        return {
            "results": [
                {"name": result.name, "error_code": result.error, "error_message": result.message} for result in results
            ]
        }


def _in_parts(topics: list[NewTopic], config: BrokerConfig) -> list[list[NewTopic]]:
    """Topics in parts of some hundred partitions: ten thousand at once would keep the quorum's leader from leading.

    Topics with the same name, which is an error, stay together: the decision sees it.
    """
    by_name: dict[str, list[NewTopic]] = {}
    for topic in topics:
        by_name.setdefault(topic.name, []).append(topic)
    parts: list[list[NewTopic]] = [[]]
    partitions = 0
    for same in by_name.values():
        count = sum(partitions_asked_for(topic, config) for topic in same)
        is_full = partitions + count > _PARTITIONS_PER_DECISION or len(parts[-1]) + len(same) > _TOPICS_PER_DECISION
        if parts[-1] and is_full:
            parts.append([])
            partitions = 0
        parts[-1] += same
        partitions += count
    return parts


def _new_topics(request: Message) -> list[NewTopic]:
    if len(request.topics) > MAX_PARTITIONS_PER_REQUEST:  # each has a partition at least
        check_request_size(len(request.topics))
    return [_new_topic(topic) for topic in request.topics]


def _new_topic(topic: Message) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(row.partition_index, row.broker_ids) for row in topic.assignments],
        configs={row.name: row.value for row in topic.configs},
    )
