"""`millstream settings`: lists the settings of brokers and topics."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli import exit_codes
from millstream.cli.options import Json
from millstream.cli.terminal import CommandFailedError, print_json, print_table

if TYPE_CHECKING:
    from millstream.config.setting import Setting


def settings(
    pattern: Annotated[
        str, typer.Argument(metavar="[TEXT]", help="Part of the name of the settings to list.", show_default=False)
    ] = "",
    topic: Annotated[bool, typer.Option("--topic", help="List settings of topics instead of brokers.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Include settings of Kafka that are accepted but have no effect.")
    ] = False,
    json: Json = False,
) -> None:
    """List settings with default, type and meaning.

    \b
    Examples:
      millstream settings retention
      millstream settings --topic --json
    """
    from millstream.config.catalog import BROKER_SETTINGS, TOPIC_SETTINGS

    declared = TOPIC_SETTINGS if topic else BROKER_SETTINGS
    found = [
        setting
        for name, setting in sorted(declared.items())
        if pattern.lower() in name and (everything or not setting.without_effect)
    ]
    if not found and pattern:
        raise CommandFailedError(
            f"no setting has {pattern!r} in its name: try `millstream settings --all`", exit_codes.NOT_FOUND
        )
    if json:
        print_json([_document(setting) for setting in found])
        return
    print_table(
        ("setting", "default", "type", "meaning"),
        [
            (setting.name, _default(setting), setting.type.name.lower(), setting.without_effect or setting.explanation)
            for setting in found
        ],
    )


def _default(setting: "Setting[Any]") -> str:
    from millstream.config.setting import format_value

    text = format_value(setting.default)
    return "" if text is None else f"{text} {setting.unit}".strip()


def _document(setting: "Setting[Any]") -> dict[str, Any]:
    from millstream.config.setting import format_value

    return {
        "name": setting.name,
        "default": format_value(setting.default),
        "type": setting.type.name.lower(),
        "unit": setting.unit,
        "allowed": setting.allowed_text(),
        "importance": str(setting.importance),
        "update": str(setting.update),
        "synonyms": [synonym.setting.name for synonym in setting.synonyms],
        "effect": not setting.without_effect,
        "meaning": setting.without_effect or setting.explanation,
    }
