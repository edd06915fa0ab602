"""Features of a cluster and their levels: supported ranges, levels of a new cluster, UpdateFeatures (57).

An UpdateFeatures request is applied as a whole or not at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig
from millstream.config.table import log, node
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.metadata.image import ALL_BROKERS, MetadataImage, ResourceType, cluster_id_record
from millstream.node.metadata.records import (
    AbortTransactionRecord,
    ConfigRecord,
    Decision,
    DecisionResult,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    SupportedFeature,
)

METADATA_VERSION = SupportedFeature(name="metadata.version", min_supported_version=7, max_supported_version=30)
"""The metadata versions of Kafka whose records are supported."""
METADATA_CHANGES = (8, 11, 13, 14, 15, 17, 23, 30)
"""The metadata versions that have other records than the one before, as Kafka lists them: below one of them, a log may
have records that nodes of that version cannot read."""
CONTROLLERS_REGISTER = 15
"""From this metadata version (3.7-IV0) on, controllers register (KIP-919)."""
CORDONS_ARE_REPORTED = 30
"""From this metadata version (4.3-IV0) on, registrations have the cordoned log directories (KIP-1066)."""
GROUP_VERSION = SupportedFeature(name="group.version", min_supported_version=0, max_supported_version=1)
"""Level 1: the broker can assign the partitions of groups (KIP-848)."""
SHARE_VERSION = SupportedFeature(name="share.version", min_supported_version=0, max_supported_version=1)
"""Level 1: share groups are supported (KIP-932)."""
STREAMS_VERSION = SupportedFeature(name="streams.version", min_supported_version=0, max_supported_version=1)
"""Level 1: the broker can assign the tasks of Kafka Streams applications (KIP-1071)."""
TRANSACTION_VERSION = SupportedFeature(name="transaction.version", min_supported_version=0, max_supported_version=2)
"""From level 1 on the state of transactions may have tagged fields. Level 2: each transaction has a new producer epoch,
and clients need not add partitions before they send records (KIP-890)."""
ELIGIBLE_LEADER_REPLICAS_VERSION = SupportedFeature(
    name="eligible.leader.replicas.version", min_supported_version=0, max_supported_version=1
)
"""Level 1: replicas that left an ISR below `min.insync.replicas` stay eligible to lead (KIP-966)."""
KRAFT_VERSION_RANGE = SupportedFeature(name="kraft.version", min_supported_version=0, max_supported_version=1)
"""A feature of the quorum, which keeps its level itself."""
SUPPORTED_FEATURES = (
    METADATA_VERSION,
    GROUP_VERSION,
    TRANSACTION_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
)


def supported_features(config: BrokerConfig) -> tuple[SupportedFeature, ...]:
    """What a node offers: all that this version supports, unless its settings say less."""
    limits = dict(each.split("=") for each in config[node.MAX_FEATURE_LEVELS])
    return tuple(
        replace(each, max_supported_version=min(each.max_supported_version, int(limits[each.name])))
        if each.name in limits
        else each
        for each in SUPPORTED_FEATURES
    )


def bootstrap_records(cluster_id: str, config: BrokerConfig) -> tuple[MetadataRecord, ...]:
    """The first records of an empty log: the newest level of each feature, and the cluster id.

    As in Kafka, also `min.insync.replicas` for all brokers: ELR needs the same value on leaders and controller.
    """
    return (
        *missing_features(MetadataImage(), supported_features(config)),
        cluster_id_record(cluster_id),
        min_insync_replicas_for_all(config),
    )


def first_records_of_leader(
    image: MetadataImage,
    new_cluster_id: Callable[[], str],
    config: BrokerConfig,
    formatted: Sequence[MetadataRecord] = (),
) -> tuple[MetadataRecord, ...]:
    """What a new leader adds to a log, so that it is complete for this program. Mostly nothing.

    An empty log gets the bootstrap records; if Kafka formatted the directory, its own (`formatted`) take their place. A
    log of Kafka has no cluster id. There, as in a formatted directory, a feature without a level is off: it is written
    as such, so that the move does not change what the cluster supports. A transaction that Kafka left open is aborted,
    as Kafka does it.
    """
    records: list[MetadataRecord] = []
    if image.pending is not None:
        records.append(AbortTransactionRecord(reason="the controller that began it has stopped"))
    if image.cluster_id:
        return tuple(records)
    levels = {each.name for each in formatted if isinstance(each, FeatureLevelRecord)}
    if not image.features and not levels:
        return (*records, *bootstrap_records(new_cluster_id(), config), *formatted)
    records += formatted if not image.features else ()
    records += [
        FeatureLevelRecord(name=each.name, feature_level=0)
        for each in missing_features(image)
        if each.name not in levels
    ]
    return (*records, cluster_id_record(new_cluster_id()))


def min_insync_replicas_for_all(config: BrokerConfig) -> ConfigRecord:
    """The controller's value as a setting of all brokers."""
    return ConfigRecord(
        resource_type=ALL_BROKERS.type,
        resource_name=ALL_BROKERS.name,
        name=log.MIN_INSYNC_REPLICAS.name,
        value=str(config[log.MIN_INSYNC_REPLICAS]),
    )


def missing_features(
    image: MetadataImage, supported: Sequence[SupportedFeature] = SUPPORTED_FEATURES
) -> tuple[FeatureLevelRecord, ...]:
    """The newest levels of features that are not in the log.

    The metadata log of a new cluster begins with them, and the first one is the version of the records that follow. In
    a log of an earlier version they stay off until they are upgraded: until then that version can be started again.
    """
    return tuple(
        FeatureLevelRecord(name=feature.name, feature_level=feature.max_supported_version)
        for feature in supported
        if feature.name not in image.features and feature.name not in image.features_off
    )


def controllers_register(image: MetadataImage) -> bool:
    return image.features.get(METADATA_VERSION.name, 0) >= CONTROLLERS_REGISTER


def brokers_report_cordons(image: MetadataImage) -> bool:
    return image.features.get(METADATA_VERSION.name, 0) >= CORDONS_ARE_REPORTED


def eligible_leader_replicas_enabled(image: MetadataImage) -> bool:
    return image.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION.name, 0) >= 1


def streams_groups_enabled(image: MetadataImage) -> bool:
    return image.features.get(STREAMS_VERSION.name, 0) >= 1


def transaction_version(image: MetadataImage) -> int:
    """The level of `transaction.version`; 0 if the cluster does not have it."""
    return image.features.get(TRANSACTION_VERSION.name, 0)


def check_feature_support(
    image: MetadataImage, node_id: int, offered: Sequence[SupportedFeature], role: str = "broker"
) -> None:
    """Raises UNSUPPORTED_VERSION if the node does not support the feature levels of the cluster."""
    node = f"{role.capitalize()} {node_id}"
    ranges = {feature.name: feature for feature in offered}
    for name, level in image.features.items():
        feature = ranges.get(name)
        if feature is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{node} does not support feature {name}, which the cluster uses at level {level}. Upgrade the {role}.",
            )
        if not feature.min_supported_version <= level <= feature.max_supported_version:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{node} supports {name} from level {feature.min_supported_version} to "
                f"{feature.max_supported_version}, but the cluster uses level {level}. Run a version that supports it.",
            )


class UpgradeType(IntEnum):
    """The upgrade types that a client may request, with Kafka's numbers."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdate:
    name: str
    level: int
    """0 disables the feature."""
    upgrade_type: int = UpgradeType.UPGRADE


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdateResult(DecisionResult):
    name: str


def update_features(
    image: MetadataImage, updates: Sequence[FeatureUpdate], config: BrokerConfig, *, validate_only: bool = False
) -> Decision[FeatureUpdateResult]:
    """Changes the levels of features. If one change is not possible: INVALID_UPDATE_VERSION, and nothing changes."""
    if len({update.name for update in updates}) != len(updates):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names a feature twice.")
    records: list[MetadataRecord] = []
    for update in updates:
        _check(image, update, supported_features(config))
        if update.level == image.features.get(update.name, 0):
            continue
        records.append(FeatureLevelRecord(name=update.name, feature_level=update.level))
        if update.name == ELIGIBLE_LEADER_REPLICAS_VERSION.name:
            records += _one_minimum_for_all(image, config) if update.level else _without_eligible_leaders(image)
    results = tuple(FeatureUpdateResult(name=update.name) for update in updates)
    return Decision(() if validate_only else tuple(records), results)


def _check(image: MetadataImage, update: FeatureUpdate, supported: Sequence[SupportedFeature]) -> None:
    name, level, current = update.name, update.level, image.features.get(update.name, 0)
    if update.upgrade_type not in list(UpgradeType):
        raise _refused(name, f"unknown upgrade type {update.upgrade_type}; use 1 (upgrade), 2 or 3 (downgrade)")
    if level < 0:
        raise _refused(name, "a level cannot be less than 0")
    ours = next((feature for feature in supported if feature.name == name), None)
    if ours is None:
        raise _refused(name, "the controller does not support this feature")
    ranges = [("the controller supports", ours)]
    for broker in image.brokers.values():
        theirs = next((feature for feature in broker.features if feature.name == name), None)
        if theirs is not None:
            ranges.append((f"broker {broker.id} supports", theirs))
        elif level > 0:
            raise _refused(name, f"broker {broker.id} does not support this feature; upgrade or unregister it first")
    for controller in image.controllers.values():
        theirs = next((feature for feature in controller.features if feature.name == name), None)
        if theirs is not None:
            ranges.append((f"controller {controller.controller_id} supports", theirs))
    for owner, feature in ranges:
        if level > 0 and not feature.min_supported_version <= level <= feature.max_supported_version:
            lowest, highest = feature.min_supported_version, feature.max_supported_version
            raise _refused(name, f"level {level} is not supported: {owner} levels {lowest} to {highest}")
    if level < current and update.upgrade_type == UpgradeType.UPGRADE:
        raise _refused(name, f"level {level} is below the current level {current}; request a downgrade")
    if level > current and update.upgrade_type != UpgradeType.UPGRADE:
        raise _refused(name, f"level {level} is above the current level {current}; request an upgrade")
    if level < current and name == METADATA_VERSION.name:
        _check_metadata_downgrade(level, current, update.upgrade_type)


def _check_metadata_downgrade(level: int, current: int, upgrade_type: int) -> None:
    """As in Kafka: only where no version in between has changed the records."""
    if level == 0:
        raise _refused(METADATA_VERSION.name, "it cannot be disabled")
    between = [each for each in METADATA_CHANGES if level < each <= current]
    if between:
        kind = "an unsafe downgrade is not supported" if upgrade_type == UpgradeType.UNSAFE_DOWNGRADE else "not safe"
        raise _refused(
            METADATA_VERSION.name,
            f"{kind}: the metadata log may have records of level {between[-1]}; the lowest safe level is {between[-1]}",
        )


def _refused(name: str, reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"Feature {name} cannot be updated: {reason}.")


def _one_minimum_for_all(image: MetadataImage, config: BrokerConfig) -> list[MetadataRecord]:
    """Sets `min.insync.replicas` for all brokers and removes values of single brokers, as Kafka does for ELR."""
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
    """Clears the ELR of all partitions. Where the ISR is empty, the ELR becomes the ISR, so that no replica with all
    records is lost."""
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
