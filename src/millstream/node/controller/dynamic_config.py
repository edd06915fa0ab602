"""A node's settings as they are now: those it was started with, under those that the metadata holds for brokers."""

from millstream.config.broker_config import BrokerConfig
from millstream.node.metadata.image import MetadataDelta, MetadataImage, ResourceType


def dynamic_config(static: BrokerConfig, image: MetadataImage) -> BrokerConfig:
    own = image.broker_config(static.node_id)
    if not own and not image.default_broker_config:
        return static
    return static.with_dynamic(default=image.default_broker_config, own=own)


def changes_broker_settings(delta: MetadataDelta) -> bool:
    return any(resource.type == ResourceType.BROKER for resource in delta.configs)
