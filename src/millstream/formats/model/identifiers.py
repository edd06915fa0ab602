"""Identifiers with types, so that mypy finds an offset passed as an epoch; producers and transaction markers."""

from enum import Enum
from typing import NamedTuple, NewType
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass

BrokerId = NewType("BrokerId", int)
TopicName = NewType("TopicName", str)
TopicId = NewType("TopicId", UUID)
Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
TimestampMs = NewType("TimestampMs", int)

NO_TOPIC_ID = TopicId(UUID(int=0))
"""Sent in place of an unknown topic id."""
BRANCHES = "millstream.branches"
"""The feature in ApiVersions by which a client knows that a cluster can create branches of topics."""


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as the name of its directory."""

    topic: TopicName
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Producer id and epoch of a batch; a greater epoch fences smaller ones."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Marker:
    """A transaction marker: producer, commit or abort, and the epoch of the coordinator."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int


class Origin(Enum):
    """The sender of a batch that the leader of a partition appends."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """The broker itself, for example offsets committed in a transaction: without sequence numbers."""


class VerificationGuard:
    """Stands for one verification request to the transaction coordinator: does the transaction have the partition?

    Only the append after a positive response to this request is accepted. The end of the transaction, or a change of
    the producer's epoch, invalidates the guard; a later response has no effect.
    """

    __slots__ = ()
