"""Finds where the columns of sinks come from, in Spark's analysed plans; for lineage.

Columns have ids in a plan. Those of a source are known where its DataFrame ends; from a column of a sink, the ids that
its expression refers to are followed down to these. Rows that are joined with themselves get new ids from Spark; such a
part of a plan is found again because it gives the same result. Python and stateful steps hide what they do, so each of
their columns comes from all columns that they read. Filters, join conditions and groupings are not followed.
"""

from typing import TYPE_CHECKING, Any

from millstream.pipeline.engine.decoding import value_columns
from millstream.pipeline.lineage import Columns, Origin
from millstream.pipeline.model import Latest, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.pipeline.engine.queries import BuiltQuery, Frames

_HIDING = ("TransformWithState", "FlatMapGroups", "MapIn", "MapPartitions", "FlatMapCoGroups")


def columns_of(pipeline: Pipeline, built: "list[BuiltQuery]") -> Columns:
    """The columns of all sources and sinks of queries that are built; classic sessions only."""
    sources: dict[str, list[tuple[str, str]]] = {}
    sinks: dict[str, list[tuple[str, str]]] = {}
    origins: dict[str, dict[str, list[Origin]]] = {}
    for query in built:
        frames = query.frames
        ends = _ends_of_sources(pipeline, frames)
        sources |= {name: _typed(rows) for name, rows in ends}
        plans = [(name, _analysed(rows)) for name, rows in ends]
        of_query = {each.of.name for each in query.plan.members or (query.plan,)}
        for sink in pipeline.sinks:
            rows = frames.built(sink.reads)
            if rows is None or sink.name not in of_query:
                continue
            sinks[sink.name] = _typed(rows)
            wanted = set(value_columns(rows))
            plan = _analysed(rows)
            known = _known(plan, plans)
            refers = _references(plan)
            origins[sink.name] = {
                str(attribute.name()): _found(_id(attribute), refers, known)
                for attribute in _each(plan.output())
                if str(attribute.name()) in wanted
            }
    return Columns(sources, sinks, origins)


def _ends_of_sources(pipeline: Pipeline, frames: "Frames") -> "list[tuple[str, DataFrame]]":
    """The rows of each source that a query reads. `latest` has the columns of its source."""
    latest = [(step.reads[0], step.name) for step in pipeline.steps if isinstance(step, Latest)]
    names = [(source.name, source.name) for source in pipeline.sources] + latest
    return [(source, rows) for source, part in names if (rows := frames.built(part)) is not None]


def _known(plan: Any, sources: list[tuple[str, Any]]) -> dict[int, Origin]:
    """The ids of the columns of sources, wherever the plan reads one."""
    found: dict[int, Origin] = {}
    for name, source in sources:
        found |= {_id(attribute): (name, str(attribute.name())) for attribute in _each(source.output())}
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        waiting.extend(_each(node.children()))
        for name, source in sources:
            if str(node.nodeName()) == str(source.nodeName()) and node.sameResult(source):
                for mine, theirs in zip(_each(node.output()), _each(source.output()), strict=True):
                    found.setdefault(_id(mine), (name, str(theirs.name())))
    return found


def _typed(rows: "DataFrame") -> list[tuple[str, str]]:
    names = set(value_columns(rows))
    return [(each.name, each.dataType.simpleString()) for each in rows.schema.fields if each.name in names]


def _analysed(rows: "DataFrame") -> Any:
    return rows._jdf.queryExecution().analyzed()


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())


def _references(plan: Any) -> dict[int, set[int]]:
    """For each column id of a plan, the ids that its expression refers to."""
    found: dict[int, set[int]] = {}
    defined: dict[int, Any] = {}
    uses = []
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        children = _each(node.children())
        name = str(node.nodeName())
        if name == "Union":
            for child in children:
                _follow(node, child, found)
        elif name == "CTERelationDef":
            defined[int(node.id())] = node
        elif name == "CTERelationRef":
            uses.append(node)
        elif name.startswith(_HIDING):
            read = {_id(attribute) for child in children for attribute in _each(child.output())}
            for attribute in _each(node.output()):
                found.setdefault(_id(attribute), set()).update(read)
        else:
            for expression in _each(node.expressions()):
                _take(expression, found)
            read = {_id(attribute) for attribute in _each(node.references().toSeq())}
            for attribute in _each(node.producedAttributes().toSeq()):  # of `explode`, and of grouping sets
                found.setdefault(_id(attribute), set()).update(read - {_id(attribute)})
        waiting.extend(children)
    for node in uses:
        _follow(node, defined[int(node.cteId())], found)
    return found


def _follow(node: Any, child: Any, found: dict[int, set[int]]) -> None:
    """The columns of a node are those of another, in the same order."""
    for mine, theirs in zip(_each(node.output()), _each(child.output()), strict=True):
        if _id(mine) != _id(theirs):
            found.setdefault(_id(mine), set()).add(_id(theirs))


def _take(expression: Any, found: dict[int, set[int]]) -> None:
    if str(expression.nodeName()) == "Alias":
        references = _each(expression.references().toSeq())
        found.setdefault(_id(expression), set()).update(_id(each) for each in references)


def _found(column: int, refers: dict[int, set[int]], known: dict[int, Origin]) -> list[Origin]:
    origins: dict[Origin, None] = {}
    seen: set[int] = set()
    waiting = [column]
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        if each in known:
            origins[known[each]] = None
        else:
            waiting.extend(refers.get(each, ()))
    return sorted(origins)
