"""What settings and features say about the replicas of a topic, looked up once per decision.

The controller decides for all brokers alike: what counts is the topic's setting, else the one of all brokers, else the
one in the controller's own file. What a single broker was told alone does not.
"""

from typing import Any

from millstream.config.broker_config import BrokerConfig, ConfigSource
from millstream.config.errors import ConfigError
from millstream.config.setting import Setting
from millstream.config.table import log
from millstream.config.table import topic as topic_settings
from millstream.node.metadata.features import eligible_leader_replicas_enabled
from millstream.node.metadata.image import MetadataImage, ResourceType


class ReplicationRules:
    def __init__(self, image: MetadataImage, config: BrokerConfig) -> None:
        self._image = image
        self._with_settings = {name for kind, name in image.configs if kind == ResourceType.TOPIC}
        self.eligible_leader_replicas = eligible_leader_replicas_enabled(image)
        """Whether members that leave a too small ISR are remembered (KIP-966), so that the ISR may become empty."""
        self._min_insync_replicas: int = _for_all_brokers(log.MIN_INSYNC_REPLICAS, image, config)
        self._unclean_elections: bool = _for_all_brokers(log.UNCLEAN_LEADER_ELECTION_ENABLE, image, config)

    def min_insync_replicas(self, topic: str) -> int:
        """How many replicas must be in sync for a write to be acknowledged; there may be fewer in all."""
        value: int = self._min_insync_replicas
        if self._with_settings and topic in self._with_settings:
            value = self._own(topic_settings.MIN_INSYNC_REPLICAS, topic, value)
        return value

    def unclean_elections(self, topic: str) -> bool:
        """Whether a replica that may lack records can lead when nobody else is left."""
        value: bool = self._unclean_elections
        if self._with_settings and topic in self._with_settings:
            value = self._own(topic_settings.UNCLEAN_LEADER_ELECTION_ENABLE, topic, value)
        return value

    def _own(self, setting: Setting[Any], topic: str, otherwise: Any) -> Any:
        text = self._image.topic_config(topic).get(setting.name)
        return otherwise if text is None else _parsed(setting, text, otherwise)


def _for_all_brokers(setting: Setting[Any], image: MetadataImage, config: BrokerConfig) -> Any:
    value = setting.default
    for text in (
        config.layers[ConfigSource.STATIC_BROKER_CONFIG].get(setting.name),
        image.default_broker_config.get(setting.name),
    ):
        if text is not None:
            value = _parsed(setting, text, value)
    return value


def _parsed(setting: Setting[Any], text: str, otherwise: Any) -> Any:
    """A stored value that this version does not take is passed over, as everywhere."""
    try:
        return setting.parse(text)
    except ConfigError:
        return otherwise
