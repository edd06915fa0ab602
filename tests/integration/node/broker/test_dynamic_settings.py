"""Settings that change while the broker runs, levels of loggers, and settings with unknown names, as in Kafka 4.3."""

from collections.abc import Iterator

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.testing import EmbeddedBroker
from tests.integration.node.broker.test_configs import DELETE, SET, alter, describe
from tests.waiting import until
from tests.wire import Closed, Wire

TOPIC, BROKER, LOGGER, CLIENT_METRICS = 2, 4, 8, 16
DYNAMIC_BROKER, STATIC, DEFAULT, DYNAMIC_LOGGER = 2, 4, 5, 6


@pytest.fixture(scope="module")
def own_broker() -> Iterator[EmbeddedBroker]:
    """Its limits change, so it is not shared."""
    with EmbeddedBroker({"node.id": 7, "log.retention.hours": 100, "some.unknown.name": "x"}) as running:
        yield running


@pytest.fixture
def own(own_broker: EmbeddedBroker) -> Iterator[Wire]:
    with Wire(own_broker.bootstrap_servers) as connected:
        yield connected


def refused(broker: EmbeddedBroker) -> bool:
    with Wire(broker.bootstrap_servers) as wire:
        try:
            wire.call("api_versions", 0)
        except Closed:
            return True
    return False


@pytest.mark.parametrize(
    ("name", "value"),
    [("max.connections", "1"), ("max.connections.per.ip", "1"), ("max.connections.per.ip.overrides", "127.0.0.1:1")],
)
def test_limits_on_connections_apply_at_once(own_broker: EmbeddedBroker, own: Wire, name: str, value: str) -> None:
    assert not refused(own_broker)
    assert alter(own, BROKER, "7", (name, SET, value)).error_code == 0
    until(lambda: refused(own_broker))
    assert alter(own, BROKER, "7", (name, DELETE, None)).error_code == 0
    until(lambda: not refused(own_broker))


def test_limits_hold_after_a_restart() -> None:
    with EmbeddedBroker({"node.id": 7}) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            assert alter(wire, BROKER, "", ("max.connections", SET, "1")).error_code == 0
        broker.restart()
        with Wire(broker.bootstrap_servers) as wire:
            wire.call("api_versions", 0)
            assert refused(broker)


@pytest.mark.parametrize(
    "name",
    [
        "num.replica.fetchers",
        "producer.id.expiration.ms",
        "group.consumer.assignment.interval.ms",
        "max.connections",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.follower.thread.pool.size",
        "remote.fetch.max.wait.ms",
    ],
)
def test_settings_that_kafka_changes_at_run_time(own: Wire, name: str) -> None:
    (before,) = describe(own, BROKER, "7", [name]).configs
    assert not before.read_only and before.config_source == DEFAULT
    assert alter(own, BROKER, "7", (name, SET, "5")).error_code == 0
    (after,) = describe(own, BROKER, "7", [name]).configs
    assert (after.value, after.config_source) == ("5", DYNAMIC_BROKER)
    assert alter(own, BROKER, "7", (name, DELETE, None)).error_code == 0


def test_settings_with_unknown_names(own: Wire) -> None:
    """Kafka stores them for plug-ins, and shows them without their values."""
    assert alter(own, BROKER, "7", ("foo.bar", SET, "secret")).error_code == 0
    rows = {row.name: row for row in describe(own, BROKER, "7").configs}
    for name, source in (("foo.bar", DYNAMIC_BROKER), ("some.unknown.name", STATIC)):
        row = rows[name]
        assert (row.value, row.config_source, row.is_sensitive, row.read_only) == (None, source, True, True)
    assert alter(own, BROKER, "", ("foo.baz", SET, "secret")).error_code == 0
    assert "foo.baz" in {row.name for row in describe(own, BROKER, "").configs}
    assert alter(own, BROKER, "7", ("foo.bar", DELETE, None)).error_code == 0
    assert not describe(own, BROKER, "7", ["foo.bar"]).configs


def test_the_id_of_the_broker_and_synonyms(own: Wire) -> None:
    (row,) = describe(own, BROKER, "7", ["broker.id"]).configs
    assert (row.value, row.config_source) == ("7", STATIC)
    assert [(each.value, each.source) for each in row.synonyms] == [("7", STATIC), ("-1", DEFAULT)]
    own.create_topic("kept")
    (row,) = describe(own, TOPIC, "kept", ["retention.ms"]).configs
    assert (row.value, row.config_source, row.synonyms) == ("360000000", DEFAULT, [])


def test_levels_of_loggers_are_changed_at_runtime(own: Wire) -> None:
    rows = {row.name: row for row in describe(own, LOGGER, "7").configs}
    assert rows["root"].value == "INFO" and rows["root"].config_source == DYNAMIC_LOGGER
    assert alter(own, LOGGER, "7", ("millstream.net", SET, "TRACE"), ("root", SET, "WARN")).error_code == 0
    levels = {row.name: row.value for row in describe(own, LOGGER, "7").configs}
    assert (levels["millstream.net"], levels["root"], levels["millstream.broker"]) == ("TRACE", "WARN", "WARN")
    assert alter(own, LOGGER, "7", ("millstream.net", DELETE, None), validate_only=True).error_code == 0
    assert describe(own, LOGGER, "7", ["millstream.net"]).configs[0].value == "TRACE"
    assert alter(own, LOGGER, "7", ("millstream.net", DELETE, None), ("root", SET, "INFO")).error_code == 0
    assert describe(own, LOGGER, "7", ["millstream.net"]).configs[0].value == "INFO"


@pytest.mark.parametrize(
    ("node", "change", "code", "text"),
    [
        ("7", ("nope", SET, "INFO"), ErrorCode.INVALID_CONFIG, "Logger nope does not exist!"),
        ("7", ("root", SET, "debug"), ErrorCode.INVALID_CONFIG, "Valid log levels are DEBUG, ERROR, FATAL"),
        ("7", ("root", DELETE, None), ErrorCode.INVALID_REQUEST, "root logger is not allowed"),
        ("7", ("root", 2, "INFO"), ErrorCode.INVALID_REQUEST, "APPEND operation is not allowed"),
        ("7", ("root", SET, None), ErrorCode.INVALID_REQUEST, "Null value not supported"),
        ("8", ("root", SET, "INFO"), ErrorCode.INVALID_REQUEST, "Expected 7, but received 8"),
        ("", ("root", SET, "INFO"), ErrorCode.INVALID_REQUEST, "must be an integer"),
    ],
)
def test_wrong_levels_of_loggers_are_refused(
    own: Wire, node: str, change: tuple[str, int, str | None], code: int, text: str
) -> None:
    row = alter(own, LOGGER, node, change)
    assert row.error_code == code and text in row.error_message


def test_loggers_of_another_node_and_mixed_requests(own: Wire) -> None:
    assert describe(own, LOGGER, "8").error_code == ErrorCode.INVALID_REQUEST
    assert describe(own, LOGGER, "").error_code == ErrorCode.INVALID_REQUEST
    rows = [{"name": "root", "config_operation": SET, "value": "INFO"}]
    resources = [{"resource_type": kind, "resource_name": "7", "configs": rows} for kind in (LOGGER, BROKER)]
    response = own.call("incremental_alter_configs", 1, resources=resources, validate_only=True).responses
    assert {row.resource_type: row.error_code for row in response}[LOGGER] == ErrorCode.INVALID_REQUEST


def test_subscriptions_to_client_metrics_are_config_resources(own: Wire) -> None:
    assert [row.value for row in describe(own, CLIENT_METRICS, "nobody").configs] == ["", "300000", ""]
    changes = (("interval.ms", SET, "1000"), ("metrics", SET, "org.apache.kafka.producer."))
    assert alter(own, CLIENT_METRICS, "subscription", *changes).error_code == 0
    rows = {row.name: (row.value, row.config_source) for row in describe(own, CLIENT_METRICS, "subscription").configs}
    assert rows == {
        "interval.ms": ("1000", 7), "metrics": ("org.apache.kafka.producer.", 7), "match": ("", DEFAULT),
    }  # fmt: skip
    for version in (0, 1):
        fields = {"resource_types": [CLIENT_METRICS]} if version else {}
        named = own.call("list_config_resources", version, **fields).config_resources
        assert [row.resource_name for row in named] == ["subscription"]
    assert alter(own, CLIENT_METRICS, "subscription", ("interval.ms", DELETE, None), ("metrics", DELETE, None))
    assert own.call("list_config_resources", 1, resource_types=[CLIENT_METRICS]).config_resources == []
    assert describe(own, CLIENT_METRICS, "").error_code == ErrorCode.INVALID_REQUEST
