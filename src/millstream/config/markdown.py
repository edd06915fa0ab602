"""The settings page, `docs/settings.md`, made from the tables; a test checks that the file is up to date."""

from collections.abc import Iterable
from typing import Any

from millstream.config import group_config
from millstream.config.catalog import FAMILIES
from millstream.config.setting import Setting, Update, format_value
from millstream.config.table import inert, topic

_INTRODUCTION = """\
# Settings

*Made by `python -m millstream.config` from the tables in `src/millstream/config/table/`: do not edit.*

Settings have Kafka's names, and a `server.properties` file of Kafka is read as it is
(`millstream serve --config FILE`); `--set name=value` wins over the file. Names that Kafka has and that change nothing
here are listed at the end, with the reason. *change* says whether a value can be changed while the broker runs.
"""


def settings_page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for heading, settings in FAMILIES.items():
        parts += [f"## {heading}\n", _table(settings)]
    parts += [
        "## Topics\n",
        "A topic's own value wins; without one, the first broker setting under *else* that has a value counts.\n",
        _table_with_synonyms(topic.SETTINGS),
        "## Groups\n",
        "Set for one group with IncrementalAlterConfigs, resource type GROUP: `kafka-configs --entity-type groups`.\n",
        _table_with_synonyms(group_config.SETTINGS),
        "## Accepted, without effect here\n",
    ]
    reasons: dict[str, list[str]] = {}
    for setting in inert.SETTINGS:
        reasons.setdefault(setting.without_effect, []).append(f"`{setting.name}`")
    parts += [f"- **{reason[0].upper()}{reason[1:]}:** {', '.join(names)}" for reason, names in reasons.items()]
    return "\n".join(parts) + "\n"


def _table(settings: Iterable[Setting[Any]]) -> str:
    rows = [f"| `{s.name}` | {_type(s)} | {_default(s)} | {_change(s)} | {_meaning(s)} |" for s in settings]
    return "\n".join(["| name | type | default | change | meaning |", "|---|---|---|---|---|", *rows, ""])


def _table_with_synonyms(settings: Iterable[Setting[Any]]) -> str:
    rows = [
        f"| `{s.name}` | {_type(s)} | {_default(s)} | {'<br>'.join(f'`{y.setting.name}`' for y in s.synonyms)} "
        f"| {_meaning(s)} |"
        for s in settings
    ]
    return "\n".join(["| name | type | default | else | meaning |", "|---|---|---|---|---|", *rows, ""])


def _type(setting: Setting[Any]) -> str:
    return setting.type.name.lower() + (f", {setting.unit}" if setting.unit else "")


def _default(setting: Setting[Any]) -> str:
    text = format_value(setting.default)
    return "none" if text is None else f"`{text}`" if text else "empty"


def _change(setting: Setting[Any]) -> str:
    return "restart" if setting.update is Update.RESTART else f"while running, {setting.update}"


def _meaning(setting: Setting[Any]) -> str:
    parts = [setting.explanation]
    if setting.allowed is not None:
        parts.append(f"Allowed: {setting.allowed.text}.")
    if setting.without_effect:
        parts.append(f"No effect here: {setting.without_effect}.")
    if setting.only_default:
        parts.append(f"Only the default is supported: {setting.only_default}.")
    return " ".join(parts).replace("|", "\\|")
