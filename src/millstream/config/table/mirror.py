"""Settings of mirror links: `millstream.mirror.link.<link>.<setting>`, set for all brokers (docs/mirroring.md).

A link copies topics of another cluster, the source. The connection has the names of Kafka's clients
(`security.protocol`, `sasl.mechanism`, `sasl.jaas.config`, `ssl.…`). Secrets are never shown. A secret may be a
reference, `${file:…}` or `${env:…}`, which each broker resolves, in the directory that its operator allows
(`BROKER_SETTINGS`). The state of a mirror topic is in settings of the topic (`topic.py`).
"""

import re
from dataclasses import replace
from typing import Any

from millstream.config.setting import (
    LONG_MAX,
    Setting,
    SettingType,
    Update,
    at_least,
    between,
    boolean,
    declared,
    listed,
    long,
    one_of,
    optional_string,
    string,
)
from millstream.config.table import sasl, ssl

LINK_PREFIX = "millstream.mirror.link."

BOOTSTRAP_SERVERS = listed(
    "bootstrap.servers",
    (),
    "Brokers of the source, `host:port`, to connect to first. A link exists if this is set.",
    update=Update.CLUSTER_WIDE,
)
TOPICS = string(
    "topics",
    "",
    "A regular expression (RE2). Topics of the source whose whole name matches are mirrored, also those that are "
    "created later. Internal topics and topics that are mirrors themselves are left out.",
    update=Update.CLUSTER_WIDE,
)
GROUPS = string(
    "groups",
    ".*",
    "A regular expression (RE2). Committed offsets of the source's groups whose whole id matches are kept in step, "
    "for mirrored topics, while the group has no members here. Empty: no groups.",
    update=Update.CLUSTER_WIDE,
)
PREFIX = string(
    "prefix",
    "",
    "Text before the name of each mirrored topic, for clusters that mirror each other (`west.` makes `west.orders`).",
    update=Update.CLUSTER_WIDE,
)
PAUSED = boolean("paused", False, "Stops the link, until it is false again.", update=Update.CLUSTER_WIDE)
ACLS = boolean(
    "acls", False, "Keeps ACLs of mirrored topics and groups in step with the source.", update=Update.CLUSTER_WIDE
)
REPLICATION_FACTOR = long(
    "replication.factor",
    -1,
    "Replicas of each mirror topic; -1: `default.replication.factor`.",
    allowed=between(-1, 32767),
    update=Update.CLUSTER_WIDE,
)
THROTTLE = long(
    "throttle.bytes.per.second",
    LONG_MAX,
    "The rate at which each broker copies records of this link, at most.",
    unit="bytes/s",
    allowed=at_least(1024),
    update=Update.CLUSTER_WIDE,
)
INTERVAL_MS = long(
    "interval.ms",
    2000,
    "The time between two comparisons of topics, settings, groups and ACLs with the source.",
    unit="ms",
    allowed=between(100, 3_600_000),
    update=Update.CLUSTER_WIDE,
)
SECURITY_PROTOCOL = string(
    "security.protocol",
    "PLAINTEXT",
    "How brokers connect to the source.",
    allowed=one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    update=Update.CLUSTER_WIDE,
)
SASL_MECHANISM = string(
    "sasl.mechanism",
    "SCRAM-SHA-512",
    "The SASL mechanism of the connection.",
    allowed=one_of(*sasl.MECHANISMS),
    update=Update.CLUSTER_WIDE,
)

SETTINGS = declared(globals())

SECRETS_DIR = optional_string(
    "millstream.mirror.secrets.dir",
    "The directory of the files that secrets of mirror links may refer to (`${file:…}`, `${dir:…}`), and of their "
    "files of tokens, keytabs and key stores. Without it, such "
    "references are refused: a client that may create links could send other files of this machine to a source. "
    "References to the environment (`${env:…}`) must begin with `MILLSTREAM_MIRROR_`. Millstream only.",
)
TOKEN_URLS = listed(
    "millstream.mirror.token.urls",
    (),
    "The token endpoints (`sasl.oauthbearer.token.endpoint.url`) that mirror links may use, as whole addresses. All "
    "others are refused: a client that may create links could make this broker send requests, with a chosen login, to "
    "hosts that only the broker reaches. As Kafka's `org.apache.kafka.sasl.oauthbearer.allowed.urls`. Millstream only.",
)
BROKER_SETTINGS = (SECRETS_DIR, TOKEN_URLS)
"""Settings of each broker."""
SECRET_VARIABLES = "MILLSTREAM_MIRROR_"

_OF_BROKERS = (
    sasl.SASL_JAAS_CONFIG,
    sasl.SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL,
    ssl.SSL_TRUSTSTORE_LOCATION,
    ssl.SSL_TRUSTSTORE_PASSWORD,
    ssl.SSL_TRUSTSTORE_TYPE,
    ssl.SSL_TRUSTSTORE_CERTIFICATES,
    ssl.SSL_KEYSTORE_LOCATION,
    ssl.SSL_KEYSTORE_PASSWORD,
    ssl.SSL_KEYSTORE_TYPE,
    ssl.SSL_KEYSTORE_KEY,
    ssl.SSL_KEYSTORE_CERTIFICATE_CHAIN,
    ssl.SSL_KEY_PASSWORD,
    ssl.SSL_ENDPOINT_IDENTIFICATION_ALGORITHM,
    ssl.SSL_ENABLED_PROTOCOLS,
    ssl.SSL_PROTOCOL,
    ssl.SSL_CIPHER_SUITES,
)
"""Settings of the connection, declared as those of listeners."""

LINK_SETTINGS: dict[str, Setting[Any]] = {
    setting.name: setting
    for setting in (*SETTINGS, *(replace(each, update=Update.CLUSTER_WIDE) for each in _OF_BROKERS))
}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def is_link_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def split_link_setting(name: str) -> tuple[str, str]:
    """The link and the setting in `millstream.mirror.link.<link>.<setting>`."""
    link, _, setting = name.removeprefix(LINK_PREFIX).partition(".")
    return link, setting


def link_setting(name: str) -> Setting[Any] | None:
    """The declaration of `millstream.mirror.link.…`, with its full name; None if it is unknown."""
    link, setting = split_link_setting(name)
    found = LINK_SETTINGS.get(setting)
    if found is None or not is_link_name(link):
        return None
    # A reference to a secret is resolved by the broker that uses it: any text is accepted for the settings of TLS.
    plain = found if found in SETTINGS else replace(found, allowed=None)
    return replace(plain, name=name)


def is_secret(setting: str) -> bool:
    found = LINK_SETTINGS.get(setting)
    return found is None or found.type is SettingType.PASSWORD
