"""The features of a cluster and their levels: what this version supports, and what a new cluster begins with."""

from collections.abc import Sequence

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import log
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.metadata.cluster_id import cluster_id_record
from millstream.node.metadata.image import ALL_BROKERS, MetadataImage
from millstream.node.metadata.records import ConfigRecord, FeatureLevelRecord, MetadataRecord, SupportedFeature

METADATA_VERSION = SupportedFeature(name="metadata.version", min_supported_version=7, max_supported_version=29)
"""The range of Kafka's metadata versions that the records of ours fit; 29 is 4.2-IV1."""
GROUP_VERSION = SupportedFeature(name="group.version", min_supported_version=0, max_supported_version=1)
"""Level 1 tells clients that groups can be assigned by the broker (KIP-848)."""
SHARE_VERSION = SupportedFeature(name="share.version", min_supported_version=0, max_supported_version=1)
"""Level 1 tells clients that there are share groups (KIP-932)."""
TRANSACTION_VERSION = SupportedFeature(name="transaction.version", min_supported_version=0, max_supported_version=2)
"""From level 1 on the state of transactions may have tagged fields. Level 2 tells clients that each transaction has an
epoch of its own, and that partitions need not be added before records are sent to them (KIP-890)."""
ELIGIBLE_LEADER_REPLICAS_VERSION = SupportedFeature(
    name="eligible.leader.replicas.version", min_supported_version=0, max_supported_version=1
)
"""At level 1 the replicas that left a too small ISR are remembered, and may lead when it is empty (KIP-966)."""
SUPPORTED_FEATURES = (
    METADATA_VERSION,
    GROUP_VERSION,
    TRANSACTION_VERSION,
    SHARE_VERSION,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
)


def bootstrap_records(cluster_id: str, config: BrokerConfig) -> tuple[MetadataRecord, ...]:
    """What the first leader of an empty log writes: the newest level of each feature, and the cluster's id.

    And, as in Kafka, `min.insync.replicas` for all brokers: who may lead (ELR) depends on leaders and controller having
    the same idea of it.
    """
    return (
        *missing_features(MetadataImage()),
        cluster_id_record(cluster_id),
        min_insync_replicas_for_all(config),
    )


def min_insync_replicas_for_all(config: BrokerConfig) -> ConfigRecord:
    """The controller's value as a setting of all brokers."""
    return ConfigRecord(
        resource_type=ALL_BROKERS.type,
        resource_name=ALL_BROKERS.name,
        name=log.MIN_INSYNC_REPLICAS.name,
        value=str(config[log.MIN_INSYNC_REPLICAS]),
    )


def missing_features(image: MetadataImage) -> tuple[FeatureLevelRecord, ...]:
    """Levels for the features that the log never heard of.

    A new cluster's metadata log begins with them: the first is the version of what follows. To a log that an earlier
    version of ours began, those are added that it did not know; what was switched off stays off.
    """
    return tuple(
        FeatureLevelRecord(name=feature.name, feature_level=feature.max_supported_version)
        for feature in SUPPORTED_FEATURES
        if feature.name not in image.features and feature.name not in image.features_off
    )


def eligible_leader_replicas_enabled(image: MetadataImage) -> bool:
    return image.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION.name, 0) >= 1


def transaction_version(image: MetadataImage) -> int:
    """The level of `transaction.version`; 0 in a cluster that has none yet."""
    return image.features.get(TRANSACTION_VERSION.name, 0)


def check_feature_support(image: MetadataImage, broker_id: int, offered: Sequence[SupportedFeature]) -> None:
    """Refuses, with UNSUPPORTED_VERSION, a broker that does not know the levels of features which the cluster uses."""
    ranges = {feature.name: feature for feature in offered}
    for name, level in image.features.items():
        feature = ranges.get(name)
        if feature is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Broker {broker_id} does not know {name}, which the cluster uses at level {level}; upgrade it.",
            )
        if not feature.min_supported_version <= level <= feature.max_supported_version:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Broker {broker_id} supports {name} from level {feature.min_supported_version} to "
                f"{feature.max_supported_version}, but the cluster uses level {level}: run a version that supports it.",
            )
