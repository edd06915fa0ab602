"""Identifiers with types of their own, so that an offset is never passed where an epoch belongs."""

from typing import NamedTuple, NewType
from uuid import UUID

BrokerId = NewType("BrokerId", int)
TopicName = NewType("TopicName", str)
TopicId = NewType("TopicId", UUID)
Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
TimestampMs = NewType("TimestampMs", int)

NO_TOPIC_ID = TopicId(UUID(int=0))
"""What the wire sends where a topic id is not known."""

NO_PRODUCER_ID = ProducerId(-1)
UNKNOWN_OFFSET = Offset(-1)


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as its directory is named."""

    topic: TopicName
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
