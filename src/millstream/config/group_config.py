"""Settings of one group: what IncrementalAlterConfigs takes for resources of type GROUP, and what counts without them.

The names are Kafka's; those of dead letters are KIP-1191's; `share.key.order` is Millstream's own. A group need not
exist to have settings.
"""

from collections.abc import Mapping
from typing import Any

from millstream.config.broker_config import BrokerConfig
from millstream.config.catalog import BROKER_SETTINGS
from millstream.config.iso_duration import parse_duration_ms
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
from millstream.config.table import share

BY_DURATION = "by_duration:"


def _like(name: str, explanation: str, unit: str = "") -> Setting[int]:
    """A setting whose value is the broker's `group.<name>` where a group has none."""
    broker = BROKER_SETTINGS[f"group.{name}"]
    return integer(name, broker.default, explanation, unit=unit, allowed=at_least(1), synonyms=(Synonym(broker),))


def _is_offset_reset(text: str) -> bool:
    if text.startswith(BY_DURATION):
        return parse_duration_ms(text.removeprefix(BY_DURATION)) is not None
    return text in ("latest", "earliest")


CONSUMER_SESSION_TIMEOUT_MS = _like(
    "consumer.session.timeout.ms", "After what silence a member of a consumer group is taken for gone.", "ms"
)
CONSUMER_HEARTBEAT_INTERVAL_MS = _like(
    "consumer.heartbeat.interval.ms", "How often members of a consumer group send a sign of life.", "ms"
)
CONSUMER_ASSIGNMENT_INTERVAL_MS = integer(
    "consumer.assignment.interval.ms",
    1000,
    "How often the partitions of a consumer group are assigned anew at most.",
    unit="ms",
    allowed=at_least(0),
    synonyms=(Synonym(BROKER_SETTINGS["group.consumer.assignment.interval.ms"]),),
)
SHARE_SESSION_TIMEOUT_MS = _like(
    "share.session.timeout.ms", "After what silence a member of a share group is taken for gone.", "ms"
)
SHARE_HEARTBEAT_INTERVAL_MS = _like(
    "share.heartbeat.interval.ms", "How often members of a share group send a sign of life.", "ms"
)
SHARE_RECORD_LOCK_DURATION_MS = _like(
    "share.record.lock.duration.ms", "How long a member holds a record it was given, unless it renews.", "ms"
)
SHARE_DELIVERY_COUNT_LIMIT = _like(
    "share.delivery.count.limit",
    "How often a record is delivered at most; then it is archived, or goes to the dead-letter topic.",
)
SHARE_PARTITION_MAX_RECORD_LOCKS = _like(
    "share.partition.max.record.locks", "How many records of one partition may be in flight."
)
READ_COMMITTED = "read_committed"

SHARE_AUTO_OFFSET_RESET = string(
    "share.auto.offset.reset",
    "latest",
    "Where a share group begins in a partition it never read: latest, earliest, or by_duration:<ISO 8601 duration> "
    "for the records of that last while.",
    allowed=Allowed("latest, earliest, or by_duration: and a duration such as PT1H", _is_offset_reset),
)
SHARE_ISOLATION_LEVEL = string(
    "share.isolation.level",
    "read_uncommitted",
    "Whether records of transactions are handed out before these are committed. With read_committed a share group "
    "waits at the last stable offset, and never gets records of transactions that were aborted.",
    allowed=one_of("read_uncommitted", READ_COMMITTED),
)
SHARE_RENEW_ACKNOWLEDGE_ENABLE = boolean(
    "share.renew.acknowledge.enable", True, "Whether members may renew their hold on a record."
)
SHARE_KEY_ORDER = boolean(
    "share.key.order",
    False,
    "Records of one key are handed out one after another, the next only when the one before was acknowledged; other "
    "keys go in parallel. Records without a key have no order. Millstream's own.",
)
ERRORS_DEADLETTERQUEUE_TOPIC_NAME = string(
    "errors.deadletterqueue.topic.name",
    "",
    "Where records go that were rejected or reached the delivery limit; empty for nowhere. The topic must have "
    "errors.deadletterqueue.group.enable=true, and its name begin with errors.deadletterqueue.topic.name.prefix.",
)
ERRORS_DEADLETTERQUEUE_COPY_RECORD_ENABLE = boolean(
    "errors.deadletterqueue.copy.record.enable",
    True,
    "Whether a dead letter has the key, value and headers of the original record. Without it, its headers only say "
    "where that was. (Kafka's default is false.)",
)

SETTINGS = declared(globals())
GROUP_SETTINGS: dict[str, Setting[Any]] = {setting.name: setting for setting in SETTINGS}

_BOUNDED = (
    CONSUMER_SESSION_TIMEOUT_MS,
    CONSUMER_HEARTBEAT_INTERVAL_MS,
    CONSUMER_ASSIGNMENT_INTERVAL_MS,
    SHARE_SESSION_TIMEOUT_MS,
    SHARE_HEARTBEAT_INTERVAL_MS,
    SHARE_RECORD_LOCK_DURATION_MS,
    SHARE_DELIVERY_COUNT_LIMIT,
    SHARE_PARTITION_MAX_RECORD_LOCKS,
)


class GroupConfig:
    """The settings of one group in force: `config[SETTING]` is its own value or else the broker's, within bounds."""

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
        except ConfigError:  # written by a version that took it
            return setting.default
        if setting in _BOUNDED:
            low, high = bounds(setting, self._broker)
            return max(low, min(high, value))
        return value


def bounds(setting: Setting[Any], broker: BrokerConfig) -> tuple[int, int]:
    """The least and the most that a group may set, as the broker's settings say."""
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
    """Refuses, with ConfigError, settings that a group cannot have."""
    for name, text in overrides.items():
        setting = group_setting(name)
        value = setting.parse(text)
        if setting in _BOUNDED:
            low, high = bounds(setting, broker)
            if not low <= value <= high:
                raise ConfigError(f"{name}={value} is not allowed: this broker takes {low} to {high}", name=name)
    config = GroupConfig(overrides, broker)
    for session, heartbeat in (
        (CONSUMER_SESSION_TIMEOUT_MS, CONSUMER_HEARTBEAT_INTERVAL_MS),
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
    """What is wrong with the name of a dead-letter topic; empty if nothing is."""
    prefix = broker[share.ERRORS_DEADLETTERQUEUE_TOPIC_NAME_PREFIX]
    if topic.startswith("__"):
        return f"dead-letter topic {topic} must not begin with __"
    if not topic.startswith(prefix):
        return f"dead-letter topic {topic} must begin with {prefix} (errors.deadletterqueue.topic.name.prefix)"
    return ""
