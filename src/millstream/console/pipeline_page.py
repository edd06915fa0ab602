"""The page of one pipeline: its graph with rates, its queries, batches, expectations, and why it is slow.

The data is what the pipeline publishes in a topic (`admin/pipeline_status.py`). It comes from the cluster, so it is
shown as text; in the graph, only with characters that Mermaid does not read.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from millstream.admin.pipeline_status import TOPIC, PublishedStatuses
from millstream.console.formats import clock, count, rate, short_count
from millstream.console.frame import Frame
from millstream.console.pipeline_graph import graph_text
from millstream.console.tables import Column, DataTable
from millstream.console.widgets import Stat, card, heading
from millstream.doctor.pipelines import watermark_delay_s, why_slow

_EVERY_SECONDS = 2.0
_SILENT_AFTER_SECONDS = 60.0
_TONES = {
    "running": "good",
    "finished": "dim",
    "starting": "warn",
    "stopping": "warn",
    "failed": "bad",
    "silent": "bad",
}
_GRAPH = {"securityLevel": "strict", "flowchart": {"htmlLabels": False}}


class PipelineView:
    def __init__(self, frame: Frame, name: str) -> None:
        self._frame = frame
        self._name = name
        self._statuses = PublishedStatuses(frame.console.cluster)
        self._graph = ""
        with ui.link(target="/pipelines").classes("ms-back"):
            ui.icon("arrow_back")
            ui.label("Pipelines")
        with heading(name):
            self._spark = ui.link("Spark UI", target="", new_tab=True).props("data-testid=spark-ui rel=noopener")
            self._spark.set_visibility(False)
        self._note = ui.label("").classes("ms-muted").props("data-testid=pipeline-note")
        with card(""), ui.element("div").classes("ms-stats"):
            self._phase = Stat("phase", test_id="pipeline-phase")
            self._rate = Stat("records/s read", test_id="pipeline-rate")
            self._lag = Stat("lag", test_id="pipeline-lag")
            self._state = Stat("rows of state", test_id="pipeline-state")
            self._delay = Stat("watermark delay", test_id="pipeline-watermark")
            self._broken = Stat("rows that meet not all expectations", test_id="pipeline-broken")
        with card("Why is it slow?"):
            self._why = ui.column().classes("gap-1").props("data-testid=pipeline-why")
        with card("Graph", note="rows per second in the last batch"):
            self._picture = ui.mermaid("flowchart LR\n", config=_GRAPH).props("data-testid=pipeline-graph")
        with card("Queries"):
            self._queries = DataTable(_QUERIES, key="key", empty="No query has reported.", test_id="queries", name="")
        with card("Expectations"):
            self._rules = DataTable(_RULES, key="key", empty="The file has none.", test_id="expectations", name="rules")
        with card("Batches", note="the last ones with rows"):
            self._batches = DataTable(
                _BATCHES, key="key", empty="No batch with rows yet.", test_id="batches", name="batches"
            )
        ui.timer(_EVERY_SECONDS, self._refresh)
        ui.timer(0.0, self._refresh, once=True)

    async def _refresh(self) -> None:
        with self._frame.reporting("The status of the pipeline"):
            await self._frame.run(self._statuses.refresh)
            self._show(self._statuses.documents.get(self._name))

    def _show(self, document: Mapping[str, Any] | None) -> None:
        if document is None:
            self._note.set_text(
                f"Nothing is known of {self._name}: it has not run with this version, or may not write to {TOPIC}."
            )
            return
        queries: Sequence[Mapping[str, Any]] = document.get("queries") or []
        phase = _phase(document)
        self._note.set_text(
            f"{document.get('file')} on {document.get('host')}, process {document.get('pid')}, "
            f"{document.get('master') or 'local'}" + (f": {document['error']}" if document.get("error") else "")
        )
        address = str(document.get("spark_ui") or "")
        self._spark.set_visibility(address.startswith(("http://", "https://")) and phase == "running")
        if address.startswith(("http://", "https://")):
            self._spark.props["href"] = address
        self._phase.show(phase, _TONES.get(phase, ""))
        self._rate.show(short_count(sum(float(each.get("rows_in_per_second") or 0) for each in queries)))
        self._lag.show(short_count(sum(_lag(each) for each in queries)))
        self._state.show(short_count(sum(int(each.get("state_rows") or 0) for each in queries)))
        delays = [delay for each in queries if (delay := watermark_delay_s(each)) is not None]
        self._delay.show(f"{max(delays):,.0f} s" if delays else "–")
        rules = [
            {**rule, "key": f"{rule['kind']}:{rule['part']}:{rule['rule']}"}
            for each in queries
            for rule in each.get("expectations") or []
        ]
        broken = sum(int(rule["violations_total"]) for rule in rules)
        self._broken.show(short_count(broken), "warn" if broken else "")
        self._rules.update(rules)
        self._queries.update([_query_row(each) for each in queries])
        self._batches.update(_batch_rows(queries))
        self._say_why(queries)
        self._draw(document)

    def _say_why(self, queries: Sequence[Mapping[str, Any]]) -> None:
        self._why.clear()
        with self._why:
            for each in queries:
                ui.label(f"{each['sink']}: {why_slow(each)}")

    def _draw(self, document: Mapping[str, Any]) -> None:
        text = graph_text(document)
        if text != self._graph:
            self._graph = text
            self._picture.set_content(text)


def _phase(document: Mapping[str, Any]) -> str:
    """`silent`: it should run, and has not reported for a minute."""
    phase = str(document.get("phase") or "")
    age_s = time.time() - float(document.get("published_ms") or 0) / 1000
    active = any(each.get("active") for each in document.get("queries") or [])
    return "silent" if phase == "running" and active and age_s > _SILENT_AFTER_SECONDS else phase


def _lag(query: Mapping[str, Any]) -> int:
    return sum(int(source.get("lag") or 0) for source in query.get("sources") or [])


_QUERIES = [
    Column("query", "Query", searched=True),
    Column("sinks", "Writes", searched=True, cell="soft"),
    Column("batch", "Batch", right=True),
    Column("batch_ms", "Took (ms)", count, right=True),
    Column("rate", "Records/s", rate, right=True),
    Column("lag", "Lag", short_count, right=True),
    Column("state_rows", "State rows", short_count, right=True),
    Column("state_bytes", "State bytes", short_count, right=True),
    Column("late", "Late rows", short_count, right=True),
    Column("watermark", "Watermark"),
]
_RULES = [
    Column("rule", "Expectation", searched=True),
    Column("part", "Of", searched=True),
    Column("action", "Action"),
    Column("rows_total", "Rows", count, right=True),
    Column("violations_total", "Not met", count, right=True),
    Column("violations", "In last batch", count, right=True),
]
_BATCHES = [
    Column("query", "Query", searched=True),
    Column("batch", "Batch", right=True),
    Column("ended", "Ended", clock, right=True),
    Column("ms", "Took (ms)", count, right=True),
    Column("rows", "Rows read", count, right=True),
]


def _query_row(each: Mapping[str, Any]) -> dict[str, object]:
    return {
        "key": each["query"],
        "query": each["query"],
        "sinks": each["sink"],
        "batch": each["batch"],
        "batch_ms": each.get("batch_ms") or 0,
        "rate": float(each.get("rows_in_per_second") or 0),
        "lag": _lag(each),
        "state_rows": each.get("state_rows") or 0,
        "state_bytes": each.get("state_bytes") or 0,
        "late": each.get("dropped_late_rows") or 0,
        "watermark": str(each.get("watermark") or "")[:19],
    }


def _batch_rows(queries: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    return [
        {
            "key": f"{each['query']}:{batch}",
            "query": each["query"],
            "batch": batch,
            "ended": ended_ms / 1000,
            "ms": ms,
            "rows": rows,
        }
        for each in queries
        for batch, ended_ms, ms, rows in reversed(each.get("recent") or [])
    ]
