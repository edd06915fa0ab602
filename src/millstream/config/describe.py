"""Settings described: for DescribeConfigs (values, sources, synonyms) and for docs/settings.md."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import dropwhile
from typing import Any

from millstream.common.lazy_dataclass import dataclass
from millstream.config import client_metrics_config, group_config
from millstream.config.broker_config import BrokerConfig, ConfigSource
from millstream.config.catalog import BROKER_SETTINGS, FAMILIES, LISTENER_PREFIX, TOPIC_SETTINGS, broker_setting
from millstream.config.client_metrics_config import CLIENT_METRICS_SETTINGS
from millstream.config.group_config import GROUP_SETTINGS
from millstream.config.setting import Setting, SettingType, Update, format_value
from millstream.config.table import inert, mirror, node, topic
from millstream.config.topic_config import value_from_broker


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One source of a value."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    name: str
    value: str | None
    source: ConfigSource
    type: SettingType
    read_only: bool
    sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    """The current value first, then the values in order of precedence, down to the default."""
    documentation: str

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


def describe_topic(
    overrides: Mapping[str, str], broker: BrokerConfig, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """The settings of a topic, all or those in `names`. Unknown names are ignored, as in Kafka."""
    entries = []
    for setting in _chosen(TOPIC_SETTINGS, names):
        synonyms: list[ConfigSynonym] = []
        override = overrides.get(setting.name)
        if override is not None:
            synonyms.append(ConfigSynonym(setting.name, override, ConfigSource.DYNAMIC_TOPIC_CONFIG))
        synonyms += _broker_synonyms(setting, broker)
        value = override if override is not None else format_value(value_from_broker(setting, broker))
        entries.append(_entry(setting, value, synonyms, read_only=False))
    return entries


def _broker_synonyms(setting: Setting[Any], broker: BrokerConfig) -> Iterator[ConfigSynonym]:
    """The broker's values for a topic setting, by source and then by name, from the first one under the name that
    counts most. Those before it are left out, as in Kafka: with log.retention.hours alone, retention.ms has none."""
    settings = [synonym.setting for synonym in setting.synonyms]
    found = [
        ConfigSynonym(each.name, layer[each.name], source)
        for source, layer in broker.layers.items()
        for each in settings
        if each.name in layer
    ]
    found += [_default(each) for each in settings if each.default is not None]
    return dropwhile(lambda each: each.name != settings[0].name, found)


def describe_broker(
    broker: BrokerConfig,
    names: Collection[str] | None = None,
    *,
    own: Collection[str] = (),
    default: Collection[str] = (),
) -> list[ConfigEntry]:
    """The settings of a broker, all or those in `names`. `own` and `default` are the names of the dynamic settings, of
    this broker and of all brokers; among them are unknown names, which are stored and shown without their values."""
    return (
        [
            _entry(
                setting,
                format_value(broker.node_id if setting is node.BROKER_ID else broker[setting]),
                [*_of_broker(setting, broker), _default(setting)],
                read_only=setting.update is Update.RESTART,
            )
            for setting in _chosen(BROKER_SETTINGS, names)
        ]
        + [
            _entry(
                setting,
                format_value(broker.values[setting.name]),
                list(_written(setting, broker)),
                read_only=setting.update is Update.RESTART,
            )
            for setting in _prefixed_settings(broker, names)
        ]
        + unknown_settings(
            {
                ConfigSource.DYNAMIC_BROKER_CONFIG: own,
                ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: default,
                ConfigSource.STATIC_BROKER_CONFIG: [each.name for each in broker.unknown],
            },
            names,
        )
    )


def _of_broker(setting: Setting[Any], broker: BrokerConfig) -> Iterator[ConfigSynonym]:
    """The values that were written. `broker.id` is always one of them, as in Kafka: it is `node.id`."""
    if setting is node.BROKER_ID:
        yield ConfigSynonym(setting.name, str(broker.node_id), ConfigSource.STATIC_BROKER_CONFIG)
    else:
        yield from _written(setting, broker)


def unknown_settings(
    layers: Mapping[ConfigSource, Collection[str]], names: Collection[str] | None
) -> list[ConfigEntry]:
    """Settings with unknown names, as Kafka shows them: a value may be a secret, so it is not shown."""
    found = {
        name: source
        for source, layer in sorted(layers.items(), reverse=True)
        for name in layer
        if (names is None or name in names) and broker_setting(name) is None
    }
    return [
        ConfigEntry(
            name=name,
            value=None,
            source=source,
            type=SettingType.UNKNOWN,
            read_only=True,
            sensitive=True,
            synonyms=(ConfigSynonym(name, None, source),),
            documentation="",
        )
        for name, source in found.items()
    ]


def _prefixed_settings(broker: BrokerConfig, names: Collection[str] | None) -> Iterator[Setting[Any]]:
    """The settings of single listeners and of mirror links that are set, each with its full name."""
    written = dict.fromkeys(name for layer in broker.layers.values() for name in layer)
    for name in written:
        if name.startswith((LISTENER_PREFIX, mirror.LINK_PREFIX)) and (names is None or name in names):
            setting = broker_setting(name)
            if setting is not None:
                yield replace(setting, name=name)


def describe_group(
    overrides: Mapping[str, str], broker: BrokerConfig, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """The settings of a group, all or those in `names`."""
    entries = []
    for setting in _chosen(GROUP_SETTINGS, names):
        synonyms: list[ConfigSynonym] = []
        override = overrides.get(setting.name)
        if override is not None:
            synonyms.append(ConfigSynonym(setting.name, override, ConfigSource.DYNAMIC_GROUP_CONFIG))
        for synonym in setting.synonyms:
            synonyms.extend(_written(synonym.setting, broker))
        synonyms.extend(_default(synonym.setting) for synonym in setting.synonyms[:1])
        value = override if override is not None else format_value(value_from_broker(setting, broker))
        entries.append(_entry(setting, value, synonyms, read_only=False))
    return entries


def describe_default_broker(
    dynamic_default: Mapping[str, str], names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """The dynamic settings for all brokers (the broker resource without a name): only those that are set."""
    return [
        _entry(
            setting,
            dynamic_default[setting.name],
            [ConfigSynonym(setting.name, dynamic_default[setting.name], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)],
            read_only=False,
        )
        for setting in (*_chosen(BROKER_SETTINGS, names), *_link_settings(dynamic_default, names))
        if setting.name in dynamic_default
    ] + unknown_settings({ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: dynamic_default.keys()}, names)


def describe_client_metrics(values: Mapping[str, str], names: Collection[str] | None = None) -> list[ConfigEntry]:
    """The settings of a subscription to client metrics, all or those in `names`."""
    return [
        _entry(
            setting,
            values.get(setting.name, format_value(setting.default)),
            [ConfigSynonym(setting.name, values[setting.name], ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG)]
            if setting.name in values
            else [],
            read_only=False,
        )
        for setting in _chosen(CLIENT_METRICS_SETTINGS, names)
    ]


def describe_logger(name: str, level: str) -> ConfigEntry:
    """The level of a logger of the broker."""
    return ConfigEntry(
        name=name,
        value=level,
        source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
        type=SettingType.UNKNOWN,
        read_only=False,
        sensitive=False,
        synonyms=(),
        documentation="",
    )


def _link_settings(values: Mapping[str, str], names: Collection[str] | None) -> Iterator[Setting[Any]]:
    for name in values:
        if name.startswith(mirror.LINK_PREFIX) and (names is None or name in names):
            setting = mirror.link_setting(name)
            if setting is not None:
                yield setting


def documentation(setting: Setting[Any]) -> str:
    if setting.without_effect:
        explanation = setting.explanation or "A setting of Kafka."
        return f"{explanation} It has no effect: {setting.without_effect}."
    if setting.only_default:
        return f"{setting.explanation} Only the default is supported: {setting.only_default}."
    return setting.explanation


def _chosen(settings: Mapping[str, Setting[Any]], names: Collection[str] | None) -> Iterator[Setting[Any]]:
    if names is None:
        return (setting for setting in settings.values() if not setting.name.startswith("internal."))
    return (setting for name in dict.fromkeys(names) if (setting := settings.get(name)) is not None)


def _written(setting: Setting[Any], broker: BrokerConfig) -> Iterator[ConfigSynonym]:
    for source, layer in broker.layers.items():
        if setting.name in layer:
            yield ConfigSynonym(setting.name, layer[setting.name], source)


def _default(setting: Setting[Any]) -> ConfigSynonym:
    return ConfigSynonym(setting.name, format_value(setting.default), ConfigSource.DEFAULT_CONFIG)


def _entry(setting: Setting[Any], value: str | None, synonyms: list[ConfigSynonym], *, read_only: bool) -> ConfigEntry:
    synonyms = [synonym for synonym in synonyms if synonym.value is not None]
    if setting.sensitive:  # passwords are never sent
        value = None
        synonyms = [ConfigSynonym(synonym.name, None, synonym.source) for synonym in synonyms]
    return ConfigEntry(
        name=setting.name,
        value=value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        type=setting.type,
        read_only=read_only,
        sensitive=setting.sensitive,
        synonyms=tuple(synonyms),
        documentation=documentation(setting),
    )


_INTRODUCTION = """\
# Settings

*Generated by `python -m millstream.config` from `src/millstream/config/table/`: do not edit.*

Settings have Kafka's names. A `server.properties` file of Kafka can be used unchanged
(`millstream serve --config FILE`). `--set name=value` takes precedence over the file. Settings of Kafka without effect
are listed at the end, with the reason. *change* says whether a value can be changed while the broker runs.
"Millstream only" marks settings that Kafka does not have.
"""


def settings_page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for heading, settings in FAMILIES.items():
        parts += [f"## {heading}\n", _table(settings)]
    parts += [
        "## Topics\n",
        "A topic's own value takes precedence. Otherwise, the first broker setting under *else* with a value counts.\n",
        _table_with_synonyms(topic.SETTINGS),
        "## Mirror links\n",
        f"Set for all brokers as `{mirror.LINK_PREFIX}LINK.SETTING`; `millstream mirror` does that. Also the settings "
        "of TLS and SASL of a connection, by the names of Kafka's clients: "
        + ", ".join(f"`{name}`" for name in mirror.LINK_SETTINGS if name.startswith(("ssl.", "sasl.")))
        + ".\n",
        _table(mirror.SETTINGS),
        "## Groups\n",
        "Set for one group with IncrementalAlterConfigs, resource type GROUP: `kafka-configs --entity-type groups`.\n",
        _table_with_synonyms(group_config.SETTINGS),
        "## Client metrics\n",
        "Settings of a subscription (KIP-714), resource type CLIENT_METRICS: `kafka-client-metrics`, or "
        "`kafka-configs --entity-type client-metrics`.\n",
        _table_with_synonyms(client_metrics_config.SETTINGS),
        "## Accepted, without effect\n",
    ]
    reasons: dict[str, list[str]] = {}
    for setting in inert.SETTINGS:
        reasons.setdefault(setting.without_effect, []).append(f"`{setting.name}`")
    parts += [f"- **{reason[0].upper()}{reason[1:]}:** {', '.join(names)}" for reason, names in reasons.items()]
    return "\n".join(parts) + "\n"


def _table(settings: Iterable[Setting[Any]]) -> str:
    rows = [f"| `{s.name}` | {_type(s)} | {_default_value(s)} | {_change(s)} | {_meaning(s)} |" for s in settings]
    return "\n".join(["| name | type | default | change | meaning |", "|---|---|---|---|---|", *rows, ""])


def _table_with_synonyms(settings: Iterable[Setting[Any]]) -> str:
    rows = [
        f"| `{s.name}` | {_type(s)} | {_default_value(s)} | {'<br>'.join(f'`{y.setting.name}`' for y in s.synonyms)} "
        f"| {_meaning(s)} |"
        for s in settings
    ]
    return "\n".join(["| name | type | default | else | meaning |", "|---|---|---|---|---|", *rows, ""])


def _type(setting: Setting[Any]) -> str:
    return setting.type.name.lower() + (f", {setting.unit}" if setting.unit else "")


def _default_value(setting: Setting[Any]) -> str:
    text = format_value(setting.default)
    return "none" if text is None else f"`{text}`" if text else "empty"


def _change(setting: Setting[Any]) -> str:
    return "restart" if setting.update is Update.RESTART else f"while running, {setting.update}"


def _meaning(setting: Setting[Any]) -> str:
    parts = [setting.explanation]
    if setting.allowed is not None:
        parts.append(f"Allowed: {setting.allowed.text}.")
    if setting.without_effect:
        parts.append(f"No effect: {setting.without_effect}.")
    if setting.only_default:
        parts.append(f"Only the default is supported: {setting.only_default}.")
    return " ".join(parts).replace("|", "\\|")
