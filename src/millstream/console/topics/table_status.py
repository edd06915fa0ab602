"""The table of a topic, as `millstream table serve` reports it: state, lag in seconds, rows, dead letters."""

import time

from nicegui import ui

from millstream.admin.tables import FAILED, NO_SERVER, RUNNING, STATUS_TOPIC, TableStatus, table_statuses
from millstream.console.formats import ago, count
from millstream.console.frame import Frame
from millstream.console.widgets import Stat, card
from millstream.raw_client import Cluster

EVERY_SECONDS = 2.0
_TONES = {RUNNING: "good", FAILED: "bad", NO_SERVER: "bad"}
_NO_TABLE = (
    "The topic is no table, or no server has reported on it. Set millstream.table to delta or iceberg (tab Settings), "
    "and start `millstream table serve`."
)


def read_table_status(cluster: Cluster, topic: str) -> TableStatus | None:
    return table_statuses(cluster).get(topic)


class TableStatusView:
    def __init__(self, frame: Frame, topic: str) -> None:
        self._frame = frame
        self._topic = topic
        self._note = ui.label("").classes("ms-muted").props("data-testid=table-note")
        with card("") as self._numbers, ui.element("div").classes("ms-stats"):
            self._stats = {
                name: Stat(label, test_id=f"table-{name}")
                for name, label in (
                    ("state", "state"),
                    ("lag", "lag"),
                    ("behind", "records behind"),
                    ("rows", "rows"),
                    ("letters", "dead letters"),
                    ("format", "format"),
                    ("commit", "last commit"),
                )
            }
        self._numbers.set_visibility(False)
        self._error = ui.label("").classes("ms-complaint").props("role=alert data-testid=table-error")

    async def load(self) -> None:
        status = None
        if STATUS_TOPIC in self._frame.snapshot.topics:
            with self._frame.reporting("The status of the table cannot be read"):
                status = await self._frame.run(read_table_status, self._frame.console.cluster, self._topic)
        self._numbers.set_visibility(status is not None)
        if status is None:
            self._note.set_text(_NO_TABLE)
            self._error.set_text("")
            return
        self._show(status)

    def _show(self, status: TableStatus) -> None:
        now_ms = time.time_ns() // 1_000_000
        state = status.state_at(now_ms)
        self._note.set_text(f"{status.location}, kept by {status.server}; reported {ago(now_ms - status.updated_ms)}")
        stats = self._stats
        stats["state"].show(state, _TONES.get(state, ""))
        stats["lag"].show("–" if status.lag_seconds is None else f"{status.lag_seconds:,.1f} s")
        stats["behind"].show("–" if status.lag_records is None else count(status.lag_records))
        stats["rows"].show(count(status.rows))
        stats["letters"].show(count(status.dead_letters), "warn" if status.dead_letters else "")
        stats["format"].show(f"{status.format}, {status.mode}")
        stats["commit"].show("–" if status.last_commit_ms is None else ago(now_ms - status.last_commit_ms))
        self._error.set_text(status.error or "")
