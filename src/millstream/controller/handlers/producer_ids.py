"""AllocateProducerIds (67): blocks of producer ids for brokers to hand out."""

from millstream.api.request import Context, Response
from millstream.controller.active_controller import ActiveController
from millstream.metadata.producer_ids import allocate_producer_ids
from millstream.protocol.schema import Message


class ProducerIdHandlers:
    def __init__(self, controller: ActiveController) -> None:
        self._controller = controller

    async def allocate_producer_ids(self, request: Message, context: Context) -> Response:
        (block,) = await self._controller.decide(
            lambda image, config, randomness: allocate_producer_ids(image, request.broker_id, request.broker_epoch)
        )
        return {"producer_id_start": block.first, "producer_id_len": block.size}
