"""Views of records: the table, the panel of one record, and keys, values and headers as text.

Records are shown as text and never as markup, with a maximum length. Invisible characters and characters that change
the text direction are escaped.
"""

import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from typing import Any

from nicegui import ui

from millstream.console.formats import count, size
from millstream.console.frame import Frame
from millstream.console.messages.query import Decode, shown_moment
from millstream.console.messages.reading import FoundRecord
from millstream.console.messages.text import (
    PIECE_CHARACTERS,
    WHOLE_CHARACTERS,
    Piece,
    header_line,
    hexadecimal,
    kind_label,
    one_line,
    seen,
    tree_of,
    written_out,
)
from millstream.console.visitor import Action
from millstream.registry.decoding import Decoded

MOST_ROWS = 1000
_MOST_HELD = 1 << 16
"""Maximum bytes of a record that a page keeps: a thousand rows of a megabyte would be too much."""
_LINE = 300
_KEY = 80
_COLUMNS = (
    ("time", "Time", "width: 196px"),
    ("partition", "Partition", "width: 74px"),
    ("offset", "Offset", "width: 96px"),
    ("key", "Key", "width: 15%"),
    ("kind", "Format", "width: 104px"),
    ("value", "Value", ""),
    ("size", "Size", "width: 78px"),
)
# Values are passed as data and never become part of the template.
_TEXT_CELL = """
<q-td :props="props"><span class="ms-cut" :class="{'ms-null': props.row.nulls[props.col.name]}">{{ props.value }}</span>
</q-td>
"""
_PICK_CELL = """
<q-td :props="props"><a href="#" class="ms-row-link ms-mono"
@click.prevent.stop="$parent.$emit('pick', props.row.id)">{{ props.value }}</a></q-td>
"""
_KIND_CELL = """
<q-td :props="props"><span class="ms-badge" :class="'ms-' + props.row.tone">{{ props.value }}</span></q-td>
"""
_TONES = {"avro": "info", "protobuf": "info", "json-schema": "info", "json": "good", "text": "dim", "binary": "warn"}


@dataclass(frozen=True, slots=True)
class Line:
    """A row and its record. Large keys, values and headers are not kept; they are read again when needed."""

    record: FoundRecord
    is_whole: bool
    row: dict[str, Any]


class RecordTable:
    """The table of records. `pick` is called with the selected line."""

    def __init__(self, pick: Callable[[Line], Any]) -> None:
        self._lines: dict[str, Line] = {}
        self._pick = pick
        self._table = ui.table(
            rows=[],
            columns=[
                {"name": name, "label": label, "field": name, "align": "left", "headerStyle": style, "style": style}
                for name, label, style in _COLUMNS
            ],
            row_key="id",
            pagination={"rowsPerPage": 0},
        )
        self._table.classes("ms-records").props("flat dense hide-bottom data-testid=records")
        self.around = self._table.parent_slot.parent if self._table.parent_slot is not None else self._table
        self._table.add_slot("body-cell-key", _TEXT_CELL)
        self._table.add_slot("body-cell-value", _TEXT_CELL)
        self._table.add_slot("body-cell-offset", _PICK_CELL)
        self._table.add_slot("body-cell-kind", _KIND_CELL)
        self._table.on("pick", lambda event: self._picked(str(event.args)))
        self._table.on("rowClick", lambda event: self._picked(str(event.args[1]["id"])))

    @property
    def lines(self) -> list[Line]:
        return list(self._lines.values())

    def __len__(self) -> int:
        return len(self._lines)

    def replace(self, lines: Sequence[Line]) -> None:
        self._lines = {line.row["id"]: line for line in lines}
        self._send()

    def append(self, lines: Sequence[Line]) -> None:
        self._lines |= {line.row["id"]: line for line in lines}
        self._send()

    def put_on_top(self, lines: Sequence[Line], most: int) -> None:
        """Adds the newest at the top, and drops the oldest beyond `most`."""
        together = {line.row["id"]: line for line in reversed(lines)} | self._lines
        self._lines = dict(list(together.items())[:most])
        self._send()

    def neighbour(self, record: FoundRecord, step: int) -> Line | None:
        keys = list(self._lines)
        at = keys.index(_id(record)) + step if _id(record) in self._lines else -1
        return self._lines[keys[at]] if 0 <= at < len(keys) else None

    def _send(self) -> None:
        self._table.rows = [line.row for line in self._lines.values()]

    def _picked(self, key: str) -> Any:
        return self._pick(self._lines[key]) if key in self._lines else None


def lines_of(records: Sequence[FoundRecord], decode: Decode, zone: tzinfo) -> list[Line]:
    """Records as rows. It decodes them, so it must not run in the event loop."""
    return [_line(record, decode, zone) for record in records]


def rows_of_file(topic: str, records: Sequence[FoundRecord], decode: Decode) -> tuple[list[str], list[dict[str, Any]]]:
    """Names of columns and rows of a file of records: decoded values as JSON, binary ones as base64."""
    rows = [
        {
            "topic": topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": _of_file(decode(record.key)),
            "value": _of_file(decode(record.value)),
            "headers": json.dumps({name: header_line(value, 2000) for name, value in record.headers}),
        }
        for record in records
    ]
    return ["topic", "partition", "offset", "timestamp", "key", "value", "headers"], rows


def _of_file(decoded: Decoded) -> str | None:
    """A text: values of one column have one type."""
    if decoded.kind == "null":
        return None
    return decoded.value if isinstance(decoded.value, str) else json.dumps(decoded.value, ensure_ascii=False)


def _line(record: FoundRecord, decode: Decode, zone: tzinfo) -> Line:
    held = len(record.key or b"") + len(record.value or b"") + sum(len(value or b"") for _, value in record.headers)
    is_whole = held <= _MOST_HELD
    kept = record if is_whole else record._replace(key=None, value=None, headers=())
    return Line(kept, is_whole, _row(record, decode, zone))


def _row(record: FoundRecord, decode: Decode, zone: tzinfo) -> dict[str, Any]:
    key, value = decode(record.key), decode(record.value)
    return {
        "id": _id(record),
        "time": shown_moment(record.timestamp_ms, zone),
        "partition": record.partition,
        "offset": f"{record.offset:,}",
        "key": one_line(key, _KEY),
        "kind": kind_label(value),
        "tone": "warn" if value.problem else _TONES.get(value.kind, "dim"),
        "value": one_line(value, _LINE),
        "size": size(len(record.value or b"")),
        "nulls": {"key": record.key is None, "value": record.value is None},
    }


def _id(record: FoundRecord) -> str:
    return f"{record.partition}@{record.offset}"


TREE, DECODED, TEXT, HEX, BASE64 = "tree", "decoded", "text", "hex", "base64"


def show_as(data: bytes | None, decoded: Decoded, form: str, most: int) -> Piece:
    """The bytes in one of the formats, cut to about `most` characters."""
    if data is None:
        return Piece("null")
    if form == HEX:
        return hexadecimal(data, most // 5)
    if form == BASE64:
        text = base64.b64encode(data[: most * 3 // 4]).decode()
        return Piece(text, max(0, len(data) - most * 3 // 4))
    if form == TEXT:
        return Piece(seen(data[:most].decode("utf-8", "replace")), max(0, len(data) - most))
    return written_out(decoded, most)


class _JsonTree(ui.element, component="../static/json_tree.js"):
    pass


class RecordPanel:
    """One record at the right side of the page, beside the table. `step` shows the record before (-1) or after (1) it;
    `resend` opens it for a change."""

    def __init__(
        self,
        frame: Frame,
        decode: Decode,
        step: Callable[[FoundRecord, int], Awaitable[None]],
        resend: Callable[[FoundRecord], Awaitable[None]],
    ) -> None:
        self._frame = frame
        self._decode = decode
        self._step = step
        self._resend = resend
        self._box = ui.element("aside").classes("ms-panel").props("data-testid=record tabindex=-1 aria-label=Record")
        self._box.set_visibility(False)

    def close(self) -> None:
        self._box.set_visibility(False)
        self._box.clear()

    def show(self, topic: str, record: FoundRecord, zone: tzinfo) -> None:
        self._box.clear()
        self._box.set_visibility(True)
        with self._box:
            with ui.element("div").classes("ms-panel-head"):
                ui.label(f"{topic} · partition {record.partition} · offset {record.offset:,}").classes(
                    "ms-dialog-title"
                )
                ui.space()
                for word, icon, by in (("Previous row", "expand_less", -1), ("Next row", "expand_more", 1)):
                    ui.button(icon=icon, on_click=partial(self._step, record, by)).props(
                        f'flat dense round aria-label="{word}"'
                    ).tooltip(word)
                ui.button(icon="close", on_click=self.close).props(
                    'flat dense round data-panel-close aria-label="Close"'
                )
            with ui.element("div").classes("ms-chips"):
                ui.label(shown_moment(record.timestamp_ms, zone)).classes("ms-muted").props("data-testid=record-time")
                ui.label(f"key {_size(record.key)}, value {_size(record.value)}").classes("ms-muted")
                ui.space()
                again = ui.button("Edit and resend", icon="edit", on_click=partial(self._resend, record))
                self._frame.offer(Action.PRODUCE, again).props("flat dense no-caps data-testid=resend")
            with ui.tabs().classes("ms-tabs").props("align=left no-caps dense") as tabs:
                names = [
                    ui.tab(name).props(f"data-testid=record-{name.lower()}") for name in ("Value", "Key", "Headers")
                ]
            name = f"{topic}-{record.partition}-{record.offset}"
            with ui.tab_panels(tabs, value=names[0], animated=False).classes("ms-panels"):
                with ui.tab_panel(names[0]):
                    _Bytes(self._frame, record.value, self._decode, f"{name}.value")
                with ui.tab_panel(names[1]):
                    _Bytes(self._frame, record.key, self._decode, f"{name}.key")
                with ui.tab_panel(names[2]):
                    _headers(record)


class _Bytes:
    """A key or a value; decoded in a thread when it is first shown."""

    def __init__(self, frame: Frame, data: bytes | None, decode: Decode, file_name: str) -> None:
        self._frame = frame
        self._data = data
        self._decode = decode
        self._decoded: Decoded | None = None
        self._most = PIECE_CHARACTERS
        with ui.element("div").classes("ms-chips"):
            self._kind = ui.label("").classes("ms-badge ms-info").props("data-testid=kind")
            self._form = (
                ui.toggle(
                    {TREE: "Tree", DECODED: "JSON", TEXT: "Text", HEX: "Hex", BASE64: "Base64"},
                    value=TREE,
                    on_change=self._show,
                )
                .props("no-caps unelevated dense size=sm toggle-color=primary data-testid=form")
                .classes("ms-toggle ms-toggle-small")
            )
            ui.space()
            if data is not None:
                ui.button(icon="content_copy", on_click=self._copy).props(
                    'flat dense round size=sm data-testid=copy-value aria-label="Copy"'
                ).tooltip("Copy as it is shown; a tree as JSON")
                ui.button(
                    "Save",
                    icon="download",
                    on_click=partial(ui.download.content, data, file_name, "application/octet-stream"),
                ).props("flat dense no-caps size=sm").tooltip("Save the bytes to a file")
        self._problem = ui.label("").classes("ms-complaint")
        self._tree = _JsonTree().props("data-testid=bytes")
        self._tree.set_visibility(False)
        self._text = ui.label("…").classes("ms-pre").props("data-testid=bytes")
        with ui.element("div").classes("ms-chips") as self._rest:
            self._left_out = ui.label("").classes("ms-muted").props("data-testid=left-out")
            self._all = ui.button("Show all", on_click=self._show_all).props("flat dense no-caps data-testid=show-all")
        self._rest.set_visibility(False)
        ui.timer(0.01, self._show, once=True)

    async def _show(self) -> None:
        with self._frame.reporting("The record cannot be shown"):
            piece = await self._frame.run(self._make, str(self._form.value), self._most)
            assert self._decoded is not None
            self._kind.set_text(kind_label(self._decoded))
            self._problem.set_text(self._decoded.problem or "")
            self._problem.set_visibility(bool(self._decoded.problem))
            is_tree = self._form.value == TREE and isinstance(self._decoded.value, (dict, list))
            self._tree.props["node"] = tree_of(self._decoded.value) if is_tree else None
            self._tree.set_visibility(is_tree)
            self._text.set_visibility(not is_tree)
            self._text.set_text("" if is_tree else piece.text)
            if is_tree:
                self._rest.set_visibility(False)
                return
            self._text.classes(add="ms-pre-hex") if self._form.value == HEX else self._text.classes(remove="ms-pre-hex")
            unit = "bytes" if self._form.value in (HEX, BASE64, TEXT) else "characters"
            self._left_out.set_text(f"{count(piece.left_out)} more {unit} are not shown")
            self._rest.set_visibility(piece.left_out > 0)
            self._all.set_visibility(self._most < WHOLE_CHARACTERS)

    def _make(self, form: str, most: int) -> Piece:
        if self._decoded is None:
            self._decoded = self._decode(self._data)
        return show_as(self._data, self._decoded, form, most)

    async def _copy(self) -> None:
        with self._frame.reporting("The record cannot be copied"):
            piece = await self._frame.run(self._make, str(self._form.value), WHOLE_CHARACTERS)
            text = json.dumps(piece.text).replace("<", "\\u003c")
            ui.run_javascript(f"millstreamCopy({text})")

    async def _show_all(self) -> None:
        self._most = WHOLE_CHARACTERS
        await self._show()


def _headers(record: FoundRecord) -> None:
    if not record.headers:
        ui.label("This record has no headers.").classes("ms-muted")
        return
    with ui.element("dl").classes("ms-facts").props("data-testid=headers"):
        for name, value in record.headers:
            with ui.element("dt"):
                ui.label(seen(name, in_a_line=True)).classes("ms-mono")
            with ui.element("dd"):
                ui.label(header_line(value, 2000)).classes("ms-mono")


def _size(data: bytes | None) -> str:
    return "null" if data is None else size(len(data))
