"""Decisions on settings of topics, brokers, groups and client metrics: AlterConfigs (33), IncrementalAlterConfigs (44).

As in Kafka, settings of brokers with unknown names are stored: they may be those of a plug-in. The levels of loggers
are not in the metadata: the broker that has them changes them (`node/controller/loggers.py`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig
from millstream.config.catalog import LISTENER_PREFIX, broker_setting
from millstream.config.client_metrics_config import (
    UnknownClientMetricsSetting,
    check_client_metrics_config,
    client_metrics_setting,
)
from millstream.config.group_config import check_group_config, group_setting
from millstream.config.setting import ConfigError, Setting, SettingType, Update
from millstream.config.table import log, topic
from millstream.config.topic_config import check_tier_change, check_topic_config, topic_setting, value_from_broker
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName
from millstream.node.metadata.features import eligible_leader_replicas_enabled
from millstream.node.metadata.image import (
    ALL_BROKERS,
    CLUSTER_ID_NAME,
    ConfigResource,
    MetadataImage,
    ResourceType,
    apply,
)
from millstream.node.metadata.mirrors import mirror_changes
from millstream.node.metadata.partitions import PartitionChanger
from millstream.node.metadata.records import (
    ConfigRecord,
    Decision,
    DecisionResult,
    MetadataRecord,
    check_sizes,
    refusal,
)
from millstream.node.metadata.topic_names import INTERNAL_TOPICS

MAX_SETTINGS = 1_000
"""The maximum number of settings of one resource, with those of unknown names. There are fewer known settings."""
MAX_SUBSCRIPTIONS = 1_000
"""The maximum number of subscriptions to client metrics. Each is matched with every client that pushes."""


class Operation(IntEnum):
    """The operation on one setting, with Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    name: str
    operation: int
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigAlteration(DecisionResult):
    resource: ConfigResource


def incremental_alter_configs(
    image: MetadataImage,
    changes: Sequence[tuple[ConfigResource, Sequence[ConfigChange]]],
    config: BrokerConfig,
    *,
    validate_only: bool = False,
) -> Decision[ConfigAlteration]:
    """Changes single settings. Settings that are not in the request keep their values."""

    def next_values(resource: ConfigResource, requested: Sequence[ConfigChange]) -> dict[str, str]:
        twice = [name for name, count in Counter(change.name for change in requested).items() if count > 1]
        if twice:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Setting {twice[0]} is named twice for one resource.")
        values = dict(image.configs.get(resource, {}))
        for change in requested:
            _change(values, resource, change, config)
        return values

    return _decide(
        image, [(resource, next_values, requested) for resource, requested in changes], config, validate_only
    )


def alter_configs(
    image: MetadataImage,
    replacements: Sequence[tuple[ConfigResource, Mapping[str, str | None]]],
    config: BrokerConfig,
    *,
    validate_only: bool = False,
) -> Decision[ConfigAlteration]:
    """Replaces all settings of a resource (AlterConfigs, the older API)."""

    def next_values(resource: ConfigResource, given: Mapping[str, str | None]) -> dict[str, str]:
        for name in given:
            _setting(resource, name)
        return {name: _required(name, value) for name, value in given.items()}

    return _decide(image, [(resource, next_values, given) for resource, given in replacements], config, validate_only)


def _decide(
    image: MetadataImage, requests: list[tuple[ConfigResource, Any, Any]], config: BrokerConfig, validate_only: bool
) -> Decision[ConfigAlteration]:
    records: list[MetadataRecord] = []
    results: list[ConfigAlteration] = []
    requested = Counter(resource for resource, _, _ in requests)
    for resource, next_values, request in requests:
        try:
            if requested[resource] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if len(request) > MAX_SETTINGS:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"{len(request)} settings for one resource; the limit is {MAX_SETTINGS}.",
                )
            _check_resource(image, resource, config)
            values = next_values(resource, request)
            if len(values) > MAX_SETTINGS:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"The resource would have {len(values)} settings; the limit is {MAX_SETTINGS}.",
                )
            _check_values(resource, values, image.configs.get(resource, {}), config)
            _check_min_insync_replicas(image, resource, values)
        except KafkaError as error:
            code, message = refusal(error)
            results.append(ConfigAlteration(resource=resource, error=code, message=message))
            continue
        records += _difference(resource, image.configs.get(resource, {}), values)
        results.append(ConfigAlteration(resource=resource))
    # ELR changes come first: a replica must lose its eligibility before an ISR without it may acknowledge records. This
    # holds also if the records are written in two batches.
    records = [*_eligible_leader_changes(image, records, config), *mirror_changes(image, records), *records]
    return Decision(() if validate_only else tuple(records), tuple(results))


def _check_resource(image: MetadataImage, resource: ConfigResource, config: BrokerConfig) -> None:
    if resource.type == ResourceType.TOPIC:
        if TopicName(resource.name) not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic {resource.name!r} does not exist.")
    elif resource.type == ResourceType.BROKER:
        number = resource.name
        if number and number not in map(str, image.brokers):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"There is no broker {number!r} in the cluster. An empty name means all brokers.",
            )
    elif resource.type == ResourceType.GROUP:
        if not resource.name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The group id is empty.")
    elif resource.type == ResourceType.CLIENT_METRICS:
        if not resource.name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
        others = sum(each.type == ResourceType.CLIENT_METRICS and each != resource for each in image.configs)
        if others >= MAX_SUBSCRIPTIONS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The limit of {MAX_SUBSCRIPTIONS} subscriptions is reached.")
    elif resource.type == ResourceType.BROKER_LOGGER:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "The levels of loggers are changed by IncrementalAlterConfigs alone: send them to the node that has the "
            "loggers, without other resources.",
        )
    else:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Resource type {resource.type} has no settings. Topics (2), brokers (4), client metrics (16) and groups "
            "(32) have settings.",
        )


def _setting(resource: ConfigResource, name: str) -> Setting[Any] | None:
    """The declaration of a setting of the resource that can be changed while brokers run; None for an unknown one."""
    if resource.type == ResourceType.BROKER and name == CLUSTER_ID_NAME:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{name} cannot be changed: it is fixed when the cluster is created."
        )
    if resource.type == ResourceType.TOPIC:
        try:
            return topic_setting(name)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, error.message) from None
    if resource.type == ResourceType.GROUP:
        try:
            return group_setting(name)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, error.message) from None
    if resource.type == ResourceType.CLIENT_METRICS:
        try:
            return client_metrics_setting(name)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from None
    setting = broker_setting(name)
    if setting is None:
        if not name:
            raise KafkaError(ErrorCode.INVALID_CONFIG, "The name of the setting is empty.")
        return None
    if setting.update is Update.RESTART:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update {name} dynamically: set it in the broker's configuration and restart the broker.",
        )
    _check_level(resource, name)
    return setting


def _check_level(resource: ConfigResource, name: str) -> None:
    """Settings of TLS and SASL change for one listener of one broker, as in Kafka."""
    is_of_listener = name.startswith(LISTENER_PREFIX)
    if is_of_listener and resource == ALL_BROKERS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Cannot update {name} for all brokers: name one broker. It is per broker."
        )
    if not is_of_listener and name.startswith(("ssl.", "sasl.")):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update {name} dynamically without a listener: use listener.name.<listener>.{name}.",
        )


def _change(values: dict[str, str], resource: ConfigResource, change: ConfigChange, config: BrokerConfig) -> None:
    name = change.name
    if change.operation == Operation.DELETE and name != CLUSTER_ID_NAME:
        values.pop(name, None)  # also for settings that are not set, or that this version does not know
        return
    setting = _setting(resource, name)
    if change.operation == Operation.SET:
        values[name] = _required(name, change.value)
        return
    if change.operation not in (Operation.APPEND, Operation.SUBTRACT):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation {change.operation} on setting {name}.")
    verb = Operation(change.operation).name
    if setting is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {name}")
    if setting.type is not SettingType.LIST:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Can't {verb} to key {name} because its type is not LIST.")
    if name in values:
        current = _items(values[name])
    elif resource.type == ResourceType.TOPIC:
        current = list(value_from_broker(setting, config))
    elif resource.type == ResourceType.CLIENT_METRICS:
        current = []
    else:
        current = list(config[setting] or ())
    given = dict.fromkeys(_items(_required(name, change.value)))
    if change.operation == Operation.APPEND:
        known = frozenset(current)
        current += [item for item in given if item not in known]
    else:
        current = [item for item in current if item not in given]
    values[name] = ",".join(current)


def _items(text: str) -> list[str]:
    return [item for part in text.split(",") if (item := part.strip())]


def _required(name: str, value: str | None) -> str:
    if value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for setting {name}.")
    return value


def _check_values(
    resource: ConfigResource, values: Mapping[str, str], stored: Mapping[str, str], config: BrokerConfig
) -> None:
    check_sizes(resource.name, {name: text for name, text in values.items() if stored.get(name) != text})
    try:
        if resource.type == ResourceType.TOPIC:
            check_topic_config(values, config)
            check_tier_change(values, stored, config)
            if resource.name in INTERNAL_TOPICS and values.get(topic.REMOTE_STORAGE_ENABLE.name, "").lower() == "true":
                raise ConfigError(
                    f"remote.storage.enable=true: {resource.name} is an internal topic, which is not tiered"
                )
            return
        if resource.type == ResourceType.GROUP:
            check_group_config(values, config)
            return
        if resource.type == ResourceType.CLIENT_METRICS:
            check_client_metrics_config(values)
            return
        for name, text in values.items():
            if stored.get(name) != text:
                setting = broker_setting(name)
                if setting is not None:
                    setting.parse(text)
    except UnknownClientMetricsSetting as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from None
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, error.message) from None


def _check_min_insync_replicas(image: MetadataImage, resource: ConfigResource, values: Mapping[str, str]) -> None:
    """With eligible leader replicas, controller and leaders must use the same `min.insync.replicas`."""
    name = log.MIN_INSYNC_REPLICAS.name
    old, new = image.configs.get(resource, {}).get(name), values.get(name)
    if resource.type != ResourceType.BROKER or old == new or not eligible_leader_replicas_enabled(image):
        return
    if resource != ALL_BROKERS and new is not None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{name} cannot be set for a single broker while eligible leader replicas are enabled. Set it for all "
            "brokers (an empty broker name) or for topics.",
        )
    if resource == ALL_BROKERS and new is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{name} for all brokers cannot be removed while eligible leader replicas are enabled. Set another value.",
        )


def _eligible_leader_changes(
    image: MetadataImage, records: Sequence[MetadataRecord], config: BrokerConfig
) -> list[MetadataRecord]:
    """Removes replicas from the ELR where the ISR is large enough by the new `min.insync.replicas`.

    Such an ISR acknowledges records that the replicas outside of it do not have.
    """
    resources = {
        ConfigResource(record.resource_type, record.resource_name)
        for record in records
        if isinstance(record, ConfigRecord) and record.name == log.MIN_INSYNC_REPLICAS.name
    }
    if not resources:
        return []
    changer = PartitionChanger(apply(image, records, offset=image.offset, epoch=image.epoch).image, config)
    return [
        change
        for topic in image.topics.values()
        if ALL_BROKERS in resources or ConfigResource(ResourceType.TOPIC, topic.name) in resources
        for number, partition in enumerate(topic.partitions)
        if partition.eligible_leader_replicas and (change := changer.change(topic, number)) is not None
    ]


def _difference(resource: ConfigResource, old: Mapping[str, str], new: Mapping[str, str]) -> list[MetadataRecord]:
    names = [name for name in (*old, *(name for name in new if name not in old)) if old.get(name) != new.get(name)]
    return [
        ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=new.get(name))
        for name in names
    ]
