"""A pipeline as boxes and arrows: sources on the left, sinks on the right, dead letters below."""

from dataclasses import dataclass
from pathlib import Path

from millstream.pipeline.model import (
    REST_DEAD_LETTERS,
    BadRecords,
    ConsoleSink,
    Format,
    Join,
    Pipeline,
    Python,
    Route,
    Sink,
    Source,
    Stateful,
    Step,
    TableSink,
    TableSource,
    TopicSource,
    Window,
    WindowKind,
)

DEAD_LETTERS = "dead letters"


@dataclass(frozen=True, slots=True)
class Box:
    id: str
    kind: str
    """topic, table, console, dead_letters, or the kind of a step; chooses shape and colour."""
    title: str
    detail: str
    """A second line: the topic, the window's size."""
    line: int


@dataclass(frozen=True, slots=True)
class Arrow:
    begin: str
    end: str
    label: str = ""
    """The branch of a route."""


@dataclass(frozen=True, slots=True)
class Graph:
    name: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def graph_of(pipeline: Pipeline) -> Graph:
    directory = Path(pipeline.file).parent
    boxes = [_source_box(source, directory) for source in pipeline.sources]
    boxes += [Box(_step_id(step), step.kind, step.name, _step_detail(step), step.line) for step in pipeline.steps]
    boxes += [_sink_box(sink, directory) for sink in pipeline.sinks]
    givers: dict[str, tuple[str, str]] = {source.name: (f"source:{source.name}", "") for source in pipeline.sources}
    for step in pipeline.steps:
        for name in step.gives:
            givers[name] = (_step_id(step), name if isinstance(step, Route) else "")
    arrows = [
        Arrow(givers[name][0], _step_id(step), givers[name][1])
        for step in pipeline.steps
        for name in dict.fromkeys(step.reads)
    ]
    arrows += [Arrow(givers[sink.reads][0], f"sink:{sink.name}", givers[sink.reads][1]) for sink in pipeline.sinks]
    to_dead_letters = [Arrow(begin, DEAD_LETTERS) for begin in _writers_of_dead_letters(pipeline)]
    if to_dead_letters:
        boxes.append(
            Box(DEAD_LETTERS, "dead_letters", DEAD_LETTERS, pipeline.dead_letters.topic, pipeline.dead_letters.line)
        )
    return Graph(pipeline.name, tuple(boxes), (*arrows, *to_dead_letters))


def _writers_of_dead_letters(pipeline: Pipeline) -> list[str]:
    sources = [
        f"source:{source.name}"
        for source in pipeline.sources
        if isinstance(source, TopicSource)
        and source.bad_records is BadRecords.DEAD_LETTERS
        and source.format not in (Format.RAW, Format.STRING)
    ]
    routes = [_step_id(step) for step in pipeline.steps if isinstance(step, Route) and step.rest == REST_DEAD_LETTERS]
    return sources + routes


def _step_id(step: Step) -> str:
    return f"step:{step.name}"


def _source_box(source: Source, directory: Path) -> Box:
    if isinstance(source, TableSource):
        return Box(
            f"source:{source.name}",
            "table",
            source.name,
            f"{source.format} · {_short(source.path, directory)}",
            source.line,
        )
    topics = ", ".join(source.topics) or f"/{source.pattern}/"
    return Box(f"source:{source.name}", "topic", source.name, f"{source.format} · {topics}", source.line)


def _sink_box(sink: Sink, directory: Path) -> Box:
    if isinstance(sink, ConsoleSink):
        return Box(f"sink:{sink.name}", "console", sink.name, "console", sink.line)
    if isinstance(sink, TableSink):
        return Box(
            f"sink:{sink.name}", "table", sink.name, f"{sink.format} · {_short(sink.path, directory)}", sink.line
        )
    return Box(f"sink:{sink.name}", "topic", sink.name, f"{sink.format} · {sink.topic}", sink.line)


def _step_detail(step: Step) -> str:
    if isinstance(step, Window):
        what = "session, gap" if step.window is WindowKind.SESSION else str(step.window)
        return f"{what} {step.size}" + (f" every {step.slide}" if step.slide else "")
    if isinstance(step, Join):
        apart = ""
        if step.within is not None:
            low, high = step.within.before, step.within.after
            apart = f" within {high}" if low == high else f" -{low} … +{high}"
        return f"{step.type} join{apart}"
    if isinstance(step, Python):
        return step.function
    if isinstance(step, Stateful):
        return step.processor
    return step.kind


def _short(path: str, directory: Path) -> str:
    """As the file says it, if it is below the file's directory."""
    if "://" in path:
        return path
    if Path(path).is_relative_to(directory):
        return str(Path(path).relative_to(directory))
    return "/".join(Path(path).parts[-2:])
