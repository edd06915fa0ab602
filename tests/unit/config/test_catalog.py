"""The tables as a whole: every declaration is sound."""

import pytest

from millstream.config.catalog import BROKER_SETTINGS, FAMILIES, TOPIC_SETTINGS, broker_setting, hint
from millstream.config.loading import load_broker_config
from millstream.config.setting import ConfigError, Setting, Update, format_value
from millstream.config.table import inert, topic
from millstream.config.topic_config import value_from_broker

EVERY = [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()]


def test_every_name_is_declared_once() -> None:
    declared = [setting.name for family in (*FAMILIES.values(), inert.SETTINGS) for setting in family]
    assert sorted(declared) == sorted(BROKER_SETTINGS)
    assert len(topic.SETTINGS) == len(TOPIC_SETTINGS)


@pytest.mark.parametrize("setting", EVERY, ids=lambda setting: setting.name)
def test_every_default_is_a_value_of_the_setting(setting: Setting[object]) -> None:
    text = format_value(setting.default)
    if text is None:
        assert setting.nullable
    else:
        assert setting.parse(text) == setting.default


@pytest.mark.parametrize("setting", EVERY, ids=lambda setting: setting.name)
def test_every_setting_explains_itself(setting: Setting[object]) -> None:
    assert setting.explanation or setting.without_effect
    assert not (setting.without_effect and setting.only_default)
    for text in (setting.without_effect, setting.only_default):
        assert not text.endswith("."), "reasons stand inside sentences"


@pytest.mark.parametrize("setting", topic.SETTINGS, ids=lambda setting: setting.name)
def test_a_topics_default_is_what_a_broker_without_settings_gives(setting: Setting[object]) -> None:
    assert value_from_broker(setting, load_broker_config()) == setting.default


@pytest.mark.parametrize("setting", topic.SETTINGS, ids=lambda setting: setting.name)
def test_the_first_synonym_can_be_changed_for_all_topics_while_running(setting: Setting[object]) -> None:
    for synonym in setting.synonyms[:1]:
        assert synonym.setting.update is Update.CLUSTER_WIDE


def test_a_hint_names_the_nearest_setting() -> None:
    assert hint("log.retention.mss", BROKER_SETTINGS) == "did you mean log.retention.ms?"
    assert hint("log.retention.hours", TOPIC_SETTINGS) == "this is a broker setting; for a topic it is retention.ms"
    assert hint("port", BROKER_SETTINGS) == "use listeners"
    assert hint("zzz", BROKER_SETTINGS) == ""


def test_settings_of_a_listener_are_found_under_their_prefix() -> None:
    found = broker_setting("listener.name.outside.ssl.key.password")
    assert found is not None and found.sensitive
    assert broker_setting("listener.name.outside.num.partitions") is None
    assert broker_setting("listener.name.outside") is None


def test_what_would_promise_protection_is_refused() -> None:
    for name in ("authorizer.class.name", "principal.builder.class", "client.quota.callback.class"):
        with pytest.raises(ConfigError):
            BROKER_SETTINGS[name].parse("org.example.Guard")
