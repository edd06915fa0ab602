"""The dialog in which one record is written by hand."""

from collections.abc import Callable
from typing import Any

from nicegui import ui

from millstream.console.browsing import Complaint, Typed, dialog, send_form
from millstream.console.frame import Frame
from millstream.console.messages.writing import (
    FORMS,
    JSON,
    NULL,
    TEXT,
    RecordWriter,
    TypedWrongError,
    typed_bytes,
    typed_headers,
)
from millstream.raw_client import WireError


def open_writing(frame: Frame, topic: str, partitions: int, written: Callable[[], Any]) -> None:
    """`written` is called after a record was written; the dialog stays, for the next one."""
    _Writing(frame, topic, partitions, written)


class _Writing:
    def __init__(self, frame: Frame, topic: str, partitions: int, written: Callable[[], Any]) -> None:
        self._frame = frame
        self._topic = topic
        self._written = written
        with dialog(f"Write a record to {topic}", wide=True, test_id="write-record") as self._dialog:
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
                    ui.select(list(FORMS), value=TEXT, label="Key is")
                    .props("outlined dense options-dense data-testid=key-form")
                    .classes("ms-field")
                )
                self._key = ui.input("Key").props("outlined dense data-testid=write-key").classes("ms-field-wide")
            with ui.element("div").classes("ms-form"):
                self._value_form = (
                    ui.select(list(FORMS), value=JSON, label="Value is")
                    .props("outlined dense options-dense data-testid=value-form")
                    .classes("ms-field")
                )
                ui.label(f"{NULL} is a tombstone: a compacted topic forgets the key.").classes("ms-help")
            self._value = (
                ui.textarea("Value", value="{}").props("outlined data-testid=write-value").classes("ms-stack ms-editor")
            )
            self._headers = (
                ui.textarea("Headers").props("outlined autogrow data-testid=write-headers").classes("ms-stack")
            )
            ui.label("One a line, name: value").classes("ms-help")
            self._complaint = Complaint()
            with ui.element("div").classes("ms-actions"):
                ui.button("Close", on_click=self._dialog.close).props("flat no-caps")
                self._button = ui.button("Write", icon="send").props("unelevated no-caps data-testid=write")
                send_form(self._button, self._write)
        self._dialog.open()

    async def _write(self, typed: Typed) -> None:
        try:
            key_form = str(self._key_form.value)
            # An empty line under "text" is how most people say that there is no key.
            key_text = typed.text(self._key)
            key = None if key_form == TEXT and not key_text else typed_bytes(key_text, key_form, "key")
            value = typed_bytes(typed.text(self._value), str(self._value_form.value), "value")
            headers = typed_headers(typed.text(self._headers))
            self._button.props("loading")
            writer = RecordWriter(self._frame.console.cluster)
            at = await self._frame.run(writer.write, self._topic, key, value, headers, self._partition.value)
        except (TypedWrongError, WireError) as error:
            self._complaint.say(str(error))
            return
        finally:
            self._button.props(remove="loading")
        self._complaint.say("")
        self._frame.say(f"Written to partition {at.partition} at offset {at.offset:,}.")
        self._frame.changed()
        await self._written()
