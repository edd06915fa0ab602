"""InitProducerId (22): who a producer is. Ids for idempotent ones; transactional ones are the coordinator's."""

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import ProducerIdentity
from millstream.formats.protocol.schema import Message
from millstream.node.server.request import Context, Response
from millstream.node.transactions.producer_ids import ProducerIds
from millstream.node.transactions.transaction_coordinator import TransactionCoordinator

_FIRST_WITH_PRODUCER_FENCED = 4


class ProducerIdHandlers:
    def __init__(self, producer_ids: ProducerIds, transactions: TransactionCoordinator) -> None:
        self._producer_ids = producer_ids
        self._transactions = transactions

    async def init_producer_id(self, request: Message, context: Context) -> Response:
        try:
            expected = _expected(request)
            if request.transactional_id is None:
                # Whoever has an id raises its epoch by itself; one that is asked for is always new.
                return {"producer_id": await self._producer_ids.take(), "producer_epoch": 0}
            return await self._transactional(request, expected)
        except KafkaError as error:
            code = error.code
            if code == ErrorCode.PRODUCER_FENCED and context.version < _FIRST_WITH_PRODUCER_FENCED:
                code = ErrorCode.INVALID_PRODUCER_EPOCH  # all that clients of that time know
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}

    async def _transactional(self, request: Message, expected: ProducerIdentity | None) -> Response:
        begun = await self._transactions.init_producer_id(
            request.transactional_id,
            request.transaction_timeout_ms,
            expected,
            two_phase_commit=request.enable2_pc,
            keep_prepared=request.keep_prepared_txn,
        )
        fields = {"producer_id": begun.producer.producer_id, "producer_epoch": begun.producer.epoch}
        if begun.ongoing is not None:
            fields["ongoing_txn_producer_id"] = begun.ongoing.producer_id
            fields["ongoing_txn_producer_epoch"] = begun.ongoing.epoch
        return fields


def _expected(request: Message) -> ProducerIdentity | None:
    """Who the client says that it is."""
    if request.producer_id != -1 and request.producer_epoch != -1:
        return ProducerIdentity(request.producer_id, request.producer_epoch)
    if request.producer_id != request.producer_epoch:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer id comes with an epoch, and an epoch with an id")
    return None
