"""The settings in force: precedence of layers, advertised addresses."""

import pytest

from millstream.config.broker_config import ConfigSource
from millstream.config.loading import load_broker_config
from millstream.config.setting import ConfigError
from millstream.config.table import log, node


def test_layers_win_in_kafkas_order() -> None:
    static = load_broker_config(overrides=["log.retention.ms=1000"])
    assert static[log.LOG_RETENTION_MS] == 1000
    for_all = static.with_dynamic(default={"log.retention.ms": "2000"}, own={})
    assert for_all[log.LOG_RETENTION_MS] == 2000
    own = for_all.with_dynamic(default={"log.retention.ms": "2000"}, own={"log.retention.ms": "3000"})
    assert own[log.LOG_RETENTION_MS] == 3000
    assert own.with_dynamic(default={}, own={})[log.LOG_RETENTION_MS] == 1000
    assert list(own.layers) == [
        ConfigSource.DYNAMIC_BROKER_CONFIG,
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        ConfigSource.STATIC_BROKER_CONFIG,
    ]


def test_stored_values_that_this_version_does_not_take_are_passed_over() -> None:
    config = load_broker_config().with_dynamic(
        default={"no.such.setting": "1", "log.retention.ms": "soon", "log.segment.bytes": "2097152"}, own={}
    )
    assert config[log.LOG_RETENTION_MS] is None
    assert config[log.LOG_SEGMENT_BYTES] == 2097152


def test_nothing_can_be_changed_in_place() -> None:
    config = load_broker_config()
    with pytest.raises(TypeError):
        config.values["num.partitions"] = 2  # type: ignore[index]
    with pytest.raises(AttributeError):
        config.listeners = ()  # type: ignore[misc]
    assert config[node.NUM_PARTITIONS] == 1


@pytest.mark.parametrize(
    ("overrides", "shown"),
    [
        ([], "PLAINTEXT://127.0.0.1:7000"),
        (["listeners=PLAINTEXT://:0"], "PLAINTEXT://me.example:7000"),
        (["listeners=PLAINTEXT://0.0.0.0:0"], "PLAINTEXT://me.example:7000"),
        (["advertised.listeners=PLAINTEXT://public:9999"], "PLAINTEXT://public:9999"),
        (["advertised.listeners=PLAINTEXT://public:0"], "PLAINTEXT://public:7000"),
        (["advertised.listeners=PLAINTEXT://:9999"], "PLAINTEXT://me.example:9999"),
    ],
)
def test_the_advertised_listener_has_its_host_and_port(overrides: list[str], shown: str) -> None:
    config = load_broker_config(overrides=overrides)
    (listener,) = config.advertised({"PLAINTEXT": 7000}, "me.example", config.listeners)
    assert str(listener) == shown


def test_connection_limits_are_parsed_by_address() -> None:
    config = load_broker_config(overrides=["max.connections.per.ip.overrides=10.0.0.1:5, [::1]:7"])
    assert config.connection_limits == {"10.0.0.1": 5, "::1": 7}
    with pytest.raises(ConfigError):
        load_broker_config(overrides=["max.connections.per.ip.overrides=10.0.0.1:-1"])
