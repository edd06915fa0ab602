"""`validate --deep`: what the broker, the registry and the disk say; Spark's part is tested with the engine."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import millstream
from millstream.pipeline.deep_check import check_schemas, check_tables, check_topics
from millstream.pipeline.model import Pipeline
from millstream.pipeline.problems import Problems
from millstream.testing import EmbeddedBroker
from tests.system.pipeline.definitions import look_at, messages, pipeline_text


class _Registry(BaseHTTPRequestHandler):
    """Knows one subject."""

    def do_GET(self) -> None:
        known = self.path == "/subjects/known-value/versions/latest"
        document = (
            {"subject": "known-value", "version": 1, "id": 1, "schema": '"string"'}
            if known
            else {"error_code": 40401, "message": "Subject not found."}
        )
        body = json.dumps(document).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Registry) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def pipeline_of(directory: Path, text: str) -> Pipeline:
    found = look_at(directory, text)
    assert found.pipeline is not None, messages(found)
    return found.pipeline


def said(problems: Problems) -> list[str]:
    return [f"{problem.position.line} {problem.severity} {problem.message}" for problem in problems]


def test_missing_topics_and_tables_are_named(tmp_path: Path, millstream_broker: EmbeddedBroker) -> None:
    with millstream.connect(millstream_broker.bootstrap_servers) as client:
        client.create_topic("deep-orders", exist_ok=True)
    text = pipeline_text(
        """
        a: {topic: deep-orders}
        b: {topic: deep-ordrs}
        c: {pattern: deep-nothing-.*}
        d: {table: nowhere}
        """,
        "j: {join: {left: a, right: d, on: key}}",
        """
        x: {from: j, topic: deep-out}
        y: {from: b, topic: deep-orders, format: raw}
        z: {from: c, topic: deep-orders, format: raw}
        """,
        top=f"name: deep\nbootstrap: {millstream_broker.bootstrap_servers}",
    )
    problems = Problems()
    pipeline = pipeline_of(tmp_path, text)
    check_topics(pipeline, problems)
    check_tables(pipeline, problems)
    b, c, d, x = said(problems)
    assert b.startswith("5 error source 'b': there is no topic 'deep-ordrs'") and "did you mean 'deep-orders'?" in b
    assert c == "6 warning source 'c': no topic matches 'deep-nothing-.*' yet"
    assert d == f"7 error source 'd': the path {tmp_path / 'nowhere'} does not exist"
    assert x.startswith("11 warning sink 'x': there is no topic 'deep-out' yet")


def test_a_broker_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.pipeline.deep_check._BROKER_TIMEOUT_SECONDS", 0.5)
    problems = Problems()
    check_topics(pipeline_of(tmp_path, pipeline_text(top="name: deep\nbootstrap: 127.0.0.1:1")), problems)
    (only,) = said(problems)
    assert "the broker at 127.0.0.1:1 did not respond" in only


def test_missing_schemas_are_named(tmp_path: Path, registry: str) -> None:
    text = pipeline_text(
        """
        a: {topic: known, format: avro}
        b: {topic: unknown, format: json}
        c: {topic: x, format: protobuf, subject: chosen}
        d: {topic: y, format: json, schema: a INT}
        """,
        "all: {sql: SELECT x FROM a UNION SELECT x FROM b UNION SELECT x FROM c UNION SELECT a FROM d}",
        "p: {from: all, topic: out, format: protobuf}\nq: {from: all, topic: out, format: avro}",
        top=f"name: deep\nregistry: {registry}",
    )
    problems = Problems()
    check_schemas(pipeline_of(tmp_path, text), problems)
    found = said(problems)
    assert [line.split(":")[0] for line in found] == ["5 error source 'b'", "6 error source 'c'", "11 error sink 'p'"]
    assert "unknown-value" in found[0] and "chosen" in found[1] and "out-value" in found[2]
