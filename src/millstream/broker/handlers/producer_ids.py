"""InitProducerId (22): who a producer is. Ids for idempotent ones; transactional ones are the coordinator's."""

from millstream.api.request import Context, Response
from millstream.broker.producer_ids import ProducerIds
from millstream.broker.transaction_coordinator import TransactionCoordinator
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.transactions import ProducerIdentity
from millstream.protocol.schema import Message

_LARGEST_EPOCH = (1 << 15) - 1
_FIRST_WITH_PRODUCER_FENCED = 4


class ProducerIdHandlers:
    def __init__(self, producer_ids: ProducerIds, transactions: TransactionCoordinator) -> None:
        self._producer_ids = producer_ids
        self._transactions = transactions

    async def init_producer_id(self, request: Message, context: Context) -> Response:
        try:
            if request.transactional_id is None:
                return await self._idempotent(request)
            return await self._transactional(request)
        except KafkaError as error:
            code = error.code
            if code == ErrorCode.PRODUCER_FENCED and context.version < _FIRST_WITH_PRODUCER_FENCED:
                code = ErrorCode.INVALID_PRODUCER_EPOCH  # all that clients of that time know
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}

    async def _idempotent(self, request: Message) -> Response:
        known = request.producer_id >= 0 and request.producer_epoch >= 0
        if known and request.producer_epoch < _LARGEST_EPOCH - 1:
            # A producer that lost its sequence goes on with a new epoch of its own id (KIP-360).
            return {"producer_id": request.producer_id, "producer_epoch": request.producer_epoch + 1}
        return {"producer_id": await self._producer_ids.take(), "producer_epoch": 0}

    async def _transactional(self, request: Message) -> Response:
        expected = None
        if request.producer_id != -1 and request.producer_epoch != -1:
            expected = ProducerIdentity(request.producer_id, request.producer_epoch)
        elif request.producer_id != request.producer_epoch:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer id comes with an epoch, and an epoch with an id")
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
