"""A YAML file as nodes that know their place: sections with known keys, and values of known types.

A value that is wrong is reported to `Problems` and read as absent, so that the rest of the file is looked at too.
`${NAME}` and `${NAME:-default}` in a text are taken from the environment; `$${` is a plain `${`.

Durations, sizes and points in time as people write them.
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
from millstream.pipeline.problems import Place, Problems, nearest


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
class Word:
    """A text and where it stands: what a reference is until it is known to be right."""

    text: str
    place: Place


def place_of(node: Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


class Document:
    """The text of a file, its root node (None when there is none), and where problems go."""

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
            place = Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)
            said = " ".join(part for part in (error.context, error.problem) if part)
            problems.error(place, f"this is not YAML: {said}{_yaml_advice(said)}")
        except yaml.reader.ReaderError as error:
            line = text[: error.position].count("\n") + 1
            problems.error(Place(line, 1), f"this is not YAML: the character #x{error.character:04x} is not allowed")
        if self.root is not None and self._goes_round(self.root, ()):
            problems.error(place_of(self.root), "an alias (*name) stands inside what it is an alias of")
            self.root = None

    def _goes_round(self, node: Node, above: tuple[int, ...]) -> bool:
        if id(node) in above:
            return True
        below = (*above, id(node))
        if isinstance(node, MappingNode):
            return any(self._goes_round(part, below) for pair in node.value for part in pair)
        return isinstance(node, SequenceNode) and any(self._goes_round(part, below) for part in node.value)

    def merged(self, node: MappingNode) -> None:
        """Bring in what `<<` names."""
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            try:
                self._loader.flatten_mapping(node)
            except yaml.MarkedYAMLError as error:
                self.problems.error(place_of(node), f"`<<` must name a mapping: {error.problem}")

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
                self.place_in(node, "${" + match[2]),
                f"the environment variable {match[2]} is not set; set it, or write ${{{match[2]}:-default}}",
            )
            return match[2]

        return _VARIABLE.sub(value, str(node.value))

    def place_in(self, node: ScalarNode, wanted: str, occurrence: int = 0) -> Place:
        """Where `wanted` is written inside a scalar, whatever its style; the scalar's own place if it is not found."""
        begin, end = node.start_mark.index, node.end_mark.index
        pattern = re.escape(wanted)
        if wanted[:1].isidentifier():
            pattern = rf"(?<![A-Za-z0-9_]){pattern}(?![A-Za-z0-9_])"
        for count, match in enumerate(re.finditer(pattern, self.text[begin:end], re.IGNORECASE)):
            if count == occurrence:
                before = self.text[: begin + match.start()]
                return Place(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
        return place_of(node)

    def plain(self, node: Node) -> Any:
        """A value as Python has it, for what is handed on as it is."""
        if isinstance(node, ScalarNode):
            if node.tag == "tag:yaml.org,2002:str":
                return self.substituted(node)
            try:
                return self._loader.construct_object(node, deep=True)
            except (yaml.MarkedYAMLError, ValueError):
                self.problems.error(place_of(node), f"{node.value!r} with the tag {node.tag} cannot be read")
                return None
        if isinstance(node, SequenceNode):
            return [self.plain(part) for part in node.value]
        assert isinstance(node, MappingNode)
        self.merged(node)
        return {str(key.value): self.plain(value) for key, value in node.value}


def _yaml_advice(said: str) -> str:
    if "mapping values are not allowed" in said:
        return "; a text with `: ` in it needs quotes, or a `|` and a line of its own"
    if "cannot start any token" in said:
        return "; indent with spaces, and put quotes around a text that begins with a special character"
    return ""


def describe(node: Node) -> str:
    """What a value is, for messages."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    return "empty" if node.tag == _NULL else repr(node.value)


class Section:
    """A mapping of the file of which the keys are known. `what` is how messages call it."""

    def __init__(self, document: Document, node: Node | None, what: str, known: Sequence[str]) -> None:
        self.document = document
        self.problems = document.problems
        self.what = what
        self.known = tuple(known)
        self.values: dict[str, Node] = {}
        self.places: dict[str, Place] = {}
        self.has_unknown = False
        self.is_mapping = isinstance(node, MappingNode)
        self.place = place_of(node) if node is not None else Place(1, 1)
        if node is None or document.is_null(node):
            return
        if not isinstance(node, MappingNode):
            self.problems.error(self.place, f"{what} must be a mapping of {', '.join(known)}; this is {describe(node)}")
            return
        for key, value in entries(document, node):
            name = str(key.value)
            if name not in self.known:
                self.has_unknown = True
                self.problems.error(
                    place_of(key), f"{what} has no key {name!r}; {nearest(name, self.known, noun='its keys are')}"
                )
                continue
            self.values[name] = value
            self.places[name] = place_of(key)

    @property
    def line(self) -> int:
        return self.place.line

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def place_of_key(self, key: str) -> Place:
        return self.places.get(key, self.place)

    def place_of_value(self, key: str) -> Place:
        node = self.values.get(key)
        return place_of(node) if node is not None else self.place

    def missing(self, key: str, hint: str = "") -> None:
        self.problems.error(self.place, f"{self.what} needs `{key}`{hint}")

    def scalar(self, key: str) -> ScalarNode | None:
        """The node of a single value; None (after a word about it) if it is a list or a mapping."""
        node = self.values.get(key)
        if node is None or self.document.is_null(node):
            return None
        if isinstance(node, ScalarNode):
            return node
        self.problems.error(place_of(node), f"`{key}` of {self.what} must be a single value; this is {describe(node)}")
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
            self.problems.error(self.place_of_key(key), f"`{key}` of {self.what} is empty{hint}")
        return value or ""

    def _parsed(self, key: str, parse: Callable[[str], _Value]) -> _Value | None:
        text = self.text(key)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            self.problems.error(self.place_of_value(key), f"`{key}` of {self.what}: {error}")
            return None

    def duration(self, key: str, *, positive: bool = True) -> Duration | None:
        def parse(text: str) -> Duration:
            found = parse_duration(text)
            if positive and found.milliseconds == 0:
                raise ValueError("must be longer than nothing")
            return found

        return self._parsed(key, parse)

    def size(self, key: str) -> int | None:
        return self._parsed(key, parse_size)

    def count(self, key: str) -> int | None:
        def parse(text: str) -> int:
            digits = text.replace("_", "")
            if not digits.isascii() or not digits.isdigit() or int(digits) == 0:
                raise ValueError(f"{text!r} is not a number from 1 on")
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
                raise ValueError(f"{text!r} is not known; {nearest(wanted, options, noun='use')}")
            return kind(wanted)

        return self._parsed(key, parse)

    def section(self, key: str, what: str, known: Sequence[str]) -> "Section":
        return Section(self.document, self.values.get(key), what, known)

    def names(self, key: str) -> tuple[Word, ...]:
        """One text or a list of them, each with its place."""
        node = self.values.get(key)
        if node is None or self.document.is_null(node):
            return ()
        found: list[Word] = []
        for part in node.value if isinstance(node, SequenceNode) else [node]:
            if not isinstance(part, ScalarNode) or self.document.is_null(part):
                self.problems.error(
                    place_of(part),
                    f"`{key}` of {self.what} must be one text or a list of texts; this is {describe(part)}",
                )
                continue
            found.append(Word(self.document.substituted(part).strip(), place_of(part)))
        return tuple(found)

    def texts(self, key: str) -> dict[str, str]:
        """A mapping of texts, such as options: numbers and flags are taken as they are written."""
        node = self.values.get(key)
        if node is None or self.document.is_null(node):
            return {}
        if not isinstance(node, MappingNode):
            self.problems.error(place_of(node), f"`{key}` of {self.what} must be a mapping; this is {describe(node)}")
            return {}
        found: dict[str, str] = {}
        for name, value in entries(self.document, node):
            if isinstance(value, ScalarNode):
                text = self.document.substituted(value)
                found[str(name.value)] = text.lower() if value.tag == _BOOL else text
            else:
                self.problems.error(
                    place_of(value), f"`{name.value}` in `{key}` must be a single value; this is {describe(value)}"
                )
        return found

    def arguments(self, key: str) -> dict[str, Any]:
        """A mapping of whatever YAML can say."""
        node = self.values.get(key)
        if node is None or self.document.is_null(node):
            return {}
        if not isinstance(node, MappingNode):
            self.problems.error(place_of(node), f"`{key}` of {self.what} must be a mapping; this is {describe(node)}")
            return {}
        for name, _ in entries(self.document, node):
            if not str(name.value).isidentifier():
                self.problems.error(
                    place_of(name), f"{name.value!r} in `{key}` cannot be a parameter of a Python function"
                )
        plain: dict[str, Any] = self.document.plain(node)
        return plain


def entries(document: Document, node: MappingNode) -> Iterator[tuple[ScalarNode, Node]]:
    """The pairs of a mapping with plain keys; a key that stands twice is reported."""
    seen: dict[str, Place] = {}
    for key, _ in node.value:
        if not isinstance(key, ScalarNode):
            document.problems.error(place_of(key), "a key must be a plain text")
            continue
        if key.value in seen:
            document.problems.error(
                place_of(key), f"{key.value!r} stands here twice; the first is on line {seen[key.value].line}"
            )
        seen[key.value] = place_of(key)
    document.merged(node)
    last = {key.value: (key, value) for key, value in node.value if isinstance(key, ScalarNode)}
    yield from last.values()
