"""Topic settings with value, source, default and help text; creates, changes and deletes topics."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from millstream.admin.topics import ConfigChange, ConfigEntry, ConfigOperation, ConfigResource, TopicAdmin
from millstream.config.catalog import TOPIC_SETTINGS
from millstream.config.setting import LONG_MAX, Allowed, ConfigError, Setting, SettingType, format_value
from millstream.console.formats import size
from millstream.raw_client import Cluster, ErrorCode, RefusedError

_RETRY_INTERVAL_SECONDS = 0.1


class Source(Enum):
    """Where a value is set, with its label."""

    UNKNOWN = "unknown"
    TOPIC = "this topic"
    BROKER = "broker (dynamic)"
    ALL_BROKERS = "all brokers (dynamic)"
    FILE = "broker file"
    DEFAULT = "default"

    @property
    def label(self) -> str:
        return self.value


_TOPIC_CONFIG = "DYNAMIC_TOPIC_CONFIG"
SOURCES = {
    _TOPIC_CONFIG: Source.TOPIC,
    "DYNAMIC_BROKER_CONFIG": Source.BROKER,
    "DYNAMIC_DEFAULT_BROKER_CONFIG": Source.ALL_BROKERS,
    "STATIC_BROKER_CONFIG": Source.FILE,
    "DEFAULT_CONFIG": Source.DEFAULT,
}
_DOUBLE_MAX = "1.7976931348623157e308"
_TIMES = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))


@dataclass(frozen=True, slots=True)
class TopicSetting:
    name: str
    value: str | None
    """None for a secret."""
    source: Source
    without: str | None
    """The value that applies without a value of the topic."""
    explanation: str
    allowed: str
    """The allowed values as text; empty if only the broker knows."""
    choices: tuple[str, ...]
    """The allowed values, if they are few."""
    read_only: bool

    @property
    def is_own(self) -> bool:
        return self.source is Source.TOPIC

    @property
    def shown_value(self) -> str:
        return "(secret)" if self.value is None else readable_value(self.name, self.value)


def readable_value(name: str, value: str) -> str:
    """The value of a setting; a large number with its unit: `604800000 (7 d)`."""
    if not (value.isascii() and value.isdigit()):
        return "no limit" if value.lower().replace("+", "") == _DOUBLE_MAX else value
    number = int(value)
    if number == LONG_MAX:
        return "no limit"  # clearer than nineteen digits
    if name.endswith(".ms") and number >= 1000:
        unit, length = next((each for each in _TIMES if number >= each[1]), _TIMES[-1])
        return f"{value} ({number / length:,.3g} {unit})"
    return f"{value} ({size(number)})" if name.endswith(".bytes") and number >= 1000 else value


def read_settings(
    cluster: Cluster, topic: str, changed: Mapping[str, str | None] | None = None, timeout_s: float = 3.0
) -> list[TopicSetting]:
    """The settings of a topic; those set for the topic first, then by name.

    Any broker may respond, and it may not have the latest metadata yet. So this waits until the response has the topic
    and the values just `changed` (None: no value of the topic).
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            entries = TopicAdmin(cluster).settings(ConfigResource.TOPIC, topic)
        except RefusedError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or time.monotonic() > until:
                raise
        else:
            found = sorted(map(_setting, entries), key=lambda each: (not each.is_own, each.name))
            own = {each.name: each.value for each in found if each.is_own}
            is_known = all(own.get(name) == value for name, value in (changed or {}).items())
            if is_known or time.monotonic() > until:
                return found
        time.sleep(_RETRY_INTERVAL_SECONDS)


def known_settings() -> list[TopicSetting]:
    """The topic settings that Millstream supports, with their defaults, for a new topic."""
    return [
        TopicSetting(
            name,
            format_value(setting.default),
            Source.DEFAULT,
            format_value(setting.default),
            setting.explanation.replace("`", ""),
            setting.allowed_text(),
            choices_of(setting),
            bool(setting.only_default or setting.without_effect),
        )
        for name, setting in sorted(TOPIC_SETTINGS.items())
        if not name.startswith("internal.")
    ]


def value_error(name: str, text: str) -> str | None:
    """Why a value is not valid, as far as known without the broker; None if it is."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        return None  # a setting of other brokers
    try:
        setting.parse(text)
    except ConfigError as error:
        return str(error)
    return None


def change_settings(cluster: Cluster, topic: str, changes: Mapping[str, str | None]) -> None:
    """Sets values of a topic, all or none; None removes a value, so that the default applies."""
    rows = [
        ConfigChange(name, value, ConfigOperation.DELETE if value is None else ConfigOperation.SET)
        for name, value in changes.items()
    ]
    TopicAdmin(cluster).change(ConfigResource.TOPIC, topic, rows)


def _setting(entry: ConfigEntry) -> TopicSetting:
    known = TOPIC_SETTINGS.get(entry.name)
    source = SOURCES.get(entry.source, Source.UNKNOWN)
    beneath = [(name, value) for name, value, kind in entry.synonyms if kind != _TOPIC_CONFIG]
    without = beneath[0][1] if beneath else (None if source is Source.TOPIC else entry.value)
    if without is None and known is not None and not beneath:
        without = format_value(known.default)
    return TopicSetting(
        entry.name,
        None if entry.is_sensitive else entry.value,
        source,
        _scaled(known, beneath[0][0], without) if beneath else without,
        (entry.documentation or (known.explanation if known else "")).replace("`", ""),
        known.allowed_text() if known else "",
        choices_of(known),
        entry.is_read_only or bool(known and (known.only_default or known.without_effect)),
    )


def _scaled(known: Setting[Any] | None, synonym: str, value: str | None) -> str | None:
    """Converts the value of a broker setting with another unit, such as log.retention.hours."""
    for each in known.synonyms if known else ():
        if each.setting.name == synonym and each.scale != 1 and value is not None:
            return format_value(each.scaled(int(value)))
    return value


def choices_of(known: Setting[Any] | None) -> tuple[str, ...]:
    """The allowed values of a setting, if they are few."""
    if known is None:
        return ()
    if known.type is SettingType.BOOLEAN:
        return ("true", "false")
    if known.type is SettingType.STRING and known.allowed is not None:
        return _named(known.allowed)
    return ()


def _named(allowed: Allowed) -> tuple[str, ...]:
    names = allowed.text.removeprefix("one of ").split(", ") if allowed.text.startswith("one of ") else []
    return tuple(name for name in names if allowed.accepts(name))


_LONGEST_NAME = 249
_NAME = re.compile(r"[A-Za-z0-9._-]+")
MOST_PARTITIONS = 10_000


def name_error(name: str, existing: Mapping[str, object]) -> str | None:
    """Why the name of a new topic is not valid; None if it is."""
    if not name:
        return "enter a name"
    if name in existing:
        return "a topic with this name already exists"
    if len(name) > _LONGEST_NAME:
        return f"the name has {len(name)} characters; the maximum is {_LONGEST_NAME}"
    if name in (".", "..") or not _NAME.fullmatch(name):
        return "a name can have only letters, digits, '.', '_' and '-'"
    alike = name.replace(".", "_")
    for other in existing:
        if other.replace(".", "_") == alike:
            return f"the name differs from {other} only in '.' and '_', which collide in metric names"
    return None
