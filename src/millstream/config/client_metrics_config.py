"""Settings of a subscription to client metrics (KIP-714): the resource type CLIENT_METRICS of DescribeConfigs.

A subscription says which metrics the clients that match it push, and how often. The checks, and the texts of their
errors, are those of Kafka. Which clients match is decided in `node/client_metrics/`.
"""

from collections.abc import Mapping
from typing import Any

import re2

from millstream.config.setting import ConfigError, Setting, declared, integer, listed

DEFAULT_INTERVAL_MS = 5 * 60 * 1000
LEAST_INTERVAL_MS, LARGEST_INTERVAL_MS = 100, 3_600_000
ALL_METRICS = "*"

METRICS = listed(
    "metrics",
    (),
    "The metrics that clients push: a list of prefixes of names, such as `org.apache.kafka.producer.`. `*` means all. "
    "Empty means none.",
)
INTERVAL_MS = integer(
    "interval.ms",
    DEFAULT_INTERVAL_MS,
    "How often a client pushes its metrics, from 100 to 3600000.",
    unit="ms",
)
MATCH = listed(
    "match",
    (),
    "The clients of the subscription: a list of `name=regular expression`, all of which must match the whole value. "
    "Names: client_instance_id, client_id, client_software_name, client_software_version, client_source_address, "
    "client_source_port. Empty means all clients.",
)

SETTINGS = declared(globals())
CLIENT_METRICS_SETTINGS: dict[str, Setting[Any]] = {setting.name: setting for setting in SETTINGS}

MATCH_NAMES = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


class UnknownClientMetricsSetting(ConfigError):
    """A name that is not a setting of a subscription, or an interval outside the bounds: Kafka's INVALID_REQUEST."""


def client_metrics_setting(name: str) -> Setting[Any]:
    """The declaration of a setting of a subscription."""
    setting = CLIENT_METRICS_SETTINGS.get(name)
    if setting is None:
        raise UnknownClientMetricsSetting(f"Unknown client metrics configuration: {name}", name=name)
    return setting


_MOST_MEMORY_BYTES = 1 << 20
_LARGEST_PROGRAM = 4000


def _compiled(text: str) -> Any:
    """The expression for RE2, whose time is linear in the length of the text; None if it is not valid or too large."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY_BYTES
    try:
        compiled = re2.compile(text, options=options)
    except re2.error:
        return None
    return compiled if compiled.programsize <= _LARGEST_PROGRAM else None


def match_patterns(items: tuple[str, ...]) -> dict[str, Any]:
    """The compiled expression of each name in `match`. Raises ConfigError for an item that is not `name=expression`."""
    patterns: dict[str, Any] = {}
    for item in items:
        name, equals, expression = item.partition("=")
        name, expression = name.strip(), expression.strip()
        compiled = _compiled(expression) if equals and "=" not in expression and expression else None
        if compiled is None or name not in MATCH_NAMES:
            raise ConfigError(f"Illegal client matching pattern: {item}", name=MATCH.name)
        patterns[name] = compiled
    return patterns


def check_client_metrics_config(values: Mapping[str, str]) -> None:
    """Raises ConfigError for invalid settings of a subscription."""
    for name, text in values.items():
        value = client_metrics_setting(name).parse(text)
        if name == INTERVAL_MS.name and not LEAST_INTERVAL_MS <= value <= LARGEST_INTERVAL_MS:
            raise UnknownClientMetricsSetting(
                f"Invalid value {value} for {name}, interval must be between {LEAST_INTERVAL_MS} and "
                f"{LARGEST_INTERVAL_MS} (1 hour)",
                name=name,
            )
        if name == MATCH.name:
            match_patterns(value)
