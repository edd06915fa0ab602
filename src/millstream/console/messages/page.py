"""The Messages page: records of a topic, newest or oldest first, from an offset or a time, filtered, or live."""

from collections.abc import Callable
from datetime import UTC, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from nicegui import ui

from millstream.console.console import UserError
from millstream.console.formats import count, plural
from millstream.console.frame import Frame, console_page
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
from millstream.console.messages.views import MOST_ROWS, Line, RecordTable, lines_of, open_details
from millstream.console.messages.writing import (
    FORMS,
    JSON,
    NULL,
    TEXT,
    InvalidInputError,
    RecordWriter,
    parse_bytes,
    parse_headers,
)
from millstream.console.visitor import Action
from millstream.console.widgets import (
    FieldErrors,
    FormValues,
    LiveSelect,
    card,
    dialog,
    heading,
    send_form,
    send_form_on_enter,
)
from millstream.raw_client import WireError
from millstream.registry.decoding import Decoder

_TAIL_EVERY_S = 0.7
_TAIL_ROWS = 200
_ZONE_TIMEOUT_S = 10.0
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
        self._asked = 0
        self._skipped = 0
        self._busy = False
        with heading("Messages"):
            write = ui.button("Produce a record", icon="edit", on_click=self._write)
            frame.offer(Action.PRODUCE, write).props("outline no-caps data-testid=open-write")
        with card(""):
            self._lay_out_form(frame)
        with card(""):
            with ui.element("div").classes("ms-status"):
                self._dot = ui.element("span").classes("ms-live-dot")
                self._status = ui.label("Choose a topic.").classes("ms-muted").props("role=status data-testid=status")
                ui.space()
                self._more = ui.button("", on_click=self._continue).props("outline no-caps data-testid=more")
            self._dot.set_visibility(False)
            self._more.set_visibility(False)
            self._table = RecordTable(self._open)
        frame.live(lambda snapshot: self._offer_topics())
        ui.timer(_TAIL_EVERY_S, self._step)
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
                ui.toggle(MODES, value=OFFSET if parameters.get("offset") else NEWEST, on_change=self._mode_changed)
                .props("no-caps unelevated dense toggle-color=primary data-testid=mode")
                .classes("ms-toggle")
            )
            self._at = (
                send_form_on_enter(ui.input("Offset", value=parameters.get("offset", "")), self._ask_typed)
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
                ui.select(list(SEARCH_PARTS), value=SEARCH_PARTS[0], label="in")
                .props("outlined dense options-dense")
                .classes("ms-field")
            )
            self._field = (
                send_form_on_enter(
                    ui.input("Field", value=parameters.get("field", ""), placeholder="order.total >= 100"),
                    self._ask_typed,
                )
                .props("outlined dense clearable data-testid=field")
                .classes("ms-field-wide")
            )
            self._count = (
                ui.select([25, 50, 100, 250], value=50, label="records").props("outlined dense").classes("ms-field")
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
            return zone_of(await ui.run_javascript(_ZONE, timeout=_ZONE_TIMEOUT_S))
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
            field=typed.text(self._field),
            count=int(self._count.value or 50),
        )

    # Reading

    async def _ask(self) -> None:
        await self._ask_typed(FormValues())

    async def _ask_typed(self, typed: FormValues) -> None:
        query = self._read_form(typed)
        if not query.topic:
            return
        self._asked += 1
        self._tail = None
        self._dot.set_visibility(False)
        self._more.set_visibility(False)
        with self._frame.reporting("The records cannot be read"):
            try:
                query.check(self._zone)
            except ValueError as error:
                raise UserError(str(error)) from None
            self._query = query
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
        asked = self._asked
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
        if asked != self._asked:
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
            return "No records match the filter." if self._filtered else "No records."
        looked = f", {count(page.searched)} searched" if self._filtered else ""
        return f"{shown}{looked}{zone}"

    @property
    def _filtered(self) -> bool:
        return self._query is not None and bool(self._query.text.strip() or self._query.field.strip())

    async def _step(self) -> None:
        following, asked = self._tail, self._asked
        if following is None or self._busy:
            return

        def work() -> tuple[Step, list[Any]]:
            step = following.step(_TAIL_ROWS)
            return step, lines_of(step.records, self._decode, self._zone)

        self._busy = True
        try:
            with self._frame.reporting("New records cannot be read"):
                step, lines = await self._frame.run(work)
                if asked != self._asked:
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
            open_details(self._frame, topic, record, self._decode, self._zone, self._open_beside)

    async def _open_beside(self, record: FoundRecord, step: int) -> None:
        beside = self._table.neighbour(record, step)
        if beside is not None:
            await self._open(beside)

    def _write(self) -> None:
        topic = self._frame.snapshot.topics.get(str(self._topic.value))
        if topic is None:
            self._frame.show_error("Choose a topic first.")
            return

        async def written() -> None:
            if self._tail is None:
                await self._ask()

        open_writing(self._frame, topic.name, len(topic.partitions), written)


def zone_of(told: Any) -> tzinfo:
    """The time zone of the browser: by name if it is known here, else by its current offset."""
    name, minutes = told if isinstance(told, list) and len(told) == 2 else ("", 0)
    try:
        return ZoneInfo(str(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        offset = int(minutes) if isinstance(minutes, (int, float)) and abs(minutes) < 24 * 60 else 0
        return timezone(timedelta(minutes=offset))


def open_writing(frame: Frame, topic: str, partitions: int, written: Callable[[], Any]) -> None:
    """Opens the dialog. `written` is called after each record; the dialog stays open."""
    _Writing(frame, topic, partitions, written)


class _Writing:
    def __init__(self, frame: Frame, topic: str, partitions: int, written: Callable[[], Any]) -> None:
        self._frame = frame
        self._topic = topic
        self._written = written
        with dialog(f"Produce a record to {topic}", wide=True, test_id="write-record") as self._dialog:
            with ui.element("div").classes("ms-form"):
                self._partition = (
                    ui.select(
                        {None: "by key", **{index: str(index) for index in range(partitions)}},
                        value=None,
                        label="Partition",
                    )
                    .props("outlined dense options-dense")
                    .classes("ms-field")
                )
                self._key_form = (
                    ui.select(list(FORMS), value=TEXT, label="Key format")
                    .props("outlined dense options-dense data-testid=key-form")
                    .classes("ms-field")
                )
                self._key = ui.input("Key").props("outlined dense data-testid=write-key").classes("ms-field-wide")
            with ui.element("div").classes("ms-form"):
                self._value_form = (
                    ui.select(list(FORMS), value=JSON, label="Value format")
                    .props("outlined dense options-dense data-testid=value-form")
                    .classes("ms-field")
                )
                ui.label(f"{NULL} is a tombstone: compaction removes the key.").classes("ms-help")
            self._value = (
                ui.textarea("Value", value="{}").props("outlined data-testid=write-value").classes("ms-stack ms-editor")
            )
            self._headers = (
                ui.textarea("Headers").props("outlined autogrow data-testid=write-headers").classes("ms-stack")
            )
            ui.label("One header per line, as name: value").classes("ms-help")
            self._errors = FieldErrors()
            with ui.element("div").classes("ms-actions"):
                ui.button("Close", on_click=self._dialog.close).props("flat no-caps")
                self._button = ui.button("Produce", icon="send").props("unelevated no-caps data-testid=write")
                send_form(self._button, self._write)
        self._dialog.open()

    async def _write(self, typed: FormValues) -> None:
        try:
            key_form = str(self._key_form.value)
            # An empty text key means no key.
            key_text = typed.text(self._key)
            key = None if key_form == TEXT and not key_text else parse_bytes(key_text, key_form, "key")
            value = parse_bytes(typed.text(self._value), str(self._value_form.value), "value")
            headers = parse_headers(typed.text(self._headers))
            self._button.props("loading")
            self._frame.visitor.check_topic(self._topic)
            writer = RecordWriter(self._frame.console.cluster)
            at = await self._frame.act(
                Action.PRODUCE, writer.write, self._topic, key, value, headers, self._partition.value
            )
        except (InvalidInputError, UserError, WireError) as error:
            self._errors.show(str(error))
            return
        finally:
            self._button.props(remove="loading")
        self._errors.show("")
        self._frame.notify(f"Record written to partition {at.partition} at offset {at.offset:,}.")
        self._frame.poll_now()
        await self._written()
