"""Reads a pipeline's file into the model: `load` to run it, `inspect` to get all its problems."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from yaml.nodes import MappingNode, ScalarNode

from millstream.pipeline.document import Document, LocatedText, Section, position_of
from millstream.pipeline.functions import check_functions
from millstream.pipeline.model import (
    REST_DEAD_LETTERS,
    BadRecords,
    DeadLetters,
    Format,
    Latency,
    Lineage,
    OutputMode,
    Pipeline,
    Registry,
    Route,
    Sql,
    TopicSink,
    TopicSource,
    Trigger,
    TriggerKind,
)
from millstream.pipeline.parts import TOPIC_NAME, read_path, read_topic, read_trigger
from millstream.pipeline.problems import InvalidPipelineError, Position, Problems
from millstream.pipeline.sinks import read_sinks
from millstream.pipeline.sources import read_sources
from millstream.pipeline.steps import read_steps
from millstream.pipeline.wiring import wire

_KEYS = (
    "name",
    "description",
    "bootstrap",
    "connection",
    "registry",
    "spark",
    "trigger",
    "checkpoint",
    "dead_letters",
    "share_reads",
    "lineage",
    "latency",
    "sources",
    "steps",
    "sinks",
)
_PIPELINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:,/]+):\d{1,5}")


@dataclass(frozen=True, slots=True)
class Inspected:
    """A file, its pipeline and its problems."""

    file: str
    text: str
    problems: Problems
    pipeline: Pipeline | None
    """None if there are errors; warnings do not count."""


def load(path: str | Path, environment: Mapping[str, str] | None = None) -> Pipeline:
    """Read a pipeline. Raises InvalidPipelineError with every mistake, or OSError when the file cannot be read."""
    found = inspect(path, environment)
    if found.pipeline is None:
        raise InvalidPipelineError(found.file, found.problems)
    return found.pipeline


def inspect(path: str | Path, environment: Mapping[str, str] | None = None) -> Inspected:
    """Read a pipeline as far as possible, and collect its problems."""
    file = Path(path)
    problems = Problems()
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        problems.error(Position(1, 1), f"the file is not UTF-8 text: {error.reason} at byte {error.start}")
        return Inspected(str(path), "", problems, None)
    pipeline = _read(file, Document(text, problems, environment))
    return Inspected(str(path), text, problems, None if problems.has_errors else pipeline)


def _read(file: Path, document: Document) -> Pipeline | None:
    problems = document.problems
    if document.root is None:
        if not problems.has_errors:
            problems.error(Position(1, 1), "the file is empty; `millstream pipeline init` writes an example")
        return None
    if not isinstance(document.root, MappingNode):
        problems.error(
            position_of(document.root), "a pipeline is a mapping with the keys name, sources, steps and sinks"
        )
        return None
    top = Section(document, document.root, "the pipeline", _KEYS)
    name = _read_name(top)
    registry = _read_registry(top)
    directory = file.absolute().parent
    sources = read_sources(document, top.values.get("sources"), directory, has_registry=registry is not None)
    steps = read_steps(document, top.values.get("steps"))
    sinks = read_sinks(document, top.values.get("sinks"), directory, has_registry=registry is not None)
    for key, found in (("sources", sources), ("sinks", sinks)):
        if key not in top:
            top.missing(key)
        elif not found and document.is_null(top.values[key]):
            problems.error(top.position_of_key(key), f"`{key}` is empty; add at least one")
    wired = wire(sources, steps, sinks, problems)
    pipeline = Pipeline(
        name=name,
        file=str(file.absolute()),
        description=top.text("description") or "",
        bootstrap=_read_bootstrap(top),
        connection=top.texts("connection"),
        registry=registry,
        spark=top.texts("spark"),
        trigger=read_trigger(top) or Trigger(),
        checkpoint=_read_checkpoint(top, directory),
        dead_letters=_read_dead_letters(top, name),
        latency=top.choice("latency", Latency) or Latency.STANDARD,
        lineage=_read_lineage(top, directory),
        share_reads=top.flag("share_reads") is not False,
        sources=tuple(source.part for source in sources),
        steps=tuple(wired.steps),
        sinks=tuple(wired.sinks),
    )
    check_functions(steps, directory, problems)
    if pipeline.is_realtime:
        check_realtime(pipeline, top.position_of_value("latency"), problems)
    return pipeline


def _read_name(top: Section) -> str:
    name = top.required_text("name", ": checkpoints, queries and groups are named after it")
    if name and not _PIPELINE_NAME.fullmatch(name):
        top.problems.error(
            top.position_of_value("name"),
            f"{name!r} is not a valid name of a pipeline: use at most 100 letters, digits, `.`, `_` and `-`, a letter "
            f"or digit first",
        )
    return name


def _read_bootstrap(top: Section) -> str:
    node = top.scalar("bootstrap")
    if node is None:
        return "localhost:9092"
    text = top.document.substituted(node).strip()
    for address in text.split(","):
        if not _ADDRESS.fullmatch(address.strip()):
            top.problems.error(
                position_of(node), f"`bootstrap` has {address!r}; write HOST:PORT, several separated by commas"
            )
    return text


def _read_registry(top: Section) -> Registry | None:
    node = top.values.get("registry")
    if node is None or top.document.is_null(node):
        return None
    line = top.position_of_key("registry").line
    if isinstance(node, ScalarNode):
        return Registry(url=_checked_url(top, "registry"), line=line)
    inner = top.section("registry", "the registry", ("url", "username", "password"))
    if "url" not in inner:
        inner.missing("url", ", for example http://localhost:8081")
    return Registry(
        url=_checked_url(inner, "url"),
        username=inner.text("username"),
        password=inner.text("password"),
        line=line,
    )


def _read_lineage(top: Section, directory: Path) -> Lineage | None:
    if "lineage" not in top:
        return None
    inner = top.section("lineage", "the lineage", ("file", "url", "api_key", "namespace"))
    url = _checked_url(inner, "url", "an endpoint for lineage") or None
    if inner.is_mapping and "file" not in inner and url is None:
        inner.missing("file", " or `url`: where OpenLineage events go")
    if url is not None and not urlsplit(url).path.strip("/"):
        url = f"{url}/api/v1/lineage"
    return Lineage(
        file=read_path(inner, "file", directory) if "file" in inner else None,
        url=url,
        api_key=inner.text("api_key"),
        namespace=inner.text("namespace") or "default",
    )


def _checked_url(section: Section, key: str, what: str = "a registry") -> str:
    url = section.text(key) or ""
    if url and not re.match(r"https?://[^\s/]+", url):
        section.problems.error(
            section.position_of_value(key), f"{url!r} is not the address of {what}; write http://HOST:PORT"
        )
    return url.rstrip("/")


def _read_checkpoint(top: Section, directory: Path) -> str | None:
    text = top.text("checkpoint")
    if text is None:
        return None
    return text if "://" in text else str((directory / Path(text).expanduser()).absolute())


def _read_dead_letters(top: Section, name: str) -> DeadLetters:
    topic = top.text("dead_letters")
    if topic is None:
        return DeadLetters(topic=f"{name}.dead-letters", line=0)
    position = top.position_of_value("dead_letters")
    if TOPIC_NAME.fullmatch(topic) is None:
        read_topic(top, LocatedText(topic, position))
    return DeadLetters(topic=topic, line=position.line)


# `latency: realtime`: steps without state, and formats that Spark decodes by itself


_REALTIME_FORMATS = (Format.RAW, Format.STRING, Format.JSON)
_REALTIME_KEY_FORMATS = (Format.RAW, Format.STRING)


def check_realtime(pipeline: Pipeline, position: Position, problems: Problems) -> None:
    def error(line: int, text: str) -> None:
        problems.error(Position(line, 1), f"latency: realtime: {text}")

    problems.warning(position, "`latency: realtime` writes at least once; for exactly once remove it")
    if pipeline.trigger.kind is not TriggerKind.AS_SOON_AS_POSSIBLE:
        error(pipeline.trigger.line, "remove `trigger`; records are processed when they arrive")
    for source in pipeline.sources:
        if not isinstance(source, TopicSource):
            error(source.line, f"source {source.name!r} is a table; tables cannot be joined here")
            continue
        if source.format not in _REALTIME_FORMATS or (source.format is Format.JSON and source.schema is None):
            error(source.line, f"source {source.name!r} must be raw, string, or json with a `schema`")
        if source.key_format not in _REALTIME_KEY_FORMATS:
            error(source.line, f"`key_format` of source {source.name!r} must be raw or string")
        if source.format is Format.JSON and source.bad_records is BadRecords.DEAD_LETTERS:
            error(source.line, f"source {source.name!r} needs `bad_records: drop` or keep; there are no dead letters")
    for step in pipeline.steps:
        if isinstance(step, Route) and step.rest == REST_DEAD_LETTERS:
            error(step.line, f"route {step.name!r} needs `rest: drop`, or the name of a branch")
        elif not isinstance(step, Sql | Route):
            error(step.line, f"{step.kind} step {step.name!r} is not possible; use sql without state, and route")
    for sink in pipeline.sinks:
        if not isinstance(sink, TopicSink) or sink.format not in _REALTIME_FORMATS:
            error(sink.line, f"sink {sink.name!r} must be a topic with format raw, string or json")
        if sink.trigger is not None or sink.mode is not OutputMode.APPEND:
            error(sink.line, f"remove `trigger` and `mode` of sink {sink.name!r}")
    for part in pipeline.parts_with_expectations:
        error(part.line, f"remove `expect` of {part.name!r}; rows are not counted by batch here")
