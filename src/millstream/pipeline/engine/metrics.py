"""Progress as Prometheus reads it: a small page in the text format, served while the pipeline runs."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from millstream.pipeline.state import QueryProgress

_PREFIX = "millstream_pipeline"

_HELP: dict[str, tuple[str, str]] = {
    "rows_in_total": ("counter", "Rows read from a source since the run began."),
    "rows_in_per_second": ("gauge", "Rows read per second, in the last batch."),
    "lag_records": ("gauge", "Records that are in the topics and not read yet."),
    "rows_out_total": ("counter", "Rows given to the sink since the run began."),
    "rows_out_per_second": ("gauge", "Rows given to the sink per second, in the last batch."),
    "batch_id": ("gauge", "The number of the last batch."),
    "batch_duration_seconds": ("gauge", "How long the last batch took."),
    "state_rows": ("gauge", "Rows that the query keeps in its state."),
    "state_bytes": ("gauge", "Memory that the query's state takes."),
    "late_rows_total": ("counter", "Rows left out because they came after the watermark."),
    "watermark_seconds": ("gauge", "The watermark, as seconds since 1970."),
    "query_active": ("gauge", "1 while the query runs."),
    "dead_letters_total": ("counter", "Dead letters since the run began, by the source or step they are of."),
}


class MetricsBoard:
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
        lines = []
        for name, (kind, explanation) in _HELP.items():
            samples = list(self._samples(name, queries, letters))
            if samples:
                lines += [f"# HELP {_PREFIX}_{name} {explanation}", f"# TYPE {_PREFIX}_{name} {kind}"]
                lines += [f"{_PREFIX}_{name}{{{_labels(labels)}}} {value}" for labels, value in samples]
        return "\n".join(lines) + "\n"

    def _samples(
        self, name: str, queries: Sequence[QueryProgress], letters: Mapping[str, int]
    ) -> Iterator[tuple[dict[str, str], float]]:
        if name == "dead_letters_total":
            for step, count in letters.items():
                yield {"pipeline": self._pipeline, "step": step}, count
            return
        for each in queries:
            labels = {"pipeline": self._pipeline, "sink": each.sink}
            if name in ("rows_in_total", "rows_in_per_second", "lag_records"):
                for source in each.sources:
                    of_source = {**labels, "source": source.source}
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


def _labels(labels: Mapping[str, str]) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

    return ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())


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
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
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
