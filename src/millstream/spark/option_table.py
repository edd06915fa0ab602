"""How options are declared and parsed: one table serves parsing, error messages and documentation.

Spark passes option names in lower case, so names are compared without case and shown as declared.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from millstream.common.close_match import close_match
from millstream.common.quantities import parse_duration, parse_size
from millstream.spark.errors import OptionError

Parse = Callable[[str, str], Any]
"""From an option's name and text to its value. Raises OptionError."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `use`: where it applies (batch, stream, both)."""

    name: str
    kind: str
    default: str
    use: str
    help: str
    parse: Parse


class OptionTable:
    """A set of options, found by name without case."""

    def __init__(self, options: Iterable[Option], page: str) -> None:
        """`page`: the page that lists the options."""
        self.options = tuple(options)
        self.page = page
        self._by_lower = {each.name.lower(): each for each in self.options}

    def find(self, name: str) -> Option:
        """The option of this name; OptionError names the nearest one."""
        if (found := self._by_lower.get(name.lower())) is not None:
            return found
        # A setting of Kafka's clients without its prefix is a common mistake.
        prefixed = self._by_lower.get(f"kafka.{name.lower()}")
        near = prefixed.name if prefixed is not None else close_match(name, [each.name for each in self.options])
        hint = f"did you mean {near!r}?" if near else f"{self.page} lists all options"
        raise OptionError(f"there is no option {name!r}; {hint}")

    def parse(self, given: Mapping[str, str]) -> dict[str, Any]:
        """The values of the given options, by their declared names."""
        found = {}
        for name, text in given.items():
            option = self.find(name)
            found[option.name] = option.parse(option.name, text)
        return found


def text(option: str, given: str) -> str:
    value = given.strip()
    if not value:
        raise OptionError(f"{option} is empty; give it a value, or leave it out")
    return value


def flag(option: str, given: str) -> bool:
    value = given.strip().lower()
    if value not in ("true", "false"):
        raise OptionError(f"{option}: {given.strip()!r} is neither true nor false")
    return value == "true"


def count(option: str, given: str) -> int:
    return _whole_number(option, given, least=1)


def count_or_zero(option: str, given: str) -> int:
    return _whole_number(option, given, least=0)


def _whole_number(option: str, given: str, least: int) -> int:
    try:
        value = int(given.strip())
    except ValueError:
        value = least - 1
    if value < least:
        raise OptionError(f"{option}: {given.strip()!r} is not a whole number of at least {least}")
    return value


def choice(*allowed: str) -> Parse:
    def parse(option: str, given: str) -> str:
        value = given.strip().lower()
        for each in allowed:
            if each.lower() == value:
                return each
        near = close_match(value, allowed)
        hint = f" (did you mean {near}?)" if near else ""
        raise OptionError(f"{option}: {given.strip()!r} is not known{hint}; use one of {', '.join(allowed)}")

    return parse


def names(option: str, given: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in given.split(",") if each.strip())
    if not found:
        raise OptionError(f"{option} is empty; give names, separated by commas")
    return found


def duration_s(option: str, given: str) -> float:
    """Durations as in Spark: 500ms, 30s, 15m, 2h; a number without a unit is milliseconds."""
    try:
        return parse_duration(given, unit="ms").total_seconds()
    except ValueError:
        raise OptionError(
            f"{option}: {given.strip()!r} is not a duration; write it as 500ms, 30s, 15m, 2h or 1d"
        ) from None


def size_bytes(option: str, given: str) -> int:
    """Sizes as in Spark: 1048576, 64m, 1g."""
    try:
        return parse_size(given)
    except ValueError:
        raise OptionError(f"{option}: {given.strip()!r} is not a size; write it as 1048576, 512k, 64m or 1g") from None


def size_or_zero(option: str, given: str) -> int:
    """The same; 0 turns something off."""
    return 0 if given.strip() == "0" else size_bytes(option, given)
