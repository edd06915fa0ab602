"""Short forms in which the tables are written: one function per type of setting."""

from typing import Any, TypedDict, Unpack

from millstream.config.setting import Allowed, Importance, Setting, SettingType, Synonym, Update


class Options(TypedDict, total=False):
    unit: str
    allowed: Allowed
    importance: Importance
    update: Update
    synonyms: tuple[Synonym, ...]
    without_effect: str
    only_default: str


def boolean(name: str, default: bool, explanation: str, **options: Unpack[Options]) -> Setting[bool]:
    return Setting(name=name, type=SettingType.BOOLEAN, default=default, explanation=explanation, **options)


def integer(name: str, default: int, explanation: str, **options: Unpack[Options]) -> Setting[int]:
    return Setting(name=name, type=SettingType.INT, default=default, explanation=explanation, **options)


def short(name: str, default: int, explanation: str, **options: Unpack[Options]) -> Setting[int]:
    return Setting(name=name, type=SettingType.SHORT, default=default, explanation=explanation, **options)


def long(name: str, default: int, explanation: str, **options: Unpack[Options]) -> Setting[int]:
    return Setting(name=name, type=SettingType.LONG, default=default, explanation=explanation, **options)


def optional_integer(name: str, explanation: str, **options: Unpack[Options]) -> Setting[int | None]:
    return _optional(name, SettingType.INT, explanation, options)


def optional_long(name: str, explanation: str, **options: Unpack[Options]) -> Setting[int | None]:
    return _optional(name, SettingType.LONG, explanation, options)


def double(name: str, default: float, explanation: str, **options: Unpack[Options]) -> Setting[float]:
    return Setting(name=name, type=SettingType.DOUBLE, default=default, explanation=explanation, **options)


def string(name: str, default: str, explanation: str, **options: Unpack[Options]) -> Setting[str]:
    return Setting(name=name, type=SettingType.STRING, default=default, explanation=explanation, **options)


def optional_string(name: str, explanation: str, **options: Unpack[Options]) -> Setting[str | None]:
    return _optional(name, SettingType.STRING, explanation, options)


def listed(
    name: str, default: tuple[str, ...], explanation: str, **options: Unpack[Options]
) -> Setting[tuple[str, ...]]:
    return Setting(name=name, type=SettingType.LIST, default=default, explanation=explanation, **options)


def optional_list(name: str, explanation: str, **options: Unpack[Options]) -> Setting[tuple[str, ...] | None]:
    return _optional(name, SettingType.LIST, explanation, options)


def optional_class(name: str, explanation: str, **options: Unpack[Options]) -> Setting[str | None]:
    return _optional(name, SettingType.CLASS, explanation, options)


def _optional(name: str, kind: SettingType, explanation: str, options: Options) -> Setting[Any]:
    return Setting(name=name, type=kind, default=None, nullable=True, explanation=explanation, **options)


def declared(module: dict[str, Any]) -> tuple[Setting[Any], ...]:
    """The settings of one table module, in the order in which they are written."""
    return tuple(value for value in module.values() if isinstance(value, Setting))
