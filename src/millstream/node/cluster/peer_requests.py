"""Requests from this broker to another, by its id: one channel to each, at the address that the metadata says.

What is sent is decided elsewhere, and so is what to do about failures: an OSError is one, and nothing is tried twice.
"""

from collections.abc import Callable, Mapping
from typing import Any

from millstream.formats.model.identifiers import BrokerId
from millstream.formats.protocol.schema import Message
from millstream.node.environment import Environment
from millstream.node.metadata.image import BrokerRegistration, MetadataImage
from millstream.node.server.channel import Channel
from millstream.node.server.request import BROKER_CLIENT_ID


class PeerRequests:
    def __init__(
        self, node_id: int, image: Callable[[], MetadataImage], listener: str, environment: Environment
    ) -> None:
        """`listener` is the name of the one that brokers use among each other."""
        self._image = image
        self._listener = listener
        self._environment = environment
        self._client_id = f"{BROKER_CLIENT_ID}{node_id}"
        self._channels: dict[int, Channel] = {}

    async def request(
        self, broker_id: int, api: str, fields: Mapping[str, Any], *, timeout_s: float, version: int | None = None
    ) -> Message:
        """The broker's answer; OSError if it is not known, cannot be reached or does not answer in time."""
        return await self.channel(broker_id).request(api, fields, timeout_s=timeout_s, version=version)

    def channel(self, broker_id: int) -> Channel:
        """The channel to a broker; ConnectionError if there is no such broker now."""
        broker = self._image().brokers.get(BrokerId(broker_id))
        if broker is None:
            raise ConnectionError(f"there is no broker {broker_id} in the cluster")
        host, port = self._address(broker)
        channel = self._channels.get(broker_id)
        if channel is None or (channel.host, channel.port) != (host, port):
            if channel is not None:
                channel.close()  # it registered anew, elsewhere
            network, loop = self._environment.network, self._environment.loop
            channel = self._channels[broker_id] = Channel(host, port, network, loop, client_id=self._client_id)
        return channel

    def _address(self, broker: BrokerRegistration) -> tuple[str, int]:
        for endpoint in broker.end_points:
            if endpoint.name.upper() == self._listener:
                return endpoint.host, endpoint.port
        raise ConnectionError(
            f"broker {broker.id} has no listener {self._listener}: set the same inter.broker.listener.name everywhere"
        )

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
