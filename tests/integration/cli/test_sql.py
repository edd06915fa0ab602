"""`millstream sql`, and the commands of docs/sql.md as they are printed there."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from millstream.client import Message, connect
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.testing import EmbeddedBroker
from tests.integration.cli.conftest import Outcome, Run
from tests.integration.gateway.conftest import Caller
from tests.repository import REPOSITORY

PAGE = (REPOSITORY / "docs" / "sql.md").read_text()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        with connect(running.bootstrap_servers) as client:
            for topic in ("orders", "payments", "raw-lines"):
                client.create_topic(topic, partitions=1)
            orders = [("1", "ann", 2), ("2", "bob", 7.0), ("3", "ann", 40.5)]
            client.publish_many(
                "orders", [Message({"order_id": key, "customer": name, "total": total}) for key, name, total in orders]
            )
            client.publish("payments", {"order_id": "3", "method": "card"})
            client.publish("raw-lines", b"first line")
            client.publish("raw-lines", b"second line", key=b"k")
        yield running


@pytest.fixture(scope="module")
def gateway(broker: EmbeddedBroker) -> Iterator[Gateway]:
    with Gateway(GatewayOptions(broker.bootstrap_servers)) as running:
        yield running


@pytest.fixture
def sql(offline: Run, broker: EmbeddedBroker, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", broker.bootstrap_servers)
    monkeypatch.setenv("MILLSTREAM_REGISTRY", f"http://{gateway.address}")
    monkeypatch.chdir(tmp_path)
    return offline


def test_the_page_is_true(sql: Run, gateway: Gateway) -> None:
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
    ran = 0
    last: Outcome | None = None
    for kind, text in blocks:
        if kind == "sh":
            for line in text.splitlines():
                words = shlex.split(line)
                if words[0] == "millstream":
                    last = sql(*words[1:])
                    assert last.code == 0, (line, last.err)
                    ran += 1
                elif words[0] == "curl":
                    response = Caller(gateway.address)("POST", "/v1/sql", json.loads(words[-1]))
                    last = Outcome(0, response.body, "")
        elif kind == "text":
            assert last is not None
            assert last.out.splitlines() == text.splitlines()
        elif kind == "json":
            assert last is not None
            found, printed = last.json(), json.loads(text)
            for document in (found, printed):
                document["read"][0].pop("bytes")
            assert found == printed
    assert ran == 6
    assert Path("large.csv").read_text().splitlines()[0].startswith('"order_id","customer","total"')


def test_a_query_from_a_file_and_stdin_in_every_format(sql: Run) -> None:
    Path("query.sql").write_text("select order_id, total from orders order by 1 desc;")
    assert sql("sql", "-f", "query.sql", "--format", "json").json_lines()[0] == {"order_id": "3", "total": 40.5}
    assert sql("sql", "-f", "-", "--format", "csv", stdin=b"select 1 as a, 2 as a").out.splitlines() == [
        '"a","a_2"',
        "1,2",
    ]
    assert sql("sql", "-f", "query.sql", "-o", "rows.parquet").code == 0
    assert pyarrow.parquet.read_table("rows.parquet").num_rows == 3
    assert sorted(path.name for path in Path().iterdir()) == ["query.sql", "rows.parquet"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["select * from order"], "syntax error"),
        (["select * from orderz"], "did you mean 'orders'"),
        (["select nme from orders"], "Candidate bindings"),
        (["select 1", "-o", "rows.txt"], "add --format"),
        (["select 1", "--format", "xml"], "write table, json"),
        (["select 1", "--from-beginning", "--last", "3"], "excludes"),
        (["select 1", "--since", "soon"], "an age such as 1h"),
        (["select 1", "--memory", "much"], "--memory"),
        (["select 1", "--to", "x"], "--to needs --as-pipeline"),
        (["select * from orders limit 3", "--as-pipeline", "x.yaml"], "LIMIT cannot"),
        (["select * from orders", "--memory", "1"], "larger than 0 MB"),
        ([], "give a query, or --file"),
        (["-f", "missing.sql"], "missing.sql"),
    ],
)
def test_mistakes_are_one_line(sql: Run, arguments: list[str], reason: str) -> None:
    outcome = sql("sql", *arguments)
    assert outcome.code != 0 and reason in outcome.err, outcome.err
    assert "Traceback" not in outcome.err and not outcome.out


def test_without_duckdb_it_says_what_to_install(sql: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.sql.engine.is_installed", lambda: False)
    outcome = sql("sql", "select 1")
    assert outcome.code == 2 and "pip install 'millstream[sql]'" in outcome.err
