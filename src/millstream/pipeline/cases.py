"""Tests of a pipeline as a file: sample rows for its sources, and the rows that its sinks must get.

    pipeline.yaml  ->  pipeline.test.yaml, beside it

Pure: reads and checks the file. `engine/trial.py` runs a case, `row_diff.py` compares rows.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

from yaml.nodes import MappingNode, Node, SequenceNode

from millstream.pipeline.document import Document, Section, describe, position_of
from millstream.pipeline.model import Latest, Pipeline, TableSource, TopicSource
from millstream.pipeline.parts import named_parts
from millstream.pipeline.problems import InvalidPipelineError, Position, Problems, nearest
from millstream.pipeline.row_diff import Row
from millstream.schemas.ddl import DdlError, parse_columns

DEAD_LETTERS = "dead_letters"
"""The name of the dead letters among the expected outputs."""
RECORD_COLUMNS = ("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ .-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test: the batches of each source, and the rows of each sink that is checked."""

    name: str
    line: int
    batches: Mapping[str, tuple[tuple[Row, ...], ...]] = field(default_factory=dict)
    expected: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    """The lines of the expected outputs."""
    schemas: Mapping[str, str] = field(default_factory=dict)
    """Columns of sources whose schema is in the registry."""


def tests_beside(pipeline_file: Path) -> Path:
    return pipeline_file.with_name(f"{pipeline_file.stem}.test.yaml")


def load_cases(file: Path, pipeline: Pipeline) -> list[Case]:
    """Raises InvalidPipelineError with every mistake, or OSError when the file cannot be read."""
    problems = Problems()
    document = Document(file.read_text(encoding="utf-8"), problems)
    found: list[Case] = []
    if document.root is None and not problems.has_errors:
        problems.error(Position(1, 1), "the file is empty; write `tests:` with the name of a test")
    elif document.root is not None:
        top = Section(document, document.root, "the tests", ("tests",))
        if top.is_mapping and "tests" not in top:
            top.missing("tests", ": a mapping from names to {inputs: …, expect: …}")
        for name, node in named_parts(document, top.values.get("tests"), "test", _NAME):
            found.append(_Reader(document, pipeline).case(name.text, name.position, node))
    if problems.has_errors:
        raise InvalidPipelineError(str(file), problems)
    return found


class _Reader:
    def __init__(self, document: Document, pipeline: Pipeline) -> None:
        self._document = document
        self._problems = document.problems
        self._pipeline = pipeline

    def case(self, name: str, position: Position, node: Node) -> Case:
        section = Section(self._document, node, f"test {name!r}", ("description", "inputs", "expect", "schemas"))
        for key in ("inputs", "expect"):
            if key not in section and section.is_mapping:
                section.missing(key)
        schemas = section.texts("schemas")
        sources = {source.name: source for source in self._pipeline.sources}
        batches: dict[str, tuple[tuple[Row, ...], ...]] = {}
        for source, rows in self._entries(section, "inputs", list(sources)):
            found = self._batches(rows)
            batches[source] = found
            self._check_columns(source, found, schemas, rows)
        sinks = [sink.name for sink in self._pipeline.sinks]
        expected, lines = {}, {}
        for sink, rows in self._entries(section, "expect", [*sinks, DEAD_LETTERS]):
            expected[sink] = self._rows(rows)
            lines[sink] = position_of(rows).line
        if "expect" in section and not expected:
            self._problems.error(section.position_of_key("expect"), f"`expect` of {section.what} names no sink")
        streams = {source.name for source in self._pipeline.sources if isinstance(source, TopicSource)}
        only_tables = {name for step in self._pipeline.steps if isinstance(step, Latest) for name in step.reads}
        if "inputs" in section and not (set(batches) & streams - only_tables) and not set(batches) & streams:
            self._problems.error(section.position_of_key("inputs"), f"`inputs` of {section.what} has no topic source")
        return Case(name=name, line=position.line, batches=batches, expected=expected, lines=lines, schemas=schemas)

    def _entries(self, section: Section, key: str, known: list[str]) -> list[tuple[str, Node]]:
        node = section.values.get(key)
        if node is None or self._document.is_null(node):
            return []
        if not isinstance(node, MappingNode):
            self._problems.error(
                position_of(node), f"`{key}` of {section.what} must be a mapping to rows; this is {describe(node)}"
            )
            return []
        found = []
        for name, value in node.value:
            if name.value not in known:
                what = "source" if key == "inputs" else "sink"
                self._problems.error(
                    position_of(name),
                    f"`{key}` of {section.what} has {name.value!r}, which is no {what}; "
                    f"{nearest(str(name.value), known, noun='there are')}",
                )
                continue
            found.append((str(name.value), value))
        return found

    def _batches(self, node: Node) -> tuple[tuple[Row, ...], ...]:
        """A list of rows is one batch; a list of lists is several."""
        if isinstance(node, SequenceNode) and node.value and all(isinstance(each, SequenceNode) for each in node.value):
            return tuple(self._rows(each) for each in node.value)
        return (self._rows(node),)

    def _rows(self, node: Node) -> tuple[Row, ...]:
        if not isinstance(node, SequenceNode):
            self._problems.error(position_of(node), f"rows must be a list of mappings; this is {describe(node)}")
            return ()
        found = []
        for each in node.value:
            if not isinstance(each, MappingNode):
                self._problems.error(position_of(each), f"a row must be a mapping of columns; this is {describe(each)}")
                continue
            found.append(plain(self._document.plain(each)))
        return tuple(found)

    def _check_columns(
        self, source: str, batches: tuple[tuple[Row, ...], ...], schemas: Mapping[str, str], node: Node
    ) -> None:
        part = next(each for each in self._pipeline.sources if each.name == source)
        ddl = schemas.get(source) or part.schema
        if ddl is None:
            if isinstance(part, TableSource) or part.format in ("raw", "string"):
                return
            self._problems.error(
                position_of(node),
                f"the columns of source {source!r} are in the registry; add them to the test: "
                f"`schemas: {{{source}: id STRING, …}}`",
            )
            return
        try:
            known = [column.name for column in parse_columns(ddl)] + list(RECORD_COLUMNS)
        except DdlError as error:
            self._problems.error(position_of(node), f"`schemas` of {source!r}: {error}")
            return
        for row in (row for batch in batches for row in batch):
            for column in row:
                if column.lower() not in {each.lower() for each in known}:
                    self._problems.error(
                        position_of(node),
                        f"source {source!r} has no column {column!r}; {nearest(column, known, noun='it has')}",
                    )


def plain(value: Any) -> Any:
    """YAML's dates and times as the text that JSON has."""
    if isinstance(value, datetime):
        text = value.isoformat()
        return text if value.tzinfo else f"{text}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value
