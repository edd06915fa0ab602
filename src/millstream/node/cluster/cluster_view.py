"""The cluster as the broker role sees it: the committed metadata, and this node's settings as they are now."""

from collections.abc import Callable

from millstream.config.broker_config import BrokerConfig
from millstream.formats.model.identifiers import BrokerId
from millstream.node.controller.active_controller import ImageSource, changes_broker_settings, dynamic_config
from millstream.node.metadata.image import MetadataDelta, MetadataImage


class ClusterView:
    def __init__(self, source: ImageSource, config: BrokerConfig) -> None:
        self._source = source
        self._static_config = config
        self.node_id: BrokerId = config.node_id
        self.image: MetadataImage = source.image
        self.config: BrokerConfig = dynamic_config(config, source.image)
        self.broker_epoch = -1
        """The epoch in which this process is registered, by the controller's answer; -1 before. The metadata may have a
        later one: of another process that has this node's number now, for which this one must not speak."""
        self._subscribers: list[Callable[[MetadataDelta], None]] = []
        source.subscribe(self._follow)

    @property
    def serves_here(self) -> bool:
        """Whether the metadata knows this node's broker as one that serves clients."""
        own = self.image.brokers.get(self.node_id)
        return own is not None and not own.fenced

    def subscribe(self, on_change: Callable[[MetadataDelta], None]) -> None:
        """Calls back after each change, in the order of subscription; image and config are the new ones then."""
        self._subscribers.append(on_change)

    def _follow(self, delta: MetadataDelta) -> None:
        self.image = self._source.image
        if changes_broker_settings(delta):
            self.config = dynamic_config(self._static_config, self.image)
        for on_change in self._subscribers:
            on_change(delta)
