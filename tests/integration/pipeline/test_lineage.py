"""OpenLineage events: the same documents as OpenLineage's own classes make; sent to a file and to an endpoint."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from millstream.pipeline.lineage import Columns, LineageEvents, LineageSender
from millstream.pipeline.model import Lineage, Pipeline
from tests.system.pipeline.definitions import SOURCE, look_at, messages, pipeline_text
from tests.waiting import TIMEOUT_SECONDS

SINKS = """
out: {from: orders, topic: out}
lake: {from: orders, table: "s3://bucket/lake/orders"}
"""
COLUMNS = Columns(
    sources={"orders": [("order_id", "string"), ("amount", "double")]},
    sinks={"out": [("id", "string")]},
    origins={"out": {"id": [("orders", "order_id")], "constant": []}},
)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    top = "name: shop\nbootstrap: broker-1:9092,broker-2:9092\nlineage: {url: http://127.0.0.1:1, namespace: sales}"
    found = look_at(tmp_path, pipeline_text(SOURCE, "", SINKS, top))
    assert found.pipeline is not None, messages(found)
    return found.pipeline


def event_of(pipeline: Pipeline, kind: str = "START", error: str | None = None) -> dict[str, Any]:
    assert pipeline.lineage is not None
    return LineageEvents(pipeline, pipeline.lineage, COLUMNS, is_batch=False).event(kind, error)


def test_datasets_have_openlineages_names(pipeline: Pipeline) -> None:
    event = event_of(pipeline)
    assert pipeline.lineage is not None
    assert pipeline.lineage.url == "http://127.0.0.1:1/api/v1/lineage"
    assert [(each["namespace"], each["name"]) for each in event["inputs"]] == [("kafka://broker-1:9092", "orders")]
    assert [(each["namespace"], each["name"]) for each in event["outputs"]] == [
        ("kafka://broker-1:9092", "out"),
        ("s3://bucket", "lake/orders"),
    ]
    lineage = event["outputs"][0]["facets"]["columnLineage"]["fields"]
    assert lineage == {
        "id": {"inputFields": [{"namespace": "kafka://broker-1:9092", "name": "orders", "field": "order_id"}]}
    }


@pytest.mark.parametrize(("kind", "error"), [("START", None), ("COMPLETE", None), ("FAIL", "a batch failed")])
def test_openlineages_own_classes_make_the_same_document(pipeline: Pipeline, kind: str, error: str | None) -> None:
    client = pytest.importorskip("openlineage.client.event_v2", reason="openlineage-python is not installed")
    facets = pytest.importorskip("openlineage.client.facet_v2")
    serde = pytest.importorskip("openlineage.client.serde")
    ours = event_of(pipeline, kind, error)

    def made(kind: type, document: dict[str, Any]) -> Any:
        """The typed object; it sets producer and schema itself."""
        return kind(**{name: value for name, value in document.items() if not name.startswith("_")})

    def dataset(kind: type, document: dict[str, Any]) -> Any:
        found = dict(document["facets"])
        if "schema" in found:
            fields = [made(facets.schema_dataset.SchemaDatasetFacetFields, each) for each in found["schema"]["fields"]]
            found["schema"] = facets.schema_dataset.SchemaDatasetFacet(fields=fields)
        if "columnLineage" in found:
            module = facets.column_lineage_dataset
            by_column = {
                name: module.Fields([made(module.InputField, origin) for origin in each["inputFields"]])
                for name, each in found["columnLineage"]["fields"].items()
            }
            found["columnLineage"] = module.ColumnLineageDatasetFacet(fields=by_column)
        return kind(namespace=document["namespace"], name=document["name"], facets=found)

    job = made(facets.job_type_job.JobTypeJobFacet, ours["job"]["facets"]["jobType"])
    run = {}
    if error is not None:
        run["errorMessage"] = made(facets.error_message_run.ErrorMessageRunFacet, ours["run"]["facets"]["errorMessage"])
    theirs = client.RunEvent(
        eventTime=ours["eventTime"],
        eventType=client.RunState[kind],
        producer=ours["producer"],
        run=client.Run(runId=ours["run"]["runId"], facets=run),
        job=client.Job(namespace="sales", name="shop", facets={"jobType": job}),
        inputs=[dataset(client.InputDataset, each) for each in ours["inputs"]],
        outputs=[dataset(client.OutputDataset, each) for each in ours["outputs"]],
    )
    assert _without_producers(json.loads(serde.Serde.to_json(theirs))) == _without_producers(ours)


def _without_producers(document: Any) -> Any:
    """Their facets have the library as producer; empty values are left out by it."""
    if isinstance(document, dict):
        found = {name: _without_producers(value) for name, value in document.items() if name != "_producer"}
        return {name: value for name, value in found.items() if value not in ({}, [], None)}
    return [_without_producers(each) for each in document] if isinstance(document, list) else document


def test_events_go_to_a_file_and_to_an_endpoint(pipeline: Pipeline, tmp_path: Path) -> None:
    got: list[tuple[str, str | None, dict[str, Any]]] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append((self.path, self.headers.get("Authorization"), body))
            self.send_response(201)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/api/v1/lineage"
        sender = LineageSender(Lineage(file=str(tmp_path / "deep" / "lineage.jsonl"), url=url, api_key="secret"))
        event = event_of(pipeline)
        sender.send(event)
        sender.send(event)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(TIMEOUT_SECONDS)
    assert sender.problems == []
    assert got == [("/api/v1/lineage", "Bearer secret", event)] * 2
    assert [json.loads(line) for line in (tmp_path / "deep" / "lineage.jsonl").read_text().splitlines()] == [event] * 2


def test_an_endpoint_that_is_not_there_is_a_problem_to_tell(pipeline: Pipeline) -> None:
    assert pipeline.lineage is not None
    sender = LineageSender(pipeline.lineage)
    sender.send(event_of(pipeline))
    (problem,) = sender.problems
    assert "lineage was not sent to http://127.0.0.1:1/api/v1/lineage" in problem
