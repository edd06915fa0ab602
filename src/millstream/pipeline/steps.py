"""Reads `steps` of a pipeline's file into the model, with a function for each kind."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from yaml.nodes import MappingNode, Node, ScalarNode

from millstream.pipeline.document import Document, LocatedText, Section, describe, position_of
from millstream.pipeline.model import (
    REST_DEAD_LETTERS,
    REST_DROP,
    Branch,
    Dedup,
    Duration,
    Join,
    JoinKey,
    JoinType,
    Latest,
    OutputMode,
    Python,
    Route,
    Sql,
    Stateful,
    Step,
    TimeBound,
    TimeMode,
    Watermark,
    Window,
    WindowKind,
)
from millstream.pipeline.parts import (
    TABLE_NAME,
    ParsedPart,
    check_sql,
    named_parts,
    one_kind,
    read_columns,
    read_expectations,
    read_key_columns,
    read_schema,
    read_watermark,
)
from millstream.pipeline.problems import Position
from millstream.pipeline.sql_names import SqlError, plain_column, tables_read

_DEFAULT_REFRESH = Duration(60_000)


def read_steps(document: Document, node: Node | None) -> list[ParsedPart[Step]]:
    found: list[ParsedPart[Step]] = []
    for name, value in named_parts(document, node, "step", TABLE_NAME):
        outer = Section(document, value, f"step {name.text!r}", (*_READERS, "watermark", "expect"))
        outer.position = name.position
        kind = one_kind(outer, tuple(_READERS), "step")
        if kind is not None:
            step = _READERS[kind](outer, name, read_watermark(outer))
            if step is not None:
                found.append(_with_expectations(step, outer))
    return found


def _with_expectations(drafted: ParsedPart[Step], outer: Section) -> ParsedPart[Step]:
    if "expect" not in outer:
        return drafted
    rules = read_expectations(outer)
    if isinstance(drafted.part, Latest):
        outer.problems.error(
            outer.position_of_key("expect"),
            f"{outer.what} is a table, whose rows are not counted; put `expect` on the step that joins it",
        )
    return replace(drafted, part=replace(drafted.part, expect=rules))


def _inner(outer: Section, kind: str, known: Sequence[str]) -> Section:
    inner = outer.section(kind, f"{kind} {outer.what}", known)
    inner.position = outer.position_of_key(kind)
    return inner


def _from(inner: Section, key: str = "from", *, several: bool = False) -> tuple[LocatedText, ...]:
    words = inner.names(key)
    if key not in inner:
        inner.missing(key, ": the name of a source, step or branch")
    elif len(words) > 1 and not several:
        inner.problems.error(
            words[1].position, f"{inner.what} reads one source, step or branch; use join or `sql` for two"
        )
    return words if several else words[:1]


def _texts(words: tuple[LocatedText, ...]) -> tuple[str, ...]:
    return tuple(word.text for word in words)


def _sql(outer: Section, name: LocatedText, watermark: Watermark | None) -> ParsedPart[Step] | None:
    node = outer.scalar("sql")
    if node is None:
        if outer.document.is_null(outer.values["sql"]):
            outer.problems.error(outer.position_of_key("sql"), f"`sql` of {outer.what} is empty")
        return None
    query = outer.document.substituted(node)
    words: list[LocatedText] = []
    try:
        tables = tables_read(query)
        if not tables:
            outer.problems.error(
                position_of(node), f"`sql` of {outer.what} reads no source, step or branch; name one after FROM"
            )
        for table in tables:
            words.append(
                LocatedText(
                    table.name.lower(), _position_in_query(outer.document, node, query, table.name, table.offset)
                )
            )
    except SqlError as error:
        outer.problems.error(_position_at(node, query, error.offset), f"`sql` of {outer.what}: {error}")
    query_line = node.start_mark.line + (2 if node.style in ("|", ">") else 1)
    step = Sql(
        name=name.text,
        line=name.position.line,
        reads=_texts(tuple(words)),
        watermark=watermark,
        query=query.strip().rstrip(";"),
        query_line=query_line,
    )
    return _parsed_part(step, name, tuple(words), outer)


def _position_at(node: ScalarNode, query: str, offset: int) -> Position:
    """Exact for block scalars; for other styles, the position of the scalar."""
    if node.style != "|":
        return position_of(node)
    before = query[:offset]
    return Position(node.start_mark.line + 2 + before.count("\n"), 1)


def _position_in_query(document: Document, node: ScalarNode, query: str, name: str, offset: int) -> Position:
    first = name.split(".")[0]
    pattern = rf"(?<![A-Za-z0-9_]){re.escape(first)}(?![A-Za-z0-9_])"
    occurrence = sum(1 for _ in re.finditer(pattern, query[:offset], re.IGNORECASE))
    return document.position_in(node, first, occurrence)


def _parsed_part(
    step: Step, name: LocatedText, words: tuple[LocatedText, ...], section: Section, **positions: Position
) -> ParsedPart[Step]:
    all_places = {key: section.position_of_value(key) for key in section.values} | positions
    return ParsedPart(step, name.position, words, positions=tuple(all_places.items()))


def _python(outer: Section, name: LocatedText, watermark: Watermark | None) -> ParsedPart[Step]:
    inner = _inner(outer, "python", ("function", "from", "arguments"))
    words = _from(inner, several=True)
    step = Python(
        name=name.text,
        line=name.position.line,
        reads=_texts(words),
        watermark=watermark,
        function=_reference(inner, "function", "module:function, for example transforms:add_score"),
        arguments=inner.arguments("arguments"),
    )
    return _parsed_part(step, name, words, inner, watermark=outer.position_of_value("watermark"))


def _reference(inner: Section, key: str, form: str) -> str:
    text = inner.required_text(key, f": {form}")
    module, colon, attribute = text.partition(":")
    valid = colon and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))
    if text and not valid:
        inner.problems.error(
            inner.position_of_value(key), f"`{key}` {text!r} of {inner.what} is not of the form {form}"
        )
    return text


def _window(outer: Section, name: LocatedText, watermark: Watermark | None) -> ParsedPart[Step]:
    kinds = tuple(str(kind) for kind in WindowKind)
    inner = _inner(outer, "window", ("from", *kinds, "time", "group_by", "aggregate"))
    words = _from(inner)
    kind = one_kind(inner, kinds, "window step") if isinstance(outer.values["window"], MappingNode) else None
    size, slide = _window_length(inner, WindowKind(kind)) if kind else (Duration(1), None)
    aggregate = read_columns(inner, "aggregate", names_needed=True)
    if "aggregate" not in inner:
        inner.missing("aggregate", ": a mapping of names to SQL, for example `orders: count(*)`")
    elif not aggregate and isinstance(inner.values["aggregate"], MappingNode):
        inner.problems.error(inner.position_of_key("aggregate"), f"`aggregate` of {inner.what} has nothing in it")
    step = Window(
        name=name.text,
        line=name.position.line,
        reads=_texts(words),
        watermark=watermark,
        window=WindowKind(kind or "tumbling"),
        size=size,
        slide=slide,
        time=inner.text("time") or "",
        group_by=read_columns(inner, "group_by", names_needed=False),
        aggregate=aggregate,
    )
    names = ["window_start", "window_end", *(column.name for column in (*step.group_by, *aggregate))]
    for column in (*step.group_by, *aggregate):
        if names.count(column.name) > 1:
            inner.problems.error(Position(column.line, 1), f"{inner.what} would have two columns {column.name!r}")
    return _parsed_part(step, name, words, inner, watermark=outer.position_of_value("watermark"))


def _window_length(inner: Section, kind: WindowKind) -> tuple[Duration, Duration | None]:
    if kind is not WindowKind.SLIDING:
        return inner.duration(kind) or Duration(1), None
    lengths = inner.section("sliding", f"sliding of {inner.what}", ("size", "every"))
    for key, hint in (("size", "how long a window is"), ("every", "how often one begins")):
        if key not in lengths and isinstance(inner.values["sliding"], MappingNode):
            lengths.missing(key, f": {hint}, for example 1 minute")
    size, every = lengths.duration("size") or Duration(1), lengths.duration("every") or Duration(1)
    if every > size and "size" in lengths:
        inner.problems.error(
            lengths.position_of_value("every"),
            f"windows of {size} that begin every {every} would leave gaps; make `every` at most `size`",
        )
    return size, every


def _join(outer: Section, name: LocatedText, watermark: Watermark | None) -> ParsedPart[Step]:
    inner = _inner(outer, "join", ("left", "right", "on", "within", "type"))
    words = (*_from(inner, "left"), *_from(inner, "right"))
    reads = _texts(words) if len(words) == 2 else ("", "")
    if len(words) == 2 and reads[0] == reads[1]:
        inner.problems.error(
            words[1].position, f"{inner.what} joins {reads[0]!r} with itself; use a `sql` step for that"
        )
    on = _join_keys(inner)
    if "on" not in inner:
        inner.missing("on", ": the column that both sides have, or {column of left: column of right}")
    step = Join(
        name=name.text,
        line=name.position.line,
        reads=reads,
        watermark=watermark,
        on=on,
        type=inner.choice("type", JoinType) or JoinType.INNER,
        within=_time_bound(inner),
    )
    return _parsed_part(step, name, words, inner, watermark=outer.position_of_value("watermark"))


def _join_keys(inner: Section) -> tuple[JoinKey, ...]:
    node = inner.values.get("on")
    if not isinstance(node, MappingNode):
        return tuple(JoinKey(left=column, right=column) for column in read_key_columns(inner, "on"))
    pairs = inner.texts("on")
    for left, right in pairs.items():
        for column in (left, right):
            if plain_column(column) is None:
                inner.problems.error(
                    position_of(node), f"{column!r} in `on` of {inner.what} is not the name of a column"
                )
    return tuple(JoinKey(left=left, right=right) for left, right in pairs.items())


def _time_bound(inner: Section) -> TimeBound | None:
    """Missing columns are set later from the watermarks of both sides."""
    if "within" not in inner:
        return None
    node = inner.values["within"]
    if isinstance(node, ScalarNode):
        apart = inner.duration("within") or Duration(0)
        return TimeBound(left_time="", right_time="", before=apart, after=apart)
    bound = inner.section("within", f"within of {inner.what}", ("before", "after", "left_time", "right_time"))
    return TimeBound(
        left_time=bound.text("left_time") or "",
        right_time=bound.text("right_time") or "",
        before=bound.duration("before", positive=False) or Duration(0),
        after=bound.duration("after", positive=False) or Duration(0),
    )


def _latest(outer: Section, name: LocatedText, watermark: Watermark | None) -> ParsedPart[Step]:
    inner = _inner(outer, "latest", ("from", "key", "refresh"))
    if watermark is not None:
        outer.problems.error(
            outer.position_of_key("watermark"), f"{outer.what} is a table, which has no watermark; remove it"
        )
    words = _from(inner)
    step = Latest(
        name=name.text,
        line=name.position.line,
        reads=_texts(words),
        key=read_key_columns(inner, "key"),
        refresh=inner.duration("refresh", positive=False) or _DEFAULT_REFRESH,
    )
    return _parsed_part(step, name, words, inner)


def _dedup(outer: Section, name: LocatedText, watermark: Watermark | None) -> ParsedPart[Step]:
    inner = _inner(outer, "dedup", ("from", "key"))
    words = _from(inner)
    if "key" not in inner:
        inner.missing("key", ": the column or columns that identify a duplicate")
    step = Dedup(
        name=name.text,
        line=name.position.line,
        reads=_texts(words),
        watermark=watermark,
        key=read_key_columns(inner, "key"),
    )
    return _parsed_part(step, name, words, inner, watermark=outer.position_of_value("watermark"))


def _route(outer: Section, name: LocatedText, watermark: Watermark | None) -> ParsedPart[Step]:
    inner = _inner(outer, "route", ("from", "branches", "rest"))
    words = _from(inner)
    branches: list[Branch] = []
    positions: dict[str, Position] = {}
    node = inner.values.get("branches")
    if node is None:
        inner.missing("branches", ": a mapping from names to SQL conditions")
    elif not isinstance(node, MappingNode):
        inner.problems.error(
            position_of(node),
            f"`branches` of {inner.what} must be a mapping from names to SQL conditions; this is {describe(node)}",
        )
    for branch, condition in (
        named_parts(inner.document, node, "branch", TABLE_NAME) if isinstance(node, MappingNode) else ()
    ):
        positions[branch.text] = branch.position
        text = inner.document.substituted(condition).strip() if isinstance(condition, ScalarNode) else ""
        if not text:
            inner.problems.error(
                branch.position, f"the branch {branch.text!r} of {inner.what} has no condition; add a SQL condition"
            )
            continue
        check_sql(inner, "branches", LocatedText(text, position_of(condition)))
        branches.append(Branch(name=branch.text, condition=text, line=branch.position.line))
    rest = (inner.text("rest") or REST_DEAD_LETTERS).replace(" ", "_")
    if rest not in (REST_DEAD_LETTERS, REST_DROP):
        positions[rest] = inner.position_of_value("rest")
        if not TABLE_NAME.fullmatch(rest):
            inner.problems.error(
                positions[rest], f"`rest` {rest!r} is not dead_letters, drop, or a valid name of a branch"
            )
    step = Route(
        name=name.text,
        line=name.position.line,
        reads=_texts(words),
        watermark=watermark,
        branches=tuple(branches),
        rest=rest,
    )
    return _parsed_part(step, name, words, inner, **positions, watermark=outer.position_of_value("watermark"))


def _stateful(outer: Section, name: LocatedText, watermark: Watermark | None) -> ParsedPart[Step]:
    inner = _inner(outer, "stateful", ("from", "processor", "key", "output", "mode", "time", "arguments"))
    words = _from(inner)
    if "key" not in inner:
        inner.missing("key", ": the column or columns of the state's key")
    if "output" not in inner:
        inner.missing("output", ": the columns of its result, for example `customer STRING, total DOUBLE`")
    output, columns = read_schema(inner, "output")
    step = Stateful(
        name=name.text,
        line=name.position.line,
        reads=_texts(words),
        watermark=watermark,
        processor=_reference(inner, "processor", "module:Class, for example alerts:SpendingLimit"),
        key=read_key_columns(inner, "key"),
        output=output or "",
        mode=inner.choice("mode", OutputMode, [OutputMode.APPEND, OutputMode.UPDATE]) or OutputMode.APPEND,
        time=inner.choice("time", TimeMode) or TimeMode.NONE,
        arguments=inner.arguments("arguments"),
    )
    drafted = _parsed_part(step, name, words, inner, watermark=outer.position_of_value("watermark"))
    return ParsedPart(step, drafted.position, drafted.refers_to, columns, drafted.positions)


_READERS: dict[str, Callable[[Section, LocatedText, Watermark | None], ParsedPart[Step] | None]] = {
    "sql": _sql,
    "python": _python,
    "window": _window,
    "join": _join,
    "latest": _latest,
    "dedup": _dedup,
    "route": _route,
    "stateful": _stateful,
}
