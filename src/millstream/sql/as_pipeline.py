"""A query as a pipeline file (docs/pipelines.md), which runs it on Spark as records arrive.

Sources are the topics of the query, with the formats that were found. The query becomes a step `sql`, with names of
sources instead of topics, and with quotes and types of Spark. What a stream or Spark cannot do in the same way is an
error here: ORDER BY, LIMIT, DESCRIBE, positions in lists. Functions of the SQL standard have the same names in both;
`millstream pipeline validate --deep` has Spark check the query.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping

import pyarrow as pa

from millstream.sql.engine import open_engine
from millstream.sql.errors import SqlError
from millstream.sql.statement import Statement, nodes_of, renamed
from millstream.sql.topic_columns import TopicColumns

_TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")*")
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_TYPES = {"timestamptz": "timestamp", "varchar": "string", "text": "string", "int8": "bigint", "int4": "int"}
"""DuckDB's names of types that Spark does not have, after `::` and AS."""
_SIMPLE = {
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
}
_FORMATS = {"Avro": "avro", "Protobuf": "protobuf", "JSON Schema": "json"}


def pipeline_file(
    statement: Statement,
    columns: Mapping[str, TopicColumns],
    *,
    bootstrap: str,
    registry: str | None = None,
    sink_topic: str | None = None,
) -> str:
    """The text of the file. `columns`: of each name in the query; `sink_topic`: None prints rows to the terminal."""
    if not statement.tables:
        raise SqlError("the query reads no topic", "a pipeline needs a source")
    _check_streamable(statement)
    names = _source_names(statement)
    lines = [
        "# Written by `millstream sql --as-pipeline`. Check it: millstream pipeline validate --deep FILE",
        f"name: {_text('-'.join(names.values())[:100])}",
        f"bootstrap: ${{BOOTSTRAP:-{bootstrap}}}",
    ]
    typed = [each for each in columns.values() if each.format in _FORMATS]
    if typed:
        lines.append(f"registry: ${{REGISTRY:-{registry or 'http://localhost:8081'}}}")
    lines += ["", "sources:"]
    for topic, name in names.items():
        lines += _source(name, columns[topic], statement)
    query = textwrap.indent(_spark_text(renamed(statement, names)).strip(), "      ")
    lines += ["", "steps:", "  result:", "    sql: |-", query, "", "sinks:", "  output:", "    from: result"]
    if sink_topic is None:
        lines.append("    console: {rows: 20}")
    else:
        lines += [f"    topic: {_text(sink_topic)}", "    format: json"]
    if _is_aggregate(statement):
        lines.append("    mode: update")
    return "\n".join(lines) + "\n"


def _check_streamable(statement: Statement) -> None:
    for node in nodes_of(statement.tree):
        if node.get("type") == "SHOW_REF":
            raise SqlError("DESCRIBE and SUMMARIZE cannot be a pipeline", "write a SELECT")
        if node.get("type") == "ARRAY_EXTRACT":
            raise SqlError(
                "a position in a list ([1]) cannot be a pipeline: Spark counts from 0", "use unnest, or a struct field"
            )
        for modifier in node.get("modifiers") or ():
            if modifier["type"] == "ORDER_MODIFIER":
                raise SqlError("ORDER BY cannot be a pipeline: a stream has no end to sort at", "leave it out")
            if modifier["type"] in ("LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER"):
                raise SqlError("LIMIT cannot be a pipeline: a stream has no end", "leave it out")


def _is_aggregate(statement: Statement) -> bool:
    with open_engine() as engine:
        rows = engine.execute("select distinct function_name from duckdb_functions() where function_type='aggregate'")
        aggregates = {row[0] for row in rows.fetchall()}
    return any(
        node.get("group_expressions") or (node.get("class") == "FUNCTION" and node.get("function_name") in aggregates)
        for node in nodes_of(statement.tree)
    )


def _source_names(statement: Statement) -> dict[str, str]:
    names: dict[str, str] = {}
    for topic in statement.topics:
        base = re.sub(r"[^a-z0-9_]+", "_", topic.lower()).strip("_") or "source"
        base = f"t_{base}" if base[0].isdigit() else base
        name, number = base, 1
        while name in names.values() or name in ("result", "output"):
            number += 1
            name = f"{base}_{number}"
        names[topic] = name
    return names


def _source(name: str, columns: TopicColumns, statement: Statement) -> Iterator[str]:
    yield f"  {name}:"
    yield f"    topic: {_text(columns.topic)}"
    if columns.format in _FORMATS:
        yield f"    format: {_FORMATS[columns.format]}"
    elif columns.format == "JSON":
        yield "    format: json"
        fields = columns.inferred or {"value": pa.string()}
        yield f"    schema: {_text(', '.join(f'{_column(field)} {ddl(kind)}' for field, kind in fields.items()))}"
    else:
        yield "    format: string"
    yield "    starting_offsets: earliest"
    if statement.columns is not None and "_headers" in statement.columns:
        yield "    headers: true"


def ddl(kind: pa.DataType) -> str:
    """An inferred type in Spark's words."""
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            return "STRING"
        return "STRUCT<" + ", ".join(f"{_column(field.name)}: {ddl(field.type)}" for field in kind) + ">"
    if pa.types.is_list(kind):
        return f"ARRAY<{ddl(kind.value_type)}>"
    return _SIMPLE.get(kind, "STRING")


def _column(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else "`" + name.replace("`", "``") + "`"


def _spark_text(query: str) -> str:
    """The query with Spark's quotes and types. `${…}` would be taken from the environment."""
    found, before = [], ""
    for match in _TOKEN.finditer(query.replace("\r\n", "\n")):
        token = match[0]
        match match.lastgroup:
            case "text":
                token = "'" + token[1:-1].replace("\\", "\\\\").replace("''", "\\'") + "'"
            case "quoted":
                token = "`" + token[1:-1].replace('""', '"').replace("`", "``") + "`"
            case "word" if before in ("::", "as"):
                token = _TYPES.get(token.lower(), token)
        if match.lastgroup != "comment" and not token.isspace():
            before = "::" if token == ":" and before == ":" else token.lower()
        found.append(token)
    return "".join(found).rstrip().rstrip(";").replace("${", "$${")


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
