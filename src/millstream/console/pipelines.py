"""Which groups are the progress of Spark queries, and how they get on; pure, from what was watched.

Such a group has offsets and no members, and is named `<pipeline>.<sink>` by a pipeline. A consumer group whose members
have all left looks the same, so one without a dot in its name counts only once its offsets were seen to move.

Pipelines: how far Spark's queries are. Each commits its progress to a consumer group of its own, which has no
members; so their lag and pace are in the cluster, wherever they run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nicegui import ui

from millstream.console.formats import clock, count, rate, short_count
from millstream.console.frame import Frame, console_page, href
from millstream.console.live.metrics import History
from millstream.console.live.reading import SHARE
from millstream.console.live.snapshot import Snapshot
from millstream.console.tables import Column, DataTable
from millstream.console.widgets import Stat, TimeChart, card, heading

_STILL_AFTER_S = 30.0
_REDRIVE = ".redrive"


@dataclass(frozen=True, slots=True)
class Progress:
    group: str
    pipeline: str
    query: str
    topics: Sequence[str]
    phase: str
    rate: float
    """Records per second, over the last seconds."""
    lag: int
    read: int
    """Sum of the committed offsets."""
    moved_at: float | None


def progress_of(snapshot: Snapshot, history: History) -> list[Progress]:
    found = []
    for group in snapshot.groups.values():
        if group.kind == SHARE or group.members or not group.offsets or group.name.endswith(_REDRIVE):
            continue
        moved_at = history.moved_at.get(group.name)
        pipeline, dot, query = group.name.partition(".")
        if not dot and moved_at is None:
            continue
        found.append(
            Progress(
                group.name,
                pipeline,
                query if dot else group.name,
                sorted({place.topic for place in group.offsets}),
                _phase(group.lag, moved_at, snapshot.at),
                history.paces.get(group.name, 0.0),
                group.lag,
                sum(group.offsets.values()),
                moved_at,
            )
        )
    return found


def _phase(lag: int, moved_at: float | None, now: float) -> str:
    if moved_at is not None and now - moved_at < _STILL_AFTER_S:
        return "running"
    if not lag:
        return "caught up"
    return "standing still" if moved_at is not None else "not seen moving"


_WINDOW_S = 900.0
_MOST_LINES = 8
_TONES = {"running": "good", "caught up": "good", "standing still": "warn", "not seen moving": "dim"}


@console_page("/pipelines")
def pipelines(frame: Frame) -> None:
    with heading("Pipelines", "Spark's queries, by the groups to which they commit how far they have read"):
        pass
    with card(""), ui.element("div").classes("ms-stats"):
        running = Stat("queries seen moving", test_id="running")
        pace = Stat("records/s read", test_id="pace")
        behind = Stat("records behind", test_id="behind")
    with card("Records behind", note="while the console is open"):
        chart = TimeChart(["behind"], test_id="chart-pipelines", height=220)
    with card("Queries"):
        table = DataTable(
            [
                Column("pipeline", "Pipeline", searched=True),
                Column("query", "Sink", cell="link", searched=True),
                Column("phase", "Progress", cell="badge"),
                Column("topics", "Reads", searched=True),
                Column("rate", "Records/s", rate, right=True),
                Column("lag", "Behind", short_count, right=True),
                Column("read", "Read up to", count, right=True),
                Column("moved", "Last progress", clock, right=True),
            ],
            key="query",
            empty="No query has committed progress here. `millstream pipeline run` does it by itself, "
            "other Spark queries with the option groupId.",
            test_id="pipelines",
        )
        ui.label(
            "Phase, batches, watermarks and dead letters of a run are kept where it runs: `millstream pipeline status` "
            "shows them there."
        ).classes("ms-muted")

    def show(snapshot: Snapshot) -> None:
        history = frame.console.watcher.history
        found = progress_of(snapshot, history)
        table.update([_row(each) for each in found])
        running.show(count(sum(each.rate > 0 for each in found)))
        pace.show(short_count(sum(each.rate for each in found)))
        behind.show(short_count(sum(each.lag for each in found)))
        worst = sorted(found, key=lambda each: -each.lag)[:_MOST_LINES]
        since = snapshot.at - _WINDOW_S
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
        "_href": href("/groups", group=each.group),
    }
