"""AllocateProducerIds (67): blocks of producer ids for brokers to hand out, none of them twice."""

from dataclasses import dataclass

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId, ProducerId
from millstream.node.metadata.decision import Decision, Outcome
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import ProducerIdsRecord

PRODUCER_ID_BLOCK_SIZE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock(Outcome):
    first: ProducerId
    size: int = PRODUCER_ID_BLOCK_SIZE


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
