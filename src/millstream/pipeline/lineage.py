"""Lineage of a pipeline as OpenLineage events: its topics and tables, their columns, and where each column comes from.

`events` builds the documents of the specification 2-0-2 (openlineage.io), without a library. `LineageSender` appends
them to a file, one JSON document per line, or posts them to an endpoint (Marquez, DataHub, Atlan, …). Sending is a
report: a failure is told, and does not end the pipeline. `engine/column_lineage.py` finds the columns.
"""

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from millstream.pipeline.model import Lineage, Pipeline, TableSink, TableSource, TopicSink, TopicSource

PRODUCER = "https://pypi.org/project/millstream"
_SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS = "https://openlineage.io/spec/facets"
_TIMEOUT_SECONDS = 10.0

Origin = tuple[str, str]
"""The name of a source, and of a column in it."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of sources and sinks, (name, type), by the name of the part; and where columns of sinks come from."""

    sources: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    sinks: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    origins: Mapping[str, Mapping[str, Sequence[Origin]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dataset:
    namespace: str
    name: str


def datasets_of_source(pipeline: Pipeline, source: TopicSource | TableSource) -> list[Dataset]:
    if isinstance(source, TableSource):
        return [_table(source.path)]
    return [Dataset(_cluster(pipeline), topic) for topic in source.topics or (f"/{source.pattern}/",)]


def _cluster(pipeline: Pipeline) -> str:
    """By OpenLineage's naming: the first bootstrap server."""
    return f"kafka://{pipeline.bootstrap.split(',')[0].strip()}"


def _table(path: str) -> Dataset:
    if "://" in path:
        parts = urlsplit(path)
        return Dataset(f"{parts.scheme}://{parts.netloc}", parts.path.strip("/") or "/")
    return Dataset("file", path)


class LineageEvents:
    """The events of one run."""

    def __init__(self, pipeline: Pipeline, lineage: Lineage, columns: Columns, *, is_batch: bool) -> None:
        self._pipeline, self._columns = pipeline, columns
        self._namespace = lineage.namespace
        self._is_batch = is_batch
        self._run = str(uuid.uuid4())

    def event(self, kind: str, error: str | None = None) -> dict[str, Any]:
        """`kind`: START, RUNNING, COMPLETE, ABORT or FAIL."""
        facets: dict[str, Any] = {}
        if error is not None:
            facets["errorMessage"] = _facet("1-0-1/ErrorMessageRunFacet", message=error, programmingLanguage="Python")
        return {
            "eventTime": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "eventType": kind,
            "producer": PRODUCER,
            "schemaURL": _SPEC,
            "run": {"runId": self._run, "facets": facets},
            "job": {"namespace": self._namespace, "name": self._pipeline.name, "facets": self._job_facets()},
            "inputs": [
                self._input(each, source)
                for source in self._pipeline.sources
                for each in datasets_of_source(self._pipeline, source)
            ],
            "outputs": self._outputs(),
        }

    def _job_facets(self) -> dict[str, Any]:
        kind = "BATCH" if self._is_batch else "STREAMING"
        return {
            "jobType": _facet(
                "2-0-4/JobTypeJobFacet", processingType=kind, integration="MILLSTREAM", jobType="PIPELINE"
            )
        }

    def _input(self, dataset: Dataset, source: TopicSource | TableSource) -> dict[str, Any]:
        return _dataset(dataset, _schema(self._columns.sources.get(source.name)))

    def _outputs(self) -> list[dict[str, Any]]:
        found = []
        for sink in self._pipeline.sinks:
            if isinstance(sink, TopicSink):
                dataset = Dataset(_cluster(self._pipeline), sink.topic)
            elif isinstance(sink, TableSink):
                dataset = _table(sink.path)
            else:
                continue
            facets = _schema(self._columns.sinks.get(sink.name))
            if origins := self._columns.origins.get(sink.name):
                facets["columnLineage"] = _facet(
                    "1-2-0/ColumnLineageDatasetFacet",
                    fields={name: {"inputFields": self._inputs_of(each)} for name, each in origins.items() if each},
                )
            found.append(_dataset(dataset, facets))
        return found

    def _inputs_of(self, origins: Sequence[Origin]) -> list[dict[str, str]]:
        sources = {source.name: source for source in self._pipeline.sources}
        return [
            {"namespace": each.namespace, "name": each.name, "field": column}
            for source, column in origins
            for each in datasets_of_source(self._pipeline, sources[source])
        ]


def _facet(schema: str, **fields: Any) -> dict[str, Any]:
    name = schema.rpartition("/")[2]
    return {"_producer": PRODUCER, "_schemaURL": f"{_FACETS}/{schema}.json#/$defs/{name}", **fields}


def _schema(columns: Sequence[tuple[str, str]] | None) -> dict[str, Any]:
    if not columns:
        return {}
    return {
        "schema": _facet("1-2-0/SchemaDatasetFacet", fields=[{"name": name, "type": kind} for name, kind in columns])
    }


def _dataset(dataset: Dataset, facets: Mapping[str, Any]) -> dict[str, Any]:
    return {"namespace": dataset.namespace, "name": dataset.name, "facets": dict(facets)}


class LineageSender:
    """Writes events to the file and to the endpoint of a pipeline. `problems` has what could not be sent."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self.problems: list[str] = []

    def send(self, event: Mapping[str, Any]) -> None:
        text = json.dumps(event)
        if self._lineage.file is not None:
            try:
                path = Path(self._lineage.file)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write(text + "\n")
            except OSError as error:
                self.problems.append(f"lineage was not written to {self._lineage.file}: {error.strerror}")
        if self._lineage.url is not None:
            self._post(self._lineage.url, text)

    def _post(self, url: str, text: str) -> None:
        headers = {"Content-Type": "application/json"}
        if self._lineage.api_key is not None:
            headers["Authorization"] = f"Bearer {self._lineage.api_key}"
        # The scheme was checked when the file was read.
        request = urllib.request.Request(url, text.encode(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):  # nosec B310
                pass
        except (urllib.error.URLError, OSError) as error:
            self.problems.append(f"lineage was not sent to {url}: {error}")
