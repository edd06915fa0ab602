"""The SQL page: a query over topics, its rows, and the pipeline file for it (docs/sql.md)."""

import threading
from collections.abc import Callable
from typing import Any

from nicegui import ui

from millstream.console.console import UserError
from millstream.console.exporting import EXPORTS, export
from millstream.console.formats import count
from millstream.console.frame import Frame, console_page
from millstream.console.live.snapshot import Snapshot
from millstream.console.messages.text import seen
from millstream.console.tables import Column, DataTable
from millstream.console.widgets import FormValues, card, dialog, heading, send_form
from millstream.raw_client import WireError
from millstream.registry.decoding import Decoder
from millstream.registry.local_client import LocalRegistryClient
from millstream.schemas.errors import SchemaError
from millstream.sql.as_pipeline import pipeline_file
from millstream.sql.engine import is_installed
from millstream.sql.errors import SqlError, Stop
from millstream.sql.output import distinct, json_line, limited, rows_of
from millstream.sql.query import Access, Limits, Query
from millstream.sql.reading import TopicRead, window_of

_MAX_ROWS = 10_000
_CELL_CHARACTERS = 200
_TIMEOUT_SECONDS = 60.0
_MAX_RESULT_BYTES = 16 << 20
_RECORDS_BYTES = 512 << 20
_AT_ONCE = 2
_SEND_KEY = (
    "(event) => { if ((event.ctrlKey || event.metaKey) && event.key === 'Enter') {"
    " event.preventDefault(); emit(millstreamTyped(event.target)); } }"
)
_turns = threading.BoundedSemaphore(_AT_ONCE)
"""Queries of all pages that run at the same time."""
_RECORDS = {
    "10000": "the newest 10,000",
    "100000": "the newest 100,000",
    "1000000": "the newest 1,000,000",
    "15m": "of the last 15 minutes",
    "1h": "of the last hour",
    "24h": "of the last day",
    "all": "all",
}


@console_page("/sql")
def sql(frame: Frame) -> None:
    _SqlView(frame)


class _Rows:
    """The rows of a query, and what was read for them."""

    def __init__(self, names: list[str], types: list[str], rows: list[list[Any]], read: list[TopicRead]) -> None:
        self.names = names
        self.types = types
        self.rows = rows[:_MAX_ROWS]
        self.is_cut = len(rows) > _MAX_ROWS
        self.read = read


class _SqlView:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._stop: Stop | None = None
        self._progress = ""
        self._found: _Rows | None = None
        with heading("SQL", "Queries over topics; nothing is changed"):
            pass
        if not is_installed():
            ui.label("SQL needs DuckDB on the machine of the gateway: pip install 'millstream[sql]'").classes(
                "ms-problem ms-warn"
            ).props("data-testid=sql-missing")
            return
        with ui.element("div").classes("ms-sql"):
            with card("Query") as self._form:
                self._query = (
                    ui.textarea(value=frame.url.text("q"), placeholder='select * from "orders" limit 50')
                    .props('outlined autofocus data-testid=sql-query aria-label="Query" spellcheck=false')
                    .classes("ms-mono ms-sql-text")
                )
                self._query.on("keydown", lambda event: self._run(FormValues(event.args)), js_handler=_SEND_KEY)
                with ui.row().classes("ms-actions ms-sql-actions"):
                    self._window = ui.select(
                        _RECORDS, value=frame.url.choice("records", _RECORDS, "1000000"), label="Records of each topic"
                    ).props("outlined dense options-dense data-testid=sql-window")
                    frame.url.remember(self._window, "records")
                    self._progress_text = ui.label("").classes("ms-muted").props("data-testid=sql-progress")
                    ui.space()
                    send_form(
                        ui.button("Run this as a pipeline", icon="account_tree").props(
                            "flat no-caps data-testid=sql-pipeline"
                        ),
                        self._as_pipeline,
                    )
                    self._cancel = ui.button("Cancel", on_click=self._cancelled).props("flat no-caps")
                    self._cancel.set_visibility(False)
                    self._run_button = send_form(
                        ui.button("Run", icon="play_arrow")
                        .props("unelevated no-caps data-testid=sql-run")
                        .tooltip("Ctrl + Enter"),
                        self._run,
                    )
                self._error = (
                    ui.label("").classes("ms-complaint ms-mono ms-pre").props("role=alert data-testid=sql-error")
                )
                self._error.set_visibility(False)
            with card("Topics", note="click one to query it", classes="ms-sql-topics"):
                self._topics = DataTable(
                    [Column("topic", "Topic", cell="pick", searched=True)],
                    key="topic",
                    empty="No topics",
                    test_id="sql-topics",
                    exported=False,
                    on_pick=self._picked,
                )
                self._topics.table.on("pick", lambda event: self._picked(str(event.args)))
        self._results = ui.element("div").classes("ms-sql-results")
        ui.timer(0.3, self._show_progress)
        frame.live(self._show_topics)

    def _show_topics(self, snapshot: Snapshot) -> None:
        self._topics.update([{"topic": each.name} for each in snapshot.topics.values() if not each.is_internal])

    def _picked(self, topic: str) -> None:
        name = topic.replace('"', '""')
        self._query.set_value(f'select * from "{name}" limit 50')

    def _show_progress(self) -> None:
        self._progress_text.set_text(self._progress)

    def _cancelled(self) -> None:
        if self._stop is not None:
            self._stop.cancel()

    async def _run(self, values: FormValues) -> None:
        if self._stop is not None:
            return  # it is running
        text = values.text(self._query)
        self._frame.url.write(q=text)
        await self._with_errors(lambda stop: self._rows(text, stop), self._show)

    async def _as_pipeline(self, values: FormValues) -> None:
        if self._stop is None:
            text = values.text(self._query)
            await self._with_errors(lambda stop: self._pipeline(text, stop), self._show_pipeline)

    async def _with_errors(self, work: Callable[[Stop], Any], show: Callable[[Any], None]) -> None:
        stop = self._stop = Stop(_TIMEOUT_SECONDS)
        self._error.set_visibility(False)
        self._cancel.set_visibility(True)
        self._run_button.disable()
        try:
            with self._frame.reporting("The query failed"):
                try:
                    found = await self._frame.run(_in_turn, lambda: work(stop))
                except (SqlError, SchemaError, WireError) as error:
                    self._error.set_text(seen(str(error)))
                    self._error.set_visibility(True)
                else:
                    show(found)
        finally:
            self._stop = None
            self._progress = ""
            self._cancel.set_visibility(False)
            self._run_button.enable()

    # In a thread

    def _prepared(self, text: str, stop: Stop) -> Query:
        visitor, console, chosen = self._frame.visitor, self._frame.console, str(self._window.value)
        window = (
            window_of(int(chosen), None, False)
            if chosen.isdigit()
            else window_of(None, None if chosen == "all" else chosen, chosen == "all")
        )
        access = Access(LocalRegistryClient(console.registry), visitor.mask_of, Decoder(console.registry).decode)
        limits = Limits(window, records_bytes=_RECORDS_BYTES, is_isolated=True)
        return Query(console.cluster, text, access=access, limits=limits, stop=stop, progress=self._note_progress)

    def _note_progress(self, topic: str, done: int, total: int) -> None:
        self._progress = f"{topic}: {done:,} of {total:,} records"

    def _rows(self, text: str, stop: Stop) -> _Rows:
        with self._prepared(text, stop).run() as result:
            rows: list[list[Any]] = []
            size_bytes = 0
            for batch in limited(result.batches, _MAX_ROWS + 1):
                size_bytes += batch.nbytes
                if size_bytes > _MAX_RESULT_BYTES:
                    raise SqlError(f"the rows are larger than {_MAX_RESULT_BYTES >> 20} MB", "select fewer columns")
                rows += rows_of(batch)
            return _Rows(distinct(result.schema.names), result.types, rows, result.read)

    def _pipeline(self, text: str, stop: Stop) -> str:
        query = self._prepared(text, stop)
        columns = {name: query.columns(topic) for name, topic in query.topics.items()}
        return pipeline_file(query.statement, columns, bootstrap=self._frame.console.cluster.bootstrap)

    # Results

    def _show(self, found: _Rows) -> None:
        self._found = found
        self._results.clear()
        read = ", ".join(_words(each) for each in found.read)
        more = f" (the first {_MAX_ROWS:,})" if found.is_cut else ""
        with self._results, card(f"{len(found.rows):,} rows{more}", note=read):
            for text in (note for each in found.read for note in each.notes):
                ui.label(text).classes("ms-muted").props("data-testid=sql-note")
            with ui.row().classes("ms-actions"):
                for extension in EXPORTS:
                    ui.button(extension.upper(), icon="download", on_click=lambda e=extension: self._save(e)).props(
                        f"flat dense no-caps data-testid=sql-save-{extension}"
                    )
            table = DataTable(
                [
                    Column(f"c{place}", name, right=_is_number(kind), cell="text" if _is_number(kind) else "mono")
                    for place, (name, kind) in enumerate(zip(found.names, found.types, strict=True))
                ],
                key="row",
                sort_by="row",
                filtered=False,
                page_size=50,
                empty="No rows",
                test_id="sql-rows",
                name="rows",
            )
            table.update(
                [
                    {"row": place, **{f"c{at}": _cell(value) for at, value in enumerate(row)}}
                    for place, row in enumerate(found.rows)
                ]
            )

    async def _save(self, extension: str) -> None:
        found = self._found
        assert found is not None
        rows = [dict(zip(found.names, row, strict=True)) for row in found.rows]
        data = await self._frame.run(export, extension, found.names, rows)
        ui.download.content(data, f"rows.{extension}", EXPORTS[extension][1])

    def _show_pipeline(self, text: str) -> None:
        with dialog("The query as a pipeline", wide=True, test_id="sql-pipeline-dialog") as box:
            ui.label(text).classes("ms-mono ms-pre ms-sql-file").props("data-testid=sql-pipeline-file")
            ui.label(
                "Save it, then: millstream pipeline validate query.yaml, and millstream pipeline run query.yaml"
            ).classes("ms-muted")
            with ui.row().classes("ms-actions"):
                ui.button("Close", on_click=box.close).props("flat no-caps")
                ui.button(
                    "Save",
                    icon="download",
                    on_click=lambda: ui.download.content(text.encode(), "query.yaml", "application/yaml"),
                ).props("unelevated no-caps data-testid=sql-pipeline-save")
        box.open()


def _in_turn(work: Callable[[], Any]) -> Any:
    if not _turns.acquire(timeout=5.0):
        raise UserError(f"{_AT_ONCE} other queries are running; try again in some seconds.")
    try:
        return work()
    finally:
        _turns.release()


def _words(read: TopicRead) -> str:
    left = f" ({count(read.left_out)} older ones are left out)" if read.left_out else ""
    return f"{read.topic}: {read.records:,} records read, {read.format}{left}"


def _is_number(kind: str) -> bool:
    return kind.partition("(")[0] in (
        "TINYINT",
        "SMALLINT",
        "INTEGER",
        "BIGINT",
        "HUGEINT",
        "FLOAT",
        "DOUBLE",
        "DECIMAL",
    )


def _cell(value: Any) -> Any:
    """A value of the table: numbers sort as numbers; texts are one line and cut."""
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    text = value if isinstance(value, str) else json_line([""], [value])[4:-2].decode()
    shown = seen(text[: _CELL_CHARACTERS + 1], in_a_line=True)
    return f"{shown[:_CELL_CHARACTERS]}…" if len(text) > _CELL_CHARACTERS else shown
