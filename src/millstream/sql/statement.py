"""A query: checked to be one SELECT, and what it needs of each topic: columns, partitions, offsets, a first time.

DuckDB parses it. Its syntax tree (`json_serialize_sql`) tells the topics, the names of columns, and conditions in WHERE
on `_partition`, `_offset` and `_timestamp` that allow to read less, and on other columns that allow to decode less
(`early_filter.py`). Conditions are only read here; DuckDB evaluates them again, so a condition that is not recognised
costs time and nothing else.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millstream.sql.early_filter import Condition, simple_condition
from millstream.sql.engine import open_engine
from millstream.sql.errors import SqlError

if TYPE_CHECKING:
    import duckdb

MAX_CHARACTERS = 100_000
_MAX_PARTS = 2
_MAX_DEPTH = 900
"""Levels of the syntax tree; an operator has three. Python has a limit, too, but other code may change it."""
_TABLE_FUNCTIONS = frozenset(("range", "generate_series", "unnest", "repeat", "json_each", "json_tree", "query_table"))
"""Functions in FROM that read nothing from outside."""
_EVALUATED = frozenset(
    [
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "abs",
        "now",
        "get_current_timestamp",
        "transaction_timestamp",
        "today",
        "get_current_date",
        "current_date",
        "date_trunc",
        "date_add",
        "date_sub",
        "to_seconds",
        "to_milliseconds",
        "to_minutes",
        "to_hours",
        "to_days",
        "to_weeks",
        "to_months",
        "to_years",
        "to_timestamp",
        "make_date",
        "make_timestamp",
        "make_timestamptz",
        "epoch_ms",
        "strptime",
        "trunc",
    ]
)
"""Functions in a constant that is evaluated before the query runs: cheap ones, with the same value in each row. Nothing
stops this evaluation."""
_MOST_NODES = 50
_MOST_EVALUATED = 200
"""Constants of a query. Further conditions do not make it read less."""
_MIRRORED = {
    "COMPARE_EQUAL": "COMPARE_EQUAL",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
}
_JOINS_THAT_FILTER = frozenset(("REGULAR", "CROSS", "NATURAL"))
"""Kinds of joins whose inputs may be filtered before. Not ASOF and POSITIONAL: they choose rows by their neighbours."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which records of a topic a query can need."""

    partitions: frozenset[int] | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    """The offset after the last one."""
    since_ms: int | None = None

    def within(self, other: "Bounds") -> "Bounds":
        """Both bounds."""
        return Bounds(
            other.partitions
            if self.partitions is None
            else self.partitions & other.partitions
            if other.partitions is not None
            else self.partitions,
            _stricter(max, self.first_offset, other.first_offset),
            _stricter(min, self.end_offset, other.end_offset),
            _stricter(max, self.since_ms, other.since_ms),
        )


@dataclass(frozen=True, slots=True)
class TableUse:
    """A table in FROM: the name of a topic, in one or two parts (`shop.orders`)."""

    path: tuple[str, ...]
    location: int
    """Of the name in the text, and its length with the alias."""
    length: int
    alias: str

    @property
    def topic(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Statement:
    text: str
    tables: tuple[TableUse, ...]
    """Each use of a topic, in the order of the text."""
    columns: frozenset[str] | None
    """All names in it, in lower case: the columns are among them. None: all columns may be used."""
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    """By topic."""
    conditions: Mapping[str, tuple[Condition, ...]] = field(default_factory=dict)
    """By topic: comparisons of columns of the value with constants, which all must be true."""
    newest: int | None = None
    """`select … limit N` without a condition: N records are enough."""
    tree: Mapping[str, Any] = field(default_factory=dict)
    """The syntax tree of the SELECT."""
    lone_names: frozenset[str] = frozenset()
    """Names in lower case without a qualifier, and without aliases: a topic that has no such column is not meant, or
    the name is wrong."""

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table.topic for table in self.tables))

    def uses(self, column: str) -> bool:
        return self.columns is None or column.lower() in self.columns


def parse_statement(text: str) -> Statement:
    """SqlError says what is wrong with the text."""
    if not text.strip():
        raise SqlError("the query is empty", "write for example: select * from orders limit 10")
    if len(text) > MAX_CHARACTERS:
        raise SqlError(f"the query has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
    try:
        with open_engine() as engine:
            return _parse(engine, text)
    except RecursionError:
        raise _too_deep() from None


def _too_deep() -> SqlError:
    return SqlError("the query is nested too deeply", "write shorter expressions, or WITH and joins")


def _parse(engine: "duckdb.DuckDBPyConnection", text: str) -> Statement:
    import duckdb

    try:
        statements = engine.extract_statements(text)
    except duckdb.Error as error:
        raise SqlError(_first_lines(error), "check the query near that place") from None
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise SqlError(
            "a query must be a single SELECT",
            "topics are only read here: records are written with millstream produce, or by a pipeline",
        )
    tree = _tree(engine, text)
    nodes = list(nodes_of(tree))
    for node in nodes:
        if node.get("type") == "TABLE_FUNCTION":
            name = str((node.get("function") or {}).get("function_name", ""))
            if name not in _TABLE_FUNCTIONS:
                raise SqlError(f"the function {name} cannot be used in FROM", "FROM takes names of topics")
    tables = tuple(_tables(tree, frozenset()))
    return Statement(
        text,
        tables,
        _names(nodes, tables),
        *_restrictions(engine, nodes, tables),
        _newest(tree),
        tree,
        _lone_names(nodes),
    )


def _tree(engine: "duckdb.DuckDBPyConnection", text: str) -> dict[str, Any]:
    import duckdb

    try:
        row = engine.execute("select json_serialize_sql(?)", [text]).fetchone()
    except duckdb.Error as error:
        raise SqlError(_first_lines(error)) from None
    document = json.loads(row[0]) if row else {}
    if document.get("error"):
        raise SqlError(str(document.get("error_message", "the query is not understood")))
    node: dict[str, Any] = document["statements"][0]["node"]
    if _is_deeper(node, _MAX_DEPTH):
        raise _too_deep()
    return node


def _is_deeper(tree: Any, most: int) -> bool:
    level = [tree]
    for _ in range(most):
        level = [part for node in level for part in _parts(node)]
        if not level:
            return False
    return True


def _parts(node: Any) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def nodes_of(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of the tree, in the order of the text of their parts."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(reversed(list(node.values())))
        elif isinstance(node, list):
            waiting.extend(reversed(node))


def _tables(node: Any, defined: frozenset[str]) -> Iterator[TableUse]:
    """The tables that the query does not define itself. `defined`: names of WITH that are visible here."""
    if isinstance(node, list):
        for each in node:
            yield from _tables(each, defined)
    elif isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            if len(node["qualified_name"]["path"]) > 1 or str(node["table_name"]).lower() not in defined:
                yield _table(node)
            return
        for entry in (node.get("cte_map") or {}).get("map", ()):
            name, query = str(entry["key"]).lower(), entry["value"]
            is_recursive = (query.get("query_node") or {}).get("type") == "RECURSIVE_CTE_NODE"
            yield from _tables(query, defined | {name} if is_recursive else defined)
            defined |= {name}
        for key, each in node.items():
            if key != "cte_map":
                yield from _tables(each, defined)


def _table(node: dict[str, Any]) -> TableUse:
    path = tuple(str(part) for part in node["qualified_name"]["path"])
    if len(path) > _MAX_PARTS:
        name = ".".join(path)
        raise SqlError(f"the name {name} has more than two parts", f'write it in double quotes: "{name}"')
    return TableUse(path, int(node["query_location"]), int(node["query_location_length"]), str(node["alias"]))


def _names(nodes: list[dict[str, Any]], tables: tuple[TableUse, ...]) -> frozenset[str] | None:
    """The names of all columns, or None if a star, or a row as a whole, needs all."""
    rows = {table.alias.lower() or table.path[-1].lower() for table in tables}
    found: set[str] = set()
    for node in nodes:
        kind = node.get("type")
        if kind in ("STAR", "SHOW_REF", "PIVOT", "POSITIONAL_REFERENCE") or node.get("ref_type") == "NATURAL":
            return None
        if kind == "COLUMN_REF":
            names = [str(name).lower() for name in node["column_names"]]
            if len(names) == 1 and names[0] in rows:
                return None
            found.update(names)
        if kind == "BASE_TABLE" and node.get("column_name_alias"):
            return None  # columns by their position
        found.update(str(name).lower() for name in node.get("using_columns") or ())
    return frozenset(found)


def _lone_names(nodes: list[dict[str, Any]]) -> frozenset[str]:
    references = (node["column_names"] for node in nodes if node.get("type") == "COLUMN_REF")
    aliases = {str(node["alias"]).lower() for node in nodes if node.get("alias")}
    return frozenset(str(names[0]).lower() for names in references if len(names) == 1) - aliases


def _newest(tree: dict[str, Any]) -> int | None:
    """N of `select columns from topic limit N`: any N records are a right result, so the newest are read."""
    empty = ("where_clause", "group_expressions", "group_sets", "having", "qualify", "sample")
    if tree.get("type") != "SELECT_NODE" or any(tree.get(name) for name in empty) or tree["cte_map"]["map"]:
        return None
    table = tree.get("from_table") or {}
    if table.get("type") != "BASE_TABLE" or table.get("sample"):
        return None
    if any(each.get("type") not in ("STAR", "COLUMN_REF") for each in tree["select_list"]):
        return None
    modifiers = tree["modifiers"]
    if len(modifiers) != 1 or modifiers[0]["type"] != "LIMIT_MODIFIER" or modifiers[0].get("limit_type") != "ROW_COUNT":
        return None
    limit, skipped = _integer(modifiers[0]["limit"]), modifiers[0]["offset"]
    rest = 0 if skipped is None else _integer(skipped)
    return None if limit is None or rest is None else limit + rest


def _integer(node: Any) -> int | None:
    literal = (node or {}).get("literal") or {}
    return int(literal["text"]) if literal.get("kind") == "INTEGER" else None


def _restrictions(
    engine: "duckdb.DuckDBPyConnection", nodes: list[dict[str, Any]], tables: tuple[TableUse, ...]
) -> tuple[dict[str, Bounds], dict[str, tuple[Condition, ...]]]:
    """Bounds and conditions of topics."""
    uses = [table.topic.lower() for table in tables]
    once = {table.topic: table for table in tables if uses.count(table.topic.lower()) == 1}
    found: dict[str, Bounds] = {}
    conditions: dict[str, tuple[Condition, ...]] = {}
    evaluated = 0
    for node in nodes:
        if node.get("type") != "SELECT_NODE" or not node.get("where_clause"):
            continue
        sources = _sources(node.get("from_table"))
        if sources is None:
            continue
        for condition in _conditions(node["where_clause"]):
            for column, kind, values in _comparisons(condition):
                place = _place(column, sources)
                if place is not None and place.topic in once and once[place.topic] == place:
                    evaluated += len(values)
                    if evaluated > _MOST_EVALUATED:
                        return found, conditions
                    name = column["column_names"][-1].lower()
                    bound = _bound(engine, name, kind, values)
                    if bound is not None:
                        found[place.topic] = found.get(place.topic, Bounds()).within(bound)
                    literals = [(value.get("literal") or {}) for value in values]
                    simple = simple_condition(
                        name, kind, [(each.get("kind", ""), each.get("text", "")) for each in literals]
                    )
                    if simple is not None:
                        conditions[place.topic] = (*conditions.get(place.topic, ()), simple)
    return found, conditions


def _sources(node: Any) -> dict[str, TableUse] | None:
    """Tables of a FROM by alias; None if its rows must not be filtered before."""
    if not isinstance(node, dict) or node.get("sample"):
        return None
    if node.get("type") == "BASE_TABLE":
        if node.get("column_name_alias") or len(node["qualified_name"]["path"]) > _MAX_PARTS:
            return None
        table = _table(node)
        return {(table.alias or table.path[-1]).lower(): table}
    if node.get("type") == "JOIN" and node.get("ref_type") in _JOINS_THAT_FILTER:
        left, right = _sources(node["left"]), _sources(node["right"])
        return None if left is None or right is None else {**left, **right}
    # A subquery or a function: its columns are not those of a topic.
    return {"": TableUse((), 0, 0, "")} if node.get("type") in ("SUBQUERY", "TABLE_FUNCTION") else None


def _conditions(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of a condition that must all be true."""
    if node.get("type") == "CONJUNCTION_AND":
        for child in node["children"]:
            yield from _conditions(child)
    else:
        yield node


def _comparisons(node: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, list[Any]]]:
    """(column, kind, values) of a comparison of a column with constants."""
    kind = str(node.get("type"))
    if kind in _MIRRORED:
        left, right = node["left"], node["right"]
        if left.get("type") == "COLUMN_REF" and _is_constant(right):
            yield left, kind, [right]
        elif right.get("type") == "COLUMN_REF" and _is_constant(left):
            yield right, _MIRRORED[kind], [left]
    elif kind == "COMPARE_BETWEEN" and node["input"].get("type") == "COLUMN_REF":
        for value, side in (
            (node["lower"], "COMPARE_GREATERTHANOREQUALTO"),
            (node["upper"], "COMPARE_LESSTHANOREQUALTO"),
        ):
            if _is_constant(value):
                yield node["input"], side, [value]
    elif kind == "COMPARE_IN":
        column, *values = node["children"]
        if column.get("type") == "COLUMN_REF" and all(map(_is_constant, values)):
            yield column, kind, values


def _is_constant(node: Any) -> bool:
    parts = list(nodes_of(node))
    if len(parts) > _MOST_NODES:
        return False
    if not {each.get("class") for each in parts} <= {None, "CONSTANT", "TYPE", "CAST", "FUNCTION"}:
        return False
    return all(each["function_name"] in _EVALUATED for each in parts if "function_name" in each)


def _place(column: dict[str, Any], sources: dict[str, TableUse]) -> TableUse | None:
    names = [str(name).lower() for name in column["column_names"]]
    if len(names) == 1:
        return next(iter(sources.values())) if len(sources) == 1 else None
    return sources.get(names[-2]) if len(names) == 2 else None


def _bound(engine: "duckdb.DuckDBPyConnection", column: str, kind: str, values: list[Any]) -> Bounds | None:
    if column == "_timestamp":
        if kind not in ("COMPARE_EQUAL", "COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"):
            return None  # later records may have earlier times
        moment = _evaluated(engine, values[0], "epoch_ms(({})::timestamptz)")
        return None if moment is None else Bounds(since_ms=moment)
    if column not in ("_offset", "_partition"):
        return None
    # A number with a fraction is not recognised: offset > 1.5 is not offset > 1.
    numbers = [_evaluated(engine, value, "case when ({0}) = floor({0}) then ({0})::bigint end") for value in values]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return None
    if column == "_partition":
        return Bounds(frozenset(known)) if kind in ("COMPARE_EQUAL", "COMPARE_IN") else None
    number = known[0]
    match kind:
        case "COMPARE_EQUAL":
            return Bounds(first_offset=number, end_offset=number + 1)
        case "COMPARE_GREATERTHAN":
            return Bounds(first_offset=number + 1)
        case "COMPARE_GREATERTHANOREQUALTO":
            return Bounds(first_offset=number)
        case "COMPARE_LESSTHAN":
            return Bounds(end_offset=number)
        case "COMPARE_LESSTHANOREQUALTO":
            return Bounds(end_offset=number + 1)
        case "COMPARE_IN":
            return Bounds(first_offset=min(known), end_offset=max(known) + 1)
    return None


_EMPTY_SELECT: dict[str, Any] = {}


def _evaluated(engine: "duckdb.DuckDBPyConnection", node: Any, form: str) -> int | None:
    """The value of a constant expression, by DuckDB; None if it has none, or not of that type."""
    import duckdb

    if not _EMPTY_SELECT:
        row = engine.execute("select json_serialize_sql('select 1')").fetchone()
        assert row is not None
        _EMPTY_SELECT.update(json.loads(row[0]))
    document = json.loads(json.dumps(_EMPTY_SELECT))
    document["statements"][0]["node"]["select_list"] = [node]
    try:
        row = engine.execute("select json_deserialize_sql(?::json)", [json.dumps(document)]).fetchone()
        expression = str(row[0]).removeprefix("SELECT ") if row else "null"
        row = engine.execute(f"select {form.format(expression)}").fetchone()
    except duckdb.Error:
        return None
    return int(row[0]) if row and row[0] is not None else None


def _stricter(choose: Any, left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    chosen: int = choose(left, right)
    return chosen


def _first_lines(error: Exception) -> str:
    """DuckDB's message with the line of the query and the mark below it, without the lines of its own code."""
    return str(error).strip().split("\n\nStack")[0]


def renamed(statement: Statement, names: Mapping[str, str]) -> str:
    """The text with other names for topics."""
    data = statement.text.encode()
    for table in sorted(statement.tables, key=lambda each: each.location, reverse=True):
        alias = f" AS {table.alias}" if table.alias else ""
        new = f"{names[table.topic]}{alias}".encode()
        data = data[: table.location] + new + data[table.location + table.length :]
    return data.decode()
