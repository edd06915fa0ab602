"""Settings as DescribeConfigs shows them."""

from millstream.config.broker_config import ConfigSource
from millstream.config.catalog import BROKER_SETTINGS, TOPIC_SETTINGS
from millstream.config.describe import ConfigSynonym, describe_broker, describe_default_broker, describe_topic
from millstream.config.loading import load_broker_config
from millstream.config.setting import SettingType


def test_a_topic_shows_every_place_its_value_could_come_from() -> None:
    config = load_broker_config(overrides=["log.retention.hours=1", "log.retention.ms=9"]).with_dynamic(
        default={"log.retention.ms": "8"}, own={"log.retention.ms": "7"}
    )
    (entry,) = describe_topic({"retention.ms": "6"}, config, ["retention.ms"])
    assert (entry.value, entry.source, entry.type) == ("6", ConfigSource.DYNAMIC_TOPIC_CONFIG, SettingType.LONG)
    assert not entry.read_only and not entry.sensitive and not entry.is_default
    assert [(each.name, each.value, each.source.name) for each in entry.synonyms] == [
        ("retention.ms", "6", "DYNAMIC_TOPIC_CONFIG"),
        ("log.retention.ms", "7", "DYNAMIC_BROKER_CONFIG"),
        ("log.retention.ms", "8", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        ("log.retention.ms", "9", "STATIC_BROKER_CONFIG"),
        ("log.retention.hours", "1", "STATIC_BROKER_CONFIG"),
        ("log.retention.hours", "168", "DEFAULT_CONFIG"),
    ]


def test_a_value_in_hours_is_shown_in_milliseconds() -> None:
    config = load_broker_config(overrides=["log.retention.hours=1"])
    (entry,) = describe_topic({}, config, ["retention.ms"])
    assert (entry.value, entry.source, entry.synonyms) == ("3600000", ConfigSource.DEFAULT_CONFIG, ())


def test_a_topic_with_its_own_time_shows_no_broker_value_in_hours() -> None:
    """As Kafka 4.3.1 responds: values of a broker begin with one under the name that counts most, or are left out."""
    config = load_broker_config(overrides=["log.roll.hours=5", "log.flush.scheduler.interval.ms=100000"])
    own = {"retention.ms": "5000", "segment.ms": "7000000", "flush.ms": "3"}
    for entry in describe_topic(own, config, list(own)):
        assert entry.synonyms == (ConfigSynonym(entry.name, own[entry.name], ConfigSource.DYNAMIC_TOPIC_CONFIG),)


def test_the_values_of_a_broker_are_ordered_by_source_then_by_name() -> None:
    config = load_broker_config(overrides=["log.retention.minutes=3", "log.retention.hours=1"]).with_dynamic(
        default={"log.retention.ms": "8"}, own={}
    )
    (entry,) = describe_topic({}, config, ["retention.ms"])
    assert [(each.name, each.value, each.source.name) for each in entry.synonyms] == [
        ("log.retention.ms", "8", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        ("log.retention.minutes", "3", "STATIC_BROKER_CONFIG"),
        ("log.retention.hours", "1", "STATIC_BROKER_CONFIG"),
        ("log.retention.hours", "168", "DEFAULT_CONFIG"),
    ]


def test_all_settings_of_a_topic() -> None:
    entries = describe_topic({}, load_broker_config())
    assert {entry.name for entry in entries} == set(TOPIC_SETTINGS) - {"internal.segment.bytes"}
    assert all(entry.source is ConfigSource.DEFAULT_CONFIG and entry.documentation for entry in entries)
    by_name = {entry.name: entry for entry in entries}
    assert by_name["cleanup.policy"].synonyms == (
        ConfigSynonym("log.cleanup.policy", "delete", ConfigSource.DEFAULT_CONFIG),
    )
    assert by_name["retention.ms"].synonyms == ()  # as in Kafka: log.retention.ms itself has no default


def test_names_that_are_no_settings_are_left_out_and_doubles_shown_once() -> None:
    names = ["no.such", "retention.ms", "retention.ms"]
    assert [entry.name for entry in describe_topic({}, load_broker_config(), names)] == ["retention.ms"]


def test_a_broker_shows_what_needs_a_restart() -> None:
    entries = {entry.name: entry for entry in describe_broker(load_broker_config(overrides=["node.id=5"]))}
    assert set(entries) == set(BROKER_SETTINGS)
    assert entries["node.id"].read_only
    assert (entries["node.id"].value, entries["node.id"].source) == ("5", ConfigSource.STATIC_BROKER_CONFIG)
    assert not entries["log.retention.ms"].read_only
    assert "It has no effect: " in entries["num.io.threads"].documentation
    assert entries["log.retention.ms"].value is None
    assert entries["auto.create.topics.enable"].value == "true"
    assert entries["process.roles"].value == "broker,controller"


def test_a_password_never_leaves() -> None:
    config = load_broker_config(overrides=["ssl.key.password=hunter2"])
    (entry,) = describe_broker(config, ["ssl.key.password"])
    assert entry.sensitive and entry.value is None
    assert all(each.value is None for each in entry.synonyms)


def test_the_settings_for_all_brokers_are_only_those_that_were_set() -> None:
    (entry,) = describe_default_broker({"log.retention.ms": "5"})
    assert (entry.name, entry.value, entry.source) == (
        "log.retention.ms",
        "5",
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    )
    assert describe_default_broker({"log.retention.ms": "5"}, ["num.partitions"]) == []
