"""The declaration of a setting: name, type, default, unit, allowed values, explanation.

A `Setting[T]` is also the typed key of its value: `config[NODE_ID]` is an `int` for mypy. The settings are declared in
`table/`, with the short functions at the end of this file. Files are read in `loading.py`; `broker_config.py` has the
precedence of sources.
"""

from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from millstream.common.lazy_dataclass import dataclass


class ConfigError(ValueError):
    """An invalid setting. The message is one line: name, value, allowed values, and where it was set."""

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.name = name

    def at(self, place: str) -> "ConfigError":
        """The same error, with the file and line in front."""
        return ConfigError(f"{place}: {self.message}", name=self.name)


T_co = TypeVar("T_co", covariant=True)

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1


class SettingType(IntEnum):
    """Kafka's types of settings, with their numbers in DescribeConfigs. Unknown names have the type UNKNOWN."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Update(StrEnum):
    """Whether a value can change while the broker runs, and on which brokers."""

    RESTART = "restart"
    PER_BROKER = "per broker"
    CLUSTER_WIDE = "cluster-wide"


@dataclass(frozen=True, slots=True)
class Allowed:
    """A check of values, and its text for messages."""

    text: str
    accepts: Callable[[Any], bool]


def between(low: float, high: float) -> Allowed:
    return Allowed(f"{low} to {high}", lambda value: low <= value <= high)


def at_least(low: float) -> Allowed:
    return Allowed(f"at least {low}", lambda value: value >= low)


def one_of(*names: str) -> Allowed:
    return Allowed(f"one of {', '.join(names)}", lambda value: value in names)


def some_of(*names: str) -> Allowed:
    """For lists: each item from `names`."""
    return Allowed(f"a list of {', '.join(names)}", lambda items: set(items) <= set(names))


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker setting that is the default of a topic setting. `scale` converts its unit."""

    setting: "Setting[Any]"
    scale: int = 1

    def scaled(self, value: Any) -> Any:
        if self.scale == 1:
            return value
        return -1 if value < 0 else value * self.scale  # as in Kafka, a negative time means no limit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting(Generic[T_co]):
    """The declaration of a setting. `DescribeConfigs`, `docs/settings.md` and all checks use it."""

    name: str
    type: SettingType
    default: T_co
    explanation: str
    importance: Importance = Importance.MEDIUM
    unit: str = ""
    nullable: bool = False
    allowed: Allowed | None = None
    update: Update = Update.RESTART
    synonyms: tuple[Synonym, ...] = ()
    without_effect: str = ""
    """Why the value has no effect. The setting is accepted, so that a Kafka file causes no warnings."""
    only_default: str = ""
    """Why other values than the default are refused: the feature is not supported."""

    @property
    def sensitive(self) -> bool:
        return self.type is SettingType.PASSWORD

    def parse(self, text: str) -> T_co:
        """The typed value of a text; raises ConfigError with the allowed values."""
        value = _parse(self, text)
        if self.allowed is not None and not self.allowed.accepts(value):
            raise self.refusal(text)
        if self.only_default and value != self.default:
            raise ConfigError(f"{self.name}={self._shown(text)} is not supported: {self.only_default}", name=self.name)
        return value  # type: ignore[no-any-return]

    def refusal(self, text: str) -> ConfigError:
        return ConfigError(
            f"{self.name}={self._shown(text)} is not allowed: it must be {self.allowed_text()}", name=self.name
        )

    def _shown(self, text: str) -> str:
        return "***" if self.sensitive else text[:200]

    def allowed_text(self) -> str:
        noun = _NOUNS[self.type]
        if self.allowed is None:
            return noun
        if self.type in _RANGES or self.type is SettingType.DOUBLE:
            return f"{noun}, {self.allowed.text}"
        return self.allowed.text


def format_value(value: object) -> str | None:
    """The value as Kafka's tools print it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return str(value)


_NOUNS = {
    SettingType.BOOLEAN: "true or false",
    SettingType.STRING: "text",
    SettingType.INT: "a whole number",
    SettingType.SHORT: "a whole number",
    SettingType.LONG: "a whole number",
    SettingType.DOUBLE: "a number",
    SettingType.LIST: "a comma-separated list",
    SettingType.CLASS: "a class name",
    SettingType.PASSWORD: "text",
}

_RANGES = {
    SettingType.SHORT: (-(1 << 15), (1 << 15) - 1),
    SettingType.INT: (-(1 << 31), INT_MAX),
    SettingType.LONG: (-(1 << 63), LONG_MAX),
}


def _parse(setting: Setting[Any], text: str) -> Any:
    text = text.strip()
    if setting.nullable and text == "" and setting.type is not SettingType.STRING:
        return None
    match setting.type:
        case SettingType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise setting.refusal(text)
            return text.lower() == "true"
        case SettingType.LIST:
            return tuple(item for part in text.split(",") if (item := part.strip()))
        case SettingType.DOUBLE:
            try:
                return float(text)
            except ValueError:
                raise setting.refusal(text) from None
        case SettingType.INT | SettingType.LONG | SettingType.SHORT:
            low, high = _RANGES[setting.type]
            # int() alone would accept "1_000" and digits of other scripts, and be slow on a megabyte of digits.
            digits = text[1:] if text[:1] in ("+", "-") else text
            if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
                raise setting.refusal(text)
            value = int(text)
            if not low <= value <= high:
                raise ConfigError(
                    f"{setting.name}={text} is not allowed: a {setting.type.name.lower()} must be {low} to {high}",
                    name=setting.name,
                )
            return value
        case _:
            return text


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
    """The settings of one table module, in the order of their declaration."""
    return tuple(value for value in module.values() if isinstance(value, Setting))
