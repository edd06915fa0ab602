"""A pipeline as a graph of boxes and arrows, and its layout: sources left, sinks right, dead letters at the bottom.

The layout is the usual layered one (Sugiyama): a column for each box, bends where an arrow crosses a column, and an
order within columns by the average of the neighbours. Rows have no unit: the SVG and the text output choose one.
Mermaid and the console make their own layout.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from millstream.common import mermaid
from millstream.pipeline.model import (
    REST_DEAD_LETTERS,
    Action,
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
    """topic, table, console, dead_letters, or the kind of a step; it determines shape and colour."""
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
    ids = {id(source): f"source:{source.name}" for source in pipeline.sources}
    ids |= {id(step): _step_id(step) for step in pipeline.steps}
    quarantines = []
    for part in pipeline.parts_with_expectations:
        if any(rule.action is Action.QUARANTINE for rule in part.expect):
            # No arrow begins at a sink: what it refuses comes from what it reads.
            quarantines.append(_giver(pipeline, part.reads) if isinstance(part, Sink) else ids[id(part)])
    return list(dict.fromkeys(sources + routes + quarantines))


def _giver(pipeline: Pipeline, name: str) -> str:
    step = next((step for step in pipeline.steps if name in step.gives), None)
    return f"source:{name}" if step is None else _step_id(step)


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
    """Relative to the file's directory, if it is below it."""
    if "://" in path:
        return path
    if Path(path).is_relative_to(directory):
        return str(Path(path).relative_to(directory))
    return "/".join(Path(path).parts[-2:])


_SWEEPS = 12


@dataclass(frozen=True, slots=True)
class ArrowPath:
    """An arrow and its points: two boxes, and bends between them."""

    arrow: Arrow
    points: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    columns: tuple[tuple[str, ...], ...]
    """Boxes and bends of each column, top to bottom."""
    column_of: dict[str, int]
    row_of: dict[str, float]
    routes: tuple[ArrowPath, ...]
    bends: frozenset[str]


def lay_out(graph: Graph) -> Layout:
    column_of = _columns(graph)
    routes, bends = _with_bends(graph, column_of)
    order = _ordered(graph, column_of, routes)
    row_of = _rows(order, routes, bends)
    return Layout(tuple(map(tuple, order)), column_of, row_of, tuple(routes), frozenset(bends))


def _columns(graph: Graph) -> dict[str, int]:
    """Each box is right of its inputs; sinks and dead letters are in the last column."""
    before: dict[str, list[str]] = defaultdict(list)
    for arrow in graph.arrows:
        before[arrow.end].append(arrow.begin)
    column_of: dict[str, int] = {}

    def column(box: str) -> int:
        if box not in column_of:
            column_of[box] = max((column(other) + 1 for other in before[box]), default=0)
        return column_of[box]

    for box in graph.boxes:
        column(box.id)
    last = max(column_of.values(), default=0)
    for box in graph.boxes:
        if box.id.startswith("sink:") or box.id == DEAD_LETTERS:
            column_of[box.id] = max(last, 1)
    # A step without inputs is placed next to its first use, for a shorter arrow.
    for box in graph.boxes:
        uses = [column_of[arrow.end] for arrow in graph.arrows if arrow.begin == box.id and arrow.end != DEAD_LETTERS]
        if box.id.startswith("step:") and not before[box.id] and uses:
            column_of[box.id] = min(uses) - 1
    return column_of


def _with_bends(graph: Graph, column_of: dict[str, int]) -> tuple[list[ArrowPath], list[str]]:
    routes: list[ArrowPath] = []
    bends: list[str] = []
    for index, arrow in enumerate(graph.arrows):
        between = []
        for column in range(column_of[arrow.begin] + 1, column_of[arrow.end]):
            # Arrows to the dead letters share their bends.
            bend = f"bend:{DEAD_LETTERS}:{column}" if arrow.end == DEAD_LETTERS else f"bend:{index}:{column}"
            if bend not in column_of:
                column_of[bend] = column
                bends.append(bend)
            between.append(bend)
        routes.append(ArrowPath(arrow, (arrow.begin, *between, arrow.end)))
    return routes, bends


def _ordered(graph: Graph, column_of: dict[str, int], routes: list[ArrowPath]) -> list[list[str]]:
    columns: list[list[str]] = [[] for _ in range(max(column_of.values(), default=0) + 1)]
    for name in [box.id for box in graph.boxes] + [name for name in column_of if name.startswith("bend:")]:
        columns[column_of[name]].append(name)
    left, right = _neighbours(routes)
    best, fewest = [list(column) for column in columns], _crossings(columns, routes)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        sides = left if forward else right
        indices = range(1, len(columns)) if forward else range(len(columns) - 2, -1, -1)
        for index in indices:
            beside = columns[index - 1 if forward else index + 1]
            place = {name: float(at) for at, name in enumerate(beside)}
            here = {name: float(at) for at, name in enumerate(columns[index])}
            columns[index].sort(key=lambda name: (_is_dead(name), _middle(sides[name], place, here[name])))
        crossings = _crossings(columns, routes)
        if crossings < fewest:
            best, fewest = [list(column) for column in columns], crossings
    for column in best:
        column.sort(key=_is_dead)
    return best


def _is_dead(name: str) -> bool:
    """Dead letters and the bends to them are always at the bottom."""
    return DEAD_LETTERS in name


def _middle(neighbours: list[str], place: dict[str, float], otherwise: float) -> float:
    known = [place[name] for name in neighbours if name in place]
    return sum(known) / len(known) if known else otherwise


def _neighbours(routes: list[ArrowPath]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    left: dict[str, list[str]] = defaultdict(list)
    right: dict[str, list[str]] = defaultdict(list)
    for route in routes:
        for begin, end in pairwise(route.points):
            left[end].append(begin)
            right[begin].append(end)
    return left, right


def _crossings(columns: list[list[str]], routes: list[ArrowPath]) -> int:
    place = {name: at for column in columns for at, name in enumerate(column)}
    column_of = {name: index for index, column in enumerate(columns) for name in column}
    pieces: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for route in routes:
        for begin, end in pairwise(route.points):
            pieces[column_of[begin]].add((place[begin], place[end]))
    return sum(
        1
        for between in pieces.values()
        for one in between
        for other in between
        if one[0] < other[0] and one[1] > other[1]
    )


def _rows(columns: list[list[str]], routes: list[ArrowPath], bends: list[str]) -> dict[str, float]:
    """Each box near the average of its neighbours, at least a row (bends: half a row) from the next."""
    left, right = _neighbours(routes)
    thin = set(bends)
    row_of = {name: float(at) for column in columns for at, name in enumerate(column)}
    for sweep in range(_SWEEPS):
        indices = range(len(columns)) if sweep % 2 == 0 else range(len(columns) - 1, -1, -1)
        for index in indices:
            sides = left if sweep % 2 == 0 else right
            wanted = [_middle(sides[name], row_of, row_of[name]) for name in columns[index]]
            for name, row in zip(columns[index], _apart(columns[index], wanted, thin), strict=True):
                row_of[name] = row
    top = min(row_of.values(), default=0.0)
    return {name: row - top for name, row in row_of.items()}


def _apart(column: list[str], wanted: list[float], thin: set[str]) -> list[float]:
    """Rows as close to `wanted` as the distances allow; neighbours that are too close move as a group."""
    gaps = [0.0]
    for pair in pairwise(column):
        gaps.append(gaps[-1] + (1.0, 0.75, 0.5)[sum(name in thin for name in pair)])
    groups: list[tuple[float, int]] = []
    for target, gap in zip(wanted, gaps, strict=True):
        mean, count = target - gap, 1
        while groups and groups[-1][0] > mean:
            other, members = groups.pop()
            mean, count = (mean * count + other * members) / (count + members), count + members
        groups.append((mean, count))
    means = [mean for mean, count in groups for _ in range(count)]
    return [mean + gap for mean, gap in zip(means, gaps, strict=True)]


def to_mermaid(graph: Graph) -> str:
    nodes = [mermaid.Node(box.id, box.kind, box.title, box.detail) for box in graph.boxes]
    edges = [mermaid.Edge(each.begin, each.end, each.label, each.end == DEAD_LETTERS) for each in graph.arrows]
    return mermaid.to_mermaid(nodes, edges)


def to_document(graph: Graph) -> dict[str, Any]:
    """Boxes and arrows as JSON; ids begin with `source:`, `step:` or `sink:`."""
    return {
        "boxes": [[box.id, box.kind, box.title, box.detail] for box in graph.boxes],
        "arrows": [[arrow.begin, arrow.end, arrow.label] for arrow in graph.arrows],
    }
