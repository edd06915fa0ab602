"""Topic settings with value, source, default and help text; creates, changes and deletes topics."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from uuid import UUID

from millstream.config.catalog import TOPIC_SETTINGS
from millstream.config.setting import LONG_MAX, Allowed, ConfigError, Setting, SettingType, format_value
from millstream.console.formats import size
from millstream.formats.protocol.schema import Message
from millstream.raw_client import Cluster, ErrorCode, RefusedError
from millstream.raw_client.errors import error_code, refusal

TOPIC_RESOURCE = 2
_SET, _DELETE = 0, 1
_AGAIN_S = 0.1


class Source(IntEnum):
    """Kafka's numbers for where a value is written."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    FILE = 4
    DEFAULT = 5

    @property
    def label(self) -> str:
        return _LABELS[self]


_TIMES = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_LABELS = {
    Source.UNKNOWN: "unknown",
    Source.TOPIC: "this topic",
    Source.BROKER: "broker (dynamic)",
    Source.ALL_BROKERS: "all brokers (dynamic)",
    Source.FILE: "broker file",
    Source.DEFAULT: "default",
}


@dataclass(frozen=True, slots=True)
class TopicSetting:
    name: str
    value: str | None
    """None if it is secret."""
    source: Source
    without: str | None
    """What would count if the topic had no value of its own."""
    kind: str
    """boolean, string, int, list and so on."""
    explanation: str
    allowed: str
    """Which values there are, in words; empty if only the broker knows."""
    choices: tuple[str, ...]
    """The values, if they are few."""
    read_only: bool

    @property
    def is_own(self) -> bool:
        return self.source is Source.TOPIC

    @property
    def value_in_words(self) -> str:
        """What a large number comes to: 604800000 ms is a week. Empty where the value speaks for itself."""
        if self.value is None or not self.value.isdigit():
            return ""
        if int(self.value) == LONG_MAX:
            return "no limit"
        number = int(self.value)
        if self.name.endswith(".ms") and number >= 1000:
            unit, length = next((each for each in _TIMES if number >= each[1]), _TIMES[-1])
            return f"{number / length:,.3g} {unit}"
        return size(number) if self.name.endswith(".bytes") and number >= 1000 else ""


def read_settings(
    cluster: Cluster, topic: str, changed: Mapping[str, str | None] | None = None, patience_s: float = 3.0
) -> list[TopicSetting]:
    """Those with a value of the topic's own first, then by name.

    Brokers learn of changes one after another, and any of them may be asked: one that does not know the topic, or what
    was just `changed` (None: no value of its own), is given a moment.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            found = _read(cluster, topic)
        except RefusedError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or time.monotonic() > until:
                raise
        else:
            own = {each.name: each.value for each in found if each.is_own}
            is_known = all(own.get(name) == value for name, value in (changed or {}).items())
            if is_known or time.monotonic() > until:
                return found
        time.sleep(_AGAIN_S)


def _read(cluster: Cluster, topic: str) -> list[TopicSetting]:
    answer = cluster.call(
        "describe_configs",
        resources=[{"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configuration_keys": None}],
        include_synonyms=True,
        include_documentation=True,
    )
    (row,) = answer.results
    if row.error_code:
        raise refusal(f"topic {topic!r}", error_code(row.error_code), row.error_message)
    return sorted((_setting(each) for each in row.configs), key=lambda each: (not each.is_own, each.name))


def known_settings() -> list[TopicSetting]:
    """For a topic that is not there yet: the settings that Millstream knows, with their defaults."""
    return [
        TopicSetting(
            name,
            format_value(setting.default),
            Source.DEFAULT,
            format_value(setting.default),
            setting.type.name.lower(),
            setting.explanation.replace("`", ""),
            setting.allowed_text(),
            _choices(setting),
            bool(setting.only_default or setting.without_effect),
        )
        for name, setting in sorted(TOPIC_SETTINGS.items())
        if not name.startswith("internal.")
    ]


def complaint(name: str, text: str) -> str | None:
    """What is wrong with a value, as far as can be told without the broker; None if nothing."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        return None  # another broker's, who knows what it takes
    try:
        setting.parse(text)
    except ConfigError as error:
        return str(error)
    return None


def change_settings(cluster: Cluster, topic: str, changes: dict[str, str | None]) -> None:
    """Sets values; None takes a topic's own value back. All of them or none."""
    rows = [
        {"name": name, "config_operation": _DELETE if value is None else _SET, "value": value}
        for name, value in changes.items()
    ]
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configs": rows}
    answer = cluster.call("incremental_alter_configs", resources=[resource], validate_only=False)
    for row in answer.responses:
        if row.error_code:
            raise refusal(f"topic {topic!r}", error_code(row.error_code), row.error_message)


def _setting(row: Message) -> TopicSetting:
    known = TOPIC_SETTINGS.get(row.name)
    source = Source(row.config_source) if row.config_source in Source._value2member_map_ else Source.UNKNOWN
    beneath = [each for each in row.synonyms or () if each.source != Source.TOPIC]
    without = beneath[0].value if beneath else (None if source is Source.TOPIC else row.value)
    if without is None and known is not None and not beneath:
        without = format_value(known.default)
    number = getattr(row, "config_type", 0)
    kind = SettingType(number).name.lower() if number in SettingType._value2member_map_ else ""
    return TopicSetting(
        row.name,
        None if row.is_sensitive else row.value,
        source,
        _scaled(known, beneath[0].name, without) if beneath else without,
        kind or (known.type.name.lower() if known else ""),
        (getattr(row, "documentation", None) or (known.explanation if known else "")).replace("`", ""),
        known.allowed_text() if known else "",
        _choices(known),
        row.read_only or bool(known and (known.only_default or known.without_effect)),
    )


def _scaled(known: Setting[Any] | None, synonym: str, value: str | None) -> str | None:
    """A broker's setting may count in another unit, as log.retention.hours does."""
    for each in known.synonyms if known else ():
        if each.setting.name == synonym and each.scale != 1 and value is not None:
            return format_value(each.scaled(int(value)))
    return value


def _choices(known: Setting[Any] | None) -> tuple[str, ...]:
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


_TIMEOUT_MS = 30_000
_BY_NAME = UUID(int=0)
_LONGEST_NAME = 249
_NAME = re.compile(r"[A-Za-z0-9._-]+")
MOST_PARTITIONS = 10_000


def name_complaint(name: str, existing: Mapping[str, object]) -> str | None:
    """What is wrong with the name of a new topic; None if nothing."""
    if not name:
        return "enter a name"
    if name in existing:
        return "a topic with this name exists"
    if len(name) > _LONGEST_NAME:
        return f"the name has {len(name)} characters; the maximum is {_LONGEST_NAME}"
    if name in (".", "..") or not _NAME.fullmatch(name):
        return "a name can have only letters, digits, '.', '_' and '-'"
    alike = name.replace(".", "_")
    for other in existing:
        if other.replace(".", "_") == alike:
            return f"the name differs from {other} only in '.' and '_', which collide in metric names"
    return None


def create_topic(cluster: Cluster, name: str, partitions: int, replication: int, settings: Mapping[str, str]) -> None:
    """Returns when it can be written to; -1 leaves a number to the brokers."""
    cluster.create_topic(name, partitions, replication, settings)


def add_partitions(cluster: Cluster, topic: str, count: int) -> None:
    """So that there are `count` of them; the brokers place the new ones."""
    row = {"name": topic, "count": count, "assignments": None}
    answer = cluster.call("create_partitions", topics=[row], timeout_ms=_TIMEOUT_MS, validate_only=False)
    for each in answer.results:
        if each.error_code:
            raise refusal(f"topic {topic!r}", error_code(each.error_code), each.error_message)


def delete_topic(cluster: Cluster, topic: str) -> None:
    answer = cluster.call(
        "delete_topics", topics=[{"name": topic, "topic_id": _BY_NAME}], topic_names=[topic], timeout_ms=_TIMEOUT_MS
    )
    for each in answer.responses:
        if each.error_code:
            raise refusal(f"topic {topic!r}", error_code(each.error_code), getattr(each, "error_message", None))
