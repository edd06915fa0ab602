"""Settings of a topic: its own values, else the broker's, resolved to a LogConfig for the storage."""

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Any

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig
from millstream.config.catalog import TOPIC_SETTINGS, hint
from millstream.config.setting import ConfigError, Setting
from millstream.config.table import log, tier, topic

DAY_MS = 24 * 60 * 60 * 1000
NO_LIMIT = -1
LIKE_RETENTION = -2
LIKE_LOCAL_RETENTION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The settings of a topic, resolved: the topic's own value, else the broker setting, else the default."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = NO_LIMIT
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = DAY_MS
    file_delete_delay_ms: int = 60_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = (1 << 63) - 1
    min_cleanable_dirty_ratio: float = 0.5
    max_message_bytes: int = (1 << 20) + 12
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = (1 << 63) - 1
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    flush_messages: int = (1 << 63) - 1
    flush_ms: int = (1 << 63) - 1
    flush_before_ack: bool = False
    """Group commit: a response waits until its records are on disk. One fsync serves all waiting requests."""
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    millstream_mirror_state: str = ""
    """The state of a mirror topic, empty for others."""
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    local_retention_ms: int = LIKE_RETENTION
    local_retention_bytes: int = LIKE_RETENTION
    remote_copy_lag_ms: int = 0
    remote_copy_lag_bytes: int = LIKE_LOCAL_RETENTION
    batch_max_records: int = log.BATCH_MAX_RECORDS.default
    """The broker setting `millstream.batch.max.records`: the same for all topics."""
    roll_ms: int = field(init=False)
    """The age at which a segment is closed: a compacted one in time for `max.compaction.lag.ms`."""

    def __post_init__(self) -> None:
        is_compacted = "compact" in self.cleanup_policy
        roll_ms = min(self.segment_ms, self.max_compaction_lag_ms) if is_compacted else self.segment_ms
        object.__setattr__(self, "roll_ms", roll_ms)

    @property
    def is_mirror(self) -> bool:
        """Whether the log copies that of another cluster, and accepts no other writes."""
        return self.millstream_mirror_state not in ("", "promoted")


_OF_THE_BROKER = "batch_max_records"
_FIELDS: dict[str, Setting[Any]] = {
    field.name: TOPIC_SETTINGS[field.name.replace("_", ".")]
    for field in fields(LogConfig)
    if field.init and field.name != _OF_THE_BROKER
}


def topic_setting(name: str) -> Setting[Any]:
    """The declaration of a topic setting; ConfigError with a hint if there is none."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        help_text = hint(name, TOPIC_SETTINGS)
        raise ConfigError(f"unknown topic setting {name}" + (f" ({help_text})" if help_text else ""), name=name)
    return setting


def value_from_broker(setting: Setting[Any], broker: BrokerConfig) -> Any:
    """The value of a topic or group without its own: that of the first synonym with a value."""
    for synonym in setting.synonyms:
        value = broker[synonym.setting]
        if value is not None:
            return synonym.scaled(value)
    return setting.default


def topic_defaults(broker: BrokerConfig) -> LogConfig:
    """The LogConfig of a topic without overrides. Compute it once per BrokerConfig."""
    values = {field: _plain(value_from_broker(setting, broker)) for field, setting in _FIELDS.items()}
    return LogConfig(**values, batch_max_records=broker[log.BATCH_MAX_RECORDS])


def resolve_log_config(defaults: LogConfig, overrides: Mapping[str, str]) -> LogConfig:
    """The LogConfig of a topic. Stored values that this version does not accept are ignored."""
    if not overrides:
        return defaults
    values: dict[str, Any] = {}
    for name, text in overrides.items():
        setting = TOPIC_SETTINGS.get(name)
        field = name.replace(".", "_")
        if setting is None or field not in _FIELDS:
            continue
        try:
            values[field] = _plain(setting.parse(text))
        except ConfigError:
            continue
    internal = overrides.get(topic.INTERNAL_SEGMENT_BYTES.name)
    if internal is not None:
        values["segment_bytes"] = topic.INTERNAL_SEGMENT_BYTES.parse(internal)
    return replace(defaults, **values)


def check_topic_config(overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raises ConfigError for invalid settings of a topic."""
    for name, text in overrides.items():
        topic_setting(name).parse(text)
    if not overrides:
        return
    resolved = resolve_log_config(topic_defaults(broker), overrides)
    if resolved.is_mirror:
        for needed in (topic.MIRROR_LINK, topic.MIRROR_SOURCE_TOPIC, topic.MIRROR_SOURCE_ID):
            if not overrides.get(needed.name):
                raise ConfigError(
                    f"{topic.MIRROR_STATE.name}={resolved.millstream_mirror_state} needs {needed.name}: use "
                    "`millstream mirror`",
                    name=needed.name,
                )
    _check_table(overrides)
    if resolved.min_compaction_lag_ms > resolved.max_compaction_lag_ms:
        raise ConfigError(
            f"min.compaction.lag.ms={resolved.min_compaction_lag_ms} must not be above "
            f"max.compaction.lag.ms={resolved.max_compaction_lag_ms}",
            name="min.compaction.lag.ms",
        )
    if resolved.remote_storage_enable:
        _check_tiered(resolved, broker)


def _check_table(overrides: Mapping[str, str]) -> None:
    """The settings of the topic's table that exclude each other."""
    if overrides.get(topic.TABLE_KEYS.name) and overrides.get(topic.TABLE_MODE.name, "append") != "upsert":
        raise ConfigError(
            f"{topic.TABLE_KEYS.name} needs {topic.TABLE_MODE.name}=upsert: rows that are appended have no keys",
            name=topic.TABLE_KEYS.name,
        )


def _check_tiered(config: LogConfig, broker: BrokerConfig) -> None:
    """The rules of Kafka for topics with tiered storage."""
    name = topic.REMOTE_STORAGE_ENABLE.name
    if not broker[tier.REMOTE_LOG_STORAGE_SYSTEM_ENABLE]:
        raise ConfigError(
            f"{name}=true: Tiered Storage functionality is disabled in the broker. Topic cannot be configured with "
            "remote log storage. Set remote.log.storage.system.enable and millstream.tier.url on all brokers.",
            name=name,
        )
    if config.is_mirror:
        # A mirror is cut where the source has lost records; the tier has only records that are never cut.
        raise ConfigError(
            f"{name}=true: a mirror topic is not tiered: promote it first (`millstream mirror promote`)", name=name
        )
    if "compact" in config.cleanup_policy:
        raise ConfigError(
            f"{name}=true: Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being "
            "an empty list.",
            name=name,
        )
    for unit in ("ms", "bytes"):
        local: int = getattr(config, f"local_retention_{unit}")
        whole: int = getattr(config, f"retention_{unit}")
        setting = f"local.retention.{unit}"
        if config.remote_log_copy_disable and local not in (LIKE_RETENTION, whole):
            raise ConfigError(
                f"{setting}={local}: with remote.log.copy.disable=true it must be the value of retention.{unit} "
                f"({whole}), or -2, because no more segments are copied to the tier",
                name=setting,
            )
        if local != LIKE_RETENTION and whole != NO_LIMIT and not 0 <= local <= whole:
            raise ConfigError(f"{setting}={local} must not be above retention.{unit}={whole}", name=setting)
        lag: int = getattr(config, f"remote_copy_lag_{unit}")
        kept = whole if local == LIKE_RETENTION else local
        if kept != NO_LIMIT and lag > kept:
            raise ConfigError(
                f"remote.copy.lag.{unit}={lag} must not be above the local retention of {kept}: segments are deleted "
                "from the disk only when they are in the tier",
                name=f"remote.copy.lag.{unit}",
            )


def check_tier_change(overrides: Mapping[str, str], stored: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raises ConfigError if tiered storage of a topic would be disabled, and nothing said of its data in the tier."""
    name = topic.REMOTE_STORAGE_ENABLE.name
    if name not in stored:
        return
    defaults = topic_defaults(broker)
    after = resolve_log_config(defaults, overrides)
    if (
        resolve_log_config(defaults, stored).remote_storage_enable
        and not after.remote_storage_enable
        and not after.remote_log_delete_on_disable
    ):
        raise ConfigError(
            "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote data "
            "and turn to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If you want "
            "to disable remote storage and delete all remote data, please set "
            "`remote.storage.enable=false,remote.log.delete.on.disable=true`.",
            name=name,
        )


def metadata_log_config(broker: BrokerConfig) -> LogConfig:
    """The LogConfig of `__cluster_metadata`: no retention, and records count only after they are on disk."""
    return LogConfig(
        segment_bytes=broker[log.METADATA_LOG_SEGMENT_BYTES],
        segment_ms=broker[log.METADATA_LOG_SEGMENT_MS],
        retention_ms=-1,
        retention_bytes=-1,
        cleanup_policy=frozenset(),
        max_message_bytes=8 << 20,
        flush_before_ack=True,
    )


def _plain(value: Any) -> Any:
    return frozenset(value) if isinstance(value, tuple) else value
