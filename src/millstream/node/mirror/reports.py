"""Reports on mirroring, in the internal topic `__millstream_mirrors`, where any Kafka client can read them.

The leader of each mirrored partition reports how far it is; one broker per link reports on the link. A record is
written when something changed, at most once a second. The key is `link/topic/partition`, or the link's name.
"""

import json
import logging
from collections.abc import Mapping, Sequence

from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import TopicName
from millstream.formats.records.record import Record, build_batch
from millstream.node.cluster.topic_creation import InternalTopics
from millstream.node.data.internal_client import InternalProducer
from millstream.node.environment import Environment
from millstream.node.metadata.topic_names import MIRRORS_TOPIC

REPORT_TOPIC = TopicName(MIRRORS_TOPIC)
REPORT_SETTINGS = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(7 * 24 * 60 * 60 * 1000),
    "segment.ms": str(60 * 60 * 1000),
    "segment.bytes": str(16 << 20),
}
REPORT_REPLICAS = 3
_RECORDS_AT_ONCE = 500

_log = logging.getLogger("millstream.mirror")
Report = tuple[str, Mapping[str, object]]


class Reports:
    def __init__(self, topics: InternalTopics, producer: InternalProducer, environment: Environment) -> None:
        self._topics = topics
        self._producer = producer
        self._environment = environment
        self._written: dict[str, Mapping[str, object]] = {}

    async def write(self, reports: Sequence[Report]) -> None:
        """Writes the reports that have changed."""
        changed = [(key, value) for key, value in reports if self._written.get(key) != value]
        if not changed:
            return
        now_ms = self._environment.clock.now_ms()
        try:
            await self._topics.ensure(REPORT_TOPIC, 1, REPORT_REPLICAS, REPORT_SETTINGS)
            for start in range(0, len(changed), _RECORDS_AT_ONCE):
                part = changed[start : start + _RECORDS_AT_ONCE]
                records = [
                    Record(key.encode(), json.dumps({**value, "at_ms": now_ms}).encode(), timestamp=now_ms)
                    for key, value in part
                ]
                await self._producer.append(REPORT_TOPIC, 0, build_batch(records))
                self._written.update(part)
        except KafkaError as error:
            _log.warning("mirror_reports_not_written error=%s", error)

    def forget(self, keys: set[str]) -> None:
        """Keeps only these keys: another broker reports on the others now."""
        self._written = {key: value for key, value in self._written.items() if key in keys}
