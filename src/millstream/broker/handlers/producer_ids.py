"""InitProducerId (22): an id for an idempotent producer, out of blocks that the controller gives."""

import asyncio
from collections.abc import Callable

from millstream.api.request import Context, Response
from millstream.broker.controller_link import ControllerLink
from millstream.model.errors import ErrorCode, KafkaError
from millstream.protocol.schema import Message

_LARGEST_EPOCH = (1 << 15) - 1


class ProducerIdHandlers:
    def __init__(self, link: ControllerLink, broker_id: int, broker_epoch: Callable[[], int]) -> None:
        """`broker_epoch` is that of this broker's registration, as it is now."""
        self._link = link
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._next = self._end = 0
        self._refill = asyncio.Lock()

    async def init_producer_id(self, request: Message, context: Context) -> Response:
        if request.transactional_id is not None:
            # Transactions are not offered; a producer that asks for them must hear so, not wait for a coordinator.
            code = ErrorCode.INVALID_REQUEST
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
        known = request.producer_id >= 0 and request.producer_epoch >= 0
        if known and request.producer_epoch < _LARGEST_EPOCH - 1:
            # A producer that lost its sequence goes on with a new epoch of its own id (KIP-360).
            return {"producer_id": request.producer_id, "producer_epoch": request.producer_epoch + 1}
        try:
            return {"producer_id": await self._take(), "producer_epoch": 0}
        except KafkaError as error:
            return {"error_code": error.code, "producer_id": -1, "producer_epoch": -1}

    async def _take(self) -> int:
        async with self._refill:
            if self._next == self._end:
                own = {"broker_id": self._broker_id, "broker_epoch": self._broker_epoch()}
                block = await self._link.request("allocate_producer_ids", own)
                if block.error_code:
                    # The broker is not, or not yet again, registered: the producer is to ask once more.
                    raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no producer ids at the moment")
                self._next = block.producer_id_start
                self._end = block.producer_id_start + block.producer_id_len
            taken = self._next
            self._next += 1
            return taken
