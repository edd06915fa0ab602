"""Producer ids for the producers that come to this broker, out of blocks that the controller gives."""

import asyncio
from collections.abc import Callable

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.cluster.controller_link import ControllerLink


class ProducerIds:
    def __init__(self, link: ControllerLink, broker_id: int, broker_epoch: Callable[[], int]) -> None:
        """`broker_epoch` is that of this broker's registration, as it is now."""
        self._link = link
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._next = self._end = 0
        self._refill = asyncio.Lock()

    async def take(self) -> int:
        """An id that nobody has; COORDINATOR_LOAD_IN_PROGRESS if there is none at the moment."""
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
