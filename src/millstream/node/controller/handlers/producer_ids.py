"""AllocateProducerIds (67): blocks of producer ids for brokers to hand out."""

from millstream.formats.protocol.schema import Message
from millstream.node.controller.active_controller import ActiveController
from millstream.node.metadata.brokers import allocate_producer_ids
from millstream.node.server.request import Context, Response


class ProducerIdHandlers:
    def __init__(self, controller: ActiveController) -> None:
        self._controller = controller

    async def allocate_producer_ids(self, request: Message, context: Context) -> Response:
        (block,) = await self._controller.decide(
            lambda image, config, randomness: allocate_producer_ids(image, request.broker_id, request.broker_epoch)
        )
        return {"producer_id_start": block.first, "producer_id_len": block.size}
