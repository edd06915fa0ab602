"""The dialog that produces a record: a new one, or another one that was changed."""

from collections.abc import Callable
from typing import Any

from nicegui import ui

from millstream.console.console import UserError
from millstream.console.frame import Frame
from millstream.console.messages.writing import (
    FORMS,
    NULL,
    SCHEMA,
    TEXT,
    Draft,
    InvalidInputError,
    RecordWriter,
    encode_with_schema,
    parse_bytes,
    parse_headers,
)
from millstream.console.visitor import Action
from millstream.console.widgets import FieldErrors, FormValues, dialog, send_form
from millstream.raw_client import WireError
from millstream.registry.errors import RegistryError


class WritingDialog:
    """`written` is called after each record; the dialog stays open."""

    def __init__(
        self, frame: Frame, topic: str, partitions: int, written: Callable[[], Any], draft: Draft | None = None
    ) -> None:
        self._frame = frame
        self._topic = topic
        self._written = written
        draft = draft or Draft()
        with dialog(f"Produce a record to {topic}", wide=True, test_id="write-record") as self._dialog:
            with ui.element("div").classes("ms-form"):
                self._partition = (
                    ui.select(
                        {None: "by key", **{index: str(index) for index in range(partitions)}},
                        value=draft.partition,
                        label="Partition",
                    )
                    .props("outlined dense options-dense")
                    .classes("ms-field")
                )
                self._key_form, self._key_subject = self._format("key", draft.key_form, draft.key_subject)
                self._key = (
                    ui.input("Key", value=draft.key)
                    .props("outlined dense data-testid=write-key")
                    .classes("ms-field-wide")
                )
            with ui.element("div").classes("ms-form"):
                self._value_form, self._value_subject = self._format("value", draft.value_form, draft.value_subject)
                ui.label(f"{NULL} is a tombstone: compaction removes the key.").classes("ms-help")
            self._value = (
                ui.textarea("Value", value=draft.value)
                .props("outlined data-testid=write-value")
                .classes("ms-stack ms-editor")
            )
            self._headers = (
                ui.textarea("Headers", value=draft.headers)
                .props("outlined autogrow data-testid=write-headers")
                .classes("ms-stack")
            )
            ui.label("One header per line, as name: value").classes("ms-help")
            self._errors = FieldErrors()
            with ui.element("div").classes("ms-actions"):
                ui.button("Close", on_click=self._dialog.close).props("flat no-caps")
                self._button = ui.button("Produce", icon="send").props("unelevated no-caps data-testid=write")
                send_form(self._button, self._write)
        self._dialog.open()

    def _format(self, role: str, form: str, subject: str) -> tuple[ui.select, ui.input]:
        """The format of a key or value. With a schema: its subject, or an id."""
        field = (
            ui.input("Subject or id:N", value=subject or f"{self._topic}-{role}")
            .props(f"outlined dense data-testid={role}-subject")
            .classes("ms-field-wide")
        )
        choice = (
            ui.select(
                list(FORMS),
                value=form,
                label=f"{role.capitalize()} format",
                on_change=lambda event: field.set_visibility(event.value == SCHEMA),
            )
            .props(f"outlined dense options-dense data-testid={role}-form")
            .classes("ms-field")
            .style("min-width: 150px")
        )
        choice.move(target_index=-2)
        field.set_visibility(form == SCHEMA)
        return choice, field

    def _parsed(self, form: str, text: str, subject: str, role: str) -> bytes | None:
        """In a thread: a schema may have to be read."""
        if form != SCHEMA:
            return parse_bytes(text, form, role)
        return encode_with_schema(self._frame.console.registry, subject, text, role)

    async def _write(self, typed: FormValues) -> None:
        try:
            key_form, value_form = str(self._key_form.value), str(self._value_form.value)
            key_text = typed.text(self._key)
            self._button.props("loading")
            self._frame.visitor.check_topic(self._topic)
            key = None
            if key_form != TEXT or key_text:  # an empty text key means no key
                key = await self._frame.run(self._parsed, key_form, key_text, typed.text(self._key_subject), "key")
            value = await self._frame.run(
                self._parsed, value_form, typed.text(self._value), typed.text(self._value_subject), "value"
            )
            headers = parse_headers(typed.text(self._headers))
            writer = RecordWriter(self._frame.console.cluster)
            at = await self._frame.act(
                Action.PRODUCE, writer.write, self._topic, key, value, headers, self._partition.value
            )
        except (InvalidInputError, UserError, WireError, RegistryError) as error:
            self._errors.show(str(error))
            return
        finally:
            self._button.props(remove="loading")
        self._errors.show("")
        self._frame.notify(f"Record written to partition {at.partition} at offset {at.offset:,}.")
        self._frame.poll_now()
        await self._written()
