"""The Messages page: records of a topic, newest or oldest first, from an offset or a time, filtered, or live."""

import json
from datetime import UTC, timedelta, timezone, tzinfo
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from nicegui import ui

from millstream.console.console import UserError
from millstream.console.exporting import EXPORTS, export
from millstream.console.formats import count, plural
from millstream.console.frame import Frame, console_page
from millstream.console.messages.expressions import parse_expression
from millstream.console.messages.histogram import Bucket, HistogramChart, time_histogram
from millstream.console.messages.query import (
    LIVE,
    MODES,
    NEWEST,
    OFFSET,
    SEARCH_PARTS,
    TIME,
    Query,
    first_page,
    next_page,
    tail,
)
from millstream.console.messages.reading import FoundRecord, Page, Range, RecordTail, Step
from millstream.console.messages.views import MOST_ROWS, Line, RecordPanel, RecordTable, lines_of, rows_of_file
from millstream.console.messages.writing import Draft, draft_of
from millstream.console.messages.writing_dialog import WritingDialog
from millstream.console.visitor import Action
from millstream.console.widgets import (
    FormValues,
    LiveSelect,
    card,
    heading,
    send_form,
    send_form_on_enter,
)
from millstream.registry.decoding import Decoder

_TAIL_EVERY_SECONDS = 0.7
_TAIL_ROWS = 200
_COUNTS = (25, 50, 100, 250)
_FIRST_COUNT = 50
_ZONE_TIMEOUT_SECONDS = 10.0
_ZONE = "[Intl.DateTimeFormat().resolvedOptions().timeZone, -new Date().getTimezoneOffset()]"


@console_page("/messages")
def messages(frame: Frame) -> None:
    _Messages(frame)


class _Messages:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._reader = frame.reader()
        self._decode = Decoder(frame.console.registry).decode
        self._zone: tzinfo = UTC
        self._query: Query | None = None
        self._rest: dict[int, Range] = {}
        self._tail: RecordTail | None = None
        self._request_number = 0
        self._skipped = 0
        self._busy = False
        self._drawn: tuple[str, int | None] | None = None
        with heading("Messages"):
            write = ui.button("Produce a record", icon="edit", on_click=lambda: self._write())
            frame.offer(Action.PRODUCE, write).props("outline no-caps data-testid=open-write")
        with card(""):
            self._lay_out_form(frame)
        with card(""):
            with ui.element("div").classes("ms-status"):
                self._dot = ui.element("span").classes("ms-live-dot")
                self._status = ui.label("Choose a topic.").classes("ms-muted").props("role=status data-testid=status")
                ui.space()
                self._more = ui.button("", on_click=self._continue).props("outline no-caps data-testid=more")
                with (
                    ui.button(icon="download", color=None).props(
                        'flat dense round data-testid=export aria-label="Save the records"'
                    ),
                    ui.menu(),
                ):
                    for extension in EXPORTS:
                        ui.menu_item(extension.upper(), partial(self._export, extension)).props(
                            f"data-testid=export-{extension}"
                        )
            self._dot.set_visibility(False)
            self._more.set_visibility(False)
            self._histogram = HistogramChart(self._jump)
            self._table = RecordTable(self._open)
        self._panel = RecordPanel(frame, self._decode, self._open_beside, self._resend)
        frame.live(lambda snapshot: self._offer_topics())
        ui.timer(_TAIL_EVERY_SECONDS, self._step)
        ui.timer(0.05, self._begin, once=True)

    def _lay_out_form(self, frame: Frame) -> None:
        parameters = frame.parameters
        with ui.element("div").classes("ms-form"):
            topic, number = parameters.get("topic", ""), parameters.get("partition", "")
            wanted = int(number) if number.isascii() and number.isdigit() and len(number) < 7 else None
            self._topic = (
                LiveSelect(
                    [topic] if topic else [],
                    value=topic or None,
                    label="Topic",
                    with_input=True,
                    on_change=self._chosen,
                )
                .props("outlined dense options-dense data-testid=topic")
                .classes("ms-field-wide")
            )
            self._partition = (
                LiveSelect(
                    {None: "all"} if wanted is None else {None: "all", wanted: str(wanted)},
                    value=wanted,
                    label="Partition",
                    on_change=self._ask,
                )
                .props("outlined dense options-dense data-testid=partition")
                .classes("ms-field")
            )
            self._mode = (
                ui.toggle(MODES, value=_first_mode(frame), on_change=self._mode_changed)
                .props("no-caps unelevated dense toggle-color=primary data-testid=mode")
                .classes("ms-toggle")
            )
            self._at = (
                send_form_on_enter(
                    ui.input("Offset", value=parameters.get("offset") or parameters.get("at", "")), self._ask_typed
                )
                .props("outlined dense data-testid=at")
                .classes("ms-field")
            )
            self._show_at()
        with ui.element("div").classes("ms-form"):
            self._text = (
                send_form_on_enter(ui.input("Contains", value=parameters.get("contains", "")), self._ask_typed)
                .props("outlined dense clearable data-filter data-testid=contains")
                .classes("ms-field-wide")
            )
            self._search_in = (
                ui.select(list(SEARCH_PARTS), value=frame.url.choice("in", SEARCH_PARTS, SEARCH_PARTS[0]), label="in")
                .props("outlined dense options-dense data-testid=search-in")
                .classes("ms-field")
            )
            self._field = (
                send_form_on_enter(
                    ui.input(
                        "Filter (CEL)",
                        value=parameters.get("filter", ""),
                        placeholder="value.total >= 100 && key == 'a'",
                    ),
                    self._ask_typed,
                )
                .props("outlined dense clearable data-testid=field")
                .classes("ms-field-wide")
            )
            with (
                self._field.add_slot("append"),
                ui.button(icon="bookmark_border", color=None).props(
                    'flat dense round size=sm data-testid=saved-filters aria-label="Saved filters"'
                ),
                # Emptied when it closes: an entry of the last time could be clicked before the new ones are there.
                ui.menu().on("show", self._read_saved).on("hide", self._forget_saved),
            ):
                self._saved = ui.element("div").props("data-testid=saved-list")
            self._count = (
                ui.select(list(_COUNTS), value=_first_count(frame), label="records")
                .props("outlined dense")
                .classes("ms-field")
            )
            self._go = ui.button("Show", icon="search").props("unelevated no-caps data-testid=show")
            send_form(self._go, self._ask_typed)

    # The form

    def _offer_topics(self) -> None:
        names = [name for name in self._frame.snapshot.topics if not name.startswith("__")]
        names += [name for name in self._frame.snapshot.topics if name.startswith("__")]
        if names and names != self._topic.options:
            chosen = self._topic.value
            if chosen and chosen not in names:
                names.insert(0, chosen)
            self._topic.set_options(names, value=chosen)
        topic = self._frame.snapshot.topics.get(str(self._topic.value))
        if topic is not None:
            options: dict[int | None, str] = {None: "all", **{each.index: str(each.index) for each in topic.partitions}}
            if options != self._partition.options:
                wanted = self._partition.value if self._partition.value in options else None
                self._partition.set_options(options, value=wanted)

    async def _begin(self) -> None:
        with self._frame.reporting("This page cannot be loaded"):
            self._zone = await self._read_zone()
            self._offer_topics()
            if self._topic.value:
                await self._ask()

    async def _read_zone(self) -> tzinfo:
        try:
            return zone_of(await ui.run_javascript(_ZONE, timeout=_ZONE_TIMEOUT_SECONDS))
        except TimeoutError:
            return UTC

    async def _chosen(self) -> None:
        self._partition.set_value(None)
        self._offer_topics()
        await self._ask()

    async def _mode_changed(self) -> None:
        self._show_at()
        if self._mode.value in (OFFSET, TIME) and not self._at.value:
            self._at.run_method("focus")
            return
        await self._ask()

    def _show_at(self) -> None:
        self._at.set_visibility(self._mode.value in (OFFSET, TIME))
        if self._mode.value == TIME:
            self._at.props("label=Time").props["placeholder"] = "2026-01-31 12:00, 12:00, 5m"
        else:
            self._at.props("label=Offset").props["placeholder"] = "0"

    def _read_form(self, typed: FormValues) -> Query:
        return Query(
            topic=str(self._topic.value or ""),
            mode=str(self._mode.value),
            at=typed.text(self._at),
            partition=self._partition.value,
            text=typed.text(self._text),
            search_in=str(self._search_in.value),
            expression=parse_expression(typed.text(self._field)),
            count=int(self._count.value or _FIRST_COUNT),
        )

    # Reading

    async def _ask(self) -> None:
        await self._ask_typed(FormValues())

    async def _ask_typed(self, typed: FormValues) -> None:
        if not self._topic.value:
            return
        self._request_number += 1
        self._tail = None
        self._dot.set_visibility(False)
        self._more.set_visibility(False)
        self._status.set_text("No records were read.")
        with self._frame.reporting("The records cannot be read"):
            try:
                query = self._read_form(typed)
                query.check(self._zone)
            except ValueError as error:
                raise UserError(str(error)) from None
            self._frame.hide_error()
            self._query = query
            self._write_url(query, typed)
            ui.timer(0.01, self._draw_histogram, once=True)
            if query.mode == LIVE:
                self._table.replace([])
                self._skipped = 0
                self._tail = tail(self._reader, query, self._decode)
                self._dot.set_visibility(True)
                self._status.set_text("Waiting for new records…")
                return
            self._table.replace([])
            await self._read(lambda: first_page(self._reader, query, self._decode, self._zone))

    async def _continue(self) -> None:
        query, rest = self._query, self._rest
        if query is not None:
            with self._frame.reporting("The records cannot be read"):
                await self._read(lambda: next_page(self._reader, query, self._decode, rest))

    async def _read(self, read: Any) -> None:
        request_number = self._request_number
        self._status.set_text("Reading…")
        self._go.props("loading")

        def work() -> tuple[Page, dict[int, Range], list[Any]]:
            page, rest = read()
            return page, rest, lines_of(page.records, self._decode, self._zone)

        try:
            page, rest, lines = await self._frame.run(work)
        except Exception:
            self._status.set_text("")
            raise
        finally:
            self._go.props(remove="loading")
        if request_number != self._request_number:
            return  # another query was started meanwhile
        self._rest = rest
        self._table.append(lines)
        self._status.set_text(self._outcome(page))
        backwards = self._query is not None and self._query.is_backwards
        self._more.set_text("Continue search" if page.stopped_early else "Older" if backwards else "Newer")
        self._more.set_visibility(page.more and len(self._table) < MOST_ROWS)
        for problem in page.problems:
            self._frame.show_error(problem)

    def _outcome(self, page: Page) -> str:
        shown = plural(len(self._table), "record")
        zone = f", times in {self._zone.tzname(None) or self._zone}"
        if len(self._table) >= MOST_ROWS:
            return f"{shown}, the maximum: start at a later offset, or use a filter{zone}"
        if page.stopped_early:
            return f"{shown}; search stopped after {count(page.searched)} records{zone}"
        if not len(self._table):
            return f"No records match the filter{self._misfits}." if self._filtered else "No records."
        looked = f", {count(page.searched)} searched" if self._filtered else ""
        return f"{shown}{looked}{zone}{self._misfits}"

    @property
    def _misfits(self) -> str:
        expression = None if self._query is None else self._query.expression
        if expression is None or not expression.misfits:
            return ""
        return f"; {plural(expression.misfits, 'record')} could not be compared: {expression.reason}"

    @property
    def _filtered(self) -> bool:
        return self._query is not None and bool(self._query.text.strip() or self._query.expression)

    async def _step(self) -> None:
        following, request_number = self._tail, self._request_number
        if following is None or self._busy:
            return

        def work() -> tuple[Step, list[Any]]:
            step = following.step(_TAIL_ROWS)
            return step, lines_of(step.records, self._decode, self._zone)

        self._busy = True
        try:
            with self._frame.reporting("New records cannot be read"):
                step, lines = await self._frame.run(work)
                if request_number != self._request_number:
                    return
                self._skipped += step.skipped
                if lines:
                    self._table.put_on_top(lines, _TAIL_ROWS)
                skipped = f", {count(self._skipped)} skipped because they arrived too fast" if self._skipped else ""
                self._status.set_text(f"Live: {plural(len(self._table), 'record')}{skipped}")
        finally:
            self._busy = False

    # Single records

    async def _open(self, line: Line) -> None:
        topic = self._query.topic if self._query is not None else ""
        with self._frame.reporting("The record cannot be shown"):
            record: FoundRecord | None = line.record
            if not line.is_whole:
                record = await self._frame.run(self._reader.one, topic, line.record.partition, line.record.offset)
            if record is None:
                raise UserError("it was removed by retention or compaction. Load the records again.")
            self._panel.show(topic, record, self._zone)

    async def _open_beside(self, record: FoundRecord, step: int) -> None:
        beside = self._table.neighbour(record, step)
        if beside is not None:
            await self._open(beside)

    async def _resend(self, record: FoundRecord) -> None:
        topic = self._query.topic if self._query is not None else ""
        with self._frame.reporting("The record cannot be edited"):
            if self._frame.visitor.mask_of(topic) is not None:
                raise UserError("fields of it are masked for you, and would be lost.")

            def read() -> Draft:
                return draft_of(topic, record, self._decode(record.key), self._decode(record.value))

            self._write(await self._frame.run(read))

    def _write(self, draft: Draft | None = None) -> None:
        topic = self._frame.snapshot.topics.get(str(self._topic.value))
        if topic is None:
            self._frame.show_error("Choose a topic first.")
            return

        async def written() -> None:
            if self._tail is None:
                await self._ask()

        with self._table.around:
            WritingDialog(self._frame, topic.name, len(topic.partitions), written, draft)

    # The histogram, the URL, files, saved filters

    async def _draw_histogram(self) -> None:
        query, request_number = self._query, self._request_number
        if query is None:
            return
        drawn = (query.topic, query.partition)
        if drawn == self._drawn and query.mode == LIVE:
            return

        def work() -> list[Bucket]:
            return time_histogram(self._frame.console.cluster, query.topic, query.partition)

        with self._frame.reporting("The histogram cannot be drawn"):
            buckets = await self._frame.run(work)
            if request_number == self._request_number:
                self._drawn = drawn
                self._histogram.show(buckets)

    async def _jump(self, start_ms: int) -> None:
        """Shows the records from the start of a bar on."""
        self._at.set_value(f"@{start_ms}")
        if self._mode.value == TIME:
            await self._ask()
        else:
            self._mode.set_value(TIME)  # which reads

    def _write_url(self, query: Query, typed: FormValues) -> None:
        self._frame.url.write(
            {"in": None if query.search_in == SEARCH_PARTS[0] else query.search_in},
            topic=query.topic,
            partition=query.partition if query.partition else None if query.partition is None else "0",
            mode=None if query.mode == NEWEST else query.mode,
            offset=query.at if query.mode == OFFSET else None,
            at=query.at if query.mode == TIME else None,
            contains=query.text,
            records=None if query.count == _FIRST_COUNT else query.count,
            filter=typed.text(self._field),
        )

    async def _export(self, extension: str) -> None:
        topic = self._query.topic if self._query is not None else ""
        lines = self._table.lines

        def work() -> bytes:
            whole = [
                line.record if line.is_whole else self._reader.one(topic, line.record.partition, line.record.offset)
                for line in lines
            ]
            names, rows = rows_of_file(topic, [each for each in whole if each is not None], self._decode)
            return export(extension, names, rows)

        with self._frame.reporting("The records cannot be saved"):
            data = await self._frame.run(work)
            ui.download.content(data, f"{topic}.{extension}", EXPORTS[extension][1])

    def _forget_saved(self) -> None:
        self._saved.clear()

    async def _read_saved(self) -> None:
        """Saved filters are in this browser."""
        try:
            told = await ui.run_javascript("millstreamFilters()", timeout=_ZONE_TIMEOUT_SECONDS)
        except TimeoutError:
            told = []
        filters = [str(each)[:500] for each in told][:50] if isinstance(told, list) else []
        current = str(self._field.value or "").strip()
        self._saved.clear()
        with self._saved:
            if current and current not in filters:
                ui.menu_item(f"Save {current}", partial(self._keep, current, True)).props("data-testid=save-filter")
            for text in filters:
                with ui.menu_item(on_click=partial(self._use, text)).classes("ms-mono"):
                    ui.label(text)
                    ui.space()
                    ui.button(icon="close", color=None).props('flat dense round size=xs aria-label="Forget"').on(
                        "click.stop", partial(self._keep, text, False)
                    )
            if not current and not filters:
                ui.label("Enter a filter to save it.").classes("ms-muted ms-help")

    def _keep(self, text: str, kept: bool) -> None:
        argument = json.dumps(text).replace("<", "\\u003c")
        ui.run_javascript(f"millstreamFilters({argument}, {json.dumps(kept)})")

    async def _use(self, text: str) -> None:
        self._field.set_value(text)
        await self._ask_typed(FormValues({self._field.html_id: text}))


def _first_mode(frame: Frame) -> str:
    """As the URL has it; an offset or a time without a mode is a mode, too."""
    default = OFFSET if frame.url.text("offset") else TIME if frame.url.text("at") else NEWEST
    return frame.url.choice("mode", MODES, default)


def zone_of(told: Any) -> tzinfo:
    """The time zone of the browser: by name if it is known here, else by its current offset."""
    name, minutes = told if isinstance(told, list) and len(told) == 2 else ("", 0)
    try:
        return ZoneInfo(str(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        offset = int(minutes) if isinstance(minutes, (int, float)) and abs(minutes) < 24 * 60 else 0
        return timezone(timedelta(minutes=offset))


def _first_count(frame: Frame) -> int:
    wanted = frame.url.number("records", _FIRST_COUNT, _COUNTS[0], _COUNTS[-1])
    return wanted if wanted in _COUNTS else _FIRST_COUNT
