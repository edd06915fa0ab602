"""Decisions on settings of topics and brokers."""

from collections.abc import Sequence

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.node.metadata.configs import (
    MAX_SETTINGS,
    ConfigAlteration,
    ConfigChange,
    Operation,
    alter_configs,
    incremental_alter_configs,
)
from millstream.node.metadata.image import ALL_BROKERS, ConfigResource, ResourceType
from millstream.node.metadata.records import MAX_CONFIG_TEXT_BYTES, ConfigRecord
from millstream.node.metadata.topics import NewTopic
from tests.unit.node.metadata.cluster import Cluster

TOPIC = ConfigResource(ResourceType.TOPIC, "a")
METRICS = ConfigResource(ResourceType.CLIENT_METRICS, "slow-ones")
BROKER = ConfigResource(ResourceType.BROKER, "1")


def some_cluster() -> Cluster:
    cluster = Cluster()
    cluster.create(NewTopic(name="a", configs={"retention.ms": "5"}))
    return cluster


def change(cluster: Cluster, resource: ConfigResource, *changes: ConfigChange) -> ConfigAlteration:
    decision = incremental_alter_configs(cluster.image, [(resource, changes)], cluster.config)
    (result,) = decision.results
    assert result.resource == resource
    if result.error is not ErrorCode.NONE:
        assert decision.records == () and result.message
    cluster.take(decision)
    return result


def test_settings_are_set_and_deleted() -> None:
    cluster = some_cluster()
    changes = (
        ConfigChange("retention.ms", Operation.DELETE),
        ConfigChange("segment.ms", Operation.SET, "1000"),
        ConfigChange("flush.ms", Operation.DELETE),
        ConfigChange("no.such.setting", Operation.DELETE),
    )
    assert change(cluster, TOPIC, *changes).error is ErrorCode.NONE
    assert cluster.image.topic_config("a") == {"segment.ms": "1000"}


def test_what_is_already_so_is_not_written() -> None:
    cluster = some_cluster()
    decision = incremental_alter_configs(
        cluster.image, [(TOPIC, [ConfigChange("retention.ms", Operation.SET, "5")])], cluster.config
    )
    assert decision.records == ()


def test_append_and_subtract_start_from_what_is_in_force() -> None:
    cluster = some_cluster()
    change(cluster, TOPIC, ConfigChange("cleanup.policy", Operation.APPEND, "compact"))
    assert cluster.image.topic_config("a")["cleanup.policy"] == "delete,compact"
    change(cluster, TOPIC, ConfigChange("cleanup.policy", Operation.APPEND, "compact"))
    assert cluster.image.topic_config("a")["cleanup.policy"] == "delete,compact"
    change(cluster, TOPIC, ConfigChange("cleanup.policy", Operation.SUBTRACT, "delete"))
    assert cluster.image.topic_config("a")["cleanup.policy"] == "compact"


@pytest.mark.parametrize(
    ("resource", "changes", "code", "message"),
    [
        (
            ConfigResource(ResourceType.TOPIC, "x"),
            [ConfigChange("retention.ms", 0, "1")],
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "The topic 'x' does not exist.",
        ),
        (ConfigResource(ResourceType.BROKER, "7"), [], ErrorCode.INVALID_REQUEST, "There is no broker '7'"),
        (ConfigResource(ResourceType.BROKER, "01"), [], ErrorCode.INVALID_REQUEST, "There is no broker '01'"),
        (ConfigResource(ResourceType.BROKER, "\u00b2"), [], ErrorCode.INVALID_REQUEST, "There is no broker"),
        (ConfigResource(ResourceType.BROKER, "9" * 9999), [], ErrorCode.INVALID_REQUEST, "There is no broker"),
        (ConfigResource(ResourceType.BROKER_LOGGER, "1"), [], ErrorCode.INVALID_REQUEST, "levels of loggers"),
        (ConfigResource(99, "1"), [], ErrorCode.INVALID_REQUEST, "Resource type 99"),
        (TOPIC, [ConfigChange("retention.ms", 0, None)], ErrorCode.INVALID_REQUEST, "Null value"),
        (TOPIC, [ConfigChange("retention.ms", 0, "x")], ErrorCode.INVALID_CONFIG, "retention.ms=x is not allowed"),
        (TOPIC, [ConfigChange("no.such", 0, "x")], ErrorCode.INVALID_CONFIG, "unknown topic setting no.such"),
        (TOPIC, [ConfigChange("log.retention.ms", 0, "1")], ErrorCode.INVALID_CONFIG, "for a topic it is retention.ms"),
        (TOPIC, [ConfigChange("retention.ms", 2, "1")], ErrorCode.INVALID_CONFIG, "its type is not LIST"),
        (TOPIC, [ConfigChange("cleanup.policy", 2, "shred")], ErrorCode.INVALID_CONFIG, "a list of compact, delete"),
        (TOPIC, [ConfigChange("cleanup.policy", 2, None)], ErrorCode.INVALID_REQUEST, "Null value"),
        (TOPIC, [ConfigChange("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST, "Unknown operation 9"),
        (TOPIC, [ConfigChange("retention.ms", 0, "1")] * 2, ErrorCode.INVALID_REQUEST, "named twice"),
        (BROKER, [ConfigChange("log.dirs", 0, "/x")], ErrorCode.INVALID_REQUEST, "Cannot update log.dirs dynamically"),
        (BROKER, [ConfigChange("no.such", 2, "/x")], ErrorCode.INVALID_CONFIG, "Unknown config name: no.such"),
        (BROKER, [ConfigChange("", 0, "/x")], ErrorCode.INVALID_CONFIG, "The name of the setting is empty"),
        (
            METRICS,
            [ConfigChange("foo", 0, "1")],
            ErrorCode.INVALID_REQUEST,
            "Unknown client metrics configuration: foo",
        ),
        (METRICS, [ConfigChange("interval.ms", 0, "99")], ErrorCode.INVALID_REQUEST, "between 100 and 3600000"),
        (METRICS, [ConfigChange("interval.ms", 0, "x")], ErrorCode.INVALID_CONFIG, "interval.ms=x is not allowed"),
        (METRICS, [ConfigChange("match", 0, "a=b")], ErrorCode.INVALID_CONFIG, "Illegal client matching pattern: a=b"),
        (METRICS, [ConfigChange("match", 0, "client_id=[")], ErrorCode.INVALID_CONFIG, "Illegal client matching"),
        (METRICS, [ConfigChange("match", 0, "client_id")], ErrorCode.INVALID_CONFIG, "Illegal client matching"),
        (ConfigResource(ResourceType.CLIENT_METRICS, ""), [], ErrorCode.INVALID_REQUEST, "name can't be empty"),
        (BROKER, [ConfigChange("num.io.threads", 0, "9")], ErrorCode.INVALID_REQUEST, "Cannot update num.io.threads"),
        (
            BROKER,
            [ConfigChange("ssl.keystore.location", 0, "/x")],
            ErrorCode.INVALID_REQUEST,
            "use listener.name.<listener>.ssl.keystore.location",
        ),
        (
            ConfigResource(ResourceType.BROKER, ""),
            [ConfigChange("listener.name.x.ssl.keystore.location", 0, "/x")],
            ErrorCode.INVALID_REQUEST,
            "for all brokers: name one broker",
        ),
        (
            BROKER,
            [ConfigChange("listener.name.x.ssl.client.auth", 0, "none")],
            ErrorCode.INVALID_REQUEST,
            "Cannot update listener.name.x.ssl.client.auth dynamically",
        ),
        (
            BROKER,
            [ConfigChange("listener.name.x.ssl.keystore.type", 0, "BKS")],
            ErrorCode.INVALID_CONFIG,
            "must be one of JKS, PKCS12, PEM",
        ),
        (BROKER, [ConfigChange("log.retention.ms", 0, "0")], ErrorCode.INVALID_CONFIG, "at least 1, or -1"),
        (BROKER, [ConfigChange("max.connections", 0, "-1")], ErrorCode.INVALID_CONFIG, "at least 0"),
        (BROKER, [ConfigChange("max.connections.per.ip.overrides", 0, "x")], ErrorCode.INVALID_CONFIG, "address:count"),
    ],
)
def test_wrong_changes_of_settings_are_refused(
    resource: ConfigResource, changes: Sequence[ConfigChange], code: ErrorCode, message: str
) -> None:
    result = change(some_cluster(), resource, *changes)
    assert result.error is code
    assert result.message is not None and message in result.message


def test_settings_of_one_broker_and_of_all() -> None:
    cluster = some_cluster()
    assert change(cluster, BROKER, ConfigChange("log.retention.ms", Operation.SET, "7")).error is ErrorCode.NONE
    assert change(cluster, ALL_BROKERS, ConfigChange("log.retention.ms", Operation.SET, "8")).error is ErrorCode.NONE
    assert change(cluster, ALL_BROKERS, ConfigChange("log.cleanup.policy", Operation.APPEND, "compact")).message is None
    assert cluster.image.broker_config(1) == {"log.retention.ms": "7"}
    assert cluster.image.default_broker_config == {"log.retention.ms": "8", "log.cleanup.policy": "delete,compact"}


def test_the_older_way_replaces_all() -> None:
    cluster = some_cluster()
    decision = alter_configs(cluster.image, [(TOPIC, {"segment.ms": "9"})], cluster.config)
    assert decision.results[0].error is ErrorCode.NONE
    cluster.take(decision)
    assert cluster.image.topic_config("a") == {"segment.ms": "9"}
    cluster.take(alter_configs(cluster.image, [(TOPIC, {})], cluster.config))
    assert cluster.image.topic_config("a") == {}


def test_the_older_way_refuses_the_same() -> None:
    cluster = some_cluster()
    decision = alter_configs(
        cluster.image,
        [(TOPIC, {"segment.ms": None}), (BROKER, {"log.dirs": "/x"}), (ConfigResource(2, "x"), {})],
        cluster.config,
    )
    assert decision.records == ()
    assert [each.error for each in decision.results] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_a_resource_named_twice() -> None:
    cluster = some_cluster()
    request = (TOPIC, [ConfigChange("segment.ms", Operation.SET, "9")])
    results = incremental_alter_configs(cluster.image, [request, request], cluster.config).results
    assert [each.error for each in results] == [ErrorCode.INVALID_REQUEST] * 2


def test_only_checking_changes_nothing() -> None:
    cluster = some_cluster()
    request = (TOPIC, [ConfigChange("segment.ms", Operation.SET, "9")])
    decision = incremental_alter_configs(cluster.image, [request], cluster.config, validate_only=True)
    assert decision.records == () and decision.results[0].error is ErrorCode.NONE


def test_a_stored_setting_that_this_version_does_not_know_can_be_taken_away() -> None:
    cluster = some_cluster()
    cluster.write([ConfigRecord(resource_type=2, resource_name="a", name="from.the.future", value="1")])
    assert change(cluster, TOPIC, ConfigChange("from.the.future", Operation.DELETE)).error is ErrorCode.NONE
    assert cluster.image.topic_config("a") == {"retention.ms": "5"}


@pytest.mark.parametrize("operation", [Operation.SET, Operation.DELETE])
def test_the_cluster_id_is_for_good(operation: Operation) -> None:
    cluster = some_cluster()
    result = change(cluster, ALL_BROKERS, ConfigChange("cluster.id", operation, "x"))
    assert (result.error, result.message) == (
        ErrorCode.INVALID_REQUEST,
        "cluster.id cannot be changed: it is fixed when the cluster is created.",
    )
    decision = alter_configs(cluster.image, [(ALL_BROKERS, {"cluster.id": "x"})], cluster.config)
    assert decision.results[0].error is ErrorCode.INVALID_REQUEST


def test_all_brokers_have_the_same_minimum_while_eligible_leaders_are_remembered() -> None:
    cluster = some_cluster()
    set_two = ConfigChange("min.insync.replicas", Operation.SET, "2")
    remove = ConfigChange("min.insync.replicas", Operation.DELETE)
    assert change(cluster, BROKER, set_two).error is ErrorCode.INVALID_CONFIG
    assert change(cluster, ALL_BROKERS, set_two).error is ErrorCode.NONE
    assert change(cluster, ALL_BROKERS, remove).error is ErrorCode.INVALID_CONFIG
    cluster.set_feature("eligible.leader.replicas.version", 0)
    assert change(cluster, BROKER, set_two).error is ErrorCode.NONE
    assert change(cluster, ALL_BROKERS, remove).error is ErrorCode.NONE
    cluster.set_feature("eligible.leader.replicas.version", 1)
    assert change(cluster, BROKER, remove).error is ErrorCode.NONE


@pytest.mark.parametrize("resource", [TOPIC, ALL_BROKERS])
def test_a_lower_minimum_forgets_who_else_may_lead(resource: ConfigResource) -> None:
    cluster = Cluster(3)
    cluster.create(NewTopic(name="a", assignments=[(0, (1, 2, 3))]))
    assert change(cluster, resource, ConfigChange("min.insync.replicas", Operation.SET, "3")).error is ErrorCode.NONE
    cluster.fence(3, 2)
    assert cluster.partition().eligible_leader_replicas == (3, 2)
    change(cluster, resource, ConfigChange("min.insync.replicas", Operation.SET, "2"))
    assert cluster.partition().eligible_leader_replicas == (3, 2)
    change(cluster, resource, ConfigChange("min.insync.replicas", Operation.SET, "1"))
    assert cluster.partition().eligible_leader_replicas == ()


def test_unknown_settings_of_brokers_are_stored_as_in_kafka() -> None:
    image = some_cluster()
    assert change(image, BROKER, ConfigChange("some.plugin.setting", 0, "1")).error is ErrorCode.NONE
    assert change(image, BROKER, ConfigChange("max.connections", 0, "5")).error is ErrorCode.NONE


@pytest.mark.parametrize("resource", [TOPIC, BROKER, ALL_BROKERS, METRICS, ConfigResource(ResourceType.GROUP, "g")])
def test_names_and_values_have_a_largest_size(resource: ConfigResource) -> None:
    """Every node keeps them in memory and in snapshots. An append may not grow a value beyond it either."""
    cluster = some_cluster()
    most, before = MAX_CONFIG_TEXT_BYTES, cluster.image
    for name, value in (("x" * (most + 1), "1"), ("leader.replication.throttled.replicas", "é" * (most // 2 + 1))):
        for operation in (Operation.SET, Operation.APPEND):
            assert change(cluster, resource, ConfigChange(name, operation, value)).error is not ErrorCode.NONE
        (result,) = alter_configs(cluster.image, [(resource, {name: value})], cluster.config).results
        assert result.error is not ErrorCode.NONE
    assert cluster.image == before
    if resource in (BROKER, ALL_BROKERS):
        assert change(cluster, resource, ConfigChange("some.plugin", 0, "x" * most)).error is ErrorCode.NONE
        too_large = change(cluster, resource, ConfigChange("some.plugin", 0, "x" * (most + 1)))
        assert too_large.error is ErrorCode.INVALID_CONFIG and "maximum size" in (too_large.message or "")


def test_a_list_does_not_grow_beyond_the_largest_size() -> None:
    cluster = some_cluster()
    name = "leader.replication.throttled.replicas"
    rows = ",".join(f"{number}:1" for number in range(4000))
    assert change(cluster, TOPIC, ConfigChange(name, Operation.SET, rows)).error is ErrorCode.NONE
    more = change(cluster, TOPIC, ConfigChange(name, Operation.APPEND, rows.replace(":1", ":2")))
    assert more.error is ErrorCode.INVALID_CONFIG
    assert cluster.image.topic_config("a")[name] == rows


def test_a_resource_has_so_many_settings_at_most() -> None:
    cluster = some_cluster()

    def numbered(first: int, count: int) -> list[ConfigChange]:
        return [ConfigChange(f"some.plugin.{first + number}", Operation.SET, "1") for number in range(count)]

    assert change(cluster, BROKER, *numbered(0, MAX_SETTINGS + 1)).error is ErrorCode.INVALID_REQUEST
    assert change(cluster, BROKER, *numbered(0, MAX_SETTINGS)).error is ErrorCode.NONE
    assert change(cluster, BROKER, *numbered(MAX_SETTINGS, 1)).error is ErrorCode.INVALID_REQUEST
    assert len(cluster.image.configs[BROKER]) == MAX_SETTINGS


def test_a_subscription_to_client_metrics() -> None:
    result = change(
        some_cluster(),
        METRICS,
        ConfigChange("interval.ms", 0, "1000"),
        ConfigChange("metrics", 0, "org.apache.kafka."),
        ConfigChange("match", 0, "client_id=app.*,client_software_name=.*java"),
    )
    assert result.error is ErrorCode.NONE
