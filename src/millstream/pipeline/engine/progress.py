"""Progress of queries from Spark's reports, for people, state files and Prometheus."""

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from millstream.common.prometheus import CONTENT_TYPE, Family, Page
from millstream.pipeline.engine.expectations import counts_in
from millstream.pipeline.engine.fan_out import ROWS_OF, FanOut
from millstream.pipeline.engine.planned import PlannedQuery
from millstream.pipeline.engine.queries import OBSERVED, STEP
from millstream.pipeline.model import TopicSource
from millstream.pipeline.state import OutputProgress, QueryProgress, RuleProgress, SourceProgress, StepProgress

Report = Mapping[str, Any]
"""One progress report of Spark, from its JSON."""


@dataclass
class ProgressTracker:
    """The progress of one query; `add` takes the next report of Spark."""

    plan: PlannedQuery
    sources: Sequence[TopicSource]
    group: str | None
    fan_out: FanOut | None = None
    """Of a shared query: it counts the rows of each output."""
    actions: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    """The action of each rule, by kind, part and name."""
    current: QueryProgress = field(init=False)
    _seen: set[tuple[int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        topics = tuple(
            sorted({topic for source in self.sources for topic in (source.topics or (source.pattern or "",))})
        )
        self.current = QueryProgress(
            query=self.plan.name,
            sink=self.plan.sink,
            group=self.group,
            topics=topics,
            updated_ms=_now_ms(),
            trigger_ms=self.plan.trigger.every.milliseconds if self.plan.trigger.every else None,
            outputs=tuple(
                OutputProgress(sink=each.sink, dead_letters=each.carries_dead_letters) for each in self.plan.members
            ),
            steps=tuple(StepProgress(step=name) for name in sorted(self.plan.steps)),
            expectations=tuple(
                RuleProgress(kind=kind, part=part, rule=rule, action=action)
                for (kind, part, rule), action in self.actions.items()
            ),
        )

    @property
    def newest_batch(self) -> int:
        return self.current.batch

    def add(self, report: Report) -> bool:
        """Returns whether the report was new. Reports of an idle query change rates and lags, not totals."""
        identity = (int(report["batchId"]), str(report["timestamp"]))
        if identity in self._seen:
            return False
        self._seen = {identity, *(each for each in self._seen if each[0] >= identity[0] - 200)}
        before = self.current
        rows_in = _number(report.get("numInputRows"))
        observed = {**(report.get("observedMetrics") or {})}
        if self.fan_out is not None:
            observed |= self.fan_out.counts(int(report["batchId"]))
        rows_out = _observed(observed)
        operators = report.get("stateOperators") or []
        duration = (report.get("durationMs") or {}).get("triggerExecution")
        outputs = self._outputs(observed, duration)
        if outputs and observed:
            rows_out = sum(each.rows for each in outputs if not each.dead_letters)
        self.current = replace(
            before,
            outputs=outputs,
            steps=self._steps(observed, duration),
            expectations=self._expectations(observed),
            durations_ms={name: int(ms) for name, ms in (report.get("durationMs") or {}).items()},
            recent=_with_batch(before.recent, report, rows_in, duration),
            batch=max(before.batch, int(report["batchId"])),
            batch_ms=before.batch_ms if duration is None else int(duration),
            sources=self._sources(report),
            rows_in_total=before.rows_in_total + rows_in,
            rows_out=rows_out,
            rows_out_total=_sum(before.rows_out_total, rows_out),
            rows_in_per_second=_rate(report, rows_in),
            rows_out_per_second=_per_second(rows_out, duration),
            state_rows=sum(_number(each.get("numRowsTotal")) for each in operators) if operators else None,
            state_bytes=sum(_number(each.get("memoryUsedBytes")) for each in operators) if operators else None,
            dropped_late_rows=before.dropped_late_rows
            + sum(_number(each.get("numRowsDroppedByWatermark")) for each in operators),
            watermark=_watermark(report) or before.watermark,
            dead_letters_total=self._dead_letters(outputs, rows_out),
            updated_ms=_now_ms(),
        )
        return True

    def _outputs(self, observed: Mapping[str, Any], duration: Any) -> tuple[OutputProgress, ...]:
        found = []
        for member, before in zip(self.plan.members, self.current.outputs, strict=True):
            values = observed.get(f"{ROWS_OF}{member.name}")
            rows = _number(values.get("rows")) if values else 0
            found.append(
                replace(
                    before,
                    rows=rows,
                    rows_total=before.rows_total + rows,
                    rows_per_second=_per_second(rows if values else None, duration),
                )
            )
        return tuple(found)

    def _steps(self, observed: Mapping[str, Any], duration: Any) -> tuple[StepProgress, ...]:
        found = []
        for before in self.current.steps:
            values = observed.get(f"{STEP}{before.step}")
            rows = _number(values.get("rows")) if values else 0
            found.append(
                replace(
                    before,
                    rows=rows,
                    rows_total=before.rows_total + rows,
                    rows_per_second=_per_second(rows if values else None, duration),
                )
            )
        return tuple(found)

    def _expectations(self, observed: Mapping[str, Any]) -> tuple[RuleProgress, ...]:
        counts = {(each.kind, each.part, each.rule): each for each in counts_in(observed)}
        found = []
        for before in self.current.expectations:
            count = counts.get((before.kind, before.part, before.rule))
            found.append(
                replace(
                    before,
                    rows_total=before.rows_total + (count.rows if count else 0),
                    violations=count.violations if count else 0,
                    violations_total=before.violations_total + (count.violations if count else 0),
                )
            )
        return tuple(found)

    def _dead_letters(self, outputs: Sequence[OutputProgress], rows_out: int | None) -> int | None:
        if self.plan.members:
            carried = [each.rows_total for each in outputs if each.dead_letters]
            return sum(carried) if carried else None
        before = self.current.dead_letters_total
        return _sum(before, rows_out) if self.plan.carries_dead_letters else before

    def end(self, error: str | None) -> None:
        self.current = replace(self.current, active=False, error=error, rows_in_per_second=0.0, updated_ms=_now_ms())

    def _sources(self, report: Report) -> tuple[SourceProgress, ...]:
        totals = {each.source: each.rows_total for each in self.current.sources}
        found: dict[str, SourceProgress] = {}
        for index, entry in enumerate(report.get("sources") or []):
            name = self._name_of(index, entry)
            rows = _number(entry.get("numInputRows"))
            same = found.get(name)
            # A source that a query reads twice (joined with itself) is shown once; its lag is that of the slower
            # reader.
            lag = _lag(entry)
            found[name] = SourceProgress(
                source=name,
                rows=rows + (same.rows if same else 0),
                rows_total=totals.get(name, 0) + rows + (same.rows if same else 0),
                rows_per_second=_rate(entry, rows) + (same.rows_per_second if same else 0.0),
                lag=max((each for each in (lag, same.lag if same else None) if each is not None), default=None),
            )
        return tuple(found.values())

    def _name_of(self, index: int, entry: Report) -> str:
        """By the topics in its offsets; Spark orders sources by the optimised plan, not by the file."""
        topics = set(_offsets(entry.get("endOffset")))
        for source in self.sources:
            if topics and source.topics and topics <= set(source.topics):
                return source.name
        if len(self.sources) == 1:
            return self.sources[0].name
        patterned = [source.name for source in self.sources if source.pattern]
        if len(patterned) == 1:
            return patterned[0]
        return self.sources[index].name if index < len(self.sources) else str(entry.get("description", index))


_RECENT = 30


def _with_batch(
    recent: tuple[tuple[int, int, int, int], ...], report: Report, rows: int, duration: Any
) -> tuple[tuple[int, int, int, int], ...]:
    if not rows or duration is None:
        return recent
    return (*recent, (int(report["batchId"]), _now_ms(), int(duration), rows))[-_RECENT:]


def _offsets(document: Any) -> dict[str, dict[str, int]]:
    if isinstance(document, str):
        try:
            document = json.loads(document)
        except ValueError:
            return {}
    if not isinstance(document, dict):
        return {}
    return {topic: of for topic, of in document.items() if isinstance(of, dict) and not topic.startswith("$")}


def _lag(entry: Report) -> int | None:
    """The number of unread records; None if the source does not report it."""
    end, latest = _offsets(entry.get("endOffset")), _offsets(entry.get("latestOffset"))
    if not latest:
        return None
    return sum(
        max(0, last - int(end.get(topic, {}).get(partition, 0)))
        for topic, of in latest.items()
        for partition, last in of.items()
    )


def _observed(observed: Mapping[str, Any]) -> int | None:
    found = observed.get(OBSERVED)
    return None if not found else _number(found.get("rows"))


def _rate(report: Report, rows: int) -> float:
    """Rows per second since the previous batch; for the first batch, during its run."""
    if rows == 0:
        return 0.0
    for name in ("inputRowsPerSecond", "processedRowsPerSecond"):
        value = report.get(name)
        if isinstance(value, int | float) and math.isfinite(value) and value > 0:
            return float(value)
    return 0.0


def _per_second(rows: int | None, duration_ms: Any) -> float | None:
    if rows is None or not duration_ms:
        return None
    return rows * 1000 / float(duration_ms)


def _watermark(report: Report) -> str | None:
    text = (report.get("eventTime") or {}).get("watermark")
    # Before the first row Spark's watermark is the epoch.
    return None if not text or str(text).startswith("1970-01-01T00:00:00") else str(text)


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) and value > 0 else 0


def _sum(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_PREFIX = "millstream_pipeline"

_OF_SINK = ("pipeline", "sink")
_OF_SOURCE = (*_OF_SINK, "source")
_OF_STEP = ("pipeline", "step")
_FAMILIES: dict[str, Family] = {
    "rows_in_total": Family(
        f"{_PREFIX}_rows_in_total", "counter", "Rows read from a source since the run began.", _OF_SOURCE
    ),
    "rows_in_per_second": Family(
        f"{_PREFIX}_rows_in_per_second", "gauge", "Rows read per second, in the last batch.", _OF_SOURCE
    ),
    "lag_records": Family(
        f"{_PREFIX}_lag_records", "gauge", "Records that are in the topics and not read yet.", _OF_SOURCE
    ),
    "rows_out_total": Family(
        f"{_PREFIX}_rows_out_total", "counter", "Rows given to the sink since the run began.", _OF_SINK
    ),
    "rows_out_per_second": Family(
        f"{_PREFIX}_rows_out_per_second", "gauge", "Rows given to the sink per second, in the last batch.", _OF_SINK
    ),
    "step_rows_total": Family(
        f"{_PREFIX}_step_rows_total",
        "counter",
        "Rows that came out of a step, or of a branch of a route, since the run began.",
        _OF_STEP,
    ),
    "step_rows_per_second": Family(
        f"{_PREFIX}_step_rows_per_second", "gauge", "The same per second, in the last batch.", _OF_STEP
    ),
    "batch_id": Family(f"{_PREFIX}_batch_id", "gauge", "The number of the last batch.", _OF_SINK),
    "batch_duration_seconds": Family(
        f"{_PREFIX}_batch_duration_seconds", "gauge", "How long the last batch took.", _OF_SINK
    ),
    "state_rows": Family(f"{_PREFIX}_state_rows", "gauge", "Rows that the query keeps in its state.", _OF_SINK),
    "state_bytes": Family(f"{_PREFIX}_state_bytes", "gauge", "Memory that the query's state takes.", _OF_SINK),
    "late_rows_total": Family(
        f"{_PREFIX}_late_rows_total", "counter", "Rows left out because they came after the watermark.", _OF_SINK
    ),
    "watermark_seconds": Family(
        f"{_PREFIX}_watermark_seconds", "gauge", "The watermark, as seconds since 1970.", _OF_SINK
    ),
    "query_active": Family(f"{_PREFIX}_query_active", "gauge", "1 while the query runs.", _OF_SINK),
    "dead_letters_total": Family(
        f"{_PREFIX}_dead_letters_total",
        "counter",
        "Dead letters since the run began, by the source or step they are of.",
        ("pipeline", "step"),
    ),
    "expectation_rows_total": Family(
        f"{_PREFIX}_expectation_rows_total",
        "counter",
        "Rows that an expectation saw since the run began, in complete batches.",
        ("pipeline", "part", "expectation", "action"),
    ),
    "expectation_violations_total": Family(
        f"{_PREFIX}_expectation_violations_total",
        "counter",
        "Rows that did not meet an expectation since the run began, in complete batches.",
        ("pipeline", "part", "expectation", "action"),
    ),
}
_OF_SOURCES = ("rows_in_total", "rows_in_per_second", "lag_records")
_OF_RULES = ("expectation_rows_total", "expectation_violations_total")
_OF_STEPS = ("step_rows_total", "step_rows_per_second")
_OF_OUTPUTS = ("rows_out_total", "rows_out_per_second")


class PipelineMetrics:
    """The newest numbers of every query, as text."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._queries: dict[str, QueryProgress] = {}
        self._dead_letters: Mapping[str, int] = {}
        self._lock = threading.Lock()

    def show(self, progress: QueryProgress) -> None:
        with self._lock:
            self._queries[progress.query] = progress

    def show_dead_letters(self, by_step: Mapping[str, int]) -> None:
        with self._lock:
            self._dead_letters = by_step

    def text(self) -> str:
        with self._lock:
            queries, letters = list(self._queries.values()), dict(self._dead_letters)
        page = Page()
        for name, family in _FAMILIES.items():
            for labels, value in self._samples(name, queries, letters):
                page.add(family, value, *labels)
        return b"".join(page.chunks()).decode()

    def _samples(
        self, name: str, queries: Sequence[QueryProgress], letters: Mapping[str, int]
    ) -> Iterator[tuple[tuple[str, ...], float]]:
        """The values of the labels, and the value, of each sample."""
        if name == "dead_letters_total":
            for step, count in letters.items():
                yield (self._pipeline, step), count
            return
        for each in queries:
            if name in _OF_RULES:
                yield from self._rules(name, each)
                continue
            if name in _OF_STEPS:
                for counted in each.steps:
                    value = counted.rows_total if name == "step_rows_total" else counted.rows_per_second
                    if value is not None:
                        yield (self._pipeline, counted.step), value
                continue
            if name in _OF_OUTPUTS:
                for output in each.by_output:
                    if (value := _own_value(name, output)) is not None:
                        yield (self._pipeline, output.sink), value
                continue
            labels = (self._pipeline, self._label(each))
            if name in _OF_SOURCES:
                for source in each.sources:
                    of_source = (*labels, source.source)
                    if name == "rows_in_total":
                        yield of_source, source.rows_total
                    elif name == "rows_in_per_second":
                        yield of_source, source.rows_per_second
                    elif source.lag is not None:
                        yield of_source, source.lag
                continue
            value = _own_value(name, each)
            if value is not None:
                yield labels, value

    def _label(self, each: QueryProgress) -> str:
        """The sink; of a shared query its own name, so that what it reads counts once."""
        return each.query.removeprefix(f"{self._pipeline}.") if each.outputs else each.sink

    def _rules(self, name: str, each: QueryProgress) -> Iterator[tuple[tuple[str, ...], float]]:
        for rule in each.expectations:
            labels = (self._pipeline, rule.part, rule.rule, rule.action)
            yield labels, rule.rows_total if name == "expectation_rows_total" else rule.violations_total


def _own_value(name: str, each: QueryProgress) -> float | None:
    values: dict[str, float | None] = {
        "rows_out_total": each.rows_out_total,
        "rows_out_per_second": each.rows_out_per_second,
        "batch_id": each.batch if each.batch >= 0 else None,
        "batch_duration_seconds": None if each.batch_ms is None else each.batch_ms / 1000,
        "state_rows": each.state_rows,
        "state_bytes": each.state_bytes,
        "late_rows_total": each.dropped_late_rows,
        "watermark_seconds": None if each.watermark is None else datetime.fromisoformat(each.watermark).timestamp(),
        "query_active": int(each.active),
    }
    return values[name]


class MetricsServer:
    """Serves `/metrics` on a port of this machine; 0 picks a free one."""

    def __init__(self, text: Callable[[], str], port: int, host: str = "127.0.0.1") -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.split("?")[0] not in ("/", "/metrics"):
                    self.send_error(404, "the page is /metrics")
                    return
                body = text().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Scrapes are not worth a line each."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5.0)
