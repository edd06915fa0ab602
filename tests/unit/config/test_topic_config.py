"""What a topic's settings come to."""

import pytest

from millstream.config.loading import load_broker_config
from millstream.config.setting import ConfigError
from millstream.config.topic_config import (
    LogConfig,
    check_topic_config,
    metadata_log_config,
    resolve_log_config,
    topic_defaults,
)

HOUR_MS = 60 * 60 * 1000


def test_a_broker_without_settings_gives_the_defaults_of_log_config() -> None:
    assert topic_defaults(load_broker_config()) == LogConfig()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], 168 * HOUR_MS),
        (["log.retention.hours=2"], 2 * HOUR_MS),
        (["log.retention.hours=2", "log.retention.minutes=30"], HOUR_MS // 2),
        (["log.retention.hours=2", "log.retention.minutes=30", "log.retention.ms=7"], 7),
        (["log.retention.hours=-1"], -1),
        (["log.retention.ms=-1"], -1),
    ],
)
def test_retention_takes_the_finest_unit_that_is_set(overrides: list[str], expected: int) -> None:
    assert topic_defaults(load_broker_config(overrides=overrides)).retention_ms == expected


def test_broker_settings_are_defaults_of_topics() -> None:
    config = load_broker_config(
        overrides=[
            "log.roll.hours=3",
            "log.flush.scheduler.interval.ms=500",
            "message.max.bytes=99",
            "log.cleanup.policy=compact,delete",
            "log.flush.before.ack=true",
            "log.index.size.max.bytes=4096",
        ]
    )
    defaults = topic_defaults(config)
    assert defaults.segment_ms == 3 * HOUR_MS
    assert defaults.flush_ms == 500
    assert defaults.max_message_bytes == 99
    assert defaults.cleanup_policy == {"compact", "delete"}
    assert defaults.flush_before_ack
    assert defaults.segment_index_bytes == 4096


def test_a_topic_wins_over_the_broker() -> None:
    defaults = topic_defaults(load_broker_config(overrides=["log.retention.ms=5"]))
    assert resolve_log_config(defaults, {"retention.ms": "6", "cleanup.policy": "compact"}) == LogConfig(
        retention_ms=6, cleanup_policy=frozenset({"compact"})
    )


def test_without_overrides_the_defaults_are_shared() -> None:
    defaults = LogConfig()
    assert resolve_log_config(defaults, {}) is defaults


def test_stored_overrides_that_this_version_does_not_take_are_passed_over() -> None:
    assert resolve_log_config(LogConfig(), {"no.such": "1", "retention.ms": "x"}) == LogConfig()


def test_small_segments_for_tests() -> None:
    assert resolve_log_config(LogConfig(), {"internal.segment.bytes": "2048"}).segment_bytes == 2048


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"retention.sm": "1"}, r"unknown topic setting retention.sm \(did you mean retention.ms\?\)"),
        ({"log.retention.ms": "1"}, "this is a broker setting; for a topic it is retention.ms"),
        ({"retention.ms": "-2"}, "retention.ms=-2 is not allowed"),
        ({"segment.bytes": "1000"}, "at least 1048576"),
        ({"cleanup.policy": "shred"}, "a list of compact, delete"),
        ({"compression.type": "brotli"}, "one of uncompressed, zstd"),
        ({"compression.gzip.level": "0"}, "1 to 9, or -1"),
        ({"remote.storage.enable": "true"}, "Tiered Storage functionality is disabled in the broker"),
        ({"local.retention.ms": "-3"}, "at least -2"),
        ({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, "must not be above"),
    ],
)
def test_wrong_settings_of_topics_are_refused(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_topic_config(overrides, load_broker_config())


def test_right_settings_of_topics_are_accepted() -> None:
    check_topic_config(
        {"retention.ms": "-1", "cleanup.policy": "", "min.insync.replicas": "2", "remote.storage.enable": "false"},
        load_broker_config(),
    )


def test_the_metadata_log_deletes_nothing() -> None:
    config = metadata_log_config(load_broker_config(overrides=["log.retention.ms=1", "log.retention.bytes=1"]))
    assert (config.retention_ms, config.retention_bytes, config.cleanup_policy) == (-1, -1, frozenset())
    assert config.flush_before_ack


@pytest.mark.parametrize("state", ["mirroring", "promoting", "failed"])
def test_a_mirror_topic_is_not_tiered(state: str) -> None:
    broker = load_broker_config(overrides=["remote.log.storage.system.enable=true", "millstream.tier.url=file:///tier"])
    mirror = {
        "millstream.mirror.state": state,
        "millstream.mirror.link": "west",
        "millstream.mirror.source.topic": "t",
        "millstream.mirror.source.topic.id": "AAAAAAAAAAAAAAAAAAAAAQ",
    }
    check_topic_config(mirror, broker)
    with pytest.raises(ConfigError, match="promote it first"):
        check_topic_config({**mirror, "remote.storage.enable": "true"}, broker)
    check_topic_config({**mirror, "millstream.mirror.state": "promoted", "remote.storage.enable": "true"}, broker)


def test_keys_of_a_table_need_upserts() -> None:
    broker = load_broker_config()
    keys = {"millstream.table": "delta", "millstream.table.keys": "id"}
    with pytest.raises(ConfigError, match=r"needs millstream\.table\.mode=upsert"):
        check_topic_config(keys, broker)
    check_topic_config({**keys, "millstream.table.mode": "upsert"}, broker)
    with pytest.raises(ConfigError, match=r"millstream\.table=parquet"):
        check_topic_config({"millstream.table": "parquet"}, broker)
