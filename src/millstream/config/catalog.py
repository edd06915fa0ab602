"""All settings by name, and hints for unknown names."""

from typing import Any

from millstream.common.close_match import did_you_mean
from millstream.config.setting import Setting
from millstream.config.table import (
    authorization,
    cluster,
    groups,
    inert,
    log,
    mirror,
    network,
    node,
    protection,
    quotas,
    sasl,
    share,
    ssl,
    streams,
    tier,
    topic,
    transactions,
)

FAMILIES: dict[str, tuple[Setting[Any], ...]] = {
    "Node, listeners, topics": node.SETTINGS,
    "Cluster: quorum, brokers, replication": cluster.SETTINGS,
    "Network": network.SETTINGS,
    "Quotas": quotas.SETTINGS,
    "TLS": ssl.SETTINGS,
    "Protection: open listeners, audit": protection.SETTINGS,
    "SASL": sasl.SETTINGS,
    "Logs, and defaults for topics": log.SETTINGS,
    "Tiered storage": tier.SETTINGS,
    "Share groups": share.SETTINGS,
    "Streams groups": streams.SETTINGS,
    "Groups and committed offsets": groups.SETTINGS,
    "Transactions": transactions.SETTINGS,
    "Authorization": authorization.SETTINGS,
}
"""The broker settings with an effect, by the headings of the settings page."""

BROKER_SETTINGS: dict[str, Setting[Any]] = {
    setting.name: setting for family in (*FAMILIES.values(), inert.SETTINGS) for setting in family
}
TOPIC_SETTINGS: dict[str, Setting[Any]] = {setting.name: setting for setting in topic.SETTINGS}

_GONE = {
    "zookeeper.": "ZooKeeper is not used, as in Kafka 4",
    "inter.broker.protocol.version": "Kafka 4 has removed this setting",
    "log.message.format.version": "Kafka 4 has removed this setting; batches always have version 2",
    "log.message.timestamp.difference.max.ms": "use log.message.timestamp.before.max.ms and .after.max.ms",
    "message.timestamp.difference.max.ms": "use message.timestamp.before.max.ms and .after.max.ms",
    "host.name": "use listeners",
    "port": "use listeners",
    "advertised.host.name": "use advertised.listeners",
    "advertised.port": "use advertised.listeners",
}

_PREFIXED = ("rsm.config.", "rlmm.config.")
"""Prefixes of settings for Kafka's plug-ins for tiered storage."""


LISTENER_PREFIX = "listener.name."
"""`listener.name.<listener in lower case>[.<sasl mechanism in lower case>].<setting>`."""

_PER_LISTENER = frozenset(
    ("connections.max.reauth.ms", "max.connection.creation.rate", "max.connections", "principal.builder.class")
)
"""Settings that can differ between listeners, beside those that begin with `ssl.`, `sasl.` or `security.`."""


def is_per_listener(name: str) -> bool:
    """Whether the setting can be set for one listener."""
    return name in _PER_LISTENER or name.startswith(("ssl.", "sasl.", "security.providers", "num.network.threads"))


def listener_setting(name: str) -> Setting[Any] | None:
    """The declaration of `listener.name.…`; None if the name is unknown, or has upper case in the listener's name."""
    parts = name.removeprefix(LISTENER_PREFIX).split(".")
    for start in (1, 2):  # the second one with a SASL mechanism
        setting = BROKER_SETTINGS.get(".".join(parts[start:]))
        if setting is not None and is_per_listener(setting.name):
            given = ".".join(parts[:start])
            return setting if given == given.lower() else None
    return None


def broker_setting(name: str) -> Setting[Any] | None:
    """The declaration of a broker setting, also with a prefix: of one listener, one mirror link or one plug-in."""
    found = BROKER_SETTINGS.get(name)
    if found is None and name.startswith(LISTENER_PREFIX):
        return listener_setting(name)
    if found is None and name.startswith(mirror.LINK_PREFIX):
        return mirror.link_setting(name)
    if found is None and name.startswith(_PREFIXED):
        return BROKER_SETTINGS["remote.log.storage.manager.class.path"]
    return found


def hint(name: str, known: dict[str, Setting[Any]]) -> str:
    """A hint for an unknown name; may be empty."""
    for gone, reason in _GONE.items():
        if name == gone or (gone.endswith(".") and name.startswith(gone)):
            return reason
    if known is BROKER_SETTINGS and name.startswith(LISTENER_PREFIX):
        return _listener_hint(name)
    if known is BROKER_SETTINGS and name.startswith(mirror.LINK_PREFIX):
        return _link_hint(name)
    if known is BROKER_SETTINGS and name in TOPIC_SETTINGS and TOPIC_SETTINGS[name].synonyms:
        return f"this is a topic setting; for all topics it is {TOPIC_SETTINGS[name].synonyms[0].setting.name}"
    if known is TOPIC_SETTINGS:
        for setting in TOPIC_SETTINGS.values():
            if any(synonym.setting.name == name for synonym in setting.synonyms):
                return f"this is a broker setting; for a topic it is {setting.name}"
    return did_you_mean(name, known, cutoff=0.8, quoted=False)


def _listener_hint(name: str) -> str:
    rest = name.removeprefix(LISTENER_PREFIX)
    if rest != rest.lower() and listener_setting(name.lower()) is not None:
        return f"write the names of listeners and mechanisms in lower case: {name.lower()}"
    setting = rest.partition(".")[2]
    if setting in BROKER_SETTINGS:
        return f"{setting} cannot be set for one listener; set it without {LISTENER_PREFIX}"
    return did_you_mean(setting, [each for each in BROKER_SETTINGS if is_per_listener(each)], cutoff=0.8, quoted=False)


def _link_hint(name: str) -> str:
    link, setting = mirror.split_link_setting(name)
    if not mirror.is_link_name(link):
        return f"{mirror.LINK_PREFIX}LINK.SETTING; the name of a link has letters, digits, '_' and '-'"
    close = did_you_mean(setting, mirror.LINK_SETTINGS, cutoff=0.8, quoted=False)
    return close or "docs/settings.md has the settings of mirror links"
