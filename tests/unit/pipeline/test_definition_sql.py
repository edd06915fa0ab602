"""Tables that a query reads, and columns of a DDL, found without Spark."""

import pytest

from millstream.pipeline.sql_names import SqlError, check_expression, tables_read
from millstream.schemas.ddl import DdlError, parse_columns


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        ("SELECT * FROM a", ["a"]),
        ("select * from a x, b AS y, `c` where x.i in (select i from d)", ["a", "b", "c", "d"]),
        ("SELECT * FROM a LEFT JOIN b USING (k) CROSS JOIN c", ["a", "b", "c"]),
        ("WITH x AS (SELECT * FROM a), y(n) AS (SELECT * FROM x) SELECT * FROM y JOIN b ON y.n = b.n", ["a", "b"]),
        ("SELECT extract(DAY FROM at), trim(BOTH ' ' FROM s), substring(s FROM 2) FROM a", ["a"]),
        ("SELECT a IS DISTINCT FROM b, c IS NOT DISTINCT FROM d FROM t", ["t"]),
        ("SELECT 'FROM x' /* FROM y */ -- FROM z\nFROM a", ["a"]),
        ("SELECT e FROM a LATERAL VIEW explode(list) t AS e", ["a"]),
        ("SELECT * FROM a UNION ALL SELECT * FROM b EXCEPT SELECT * FROM a", ["a", "b"]),
        ("SELECT * FROM range(10) r JOIN a", ["a"]),
        ("SELECT (SELECT max(n) FROM b) FROM a", ["b", "a"]),
        ("SELECT * FROM (a JOIN b ON true)", ["a", "b"]),
        ("SELECT * FROM (SELECT * FROM a) x, b", ["a", "b"]),
        ("SELECT * FROM db.a", ["db.a"]),
        ("FROM a SELECT x", ["a"]),
        ("SELECT count(*) OVER (PARTITION BY k ORDER BY t ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM a;", ["a"]),
        ("SELECT window.end, count(*) FROM a GROUP BY window(at, '5 minutes')", ["a"]),
        ("SELECT v:price::double FROM a, LATERAL (SELECT * FROM b)", ["a", "b"]),
        ("SELECT 1", []),
    ],
)
def test_the_tables_of_a_query_are_found(query: str, tables: list[str]) -> None:
    assert [table.name for table in tables_read(query)] == tables


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "the query is empty"),
        ("INSERT INTO a SELECT 1", "must be a SELECT"),
        ("SELECT (1", "this '(' is not closed"),
        ("SELECT 1)", "this ')' closes nothing"),
        ("SELECT 'x", "the text that begins here has no end"),
        ("SELECT `x", "the quoted name that begins here has no end"),
        ("SELECT 1 /* x", "the comment that begins here has no end"),
        ("SELECT 1; SELECT 2", "one query per step"),
    ],
)
def test_text_that_cannot_be_a_query(query: str, expected: str) -> None:
    with pytest.raises(SqlError, match=None) as raised:
        tables_read(query)
    assert expected in str(raised.value)


@pytest.mark.parametrize("expression", ["", "a; b", "(a", "SELECT 1"])
def test_text_that_cannot_be_an_expression(expression: str) -> None:
    with pytest.raises(SqlError):
        check_expression(expression)


@pytest.mark.parametrize(
    ("ddl", "columns"),
    [
        ("a INT", [("a", "int")]),
        ("a: INT, `odd name` STRING NOT NULL COMMENT 'x, y'", [("a", "int"), ("odd name", "string")]),
        (
            "p DECIMAL(10, 2), s STRUCT<x: INT, y: ARRAY<STRING>>, m MAP<STRING, STRUCT<z: DATE>>",
            [("p", "decimal"), ("s", "struct"), ("m", "map")],
        ),
        (
            "t TIMESTAMP_NTZ, i INTERVAL DAY TO SECOND, v VARIANT",
            [("t", "timestamp_ntz"), ("i", "interval"), ("v", "variant")],
        ),
    ],
)
def test_the_columns_of_a_schema_are_parsed(ddl: str, columns: list[tuple[str, str]]) -> None:
    assert [(column.name, column.type.name) for column in parse_columns(ddl)] == columns


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("", "a column's name is missing"),
        ("a", "the type of the column 'a' is missing"),
        ("a INT b INT", "'b' is not expected after the column 'a'"),
        ("a ARRAY", "ARRAY needs the types in it"),
        ("a MAP<STRING>", "MAP has two types"),
        ("a ARRAY<INT", "the `<` after ARRAY is not closed"),
        ("a TIMESTMP", "did you mean 'timestamp'?"),
    ],
)
def test_wrong_columns_are_refused(ddl: str, expected: str) -> None:
    with pytest.raises(DdlError) as raised:
        parse_columns(ddl)
    assert expected in str(raised.value)
