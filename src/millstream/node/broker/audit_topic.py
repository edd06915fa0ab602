"""The topic `__millstream_audit`: created when the first event is written; one record per event."""

from millstream.formats.model.identifiers import TopicName
from millstream.formats.records.record import Record, build_batch
from millstream.node.cluster.topic_creation import InternalTopics
from millstream.node.data.internal_client import InternalProducer
from millstream.node.environment import Environment
from millstream.node.metadata.topic_names import AUDIT_TOPIC

_REPLICAS = 3
_SETTINGS = {"cleanup.policy": "delete", "retention.ms": str(30 * 24 * 3600 * 1000), "compression.type": "producer"}


class AuditTopic:
    def __init__(self, topics: InternalTopics, producer: InternalProducer, environment: Environment) -> None:
        self._topics = topics
        self._producer = producer
        self._environment = environment

    async def write(self, events: list[bytes]) -> None:
        """Appends the events; raises KafkaError if the topic cannot be created or written now."""
        await self._topics.ensure(TopicName(AUDIT_TOPIC), 1, _REPLICAS, _SETTINGS)
        now_ms = self._environment.clock.now_ms()
        records = [Record(None, value, timestamp=now_ms) for value in events]
        await self._producer.append(AUDIT_TOPIC, 0, build_batch(records))
