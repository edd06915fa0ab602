"""The dialog that deletes records of a topic: all, or those before an offset or a time, after a preview."""

from datetime import UTC, datetime

from nicegui import ui

from millstream.admin.topics import RecordDeletion, TopicAdmin
from millstream.console.console import UserError
from millstream.console.formats import count, plural
from millstream.console.frame import Frame
from millstream.console.messages.query import parse_moment, parse_offset
from millstream.console.tables import Column, DataTable
from millstream.console.visitor import Action
from millstream.console.widgets import FieldErrors, FormValues, dialog, send_form
from millstream.raw_client import WireError

_ALL, _OFFSET, _TIME = "all", "offset", "time"
_WHERE = {_ALL: "all records", _OFFSET: "before an offset", _TIME: "before a time"}
_HINTS = {_OFFSET: "the same offset for all chosen partitions", _TIME: "2026-01-31 12:00 (UTC), or an age such as 7d"}


class RecordDeletionDialog:
    """Nothing is deleted before the preview was confirmed, and then exactly what the preview shows."""

    def __init__(self, frame: Frame, topic: str, partitions: int) -> None:
        self._frame = frame
        self._topic = topic
        self._planned: list[RecordDeletion] = []
        self._asked = 0
        with dialog(f"Delete records of {topic}", wide=True, test_id="delete-records") as self._dialog:
            with ui.element("div").classes("ms-form"):
                self._partition = (
                    ui.select({None: "all", **{each: str(each) for each in range(partitions)}}, value=None)
                    .props("outlined dense options-dense label=Partition")
                    .classes("ms-field")
                )
                self._where = (
                    ui.select(_WHERE, value=_OFFSET, label="Delete")
                    .props("outlined dense options-dense data-testid=delete-where")
                    .classes("ms-field-wide")
                )
                self._at = ui.input("Value").props("outlined dense data-testid=delete-at").classes("ms-field")
                send_form(ui.button("Preview").props("outline no-caps data-testid=delete-preview"), self._preview)
            self._hint = ui.label(_HINTS[_OFFSET]).classes("ms-muted")
            self._table = DataTable(
                [
                    Column("partition", "Partition", width=96),
                    Column("start", "Log start", count, right=True),
                    Column("new", "New log start", count, right=True),
                    Column("records", "Deleted", count, right=True),
                ],
                key="partition",
                empty="Choose Preview. Nothing is deleted before you confirm.",
                filtered=False,
                page_size=25,
                test_id="deletions",
                name="deletions",
            )
            self._errors = FieldErrors()
            with ui.element("div").classes("ms-actions"):
                ui.button("Cancel", on_click=self._dialog.close).props("flat no-caps")
                self._do = ui.button("Delete records", on_click=self._delete).props(
                    "unelevated color=negative no-caps data-testid=delete-execute"
                )
                self._do.disable()
        self._where.on_value_change(self._changed)
        self._partition.on_value_change(self._forget)
        self._at.on_value_change(self._forget)
        self._dialog.open()

    def _changed(self) -> None:
        self._at.set_visibility(self._where.value != _ALL)
        self._hint.set_text(_HINTS.get(str(self._where.value), ""))
        self._forget()

    def _forget(self) -> None:
        self._asked += 1
        self._planned = []
        self._table.update([])
        self._errors.show("")
        self._do.set_text("Delete records")
        self._do.disable()

    async def _preview(self, typed: FormValues) -> None:
        self._forget()
        asked, where, text = self._asked, self._where.value, typed.text(self._at)
        partitions = None if self._partition.value is None else [int(self._partition.value)]
        try:
            offset = parse_offset(text) if where == _OFFSET else None
            moment = parse_moment(text, UTC, datetime.now(UTC)) if where == _TIME else None
            admin = TopicAdmin(self._frame.console.cluster)
            planned = await self._frame.run(admin.plan_deletion, self._topic, partitions, offset, moment)
        except (ValueError, UserError, WireError) as error:
            self._errors.show(str(error))
            return
        if asked != self._asked:
            return
        self._planned = planned
        self._table.update(
            [
                {"partition": each.partition, "start": each.start, "new": each.new_start, "records": each.records}
                for each in planned
            ]
        )
        total = sum(each.records for each in planned)
        if total:
            self._do.set_text(f"Delete {plural(total, 'record')} of {self._topic}")
            self._do.enable()
        else:
            self._errors.show("No record is before that.")

    async def _delete(self) -> None:
        planned = [each for each in self._planned if each.records]
        if not planned:
            return
        admin = TopicAdmin(self._frame.console.cluster)
        self._do.props("loading")
        try:
            self._frame.visitor.check_topic(self._topic)
            await self._frame.act(Action.DELETE_RECORDS, admin.delete_records, self._topic, planned)
        except (UserError, WireError) as error:
            self._errors.show(f"Records not deleted: {error}")
            return
        finally:
            self._do.props(remove="loading")
        self._frame.notify(f"Records of {self._topic} were deleted.")
        self._frame.poll_now()
        self._dialog.close()
