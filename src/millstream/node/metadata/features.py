"""The features of a cluster and their levels: what this version supports, and what a new cluster begins with.

UpdateFeatures (57): the levels of features go up, or down where that is possible. All of a request, or nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import log
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.metadata.image import ALL_BROKERS, MetadataImage, ResourceType, cluster_id_record
from millstream.node.metadata.records import (
    ConfigRecord,
    Decision,
    FeatureLevelRecord,
    MetadataRecord,
    Outcome,
    PartitionChangeRecord,
    SupportedFeature,
)

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


class UpgradeType(IntEnum):
    """What a client allows, with Kafka's numbers."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdate:
    name: str
    level: int
    """0 switches the feature off."""
    upgrade_type: int = UpgradeType.UPGRADE


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureAnswer(Outcome):
    name: str


def update_features(
    image: MetadataImage, updates: Sequence[FeatureUpdate], config: BrokerConfig, *, validate_only: bool = False
) -> Decision[FeatureAnswer]:
    """Gives features the levels that are asked for; INVALID_UPDATE_VERSION, and nothing changed, if one cannot be."""
    if len({update.name for update in updates}) != len(updates):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The same feature is named twice in one request.")
    records: list[MetadataRecord] = []
    for update in updates:
        _check(image, update)
        if update.level == image.features.get(update.name, 0):
            continue
        records.append(FeatureLevelRecord(name=update.name, feature_level=update.level))
        if update.name == ELIGIBLE_LEADER_REPLICAS_VERSION.name:
            records += _one_minimum_for_all(image, config) if update.level else _without_eligible_leaders(image)
    answers = tuple(FeatureAnswer(name=update.name) for update in updates)
    return Decision(() if validate_only else tuple(records), answers)


def _check(image: MetadataImage, update: FeatureUpdate) -> None:
    name, level, current = update.name, update.level, image.features.get(update.name, 0)
    if update.upgrade_type not in list(UpgradeType):
        raise _refused(name, f"there is no upgrade type {update.upgrade_type}; use 1 (upgrade), 2 or 3 (downgrade)")
    if level < 0:
        raise _refused(name, "a level cannot be less than 0")
    ours = next((feature for feature in SUPPORTED_FEATURES if feature.name == name), None)
    if ours is None:
        raise _refused(name, "the controller does not know this feature")
    ranges = [("the controller supports", ours)]
    for broker in image.brokers.values():
        theirs = next((feature for feature in broker.features if feature.name == name), None)
        if theirs is not None:
            ranges.append((f"broker {broker.id} supports", theirs))
        elif level > 0:
            raise _refused(name, f"broker {broker.id} does not know this feature; upgrade or unregister it first")
    for who, feature in ranges:
        if level > 0 and not feature.min_supported_version <= level <= feature.max_supported_version:
            lowest, highest = feature.min_supported_version, feature.max_supported_version
            raise _refused(name, f"level {level} is not possible: {who} {lowest} to {highest}")
    if level < current and update.upgrade_type == UpgradeType.UPGRADE:
        raise _refused(name, f"level {level} is below the present one, {current}; ask for a downgrade to go there")
    if level > current and update.upgrade_type != UpgradeType.UPGRADE:
        raise _refused(name, f"level {level} is above the present one, {current}; ask for an upgrade to go there")
    if level < current and name == METADATA_VERSION.name:
        raise _refused(name, "it cannot go down: the metadata log holds records that a lower level does not know")


def _refused(name: str, reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"Feature {name} cannot be updated: {reason}.")


def _one_minimum_for_all(image: MetadataImage, config: BrokerConfig) -> list[MetadataRecord]:
    """With eligible leaders, `min.insync.replicas` is the same for the controller and all leaders, as in Kafka."""
    name = log.MIN_INSYNC_REPLICAS.name
    records: list[MetadataRecord] = []
    if name not in image.default_broker_config:
        records.append(min_insync_replicas_for_all(config))
    for resource, values in image.configs.items():
        if resource.type == ResourceType.BROKER and resource.name and name in values:
            records.append(
                ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=None)
            )
    return records


def _without_eligible_leaders(image: MetadataImage) -> list[MetadataRecord]:
    """Nobody is forgotten who has all records: where the ISR is empty, those who may lead are the ISR again."""
    records: list[MetadataRecord] = []
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            eligible, last_known = partition.eligible_leader_replicas, partition.last_known_elr
            if not eligible and not last_known:
                continue
            records.append(
                PartitionChangeRecord(
                    partition_id=number,
                    topic_id=topic.id,
                    isr=None if partition.isr else eligible or last_known,
                    eligible_leader_replicas=() if eligible else None,
                    last_known_elr=() if last_known else None,
                )
            )
    return records
