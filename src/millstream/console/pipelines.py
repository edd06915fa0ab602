"""The Pipelines page: progress of Spark queries, from the consumer groups to which they commit.

Such a group has offsets and no members; a pipeline names it `<pipeline>.<sink>`. A consumer group without members looks
the same, so a group without a dot in its name counts only after its offsets have moved.
"""

from nicegui import ui

from millstream.console.console import href
from millstream.console.formats import clock, count, rate, short_count
from millstream.console.frame import Frame, console_page
from millstream.console.live.pipelines import Progress, progress_of
from millstream.console.live.snapshot import Snapshot
from millstream.console.pipeline_page import PipelineView
from millstream.console.tables import Column, DataTable
from millstream.console.widgets import Stat, TimeChart, card, heading

_WINDOW_SECONDS = 900.0
_MOST_LINES = 8
_TONES = {"running": "good", "caught up": "good", "stalled": "warn", "no progress seen": "dim"}


@console_page("/pipelines")
def pipelines(frame: Frame) -> None:
    if name := frame.parameters.get("pipeline"):
        PipelineView(frame, name)
        return
    with heading("Pipelines", "Spark queries, shown by the consumer groups to which they commit their progress"):
        pass
    with card(""), ui.element("div").classes("ms-stats"):
        running = Stat("running queries", test_id="running")
        pace = Stat("records/s read", test_id="pace")
        behind = Stat("total lag", test_id="behind")
    with card("Lag", note="records, since the console was opened") as lag:
        chart = TimeChart(["lag"], test_id="chart-pipelines", height=220)
    with card("Queries"):
        table = DataTable(
            [
                Column("pipeline", "Pipeline", cell="link", searched=True),
                Column("query", "Query", searched=True),
                Column("phase", "Progress", cell="badge"),
                Column("topics", "Reads", searched=True),
                Column("rate", "Records/s", rate, right=True),
                Column("lag", "Lag", short_count, right=True),
                Column("read", "Records read", count, right=True),
                Column("moved", "Last progress", clock, right=True),
            ],
            key="query",
            empty="No query has committed progress. `millstream pipeline run` commits it by default, "
            "other Spark queries with the option groupId.",
            test_id="pipelines",
            name="",
        )
        ui.label(
            "The page of a pipeline shows its graph, batches, state, watermark, expectations, and why it is slow."
        ).classes("ms-muted")

    def show(snapshot: Snapshot) -> None:
        history = frame.console.watcher.history
        found = progress_of(snapshot, history)
        table.update([_row(each) for each in found])
        lag.set_visibility(bool(found))
        running.show(count(sum(each.rate > 0 for each in found)))
        pace.show(short_count(sum(each.rate for each in found)))
        behind.show(short_count(sum(each.lag for each in found)))
        worst = sorted(found, key=lambda each: -each.lag)[:_MOST_LINES]
        since = snapshot.at - _WINDOW_SECONDS
        chart.update(
            {each.group: history.lags[each.group].points(since) for each in worst if each.group in history.lags}
        )

    frame.live(show)


def _row(each: Progress) -> dict[str, object]:
    return {
        "pipeline": each.pipeline,
        "query": each.query,
        "phase": each.phase,
        "_tones": {"phase": _TONES[each.phase]},
        "topics": ", ".join(each.topics),
        "rate": each.rate,
        "lag": each.lag,
        "read": each.read,
        "moved": each.moved_at,
        "_href": href("/pipelines", pipeline=each.pipeline),
    }
