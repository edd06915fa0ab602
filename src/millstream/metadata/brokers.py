"""Decisions on brokers: registration, what a restart means for the partitions they lead, and blocks of producer ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from millstream.metadata.decision import Decision, Outcome
from millstream.metadata.features import SUPPORTED_FEATURES, missing_features
from millstream.metadata.image import MetadataImage
from millstream.metadata.records import (
    Endpoint,
    MetadataRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    SupportedFeature,
)
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import BrokerId, ProducerId

__all__ = [
    "PRODUCER_ID_BLOCK_SIZE",
    "SUPPORTED_FEATURES",
    "BrokerAdmission",
    "BrokerIntroduction",
    "ProducerIdBlock",
    "allocate_producer_ids",
    "begin_new_epochs",
    "missing_features",
    "register_broker",
]

PRODUCER_ID_BLOCK_SIZE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIntroduction:
    """What a broker says of itself when it starts."""

    broker_id: BrokerId
    incarnation_id: UUID
    """New for every start of the process."""
    cluster_id: str
    end_points: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...] = SUPPORTED_FEATURES
    rack: str | None = None
    log_dirs: tuple[UUID, ...] = ()
    previous_broker_epoch: int = -1
    """The epoch in which it ran before, if it stopped cleanly then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAdmission(Outcome):
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock(Outcome):
    first: ProducerId
    size: int = PRODUCER_ID_BLOCK_SIZE


def register_broker(
    image: MetadataImage, broker: BrokerIntroduction, *, broker_epoch: int, fenced: bool, others_alive: bool = False
) -> Decision[BrokerAdmission]:
    """Admits a broker. `broker_epoch` is the offset that the record will get in the metadata log.

    `others_alive` says that the process which registered under this number before is still heard of.
    """
    if broker.cluster_id != image.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Broker {broker.broker_id} belongs to cluster {broker.cluster_id}, this is cluster {image.cluster_id}.",
        )
    earlier = image.brokers.get(broker.broker_id)
    if earlier is not None and others_alive and earlier.incarnation_id != broker.incarnation_id:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Another broker is running with node.id={broker.broker_id}; give each its own number.",
        )
    if not broker.end_points:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, f"Broker {broker.broker_id} has no address for clients.")
    record = RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker_epoch,
        end_points=broker.end_points,
        features=broker.features,
        rack=broker.rack,
        fenced=fenced,
        log_dirs=broker.log_dirs,
    )
    return Decision((record,), (BrokerAdmission(broker_epoch=broker_epoch),))


def begin_new_epochs(image: MetadataImage, broker_id: BrokerId) -> Sequence[MetadataRecord]:
    """A new leader epoch for each partition that the broker leads, for a start after an unclean stop.

    The stop may have cost the log its last records. Under a new epoch, readers that had seen them can tell.
    """
    return [
        PartitionChangeRecord(partition_id=number, topic_id=topic.id, leader=broker_id)
        for topic in image.topics.values()
        for number, partition in enumerate(topic.partitions)
        if partition.leader == broker_id
    ]


def allocate_producer_ids(image: MetadataImage, broker_id: BrokerId, broker_epoch: int) -> Decision[ProducerIdBlock]:
    """Hands a broker a block of producer ids that nobody had before."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {broker_id} is not registered.")
    if broker.epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} is in epoch {broker.epoch}, not {broker_epoch}."
        )
    first = image.next_producer_id
    if first > (1 << 63) - 1 - PRODUCER_ID_BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids are taken.")
    record = ProducerIdsRecord(
        broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK_SIZE
    )
    return Decision((record,), (ProducerIdBlock(first=ProducerId(first)),))
