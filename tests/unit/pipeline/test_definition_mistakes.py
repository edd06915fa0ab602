"""Mistakes in a pipeline's file: each is told with its place and the next step, and all at once."""

from pathlib import Path

import pytest

from tests.system.pipeline.definitions import PAYMENTS, SINK, SOURCE, look_at, messages, pipeline_text


def only(directory: Path, text: str, **environment: str) -> str:
    """The one problem that a file has."""
    found = messages(look_at(directory, text, **environment))
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        ("name: shop\ntriger: every 5s", "2:1 error the pipeline has no key 'triger'; did you mean 'trigger'?"),
        ("name: shop\ntrigger: sometimes", "2:10 error `trigger` 'sometimes' is not known; write `every 5s`"),
        ("name: shop\ntrigger: every 5 parsecs", "2:10 error `trigger`: 'parsecs' is not a unit of time"),
        ("name: my shop", "1:7 error 'my shop' is not a valid name of a pipeline"),
        ("name: shop\nbootstrap: localhost", "2:12 error `bootstrap` has 'localhost'; write HOST:PORT"),
        ("name: shop\nregistry: localhost", "2:11 error 'localhost' is not the address of a registry; write http://"),
        ("name: shop\nregistry: {urll: http://x}", "error the registry has no key 'urll'; did you mean 'url'?"),
        ("name: shop\nname: shop", "2:1 error 'name' is here twice; the first is on line 1"),
        ("name: shop\nbootstrap: ${NOWHERE}:9092", "2:12 error the environment variable NOWHERE is not set"),
        ("name: shop\ndead_letters: a b", "2:15 error 'a b' is not a valid topic name"),
        ("name: shop\nspark: 5", "2:8 error `spark` of the pipeline must be a mapping; this is '5'"),
    ],
)
def test_mistakes_at_the_top(tmp_path: Path, top: str, expected: str) -> None:
    found = messages(look_at(tmp_path, pipeline_text(top=top)))
    assert any(expected in message for message in found), found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("o: {topik: a}", "2:7 error source 'o' has no key 'topik'; did you mean 'topic'?"),
        (
            "o: {format: raw}",
            "2:3 error source 'o' has no kind; add one of topic, topics, pattern, table",
        ),
        ("o: {topic: a, pattern: a.*}", "source 'o' has two kinds, topic and pattern"),
        ("o: {topic: a, format: jsn}", "2:25 error `format` of source 'o': 'jsn' is not known; did you mean 'json'?"),
        ("o: {topic: a, format: json}", "error source 'o' needs `schema` for json"),
        ("o: {topic: a, format: avro}", "avro of source 'o' needs a schema registry; add `registry: http://"),
        ("o: {topic: a, format: raw, schema: a INT}", "source 'o' is raw, which has no schema"),
        ("o: {topic: a, format: json, schema: a STRNG}", "there is no type 'STRNG'; did you mean 'string'?"),
        ("o: {topic: a, format: json, schema: 'a INT,'}", "a column's name is missing at the end"),
        ("o: {topic: a, format: json, schema: 'a INT, A INT'}", "the column 'A' is there twice"),
        ("o: {topic: 'a b'}", "'a b' is not a valid topic name"),
        ("Orders: {topic: a}", "2:3 error 'Orders' is not a valid name of a source: use lower-case letters"),
        ("o: {pattern: '[a'}", "`pattern` of source 'o' is not a regular expression"),
        ("o: {topic: a, starting_offsets: first}", "`starting_offsets` 'first' of source 'o' is not known"),
        ("o: {topic: a, starting_offsets: {b: {0: 1}}}", "source 'o' does not read the topic 'b'; it reads a"),
        ("o: {topic: a, starting_offsets: {a: {0: x}}}", "0: 'x' is not `partition: offset`"),
        ("o: {topic: a, max_records_per_trigger: many}", "'many' is not a whole number of at least 1"),
        ("o: {topic: a, max_bytes_per_trigger: 5 XB}", "'5 XB' is not a size"),
        ("o: {topic: a, headers: perhaps}", "'perhaps' is neither true nor false"),
        ("o: {topic: a, watermark: {column: at}}", "the watermark of source 'o' needs `delay`"),
        (
            "o: {topic: a, watermark: at}",
            "the watermark of source 'o' must be a mapping of column, delay; this is 'at'",
        ),
        (
            "o: {topic: a, format: json, schema: 'at STRING', watermark: {column: at, delay: 1m}}",
            "a watermark needs a TIMESTAMP; 'at' is STRING in the schema",
        ),
        (
            "o: {topic: a, format: json, schema: 'at TIMESTAMP', watermark: {column: att, delay: 1m}}",
            "source 'o' has no column 'att'; did you mean 'at'?",
        ),
        ("o: {table: x, format: csv}", "source 'o' needs `schema`: csv files have no column types"),
        ("o: {table: x, starting_offsets: latest}", "source 'o' has no key 'starting_offsets'; its keys are"),
        ("o: [a]", "source 'o' must be a mapping of topic"),
    ],
)
def test_mistakes_in_sources_are_named(tmp_path: Path, source: str, expected: str) -> None:
    text = f"sources:\n  {source}\nsinks: {{out: {{from: o, topic: x, format: raw}}}}\nname: s\n"
    found = messages(look_at(tmp_path, text))
    assert any(expected in message for message in found), found


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("s: {sqll: SELECT 1}", "step 's' has no key 'sqll'; did you mean 'sql'?"),
        ("s: {sql: }", "`sql` of step 's' is empty"),
        ("s: {sql: SELECT 1}", "`sql` of step 's' reads no source, step or branch"),
        ("s: {sql: DELETE FROM orders}", "a step's query must be a SELECT"),
        ("s: {sql: SELECT * FROM ordrs}", "there is no source, step or branch 'ordrs'; did you mean 'orders'?"),
        ("s: {sql: 'SELECT (1 FROM orders'}", "`sql` of step 's': this '(' is not closed"),
        ("s: {sql: SELECT 'a FROM orders}", "the text that begins here has no end"),
        ("s: {dedup: {from: orders}}", "dedup step 's' needs `key`"),
        ("s: {dedup: {from: orders, key: order_idd}}", "'orders' has no column 'order_idd'; did you mean 'order_id'?"),
        ("s: {dedup: {from: [orders, payments], key: order_id}}", "reads one source, step or branch"),
        ("s: {window: {from: orders, aggregate: {n: count(*)}}}", "add one of tumbling, sliding, session"),
        ("s: {window: {from: orders, tumbling: 1m}}", "window step 's' needs `aggregate`"),
        ("s: {window: {from: orders, tumbling: 0s, aggregate: {n: count(*)}}}", "the duration must be longer than 0"),
        ("s: {window: {from: orders, tumbling: 1m, aggregate: {n: 'count(*'}}}", "this '(' is not closed"),
        ("s: {window: {from: orders, tumbling: 1m, aggregate: count(*)}}", "must be a mapping from names to SQL"),
        (
            "s: {window: {from: orders, tumbling: 1m, group_by: shp, aggregate: {n: count(*)}}}",
            "no column 'shp'; did you mean 'shop'?",
        ),
        (
            "s: {window: {from: orders, tumbling: 1m, group_by: upper(shop), aggregate: {n: count(*)}}}",
            "give the expression a name",
        ),
        (
            "s: {window: {from: orders, sliding: {size: 1m, every: 2m}, aggregate: {n: count(*)}}}",
            "would leave gaps",
        ),
        ("s: {window: {from: orders, sliding: {size: 1m}, aggregate: {n: count(*)}}}", "needs `every`"),
        (
            "s: {window: {from: orders, tumbling: 1m, group_by: shop, aggregate: {shop: count(*)}}}",
            "two columns 'shop'",
        ),
        (
            "s: {join: {left: orders, right: payments, on: order_id}}",
            "needs a limit for the time between them: `within: 10 minutes`",
        ),
        ("s: {join: {left: orders, right: payments, on: id, within: 1m}}", "'orders' has no column 'id'"),
        ("s: {join: {left: orders, right: orders, on: order_id, within: 1m}}", "joins 'orders' with itself"),
        ("s: {join: {left: orders, right: payments, within: 1m}}", "join step 's' needs `on`"),
        ("s: {join: {left: orders, right: payments, on: order_id, within: 1m, type: iner}}", "did you mean 'inner'?"),
        ("s: {latest: {from: orders, refresh: soon}}", "'soon' is not a duration"),
        (
            "s: {route: {from: orders, branches: {big: amount > 5, Small: amount < 5}}}",
            "'Small' is not a valid name of a branch",
        ),
        ("s: {route: {from: orders, branches: [big]}}", "`branches` of route step 's' must be a mapping"),
        ("s: {route: {from: orders, branches: {orders: amount > 5}}}", "the name 'orders' is used twice"),
        ("s: {python: {from: orders, function: nothing}}", "is not of the form module:function"),
        ("s: {stateful: {from: orders, processor: 'a:B', key: shop}}", "stateful step 's' needs `output`"),
        ("s: {sql: SELECT 1, dedup: {from: orders, key: order_id}}", "step 's' has two kinds, sql and dedup"),
        ("s: 5", "step 's' must be a mapping"),
    ],
)
def test_mistakes_in_steps_are_named(tmp_path: Path, step: str, expected: str) -> None:
    found = messages(look_at(tmp_path, pipeline_text(SOURCE + PAYMENTS, step)))
    assert any(expected in message for message in found), found


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ("out: {from: order, topic: o}", "error there is no source, step or branch 'order'; did you mean 'orders'?"),
        ("out: {topic: o}", "sink 'out' needs `from`"),
        ("out: {from: orders}", "sink 'out' has no kind; add one of topic, table, console"),
        ("out: {from: orders, topic: o, deliver: x}", "sink 'out' has no key 'deliver'; did you mean 'delivery'?"),
        ("out: {from: orders, topic: o, delivery: exactly_onc}", "did you mean 'exactly_once'?"),
        ("out: {from: orders, topic: o, format: raw}", "'orders' has no column 'value'"),
        ("out: {from: orders, topic: o, format: avro}", "avro of sink 'out' needs a schema registry"),
        ("out: {from: orders, topic: o, timestamp: att}", "no column 'att'; did you mean 'at'?"),
        (
            "out: {from: orders, table: x, partition_by: week(at)}",
            "`partition_by` has 'week(at)'; use a column, or day(…)",
        ),
        ("out: {from: orders, table: x, partition_by: day(att)}", "no column 'att'"),
        ("out: {from: orders, table: x, mode: update}", "'update' is not known; use one of append, upsert"),
        ("out: {from: orders, table: x, mode: upsert}", "the columns that identify a row"),
        ("out: {from: orders, table: x, keys: order_id}", "`keys` of sink 'out' needs `mode: upsert`"),
        ("out: {from: orders, table: x, mode: upsert, keys: oder_id}", "did you mean 'order_id'"),
        (
            "out: {from: orders, table: x, mode: upsert, keys: order_id, envelope: debezium, delete_when: a = 1}",
            "has deletions in its envelope",
        ),
        ("out: {from: orders, console: {row: 5}}", "console of sink 'out' has no key 'row'; did you mean 'rows'?"),
        ("out: {from: orders, topic: o, mode: apend}", "did you mean 'append'?"),
    ],
)
def test_mistakes_in_sinks_are_named(tmp_path: Path, sink: str, expected: str) -> None:
    found = messages(look_at(tmp_path, pipeline_text(sinks=sink)))
    assert any(expected in message for message in found), found


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = pipeline_text(
        SOURCE.replace("format: json", "format: jsson"),
        "w: {window: {from: ordrs, tumbling: 1 minit, aggregate: {n: count(*)}}}",
        "out: {from: w, topc: out}",
    )
    found = messages(look_at(tmp_path, text))
    assert [message.split()[0] for message in found] == ["5:13", "9:22", "9:39", "11:18"]
    assert "did you mean 'json'" in found[0] and "'topic'" in found[3]


def test_the_place_of_a_table_in_a_block_of_sql(tmp_path: Path) -> None:
    text = pipeline_text(
        steps="""
        s:
          sql: |
            SELECT orders.amount -- from nowhere
            FROM orders
            JOIN  paymnts p ON p.order_id = orders.order_id
        """,
        sinks="out: {from: s, topic: out}",
    )
    line = text.splitlines().index("      JOIN  paymnts p ON p.order_id = orders.order_id") + 1
    assert only(tmp_path, text).startswith(f"{line}:13 error there is no source, step or branch 'paymnts'")


def test_circles_are_found(tmp_path: Path) -> None:
    steps = """
    a: {sql: SELECT * FROM c}
    b: {sql: SELECT * FROM a}
    c: {sql: SELECT * FROM b JOIN orders}
    """
    found = messages(look_at(tmp_path, pipeline_text(steps=steps)))
    assert any("these steps read each other: 'a' <- " in message for message in found), found


def test_a_route_is_read_by_its_branches(tmp_path: Path) -> None:
    steps = "r: {route: {from: orders, branches: {big: amount > 5}, rest: small}}"
    found = messages(
        look_at(tmp_path, pipeline_text(steps=steps, sinks="out: {from: r, topic: out}\nb: {from: big, topic: b}"))
    )
    assert "'r' is a route, whose rows are in its branches; use one of big, small" in found[0]
    found = messages(look_at(tmp_path, pipeline_text(steps=steps, sinks="b: {from: big, topic: b}")))
    assert "warning no sink reads branch 'small'" in found[0]


def test_unused_parts_are_warnings(tmp_path: Path) -> None:
    found = look_at(tmp_path, pipeline_text(SOURCE + PAYMENTS, "s: {sql: SELECT * FROM payments}"))
    assert found.pipeline is not None
    assert messages(found) == [
        "9:3 warning source 'payments' is not used by any sink",
        "15:3 warning step 's' is not used by any sink",
    ]


@pytest.mark.parametrize(
    ("step", "needs_it"),
    [
        ("s: {window: {from: plain, tumbling: 1m, time: at, aggregate: {n: count(*)}}}", True),
        ("s: {dedup: {from: plain, key: id}}", True),
        ("s: {join: {left: plain, right: orders, on: {id: order_id}, within: 1m}}", True),
        ("s:\n  dedup: {from: plain, key: id}\n  watermark: {column: at, delay: 1m}", False),
        ("t:\n  sql: SELECT * FROM plain\n  watermark: {column: at, delay: 1m}\ns: {dedup: {from: t, key: id}}", False),
    ],
)
def test_a_missing_watermark_is_named(tmp_path: Path, step: str, needs_it: bool) -> None:
    plain = "plain: {topic: p, format: json, schema: 'id STRING, at TIMESTAMP'}"
    found = messages(look_at(tmp_path, pipeline_text(SOURCE + plain, step, SINK + "x: {from: s, topic: x}")))
    assert any("watermark: {column: " in message for message in found) is needs_it, found


def test_a_second_watermark_is_refused(tmp_path: Path) -> None:
    step = "s:\n  dedup: {from: orders, key: order_id}\n  watermark: {column: at, delay: 1m}"
    text = pipeline_text(steps=step, sinks="out: {from: s, topic: out}")
    assert "already have a watermark (at, from line 7); remove one of the two" in only(tmp_path, text)


TABLES = "cities: {table: c.csv, format: csv, schema: 'shop STRING, city STRING'}"


@pytest.mark.parametrize(
    ("steps", "reads", "expected"),
    [
        ("s: {join: {left: orders, right: cities, on: shop}}", "s", None),
        (
            "s: {join: {left: orders, right: cities, on: shop, within: 1m}}",
            "s",
            "'cities' is a table, which has no event time",
        ),
        ("s: {join: {left: cities, right: orders, on: shop}}", "s", "put the stream on the left"),
        ("s: {join: {left: orders, right: cities, on: shop, type: full}}", "s", "use inner, left, left_semi"),
        ("s: {latest: {from: orders}}", "s", "sink 'out' needs a stream; 's' is a table"),
        ("l: {latest: {from: cities}}", "orders", "latest step 'l' needs a topic source, and 'cities' is not one"),
        ("s: {dedup: {from: cities, key: shop}}", "s", "dedup step 's' needs a stream; 'cities' is a table"),
        ("l: {latest: {from: payments}}\ns: {join: {left: orders, right: l, on: order_id}}", "s", None),
    ],
)
def test_steps_accept_streams_or_tables(tmp_path: Path, steps: str, reads: str, expected: str | None) -> None:
    text = pipeline_text(SOURCE + PAYMENTS + TABLES, steps, f"out: {{from: {reads}, topic: out}}")
    errors = [message for message in messages(look_at(tmp_path, text)) if " error " in message]
    assert (not errors) if expected is None else any(expected in message for message in errors), errors


def test_a_group_is_of_one_sink(tmp_path: Path) -> None:
    text = pipeline_text(SOURCE + "  group: mine\n", "", SINK + "again: {from: orders, console: }")
    assert "2 sinks (out, again) would commit to the group 'mine'" in only(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1 error the file is empty"),
        ("- a\n", "1:1 error a pipeline is a mapping"),
        (
            "name: a: b\n",
            "1:8 error this is not valid YAML: mapping values are not allowed here; put a text with `: ` in quotes",
        ),
        ("name: a\n\tsources:\n", "this is not valid YAML"),
        ("name: &a [*a]\n", "an alias (*name) contains itself"),
        ("a: 1\n---\nb: 2\n", "this is not valid YAML"),
        ("name: \x01\n", "this is not valid YAML: the character #x0001 is not allowed"),
        ("name: shop\n", "1:1 error the pipeline needs `sources`"),
        ("name: shop\nsources:\nsinks:\n", "2:1 error `sources` is empty; add at least one"),
        ("? [a]\n: 1\n", "a key must be a text"),
        ("name: x\nspark: !!python/object:os.system {}\n", "the pipeline needs `sources`"),
    ],
)
def test_files_that_are_not_pipelines_are_refused(tmp_path: Path, text: str, expected: str) -> None:
    found = messages(look_at(tmp_path, text))
    assert any(expected in message for message in found), found


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    from millstream.pipeline.definition import inspect

    file = tmp_path / "binary.yaml"
    file.write_bytes(b"name: \xff\xfe")
    assert "the file is not UTF-8 text" in messages(inspect(file))[0]
