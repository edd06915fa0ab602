"""A YAML file as nodes with positions: sections with known keys, values of known types, durations and sizes.

A wrong value is reported to `Problems` and read as absent, so that the rest of the file is checked too. `${NAME}` and
`${NAME:-default}` in a text are replaced from the environment; `$${` is a plain `${`.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from millstream.common.quantities import parse_duration_ms, parse_size
from millstream.pipeline.model import Duration
from millstream.pipeline.problems import Position, Problems, nearest


def parse_duration(text: str) -> Duration:
    """ "5s", "90 seconds", "1h 30m". Raises ValueError."""
    return Duration(parse_duration_ms(text))


def parse_timestamp_ms(text: str) -> int:
    """An ISO 8601 date or time, in UTC unless it says otherwise, as milliseconds since 1970. Raises ValueError."""
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


_VARIABLE = re.compile(r"\$(\$\{)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"
_Choice = TypeVar("_Choice", bound=StrEnum)
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class LocatedText:
    """A text and its position in the file."""

    text: str
    position: Position


def position_of(node: Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


class Document:
    """The text of a file, its root node (None if there is none), and the collector of problems."""

    def __init__(self, text: str, problems: Problems, environment: Mapping[str, str] | None = None) -> None:
        self.text = text
        self.problems = problems
        self._environment = os.environ if environment is None else environment
        self._loader: Any = yaml.SafeLoader("")
        self.root: Node | None = None
        try:
            loader = yaml.SafeLoader(text)
            self.root = loader.get_single_node()
            self._loader = loader
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            position = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
            said = " ".join(part for part in (error.context, error.problem) if part)
            problems.error(position, f"this is not valid YAML: {said}{_yaml_advice(said)}")
        except yaml.reader.ReaderError as error:
            line = text[: error.position].count("\n") + 1
            problems.error(
                Position(line, 1),
                f"this is not valid YAML: the character #x{error.character:04x} is not allowed; remove it",
            )
        if self.root is not None and self._goes_round(self.root, ()):
            problems.error(position_of(self.root), "an alias (*name) contains itself; remove it")
            self.root = None

    def _goes_round(self, node: Node, above: tuple[int, ...]) -> bool:
        if id(node) in above:
            return True
        below = (*above, id(node))
        if isinstance(node, MappingNode):
            return any(self._goes_round(part, below) for pair in node.value for part in pair)
        return isinstance(node, SequenceNode) and any(self._goes_round(part, below) for part in node.value)

    def merged(self, node: MappingNode) -> None:
        """Merges the mappings that `<<` names."""
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            try:
                self._loader.flatten_mapping(node)
            except yaml.MarkedYAMLError as error:
                self.problems.error(position_of(node), f"`<<` must name a mapping: {error.problem}")

    def is_null(self, node: Node) -> bool:
        return isinstance(node, ScalarNode) and node.tag == _NULL

    def substituted(self, node: ScalarNode) -> str:
        def value(match: re.Match[str]) -> str:
            if match[1]:
                return "${"
            found = self._environment.get(match[2])
            if found:
                return found
            if match[3] is not None:
                return match[3]
            self.problems.error(
                self.position_in(node, "${" + match[2]),
                f"the environment variable {match[2]} is not set; set it, or write ${{{match[2]}:-default}}",
            )
            return match[2]

        return _VARIABLE.sub(value, str(node.value))

    def position_in(self, node: ScalarNode, wanted: str, occurrence: int = 0) -> Position:
        """The position of `wanted` inside a scalar of any style; the position of the scalar if it is not found."""
        begin, end = node.start_mark.index, node.end_mark.index
        pattern = re.escape(wanted)
        if wanted[:1].isidentifier():
            pattern = rf"(?<![A-Za-z0-9_]){pattern}(?![A-Za-z0-9_])"
        for count, match in enumerate(re.finditer(pattern, self.text[begin:end], re.IGNORECASE)):
            if count == occurrence:
                before = self.text[: begin + match.start()]
                return Position(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
        return position_of(node)

    def plain(self, node: Node) -> Any:
        """A value as a Python object, for values that are passed on unchanged."""
        if isinstance(node, ScalarNode):
            if node.tag == "tag:yaml.org,2002:str":
                return self.substituted(node)
            try:
                return self._loader.construct_object(node, deep=True)
            except (yaml.MarkedYAMLError, ValueError):
                self.problems.error(position_of(node), f"{node.value!r} with the tag {node.tag} cannot be read")
                return None
        if isinstance(node, SequenceNode):
            return [self.plain(part) for part in node.value]
        assert isinstance(node, MappingNode)
        self.merged(node)
        return {str(key.value): self.plain(value) for key, value in node.value}


def _yaml_advice(said: str) -> str:
    if "mapping values are not allowed" in said:
        return "; put a text with `: ` in quotes, or write it on the next line after `|`"
    if "cannot start any token" in said:
        return "; indent with spaces, and put a text that begins with a special character in quotes"
    return ""


def describe(node: Node) -> str:
    """The kind of a value, for messages."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    return "empty" if node.tag == _NULL else repr(node.value)


class Section:
    """A mapping with known keys. `what`: its name in messages."""

    def __init__(self, document: Document, node: Node | None, what: str, known: Sequence[str]) -> None:
        self.document = document
        self.problems = document.problems
        self.what = what
        self.known = tuple(known)
        self.values: dict[str, Node] = {}
        self.positions: dict[str, Position] = {}
        self.has_unknown = False
        self.is_mapping = isinstance(node, MappingNode)
        self.position = position_of(node) if node is not None else Position(1, 1)
        if node is None or document.is_null(node):
            return
        if not isinstance(node, MappingNode):
            self.problems.error(
                self.position, f"{what} must be a mapping of {', '.join(known)}; this is {describe(node)}"
            )
            return
        for key, value in entries(document, node):
            name = str(key.value)
            if name not in self.known:
                self.has_unknown = True
                self.problems.error(
                    position_of(key), f"{what} has no key {name!r}; {nearest(name, self.known, noun='its keys are')}"
                )
                continue
            self.values[name] = value
            self.positions[name] = position_of(key)

    @property
    def line(self) -> int:
        return self.position.line

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def position_of_key(self, key: str) -> Position:
        return self.positions.get(key, self.position)

    def position_of_value(self, key: str) -> Position:
        node = self.values.get(key)
        return position_of(node) if node is not None else self.position

    def missing(self, key: str, hint: str = "") -> None:
        self.problems.error(self.position, f"{self.what} needs `{key}`{hint}")

    def scalar(self, key: str) -> ScalarNode | None:
        """The node of a single value; None (and a problem) if it is a list or a mapping."""
        node = self.values.get(key)
        if node is None or self.document.is_null(node):
            return None
        if isinstance(node, ScalarNode):
            return node
        self.problems.error(
            position_of(node), f"`{key}` of {self.what} must be a single value; this is {describe(node)}"
        )
        return None

    def text(self, key: str) -> str | None:
        node = self.scalar(key)
        return None if node is None else self.document.substituted(node).strip()

    def required_text(self, key: str, hint: str = "") -> str:
        if key not in self.values:
            self.missing(key, hint)
            return ""
        value = self.text(key)
        if value == "" or (value is None and self.document.is_null(self.values[key])):
            self.problems.error(self.position_of_key(key), f"`{key}` of {self.what} is empty{hint}")
        return value or ""

    def _parsed(self, key: str, parse: Callable[[str], _Value]) -> _Value | None:
        text = self.text(key)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            self.problems.error(self.position_of_value(key), f"`{key}` of {self.what}: {error}")
            return None

    def duration(self, key: str, *, positive: bool = True) -> Duration | None:
        def parse(text: str) -> Duration:
            found = parse_duration(text)
            if positive and found.milliseconds == 0:
                raise ValueError("the duration must be longer than 0")
            return found

        return self._parsed(key, parse)

    def size(self, key: str) -> int | None:
        return self._parsed(key, parse_size)

    def count(self, key: str) -> int | None:
        def parse(text: str) -> int:
            digits = text.replace("_", "")
            if not digits.isascii() or not digits.isdigit() or int(digits) == 0:
                raise ValueError(f"{text!r} is not a whole number of at least 1")
            return int(digits)

        return self._parsed(key, parse)

    def flag(self, key: str) -> bool | None:
        def parse(text: str) -> bool:
            if text.lower() not in ("true", "false"):
                raise ValueError(f"{text!r} is neither true nor false")
            return text.lower() == "true"

        return self._parsed(key, parse)

    def choice(self, key: str, kind: type[_Choice], allowed: Sequence[_Choice] | None = None) -> _Choice | None:
        options = [str(option) for option in (allowed or list(kind))]

        def parse(text: str) -> _Choice:
            wanted = re.sub(r"[\s-]+", "_", text.lower())
            if wanted not in options:
                raise ValueError(f"{text!r} is not known; {nearest(wanted, options, noun='use one of')}")
            return kind(wanted)

        return self._parsed(key, parse)

    def section(self, key: str, what: str, known: Sequence[str]) -> "Section":
        return Section(self.document, self.values.get(key), what, known)

    def names(self, key: str) -> tuple[LocatedText, ...]:
        """One text or a list of texts, each with its position."""
        node = self.values.get(key)
        if node is None or self.document.is_null(node):
            return ()
        found: list[LocatedText] = []
        for part in node.value if isinstance(node, SequenceNode) else [node]:
            if not isinstance(part, ScalarNode) or self.document.is_null(part):
                self.problems.error(
                    position_of(part),
                    f"`{key}` of {self.what} must be one text or a list of texts; this is {describe(part)}",
                )
                continue
            found.append(LocatedText(self.document.substituted(part).strip(), position_of(part)))
        return tuple(found)

    def texts(self, key: str) -> dict[str, str]:
        """A mapping of texts, such as options; numbers and flags are kept as written."""
        node = self.values.get(key)
        if node is None or self.document.is_null(node):
            return {}
        if not isinstance(node, MappingNode):
            self.problems.error(
                position_of(node), f"`{key}` of {self.what} must be a mapping; this is {describe(node)}"
            )
            return {}
        found: dict[str, str] = {}
        for name, value in entries(self.document, node):
            if isinstance(value, ScalarNode):
                text = self.document.substituted(value)
                found[str(name.value)] = text.lower() if value.tag == _BOOL else text
            else:
                self.problems.error(
                    position_of(value), f"`{name.value}` in `{key}` must be a single value; this is {describe(value)}"
                )
        return found

    def arguments(self, key: str) -> dict[str, Any]:
        """A mapping with any YAML values, for arguments of a function."""
        node = self.values.get(key)
        if node is None or self.document.is_null(node):
            return {}
        if not isinstance(node, MappingNode):
            self.problems.error(
                position_of(node), f"`{key}` of {self.what} must be a mapping; this is {describe(node)}"
            )
            return {}
        for name, _ in entries(self.document, node):
            if not str(name.value).isidentifier():
                self.problems.error(
                    position_of(name), f"{name.value!r} in `{key}` is not a valid name of a Python parameter; rename it"
                )
        plain: dict[str, Any] = self.document.plain(node)
        return plain


def entries(document: Document, node: MappingNode) -> Iterator[tuple[ScalarNode, Node]]:
    """The pairs of a mapping with plain keys; a repeated key is reported."""
    seen: dict[str, Position] = {}
    for key, _ in node.value:
        if not isinstance(key, ScalarNode):
            document.problems.error(position_of(key), "a key must be a text")
            continue
        if key.value in seen:
            document.problems.error(
                position_of(key), f"{key.value!r} is here twice; the first is on line {seen[key.value].line}"
            )
        seen[key.value] = position_of(key)
    document.merged(node)
    last = {key.value: (key, value) for key, value in node.value if isinstance(key, ScalarNode)}
    yield from last.values()
