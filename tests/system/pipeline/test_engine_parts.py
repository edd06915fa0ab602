"""The engine's parts that need no Spark: progress, metrics, the live view, stopping, failures, tables."""

import io
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from millstream.pipeline.definition import load
from millstream.pipeline.engine.decoding import columns_to_read
from millstream.pipeline.engine.failures import Part, PartFailedError, spark_reason
from millstream.pipeline.engine.live_view import LiveView
from millstream.pipeline.engine.planned import PlannedQuery, planned_queries
from millstream.pipeline.engine.progress import MetricsServer, PipelineMetrics, ProgressTracker
from millstream.pipeline.engine.queries import StartedQuery
from millstream.pipeline.engine.run import NoBrokerError, prepare_topics
from millstream.pipeline.engine.sources import UNAVAILABLE, StaticTable
from millstream.pipeline.engine.steps import _columns as joined_columns
from millstream.pipeline.engine.supervision import RunResult, StopSignal, Supervisor, Watched
from millstream.pipeline.model import ConsoleSink, Join, JoinKey, JoinType, OutputMode, Pipeline, TopicSource, Trigger
from millstream.pipeline.state import QueryProgress, SourceProgress
from tests.waiting import TIMEOUT_SECONDS


def pipeline_of(tmp_path: Path, text: str) -> Pipeline:
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    return load(file)


def plan(name: str = "shop.revenue", *, dead_letters: bool = False) -> PlannedQuery:
    sink = ConsoleSink(name="revenue", line=9, reads="orders")
    part = Part("sink", "revenue", 9)
    return PlannedQuery(name, "revenue", part, sink, Trigger(), OutputMode.APPEND, carries_dead_letters=dead_letters)


def report(batch: int, rows: int, *, out: int | None = None, end: int = 0, latest: int | None = None) -> dict[str, Any]:
    return {
        "batchId": batch,
        "timestamp": f"2026-01-01T00:00:{batch:02}.000Z",
        "numInputRows": rows,
        "inputRowsPerSecond": float(rows),
        "durationMs": {"triggerExecution": 500},
        "observedMetrics": {} if out is None else {"millstream": {"rows": out}},
        "eventTime": {"watermark": "1970-01-01T00:00:00.000Z" if batch == 0 else "2026-01-01T00:00:00.000Z"},
        "stateOperators": [{"numRowsTotal": 7, "memoryUsedBytes": 2048, "numRowsDroppedByWatermark": 1}],
        "sources": [
            {
                "numInputRows": rows,
                "inputRowsPerSecond": float(rows),
                "endOffset": {"orders": {"0": end}, "$millstream": {"group": "g"}},
                "latestOffset": None if latest is None else {"orders": {"0": latest, "1": 3}},
            }
        ],
    }


ORDERS = TopicSource(name="orders", line=3, topics=("orders",))


class TestProgress:
    def test_totals_grow_and_the_same_report_counts_once(self) -> None:
        book = ProgressTracker(plan(), [ORDERS], "g")
        assert book.add(report(0, 10, out=4, end=10, latest=15))
        assert not book.add(report(0, 10, out=4, end=10, latest=15))
        assert book.add(report(1, 5, out=1, end=15, latest=15))
        now = book.current
        assert (now.batch, now.rows_in_total, now.rows_out_total, now.batch_ms) == (1, 15, 5, 500)
        assert now.sources == (SourceProgress(source="orders", rows=5, rows_total=15, rows_per_second=5.0, lag=3),)
        assert (now.state_rows, now.state_bytes, now.dropped_late_rows) == (7, 2048, 2)
        assert now.watermark == "2026-01-01T00:00:00.000Z"

    def test_a_source_that_tells_no_latest_offset_has_no_lag(self) -> None:
        book = ProgressTracker(plan(), [ORDERS], None)
        book.add(report(0, 1))
        assert book.current.sources[0].lag is None
        assert book.current.watermark is None

    def test_dead_letters_are_what_such_a_query_gives(self) -> None:
        book = ProgressTracker(plan(dead_letters=True), [ORDERS], None)
        book.add(report(0, 10, out=4))
        book.add(report(1, 10, out=2))
        assert book.current.dead_letters_total == 6

    def test_a_source_read_twice_is_one_line(self) -> None:
        book = ProgressTracker(plan(), [ORDERS], None)
        twice = report(0, 10, end=4, latest=4)
        twice["sources"] *= 2
        book.add(twice)
        assert book.current.sources[0].rows_total == 20
        assert len(book.current.sources) == 1


class TestMetrics:
    def progress(self) -> QueryProgress:
        book = ProgressTracker(plan(), [ORDERS], None)
        book.add(report(1, 10, out=4, end=10, latest=15))
        return book.current

    def test_the_page_has_every_number_with_its_labels(self) -> None:
        board = PipelineMetrics('sh"op')
        board.show(self.progress())
        board.show_dead_letters({"orders": 2})
        text = board.text()
        labels = r'pipeline="sh\"op",sink="revenue"'
        assert f'millstream_pipeline_rows_in_total{{{labels},source="orders"}} 10\n' in text
        assert f'millstream_pipeline_lag_records{{{labels},source="orders"}} 8\n' in text
        assert f"millstream_pipeline_rows_out_total{{{labels}}} 4\n" in text
        assert f"millstream_pipeline_batch_duration_seconds{{{labels}}} 0.5\n" in text
        assert f"millstream_pipeline_watermark_seconds{{{labels}}} 1767225600\n" in text
        assert r'millstream_pipeline_dead_letters_total{pipeline="sh\"op",step="orders"} 2' in text
        assert "# TYPE millstream_pipeline_rows_in_total counter" in text

    def test_metrics_of_the_engine_are_served(self) -> None:
        server = MetricsServer(lambda: "a 1\n", 0)
        try:
            with urllib.request.urlopen(server.address, timeout=TIMEOUT_SECONDS) as response:
                assert response.read() == b"a 1\n"
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(server.address.replace("metrics", "else"), timeout=TIMEOUT_SECONDS)
            refused.value.close()
        finally:
            server.close()


class TestLiveView:
    def test_a_table_in_a_terminal(self) -> None:
        screen = Console(file=io.StringIO(), force_terminal=True, width=150)
        view = LiveView("shop", screen)
        view.show(TestMetrics().progress())
        view.show_dead_letters({"orders": 2}, "not JSON")
        screen.print(view.render())
        text = cast(io.StringIO, screen.file).getvalue()
        for word in ("revenue", "orders", "rows/s in", "lag", "8", "7 / 2.0 KB", "2026-01-01 00:00:00", "not JSON"):
            assert word in text

    def test_in_a_narrow_terminal_names_are_cut_and_numbers_are_not(self) -> None:
        screen = Console(file=io.StringIO(), force_terminal=True, width=80)
        view = LiveView("shop", screen)
        progress = replace(
            TestMetrics().progress(),
            sink="a_sink_with_quite_a_long_name",
            sources=(SourceProgress(source="orders", rows_per_second=1_234_567.0, lag=98_765_432),),
            rows_out_total=1_234_567_890,
        )
        view.show(progress)
        screen.print(view.render())
        text = cast(io.StringIO, screen.file).getvalue()
        for word in ("1,234,567", "98,765,432", "1,234,567,890", "state 7 / 2.0 KB, watermark 2026-01-01 00:00:00"):
            assert word in text

    def test_lines_where_there_is_no_terminal_and_not_too_many(self) -> None:
        now = [0.0]
        paper = io.StringIO()
        view = LiveView("shop", Console(file=paper, width=300), clock=lambda: now[0])
        with view:
            for _ in range(3):
                view.show(TestMetrics().progress())
            now[0] = 11.0
            view.show(TestMetrics().progress())
        assert paper.getvalue().count("revenue: batch 1; orders 10 rows/s, lag 8; out 4; took 500 ms") == 2

    def test_rows_of_a_console_sink(self) -> None:
        paper = io.StringIO()
        LiveView("shop", Console(file=paper, width=80)).show_rows("screen", 3, ["a", "b"], [["1", "x"]], 5)
        assert "screen, batch 3" in paper.getvalue()
        assert "… and 4 more rows" in paper.getvalue()


@dataclass
class PretendQuery:
    """A query whose batches the test makes."""

    batch: int = -1
    isActive: bool = True  # noqa: N815
    busy: bool = True
    error: Exception | None = None
    stops: int = 0
    on_look: Callable[["PretendQuery"], None] = lambda _: None

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        self.on_look(self)
        return None if self.batch < 0 else report(self.batch, 1, out=1)

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        return [report(batch, 1, out=1) for batch in range(self.batch + 1)]

    @property
    def status(self) -> dict[str, Any]:
        return {"message": "Processing new data", "isTriggerActive": self.busy, "isDataAvailable": True}

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.stops += 1
        self.isActive = False


@dataclass
class Reports:
    seen: list[QueryProgress] = field(default_factory=list)

    def __call__(self, progress: QueryProgress, _: object) -> None:
        self.seen.append(progress)


def watched(handle: PretendQuery, again: PretendQuery | None = None, *, outdated: bool = False) -> Watched:
    tables = SimpleNamespace(are_outdated=lambda: outdated, forget=lambda: None)
    frames = SimpleNamespace(tables=tables)
    started = StartedQuery(plan(), cast(Any, frames), cast(Any, handle))
    fresh = SimpleNamespace(tables=SimpleNamespace(are_outdated=lambda: False, forget=lambda: None))
    other = StartedQuery(plan(), cast(Any, fresh), cast(Any, again))
    return Watched(started, ProgressTracker(plan(), [ORDERS], None), lambda: other, lambda: other)


def supervisor(stop: StopSignal, reports: Reports, *queries: Watched, **more: Any) -> Supervisor:
    made = Supervisor(stop=stop, stop_requested=lambda: False, report=reports, **more)
    for each in queries:
        made.add(each)
    return made


class TestSupervision:
    def test_it_ends_when_all_queries_have(self) -> None:
        def end(query: PretendQuery) -> None:
            query.batch, query.isActive = 4, False

        reports = Reports()
        assert supervisor(StopSignal(), reports, watched(PretendQuery(on_look=end))).watch() is RunResult.FINISHED
        assert reports.seen[-1].rows_in_total == 5
        assert not reports.seen[-1].active

    def test_a_stop_waits_for_the_batch(self) -> None:
        stop = StopSignal()
        looks = [0]

        def work(query: PretendQuery) -> None:
            looks[0] += 1
            if looks[0] == 2:
                stop.request()
            if looks[0] == 5:
                assert query.stops == 0
                query.batch = 1

        handle = PretendQuery(batch=0, on_look=work)
        assert supervisor(stop, Reports(), watched(handle)).watch() is RunResult.STOPPED
        assert (handle.stops, handle.batch) == (1, 1)

    def test_an_idle_query_is_stopped_at_once_and_a_second_request_does_not_wait(self) -> None:
        stop = StopSignal()
        idle, busy = PretendQuery(batch=0, busy=False), PretendQuery(batch=0)
        made = supervisor(stop, Reports(), watched(idle), watched(busy), tick=stop.request)
        assert made.watch() is RunResult.STOPPED
        assert (idle.stops, busy.stops) == (1, 1)

    def test_a_stop_does_not_wait_for_ever(self) -> None:
        stop = StopSignal()
        stop.request()
        now = iter(range(0, 1000, 50))
        handle = PretendQuery(batch=0)
        made = supervisor(stop, Reports(), watched(handle), grace_s=100.0, clock=lambda: float(next(now)))
        assert made.watch() is RunResult.STOPPED

    def test_a_failure_names_the_part_and_the_others_are_ended(self) -> None:
        reports = Reports()
        fine = PretendQuery(batch=0)
        broken = PretendQuery(isActive=False, error=RuntimeError("Caused by: java.lang.Foo$BarException: no space"))
        made = supervisor(StopSignal(), reports, watched(fine), watched(broken))
        with pytest.raises(PartFailedError, match="sink 'revenue': no space"):
            made.watch()
        made.abandon()
        assert fine.stops == 1
        assert [each.error for each in reports.seen if not each.active] == ["no space", None]

    def test_a_query_whose_table_changed_is_built_again_between_batches(self) -> None:
        old, new = PretendQuery(batch=0, busy=False), PretendQuery(batch=1, isActive=False)
        assert supervisor(StopSignal(), Reports(), watched(old, new, outdated=True)).watch() is RunResult.FINISHED
        assert old.stops == 1

    def test_a_python_process_that_was_too_slow_to_come_up_is_tried_again(self) -> None:
        slow = PretendQuery(isActive=False, error=RuntimeError("Python worker failed to connect back."))
        again = PretendQuery(batch=0, isActive=False)
        assert supervisor(StopSignal(), Reports(), watched(slow, again)).watch() is RunResult.FINISHED


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `amout` cannot be resolved. Did you mean one of "
            "the following? [`amount`]. SQLSTATE: 42703; line 1 pos 7;\n'Project ['amout]\n+- Relation",
            "A column with name `amout` cannot be resolved. Did you mean one of the following? [`amount`].",
        ),
        (
            "An error occurred while calling o1.start.\n: org.apache.spark.SparkException: [NOT_FOUND] No source x. "
            "SQLSTATE: 42K02\n\tat a.b\nCaused by: java.lang.ClassNotFoundException: x.DefaultSource",
            "No source x.",
        ),
        (
            'Job aborted. Traceback (most recent call last):\n  File "/x.py", line 3, in f\n    raise\n'
            "millstream.spark.errors.OptionError: there is no option 'subscrbe'; did you mean 'subscribe'?\n SQLSTATE: "
            "38000\n=== Streaming Query ===\nIdentifier: shop [id = 1]",
            "there is no option 'subscrbe'; did you mean 'subscribe'?",
        ),
        ("Traceback (most recent call last):\n  File \"x\"\nKeyError: 'a'", "KeyError: 'a'"),
    ],
)
def test_what_people_are_told_of_a_failure(text: str, reason: str) -> None:
    assert spark_reason(RuntimeError(text)) == reason


def test_names_of_joined_columns() -> None:
    step = Join(
        name="paid",
        line=1,
        reads=("orders", "payments"),
        on=(JoinKey(left="id", right="id"), JoinKey(left="shop", right="place")),
        type=JoinType.FULL,
    )
    left, right = ["id", "shop", "at", "_offset"], ["id", "place", "at", "_offset", "_key"]
    assert joined_columns(step, left, right) == [
        "coalesce(`l`.`id`, `r`.`id`) AS `id`",
        "`l`.`shop` AS `shop`",
        "`l`.`at` AS `at`",
        "`l`.`_offset` AS `_offset`",
        "`r`.`place` AS `place`",
        "`r`.`at` AS `payments_at`",
        "`r`.`_key` AS `_key`",
    ]


class PretendFrame:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def persist(self) -> None:
        self.calls.append("persist")

    def unpersist(self) -> None:
        self.calls.append("unpersist")


def test_a_table_is_read_again_when_its_time_has_passed_and_it_changed() -> None:
    now: list[float] = [0.0]
    end: list[object] = [5]
    frame = PretendFrame()
    table = StaticTable(cast(Any, frame), 60.0, lambda: end[0], clock=lambda: now[0])
    end[0] = 6
    assert not table.is_outdated()
    now[0] = 61.0
    assert table.is_outdated()
    end[0] = UNAVAILABLE
    now[0] = 125.0
    assert not table.is_outdated()  # the brokers are away
    end[0] = table.seen = 6
    now[0] = 200.0
    assert not table.is_outdated()
    assert frame.calls == ["persist"]


SMALL = """
name: small
bootstrap: 127.0.0.1:1
sources:
  orders: {topic: orders, format: json, schema: "id STRING, amount DOUBLE, at TIMESTAMP"}
steps:
  dear:
    sql: SELECT id, amount, _timestamp FROM orders WHERE amount > 10
sinks:
  out: {from: dear, topic: dear, key: id}
"""


def test_only_the_columns_of_records_that_have_a_use_are_read(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, SMALL)
    source = cast(TopicSource, pipeline.sources[0])
    assert columns_to_read(pipeline, source) == ["value", "timestamp"]
    kept = pipeline_of(tmp_path, SMALL.replace(", key: id", ""))
    assert columns_to_read(kept, source) == ["value", "key", "timestamp"]
    shown = pipeline_of(tmp_path, SMALL + "  screen: {from: orders, console: {rows: 3}}\n")
    assert columns_to_read(shown, source) == ["value", "key", "topic", "partition", "offset", "timestamp"]


def test_queries_and_their_names(tmp_path: Path) -> None:
    assert [each.name for each in planned_queries(pipeline_of(tmp_path, ROUTED))] == [
        "small.out",
        "small.split.dead-letters",
        "small.orders.dead-letters",
    ]


def test_a_key_that_the_source_decodes_leaves_values_to_spark(tmp_path: Path) -> None:
    """Bad keys are sent by a sink's query while it reads, bad values by a query of their own."""
    keyed = pipeline_of(tmp_path, ROUTED.replace("format: csv,", "format: csv, key_format: json,"))
    assert [(each.name, set(each.letters_of)) for each in planned_queries(keyed)] == [
        ("small.out", {"orders"}),
        ("small.split.dead-letters", set()),
        ("small.orders.dead-letters", set()),
    ]


ROUTED = """
name: small
bootstrap: 127.0.0.1:1
sources:
  orders: {topic: orders, format: csv, schema: "id STRING, amount DOUBLE"}
steps:
  split:
    route: {from: orders, branches: {big: amount > 10}}
sinks:
  out: {from: big, topic: dear, key: id}
"""


def test_each_source_has_one_query_that_sends_its_dead_letters(tmp_path: Path) -> None:
    """The first sink in the file that reads it just once, no console if there is another; routes come last."""
    sources = """
name: shop
bootstrap: localhost:9092
sources:
  orders: {topic: orders, format: json, schema: "id STRING, at TIMESTAMP", watermark: {column: at, delay: 1 minute}}
  payments: {topic: payments, format: json, schema: "id STRING", bad_records: drop}
  plain: {topic: plain, format: string}
steps:
  checked:
    route: {from: orders, branches: {good: id IS NOT NULL}}
  twice:
    sql: SELECT a.id FROM good a JOIN good b ON a.id = b.id
sinks:
"""
    sinks = (
        "screen: {from: good, console: {}}",
        "pairs: {from: twice, topic: pairs}",
        "copy: {from: good, topic: copy}",
    )
    more = (
        "again: {from: good, topic: again}",
        "paid: {from: payments, topic: paid}",
        "all: {from: plain, topic: all}",
    )

    def senders(*parts: str) -> dict[str, set[str]]:
        pipeline = pipeline_of(tmp_path, sources + "".join(f"  {part}\n" for part in parts))
        return {query.name: set(query.letters_of) for query in planned_queries(pipeline) if query.letters_of}

    assert senders(*sinks, *more) == {"shop.copy": {"orders"}}
    assert senders(*sinks[:2], *more) == {"shop.again": {"orders"}}  # another takes over
    assert senders(*sinks[:2]) == {"shop.checked.dead-letters": {"orders"}}
    assert senders(more[1]) == {"shop.checked.dead-letters": {"orders"}}


@pytest.mark.timeout(300)
def test_no_one_at_the_address_is_told_in_time(tmp_path: Path) -> None:
    with pytest.raises(NoBrokerError, match=r"127\.0\.0\.1:1"):
        prepare_topics(pipeline_of(tmp_path, SMALL))
