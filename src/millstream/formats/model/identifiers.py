"""Identifiers with types of their own, so that an offset is never passed where an epoch belongs.

What a decided transaction tells the partitions it wrote to, and who writes in one.
"""

from dataclasses import dataclass
from enum import Enum
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


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer as its batches name it; a greater epoch fences the smaller ones."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a transaction: its producer, the outcome, and the coordinator that decided it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int


class Origin(Enum):
    """Who made a batch that the leader of a partition appends."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """A broker's own, such as offsets that a group commits in a transaction: nobody counts its sequence."""


class VerificationGuard:
    """Stands for one question to the transaction coordinator: whether a producer's transaction has the partition.

    Only the append that follows a yes to the very question is let through. What ends the transaction, or the producer's
    standing, takes the guard away; an answer that comes later is worth nothing then.
    """

    __slots__ = ()
