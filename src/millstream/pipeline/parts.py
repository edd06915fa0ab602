"""Reading of names, references, watermarks, triggers, schemas and paths, shared by sources, steps and sinks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from yaml.nodes import MappingNode, Node, ScalarNode

from millstream.pipeline.document import Document, LocatedText, Section, describe, entries, parse_duration, position_of
from millstream.pipeline.model import (
    Action,
    Column,
    Duration,
    Expectation,
    Sink,
    Source,
    Step,
    Trigger,
    TriggerKind,
    Watermark,
)
from millstream.pipeline.problems import Position, nearest
from millstream.pipeline.sql_names import SqlError, check_expression, plain_column
from millstream.schemas.ddl import DdlColumn, DdlError, parse_columns

TABLE_NAME = re.compile(r"[a-z_][a-z0-9_]*")
SINK_NAME = re.compile(r"[a-z_][a-z0-9_-]*")
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

_Part = TypeVar("_Part", Source, Step, Sink, covariant=True)


@dataclass(frozen=True, slots=True)
class ParsedPart(Generic[_Part]):
    """A source, step or sink as read, with positions; its references are checked later."""

    part: _Part
    position: Position
    refers_to: tuple[LocatedText, ...] = ()
    columns: tuple[DdlColumn, ...] | None = None
    """The columns of its schema, if it has one."""
    positions: tuple[tuple[str, Position], ...] = ()
    """Positions of values that are checked later, by key."""

    def position_for(self, what: str) -> Position:
        return dict(self.positions).get(what, self.position)


def named_parts(
    document: Document, node: Node | None, what: str, pattern: re.Pattern[str], *, section: str | None = None
) -> Iterator[tuple[LocatedText, Node]]:
    """The entries of `sources`, `steps`, `sinks`, or of another section: names and their nodes."""
    if node is None or document.is_null(node):
        return
    if not isinstance(node, MappingNode):
        document.problems.error(
            position_of(node),
            f"`{section or f'{what}s'}` must be a mapping from names to {what}s; this is {describe(node)}",
        )
        return
    for key, value in entries(document, node):
        name = str(key.value)
        if not pattern.fullmatch(name):
            document.problems.error(
                position_of(key), f"{name!r} is not a valid name of a {what}: {_name_advice(name, pattern)}"
            )
        yield LocatedText(name, position_of(key)), value


def _name_advice(name: str, pattern: re.Pattern[str]) -> str:
    allowed = "lower-case letters, digits and _" + ("" if pattern is TABLE_NAME else " and -")
    better = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    better = f"_{better}" if better[:1].isdigit() else better
    return f"use {allowed}, and no digit first" + (f"; for example {better!r}" if better and better != name else "")


def read_watermark(section: Section) -> Watermark | None:
    if "watermark" not in section:
        return None
    inner = section.section("watermark", f"the watermark of {section.what}", ("column", "delay"))
    column = inner.required_text("column", ": the column with the event time")
    if "delay" not in inner and isinstance(section.values["watermark"], MappingNode):
        inner.missing("delay", ": how late a row may come, for example 2 minutes")
    delay = inner.duration("delay", positive=False) or Duration(0)
    return Watermark(column=column, delay=delay, line=inner.line)


def read_expectations(section: Section) -> tuple[Expectation, ...]:
    """`expect`: a mapping from names to SQL conditions, or to {check: condition, action: …}."""
    found: list[Expectation] = []
    node = section.values.get("expect")
    for name, value in named_parts(section.document, node, "expectation", TABLE_NAME, section="expect"):
        what = f"expectation {name.text!r} of {section.what}"
        action: Action | None = None
        if isinstance(value, MappingNode):
            inner = Section(section.document, value, what, ("check", "action"))
            inner.position = name.position
            condition = inner.required_text("check", ": a SQL condition that is true for good rows")
            position = inner.position_of_value("check")
            action = inner.choice("action", Action)
        elif isinstance(value, ScalarNode) and not section.document.is_null(value):
            condition, position = section.document.substituted(value).strip(), position_of(value)
        else:
            section.problems.error(
                name.position,
                f"{what} must be a SQL condition, or {{check: CONDITION, action: warn}}; this is {describe(value)}",
            )
            continue
        if condition:
            check_sql(section, "expect", LocatedText(condition, position))
            found.append(
                Expectation(name=name.text, condition=condition, action=action or Action.WARN, line=name.position.line)
            )
    return tuple(found)


def read_trigger(section: Section) -> Trigger | None:
    text = section.text("trigger")
    if text is None:
        return None
    line = section.position_of_key("trigger").line
    words = text.lower().replace("_", " ").split(maxsplit=1) or [""]
    if words[0] == "every" and len(words) == 2:
        try:
            every = parse_duration(words[1])
        except ValueError as error:
            section.problems.error(section.position_of_value("trigger"), f"`trigger`: {error}")
            every = Duration(0)
        return Trigger(kind=TriggerKind.EVERY, every=every, line=line)
    known = {
        "available now": TriggerKind.AVAILABLE_NOW,
        "once": TriggerKind.AVAILABLE_NOW,
        "as soon as possible": TriggerKind.AS_SOON_AS_POSSIBLE,
    }
    found = known.get(" ".join(words))
    if found is None:
        advice = "write `every 5s`, `available now` or `as soon as possible`"
        section.problems.error(section.position_of_value("trigger"), f"`trigger` {text!r} is not known; {advice}")
        return None
    return Trigger(kind=found, line=line)


def read_schema(section: Section, key: str = "schema") -> tuple[str | None, tuple[DdlColumn, ...] | None]:
    """A schema as DDL, and its columns."""
    text = section.text(key)
    if text is None:
        return None, None
    try:
        columns = parse_columns(text)
    except DdlError as error:
        section.problems.error(section.position_of_value(key), f"`{key}` of {section.what}: {error}")
        return text, None
    names = [column.name.lower() for column in columns]  # Spark does not tell upper from lower case
    for index, column in enumerate(columns):
        if names[index] in names[:index]:
            message = f"`{key}` of {section.what}: the column {column.name!r} is there twice"
            section.problems.error(section.position_of_value(key), message)
            return text, None
    return text, columns


def read_topic(section: Section, word: LocatedText) -> str:
    if not TOPIC_NAME.fullmatch(word.text):
        section.problems.error(
            word.position,
            f"{word.text!r} is not a valid topic name: use at most 249 letters, digits, `.`, `_` and `-`",
        )
    return word.text


def read_path(section: Section, key: str, directory: Path) -> str:
    """A path relative to the pipeline's file, or a URI."""
    text = section.required_text(key)
    if not text or "://" in text or text.startswith("s3:"):
        return text
    return str((directory / Path(text).expanduser()).absolute())


def read_columns(section: Section, key: str, *, names_needed: bool) -> tuple[Column, ...]:
    """Named expressions: a mapping, or (unless names are needed) one column or a list of columns."""
    node = section.values.get(key)
    if node is None or section.document.is_null(node):
        return ()
    found: list[Column] = []
    if isinstance(node, MappingNode):
        for name, value in entries(section.document, node):
            if not isinstance(value, ScalarNode) or section.document.is_null(value):
                section.problems.error(
                    position_of(value), f"{name.value!r} in `{key}` must be a SQL expression; this is {describe(value)}"
                )
                continue
            expression = section.document.substituted(value).strip()
            check_sql(section, key, LocatedText(expression, position_of(value)), value)
            found.append(Column(name=str(name.value), expression=expression, line=position_of(name).line))
        return tuple(found)
    if names_needed:
        section.problems.error(
            position_of(node), f"`{key}` of {section.what} must be a mapping from names to SQL expressions"
        )
        return ()
    for word in section.names(key):
        column = plain_column(word.text)
        if column is None:
            section.problems.error(
                word.position,
                f"{word.text!r} in `{key}` is not a column; give the expression a name: `{key}: {{name: {word.text}}}`",
            )
            continue
        found.append(Column(name=column, expression=word.text, line=word.position.line))
    return tuple(found)


def check_sql(section: Section, key: str, word: LocatedText, node: Node | None = None) -> None:
    try:
        check_expression(word.text)
    except SqlError as error:
        section.problems.error(word.position, f"`{key}` of {section.what}: {error} (in {word.text!r})")


def read_key_columns(section: Section, key: str) -> tuple[str, ...]:
    """Columns by name, one or a list."""
    columns = []
    for word in section.names(key):
        column = plain_column(word.text)
        if column is None:
            section.problems.error(
                word.position, f"{word.text!r} in `{key}` of {section.what} is not the name of a column"
            )
        else:
            columns.append(column)
    return tuple(columns)


def one_kind(section: Section, kinds: tuple[str, ...], what: str) -> str | None:
    """The key that gives the kind of a part; exactly one must be present."""
    present = [kind for kind in kinds if kind in section]
    if len(present) == 1:
        return present[0]
    if not present:
        if section.is_mapping and not section.has_unknown:  # an unknown key may be a misspelt kind
            section.problems.error(section.position, f"{section.what} has no kind; add one of {', '.join(kinds)}")
        return None
    section.problems.error(
        section.position_of_key(present[1]),
        f"{section.what} has two kinds, {' and '.join(present)}; make two {what}s of it",
    )
    return None


def unknown_reference(name: str, known: list[str]) -> str:
    return f"there is no source, step or branch {name!r}; {nearest(name, known, noun='there are')}"
