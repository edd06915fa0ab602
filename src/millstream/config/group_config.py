"""Settings of one group: those of IncrementalAlterConfigs for resources of type GROUP, and their defaults.

The names are Kafka's; those for dead letters are of KIP-1191; `share.key.order` is Millstream only. A group need not
exist to have settings.
"""

from collections.abc import Mapping
from typing import Any

from millstream.common.quantities import parse_iso_duration_ms
from millstream.config.broker_config import BrokerConfig
from millstream.config.catalog import BROKER_SETTINGS
from millstream.config.setting import (
    Allowed,
    ConfigError,
    Setting,
    Synonym,
    at_least,
    boolean,
    declared,
    integer,
    one_of,
    string,
)
from millstream.config.table import share, streams

BY_DURATION = "by_duration:"


def _like(name: str, explanation: str, unit: str = "") -> Setting[int]:
    """A group setting whose default is the broker setting `group.<name>`."""
    broker = BROKER_SETTINGS[f"group.{name}"]
    return integer(name, broker.default, explanation, unit=unit, allowed=at_least(1), synonyms=(Synonym(broker),))


def _is_offset_reset(text: str) -> bool:
    if text.startswith(BY_DURATION):
        return parse_iso_duration_ms(text.removeprefix(BY_DURATION)) is not None
    return text in ("latest", "earliest")


CONSUMER_SESSION_TIMEOUT_MS = _like(
    "consumer.session.timeout.ms",
    "The time without heartbeats after which a member is removed from the consumer group.",
    "ms",
)
CONSUMER_HEARTBEAT_INTERVAL_MS = _like(
    "consumer.heartbeat.interval.ms", "The interval between heartbeats of the members of the consumer group.", "ms"
)
CONSUMER_ASSIGNMENT_INTERVAL_MS = integer(
    "consumer.assignment.interval.ms",
    1000,
    "The minimum time between two assignments of the consumer group.",
    unit="ms",
    allowed=at_least(0),
    synonyms=(Synonym(BROKER_SETTINGS["group.consumer.assignment.interval.ms"]),),
)
STREAMS_SESSION_TIMEOUT_MS = _like(
    "streams.session.timeout.ms",
    "The time without heartbeats after which a member is removed from the streams group.",
    "ms",
)
STREAMS_HEARTBEAT_INTERVAL_MS = _like(
    "streams.heartbeat.interval.ms", "The interval between heartbeats of the members of the streams group.", "ms"
)
STREAMS_NUM_STANDBY_REPLICAS = integer(
    "streams.num.standby.replicas",
    0,
    "The number of standby replicas of each task with state.",
    allowed=at_least(0),
    synonyms=(Synonym(BROKER_SETTINGS["group.streams.num.standby.replicas"]),),
)
STREAMS_INITIAL_REBALANCE_DELAY_MS = integer(
    "streams.initial.rebalance.delay.ms",
    3000,
    "The time an empty streams group waits for more members before its first assignment.",
    unit="ms",
    allowed=at_least(0),
    synonyms=(Synonym(BROKER_SETTINGS["group.streams.initial.rebalance.delay.ms"]),),
)
STREAMS_ASSIGNMENT_INTERVAL_MS = integer(
    "streams.assignment.interval.ms",
    1000,
    "The minimum time between two assignments of the streams group.",
    unit="ms",
    allowed=at_least(0),
    synonyms=(Synonym(BROKER_SETTINGS["group.streams.assignment.interval.ms"]),),
)
SHARE_SESSION_TIMEOUT_MS = _like(
    "share.session.timeout.ms",
    "The time without heartbeats after which a member is removed from the share group.",
    "ms",
)
SHARE_HEARTBEAT_INTERVAL_MS = _like(
    "share.heartbeat.interval.ms", "The interval between heartbeats of the members of the share group.", "ms"
)
SHARE_RECORD_LOCK_DURATION_MS = _like(
    "share.record.lock.duration.ms",
    "The time for which a member holds a record that it acquired, unless it renews the lock.",
    "ms",
)
SHARE_DELIVERY_COUNT_LIMIT = _like(
    "share.delivery.count.limit",
    "The maximum number of deliveries of a record. After it, the record is archived or written to the dead-letter"
    " topic.",
)
SHARE_PARTITION_MAX_RECORD_LOCKS = _like(
    "share.partition.max.record.locks", "The maximum number of records in flight in one partition."
)
READ_COMMITTED = "read_committed"

SHARE_AUTO_OFFSET_RESET = string(
    "share.auto.offset.reset",
    "latest",
    "The offset at which a share group starts in a partition that it has not read yet: latest, earliest, or "
    "by_duration:<ISO 8601 duration> for records that are at most this old.",
    allowed=Allowed("latest, earliest, or by_duration: and a duration such as PT1H", _is_offset_reset),
)
SHARE_ISOLATION_LEVEL = string(
    "share.isolation.level",
    "read_uncommitted",
    "With read_committed, the share group gets records only up to the last stable offset, and never records of "
    "aborted transactions. With read_uncommitted it gets all records.",
    allowed=one_of("read_uncommitted", READ_COMMITTED),
)
SHARE_RENEW_ACKNOWLEDGE_ENABLE = boolean(
    "share.renew.acknowledge.enable", True, "Allows members to renew the lock of a record."
)
SHARE_KEY_ORDER = boolean(
    "share.key.order",
    False,
    "Delivers the records of one key in order: the next one only after the previous one was acknowledged. "
    "Different keys are delivered in parallel. Records without a key have no order. Millstream only.",
)
ERRORS_DEADLETTERQUEUE_TOPIC_NAME = string(
    "errors.deadletterqueue.topic.name",
    "",
    "The dead-letter topic for records that were rejected or reached the delivery limit. Empty disables it. The "
    "topic must have errors.deadletterqueue.group.enable=true, and its name must begin with "
    "errors.deadletterqueue.topic.name.prefix.",
)
ERRORS_DEADLETTERQUEUE_COPY_RECORD_ENABLE = boolean(
    "errors.deadletterqueue.copy.record.enable",
    True,
    "Copies key, value and headers of the record to the dead letter. Without it, the dead letter has only headers"
    " that name the record's topic, partition and offset. (Kafka's default is false.)",
)

SETTINGS = declared(globals())
GROUP_SETTINGS: dict[str, Setting[Any]] = {setting.name: setting for setting in SETTINGS}

_BOUNDED = (
    CONSUMER_SESSION_TIMEOUT_MS,
    CONSUMER_HEARTBEAT_INTERVAL_MS,
    CONSUMER_ASSIGNMENT_INTERVAL_MS,
    STREAMS_SESSION_TIMEOUT_MS,
    STREAMS_HEARTBEAT_INTERVAL_MS,
    STREAMS_NUM_STANDBY_REPLICAS,
    STREAMS_ASSIGNMENT_INTERVAL_MS,
    SHARE_SESSION_TIMEOUT_MS,
    SHARE_HEARTBEAT_INTERVAL_MS,
    SHARE_RECORD_LOCK_DURATION_MS,
    SHARE_DELIVERY_COUNT_LIMIT,
    SHARE_PARTITION_MAX_RECORD_LOCKS,
)


class GroupConfig:
    """The settings of one group: `config[SETTING]` is the group's value, or the broker's, within the bounds."""

    __slots__ = ("_broker", "_overrides")

    def __init__(self, overrides: Mapping[str, str], broker: BrokerConfig) -> None:
        self._overrides = overrides
        self._broker = broker

    def __getitem__(self, setting: Setting[Any]) -> Any:
        text = self._overrides.get(setting.name)
        if text is None:
            return self._broker[setting.synonyms[0].setting] if setting.synonyms else setting.default
        try:
            value = setting.parse(text)
        except ConfigError:  # stored by a version that accepts it
            return setting.default
        if setting in _BOUNDED:
            low, high = bounds(setting, self._broker)
            return max(low, min(high, value))
        return value


def bounds(setting: Setting[Any], broker: BrokerConfig) -> tuple[int, int]:
    """The minimum and the maximum of a group setting, from the broker's settings."""
    if setting is STREAMS_NUM_STANDBY_REPLICAS:
        return 0, broker[streams.MAX_STANDBY_REPLICAS]
    family, _, rest = setting.name.partition(".")
    low = BROKER_SETTINGS[f"group.{family}.min.{rest}"]
    high = BROKER_SETTINGS[f"group.{family}.max.{rest}"]
    return broker[low], broker[high]


def group_setting(name: str) -> Setting[Any]:
    """The declaration of a group setting; ConfigError if there is none."""
    setting = GROUP_SETTINGS.get(name)
    if setting is None:
        raise ConfigError(f"Unknown group config name: {name}", name=name)
    return setting


def check_group_config(overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raises ConfigError for invalid settings of a group."""
    for name, text in overrides.items():
        setting = group_setting(name)
        value = setting.parse(text)
        if setting in _BOUNDED:
            low, high = bounds(setting, broker)
            if not low <= value <= high:
                raise ConfigError(f"{name}={value} is not allowed: it must be {low} to {high}", name=name)
    config = GroupConfig(overrides, broker)
    for session, heartbeat in (
        (CONSUMER_SESSION_TIMEOUT_MS, CONSUMER_HEARTBEAT_INTERVAL_MS),
        (STREAMS_SESSION_TIMEOUT_MS, STREAMS_HEARTBEAT_INTERVAL_MS),
        (SHARE_SESSION_TIMEOUT_MS, SHARE_HEARTBEAT_INTERVAL_MS),
    ):
        if config[session] <= config[heartbeat]:
            raise ConfigError(f"{session.name} must be greater than {heartbeat.name}", name=session.name)
    topic = config[ERRORS_DEADLETTERQUEUE_TOPIC_NAME]
    if topic:
        problem = dead_letter_topic_problem(topic, broker)
        if problem:
            raise ConfigError(problem, name=ERRORS_DEADLETTERQUEUE_TOPIC_NAME.name)


def dead_letter_topic_problem(topic: str, broker: BrokerConfig) -> str:
    """The problem with the name of a dead-letter topic; empty if it is valid."""
    prefix = broker[share.ERRORS_DEADLETTERQUEUE_TOPIC_NAME_PREFIX]
    if topic.startswith("__"):
        return f"dead-letter topic {topic} must not begin with __"
    if not topic.startswith(prefix):
        return f"dead-letter topic {topic} must begin with {prefix} (errors.deadletterqueue.topic.name.prefix)"
    return ""
