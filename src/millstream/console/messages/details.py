"""One record in full: where it is, its headers, key and value, decoded, as text, hexadecimal or base64."""

import base64
from collections.abc import Awaitable, Callable
from datetime import tzinfo
from functools import partial

from nicegui import ui

from millstream.console.browsing import dialog
from millstream.console.formats import count, size
from millstream.console.frame import Frame
from millstream.console.messages.matching import Decode
from millstream.console.messages.position import shown_moment
from millstream.console.messages.reading import FoundRecord
from millstream.console.messages.text import (
    PIECE_CHARACTERS,
    WHOLE_CHARACTERS,
    Piece,
    header_line,
    hexadecimal,
    kind_label,
    seen,
    written_out,
)
from millstream.registry.decoding import Decoded

DECODED, TEXT, HEX, BASE64 = "decoded", "text", "hex", "base64"


def show_as(data: bytes | None, decoded: Decoded, form: str, most: int) -> Piece:
    """The bytes in one of the four forms, cut to about so many characters."""
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


def open_details(
    frame: Frame,
    topic: str,
    record: FoundRecord,
    decode: Decode,
    zone: tzinfo,
    step: Callable[[FoundRecord, int], Awaitable[None]],
) -> None:
    """`step` shows the record before (-1) or after (1) this one in the table."""
    around = ui.context.slot.parent
    with dialog(
        f"{topic} · partition {record.partition} · offset {record.offset:,}", wide=True, test_id="record"
    ) as box:
        with ui.element("div").classes("ms-chips"):
            ui.label(shown_moment(record.timestamp_ms, zone)).classes("ms-muted").props("data-testid=record-time")
            ui.label(f"key {_size(record.key)}, value {_size(record.value)}").classes("ms-muted")
            ui.space()
            for word, icon, by in (("Previous row", "expand_less", -1), ("Next row", "expand_more", 1)):

                async def move(by: int = by) -> None:
                    box.close()
                    with around:  # the dialog, and all that is in it, goes
                        await step(record, by)

                ui.button(icon=icon, on_click=move).props(f'flat dense round aria-label="{word}"').tooltip(word)
            ui.button(icon="close", on_click=box.close).props('flat dense round autofocus aria-label="Close"')
        with ui.tabs().classes("ms-tabs").props("align=left no-caps dense") as tabs:
            names = [ui.tab(name).props(f"data-testid=record-{name.lower()}") for name in ("Value", "Key", "Headers")]
        with ui.tab_panels(tabs, value=names[0], animated=False).classes("ms-panels"):
            with ui.tab_panel(names[0]):
                _Bytes(frame, record.value, decode, f"{topic}-{record.partition}-{record.offset}.value")
            with ui.tab_panel(names[1]):
                _Bytes(frame, record.key, decode, f"{topic}-{record.partition}-{record.offset}.key")
            with ui.tab_panel(names[2]):
                _headers(record)
    box.open()


class _Bytes:
    """A key or a value; decoded when it is first shown, in a thread."""

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
                    {DECODED: "Decoded", TEXT: "Text", HEX: "Hex", BASE64: "Base64"},
                    value=DECODED,
                    on_change=self._show,
                )
                .props("no-caps unelevated dense size=sm toggle-color=primary data-testid=form")
                .classes("ms-toggle ms-toggle-small")
            )
            ui.space()
            if data is not None:
                ui.button(
                    "Save",
                    icon="download",
                    on_click=partial(ui.download.content, data, file_name, "application/octet-stream"),
                ).props("flat dense no-caps size=sm").tooltip("The bytes as they are, to a file")
        self._problem = ui.label("").classes("ms-complaint")
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
            self._text.set_text(piece.text)
            self._text.classes(add="ms-pre-hex") if self._form.value == HEX else self._text.classes(remove="ms-pre-hex")
            unit = "bytes" if self._form.value in (HEX, BASE64, TEXT) else "characters"
            self._left_out.set_text(f"{count(piece.left_out)} more {unit} are not shown")
            self._rest.set_visibility(piece.left_out > 0)
            self._all.set_visibility(self._most < WHOLE_CHARACTERS)

    def _make(self, form: str, most: int) -> Piece:
        if self._decoded is None:
            self._decoded = self._decode(self._data)
        return show_as(self._data, self._decoded, form, most)

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
