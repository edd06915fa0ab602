"""`POST /v1/sql`: typed columns of each format, joins, bounds, rights and masks of the caller, cancel."""

import base64
import http.client
import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet
import pytest

from millstream.access.rules_file import parse_rules
from millstream.gateway.http.configuration import read_credentials
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.testing import EmbeddedBroker
from tests.integration.gateway.conftest import Caller, Response
from tests.waiting import TIMEOUT_SECONDS

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "card", "type": {"type": "record", "name": "Card", "fields": [{"name": "number", "type": "string"}]}},
    ],
}
PROTOBUF = 'syntax = "proto3"; message Order { int64 id = 1; string name = 2; repeated string tags = 3; }'
JSON_SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "total": {"type": "number"}}}
RULES = """
[roles]
users = { vera = "viewer", ada = "admin" }
[[masks]]
topics = ["sql-*"]
fields = ["value.card.number", "value.by_mail", "headers.token"]
"""


def basic(name: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{name[0]}".encode()).decode()}


@pytest.fixture(scope="module")
def ask(broker: EmbeddedBroker) -> Iterator[Caller]:
    credentials = read_credentials("basic vera:v\nbasic ada:a\n")
    options = GatewayOptions(
        broker.bootstrap_servers,
        credentials=credentials,
        rules=parse_rules(RULES),
        schemas_topic="_schemas_of_sql",
    )
    with Gateway(options) as running:
        caller = Caller(running.address)
        _fill(caller)
        yield caller


def _fill(ask: Caller) -> None:
    produce(ask, "sql-plain", [{"id": i, "total": i / 2, "card": {"number": f"4111-{i}"}} for i in range(10)])
    produce(ask, "sql-map", [{"id": 1, "by_mail": {"ann@example.org": 1}}])
    produce(ask, "sql-text", ["first", "second"])
    produce(ask, "sql.dotted", [{"id": 3, "note": "three"}])
    avro = [{"id": i, "placed": 1767225600000 + i, "card": {"number": f"4111-{i}"}} for i in range(3)]
    produce(ask, "sql-avro", avro, "AVRO", json.dumps(AVRO))
    produce(ask, "sql-protobuf", [{"id": 1, "name": "a", "tags": ["x", "y"]}], "PROTOBUF", PROTOBUF)
    produce(ask, "sql-json", [{"id": 2, "total": 2.5}], "JSON", json.dumps(JSON_SCHEMA))


def produce(ask: Caller, topic: str, values: list[Any], kind: str = "", schema: str = "") -> None:
    assert ask("POST", "/topics", {"name": topic, "partitions": 2}, basic("ada")).status in (200, 201)
    if kind:
        body = {"schema": schema, "schemaType": kind}
        assert ask("POST", f"/subjects/{topic}-value/versions", body, basic("ada")).status == 200
    form = "?value_format=schema" if kind else ""
    headers = {"token": "secret-token"}
    records = [{"key": f"k{i}", "value": value, "headers": headers} for i, value in enumerate(values)]
    sent = ask("POST", f"/v1/topics/{topic}/produce{form}", {"records": records}, basic("ada"))
    assert sent.status == 200, sent.body


def rows(ask: Caller, query: str, name: str = "ada", **more: Any) -> list[list[Any]]:
    response = ask("POST", "/v1/sql", {"query": query, **more}, basic(name))
    assert response.status == 200, response.body
    found: list[list[Any]] = response.json["rows"]
    return found


def refused(ask: Caller, query: str, **more: Any) -> Response:
    return ask("POST", "/v1/sql", {"query": query, **more}, basic("ada"))


def test_columns_are_typed_by_schema_by_json_or_text(ask: Caller) -> None:
    assert rows(ask, 'select id, placed, card.number from "sql-avro" order by id limit 1') == [
        [0, "2026-01-01T00:00:00Z", "4111-0"]
    ]
    assert rows(ask, 'select id, name, tags[2] from "sql-protobuf"') == [[1, "a", "y"]]
    assert rows(ask, 'select sum(total) from "sql-json"') == [[2.5]]
    assert rows(ask, 'select count(*), sum(total), max(_key) from "sql-plain"') == [[10, 22.5, "k9"]]
    assert sorted(rows(ask, 'select value from "sql-text"')) == [['"first"'], ['"second"']]
    types = {name: kind for name, kind, *_ in rows(ask, 'describe "sql-plain"')}
    assert types["id"] == "BIGINT" and types["total"] == "DOUBLE" and types["card"] == "STRUCT(number VARCHAR)"
    assert types["_timestamp"] == "TIMESTAMP WITH TIME ZONE"
    assert list(types)[-7:] == ["_key", "_topic", "_partition", "_offset", "_timestamp", "_headers", "_error"]


def test_topics_are_joined_and_bounds_make_it_read_less(ask: Caller) -> None:
    joined = 'from "sql-plain" p join sql.dotted d using (id) left join "sql-avro" a using (id)'
    assert rows(ask, f"select p.id, d.note, a.placed is not null {joined}") == [[3, "three", False]]
    response = ask("POST", "/v1/sql", {"query": 'select id from "sql-plain" where _partition = 1'}, basic("ada")).json
    everything = ask("POST", "/v1/sql", {"query": 'select _partition from "sql-plain"'}, basic("ada")).json
    assert everything["read"][0]["records"] == 10
    assert response["read"][0]["records"] == sum(1 for (at,) in everything["rows"] if at == 1)
    newest = ask("POST", "/v1/sql", {"query": 'select * from "sql-plain"', "last": 4}, basic("ada")).json
    assert (len(newest["rows"]), newest["read"][0]["left_out"]) == (4, 6)
    assert rows(ask, 'select count(*) from "sql-plain"', since="1h") == [[10]]
    assert rows(ask, 'select count(*) from "sql-plain" where _timestamp > now() + interval 1 hour') == [[0]]


def test_what_is_masked_is_masked_before_the_query(ask: Caller) -> None:
    for topic in ("sql-plain", "sql-avro"):
        seen = f"select count(*) from \"{topic}\" where card.number like '4111%'"
        assert rows(ask, seen)[0][0] > 0
        assert rows(ask, seen, "vera") == [[0]], "a condition cannot find what is masked"
        whole = ask("POST", "/v1/sql", {"query": f'select * from "{topic}"'}, basic("vera"))
        assert b"4111" not in whole.body and b"secret-token" not in whole.body and b"***" in whole.body
        assert "masked" in whole.json["read"][0]["notes"][0]
        file = ask("POST", "/v1/sql", {"query": f'select * from "{topic}"', "format": "parquet"}, basic("vera"))
        assert "4111" not in str(pyarrow.parquet.read_table(io.BytesIO(file.body)).to_pylist())


def test_rows_as_csv_and_parquet_and_at_most_so_many(ask: Caller) -> None:
    query = {"query": 'select id, card from "sql-plain" order by id', "max_rows": 2}
    found = ask("POST", "/v1/sql", query, basic("ada"))
    assert (len(found.json["rows"]), found.json["truncated"]) == (2, True)
    csv = ask("POST", "/v1/sql", {**query, "format": "csv"}, basic("ada"))
    assert csv.headers["content-type"].startswith("text/csv")
    assert csv.body.decode().splitlines() == [
        '"id","card"',
        '0,"{""number"":""4111-0""}"',
        '1,"{""number"":""4111-1""}"',
    ]
    parquet = ask("POST", "/v1/sql", {**query, "format": "parquet"}, basic("ada"))
    assert pyarrow.parquet.read_table(io.BytesIO(parquet.body)).column("id").to_pylist() == [0, 1]


@pytest.mark.parametrize(
    ("query", "status", "reason"),
    [
        ("select * from sql_plain", 422, "there is no topic 'sql_plain'"),
        ('select totl from "sql-plain"', 422, 'Candidate bindings: "total"'),
        ("selec", 422, "syntax error"),
        ("select * from read_csv('/etc/passwd')", 422, "cannot be used in FROM"),
        ("copy (select 1) to '/tmp/x'", 422, "single SELECT"),
        ("select a.x from range(1000000000) a(x), range(1000000000) b(x) order by a.x * b.x", 422, "memory"),
        ("select length(repeat('x', 4000000000))", 422, "memory"),
        ("select repeat('x', 10000) from range(9000)", 422, "larger than 64 MB"),
    ],
)
def test_a_query_that_cannot_run_says_why(ask: Caller, query: str, status: int, reason: str) -> None:
    response = refused(ask, query)
    assert response.status == status and reason in response.json["message"], response.body
    assert response.json["hint"]


def test_a_query_ends_in_time_and_with_its_caller(ask: Caller) -> None:
    endless = "select count(*) from range(1000000000000) a where a.range % 3 = 1"
    late = refused(ask, endless, timeout_s=0.2)
    assert late.status == 408 and "longer than 0.2 s" in late.json["message"]
    for name in ("levenshtein", "damerau_levenshtein"):  # DuckDB itself does not interrupt a function
        late = refused(ask, f"select {name}(repeat('a', 5000000), repeat('b', 5000000))", timeout_s=1)
        assert late.status == 408, late.body
    for _ in range(4):  # two at a time: if they went on, the last query would get 429
        connection = http.client.HTTPConnection(ask.address, timeout=TIMEOUT_SECONDS)
        connection.request("POST", "/v1/sql", json.dumps({"query": endless, "timeout_s": 300}).encode(), basic("ada"))
        connection.close()
    assert rows(ask, "select 1") == [[1]]


def test_a_body_that_is_wrong_is_refused(ask: Caller) -> None:
    for body in ({}, {"query": ""}, {"query": "select 1", "last": 0}, {"query": "select 1", "format": "xml"}):
        assert ask("POST", "/v1/sql", body, basic("ada")).status == 422
    assert ask("POST", "/v1/sql", {"query": "select 1", "since": "soon"}, basic("ada")).status == 422
    both = {"query": "select 1", "last": 3, "from_beginning": True}
    assert ask("POST", "/v1/sql", both, basic("ada")).status == 422


def test_the_pipeline_of_a_query(ask: Caller) -> None:
    body = {"query": 'select id from "sql-avro" where id > 1', "topic": "out"}
    text = ask("POST", "/v1/sql/pipeline", body, basic("vera")).json["pipeline"]
    assert "format: avro" in text and 'topic: "out"' in text
    text = ask("POST", "/v1/sql/pipeline", {"query": 'select * from "sql-map"'}, basic("vera")).json["pipeline"]
    assert "by_mail" in text and "ann@example.org" not in text  # names of fields in a masked field are masked
    ordered = ask("POST", "/v1/sql/pipeline", {"query": 'select id from "sql-avro" order by id'}, basic("vera"))
    assert ordered.status == 422 and "ORDER BY" in ordered.json["message"]
