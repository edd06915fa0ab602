"""The cluster as the broker role sees it: committed metadata, settings, channels to other brokers, lost brokers.

A client whose leader has failed requests metadata from another broker at once, often before the controller has acted.
If the response named the old leader, the client would wait a second or more before the next request. If it names no
leader, the client retries soon. So a broker whose connection to this one broke is *missing* for a short time: it is not
named as leader. A fenced broker is *departed*: it is still listed for a session timeout, which is how long a broker
that fails unnoticed is listed anyway. (librdkafka drops all state of a broker that is not listed, also the records that
it was about to send to the new leader, for another second.)

Requests to other brokers use one channel per broker. A failure is an OSError; nothing is retried here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from millstream.config.broker_config import BrokerConfig
from millstream.formats.model.identifiers import BrokerId
from millstream.formats.protocol.schema import Message
from millstream.node.cluster.broker_proof import broker_software
from millstream.node.controller.active_controller import ImageSource, changes_broker_settings, dynamic_config
from millstream.node.environment import Environment
from millstream.node.metadata.image import BrokerRegistration, MetadataDelta, MetadataImage
from millstream.node.server.channel import Channel
from millstream.node.server.request import BROKER_CLIENT_ID


class ClusterView:
    def __init__(self, source: ImageSource, config: BrokerConfig) -> None:
        self._source = source
        self._static_config = config
        self.node_id: BrokerId = config.node_id
        self.image: MetadataImage = source.image
        self.config: BrokerConfig = dynamic_config(config, source.image)
        self.broker_epoch = -1
        """The epoch of this process, from the controller's response to the registration; -1 before. The metadata may
        have a later epoch, of another process with the same node id."""
        self._subscribers: list[Callable[[MetadataDelta], None]] = []
        source.subscribe(self._follow)

    @property
    def is_unfenced_here(self) -> bool:
        """Whether this node's broker is registered and not fenced in the metadata."""
        own = self.image.brokers.get(self.node_id)
        return own is not None and not own.fenced

    def subscribe(self, on_change: Callable[[MetadataDelta], None]) -> None:
        """Calls back after each change of image and config, in the order of subscription."""
        self._subscribers.append(on_change)

    def _follow(self, delta: MetadataDelta) -> None:
        self.image = self._source.image
        if changes_broker_settings(delta):
            self.config = dynamic_config(self._static_config, self.image)
        for on_change in self._subscribers:
            on_change(delta)


_MISSING_SECONDS = 2.0
"""Longer than the election of a controller and of leaders. It limits the effect if only the two brokers are
disconnected from each other."""
_NO_BROKERS: frozenset[int] = frozenset()


class LostBrokers:
    def __init__(
        self, image: Callable[[], MetadataImage], session_s: Callable[[], float], now_s: Callable[[], float]
    ) -> None:
        self._image = image
        self._session_s = session_s
        self._now_s = now_s
        self._missing_until: dict[int, tuple[int, float]] = {}
        self._listed_until: dict[int, tuple[int, float]] = {}
        """By broker id: the epoch of the registration, and a time."""
        self._serving = self._serving_now()

    # Events

    def connection_lost(self, broker_id: int) -> None:
        """An established connection to the broker ended, and this node did not close it."""
        self._missing_until[broker_id] = (self._epoch(broker_id), self._now_s() + _MISSING_SECONDS)

    def connection_made(self, broker_id: int) -> None:
        self._missing_until.pop(broker_id, None)

    def follow(self, delta: MetadataDelta) -> None:
        if not delta.brokers:
            return
        before, self._serving = self._serving, self._serving_now()
        until_s = self._now_s() + self._session_s()
        for broker_id, epoch in before.items():
            if broker_id not in self._serving:
                self._listed_until[broker_id] = (epoch, until_s)

    # State for metadata responses

    def missing(self) -> frozenset[int]:
        """Brokers that are not named as leaders now, although they are not fenced in the metadata."""
        return self._current(self._missing_until, fenced=False)

    def departed(self) -> frozenset[int]:
        """Fenced brokers that are still listed."""
        return self._current(self._listed_until, fenced=True)

    def _current(self, until: dict[int, tuple[int, float]], *, fenced: bool) -> frozenset[int]:
        if not until:
            return _NO_BROKERS
        now_s, brokers = self._now_s(), self._image().brokers
        for broker_id, (epoch, end_s) in tuple(until.items()):
            broker = brokers.get(BrokerId(broker_id))
            if now_s >= end_s or broker is None or broker.epoch != epoch or broker.fenced is not fenced:
                del until[broker_id]
        return frozenset(until)

    def _epoch(self, broker_id: int) -> int:
        broker = self._image().brokers.get(BrokerId(broker_id))
        return broker.epoch if broker is not None else -1

    def _serving_now(self) -> dict[int, int]:
        return {broker.id: broker.epoch for broker in self._image().brokers.values() if not broker.fenced}


class BrokerChannels:
    def __init__(
        self, node_id: int, image: Callable[[], MetadataImage], listener: str, environment: Environment
    ) -> None:
        """`listener` is the name of the listener for connections between brokers."""
        self._image = image
        self._listener = listener
        self._environment = environment
        self._node_id = node_id
        self._client_id = f"{BROKER_CLIENT_ID}{node_id}"
        self._channels: dict[int, Channel] = {}

    async def request(
        self, broker_id: int, api: str, fields: Mapping[str, Any], *, timeout_s: float, version: int | None = None
    ) -> Message:
        """The broker's response; OSError if it is unknown, cannot be reached or does not respond in time."""
        return await self.channel(broker_id).request(api, fields, timeout_s=timeout_s, version=version)

    def channel(self, broker_id: int) -> Channel:
        """The channel to a broker; ConnectionError if the broker is unknown."""
        broker = self._image().brokers.get(BrokerId(broker_id))
        if broker is None:
            raise ConnectionError(f"there is no broker {broker_id} in the cluster")
        host, port = self._address(broker)
        channel = self._channels.get(broker_id)
        if channel is None or (channel.host, channel.port) != (host, port):
            if channel is not None:
                channel.close()  # it registered again with another address
            environment = self._environment
            channel = self._channels[broker_id] = Channel(
                host,
                port,
                environment.broker_network,
                environment.loop,
                client_id=self._client_id,
                login=environment.broker_login,
            )
            channel.software = lambda: broker_software(self._image(), self._node_id)
        return channel

    def _address(self, broker: BrokerRegistration) -> tuple[str, int]:
        for endpoint in broker.end_points:
            if endpoint.name.upper() == self._listener:
                return endpoint.host, endpoint.port
        raise ConnectionError(
            f"broker {broker.id} has no listener {self._listener}: set inter.broker.listener.name on all brokers"
        )

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
