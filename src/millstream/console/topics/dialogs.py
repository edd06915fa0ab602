"""Dialogs of a topic: create it, change its settings, branch it, delete records; and the table of settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from nicegui import ui

from millstream.admin.topics import RecordDeletion, TopicAdmin
from millstream.console.console import UserError
from millstream.console.formats import count, plural
from millstream.console.frame import Frame, go
from millstream.console.messages.query import parse_moment, parse_offset
from millstream.console.tables import Column, DataTable
from millstream.console.topics.settings import (
    MOST_PARTITIONS,
    Source,
    TopicSetting,
    change_settings,
    known_settings,
    name_error,
    read_settings,
    value_error,
)
from millstream.console.visitor import Action
from millstream.console.widgets import (
    FieldErrors,
    FormValues,
    dialog,
    link_column,
    number_input,
    send_form,
    wrap_column,
)
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import RefusedError, WireError

# Names of the fields with errors, besides the settings.
_NAME, _PARTITIONS, _REPLICAS = "name", "partitions", "replicas"
_OFTEN = ("cleanup.policy", "retention.ms", "retention.bytes", "min.insync.replicas", "compression.type")


@dataclass(frozen=True, slots=True)
class TopicTemplate:
    """A topic whose partitions, replicas and own settings a new one gets."""

    name: str
    partitions: int
    replicas: int
    settings: Mapping[str, str]


def open_creation(frame: Frame, created: Callable[[str], Any], template: TopicTemplate | None = None) -> None:
    """Opens the dialog. `created` is called with the name of the new topic."""
    _Creation(frame, created, template)


class _Creation:
    def __init__(self, frame: Frame, created: Callable[[str], Any], template: TopicTemplate | None = None) -> None:
        self._frame = frame
        self._created = created
        self._settings = {each.name: each for each in known_settings() if not each.read_only}
        self._chosen: dict[str, Any] = {}
        brokers = self._brokers = sum(broker.is_up for broker in frame.snapshot.brokers) or 1
        title = "Create a topic" if template is None else f"Create a topic with the settings of {template.name}"
        with dialog(title, test_id="create-topic") as self._dialog:
            self._name = (
                ui.input("Name", on_change=self._check_name, validation=None)
                .props("outlined dense autofocus data-testid=new-name")
                .classes("ms-stack")
            )
            ui.label("Letters, digits, '.', '_' and '-'. A topic cannot be renamed.").classes("ms-help")
            with ui.element("div").classes("ms-form"):
                self._partitions = number_input(
                    "Partitions", 3 if template is None else template.partitions, 1, MOST_PARTITIONS
                ).props("data-testid=new-partitions")
                self._partitions.on_value_change(lambda: self._check_again(_PARTITIONS))
                self._replicas = number_input(
                    "Replicas", min(3 if template is None else template.replicas, brokers), 1, brokers
                ).props("data-testid=new-replicas")
                self._replicas.on_value_change(lambda: self._check_again(_REPLICAS))
            ui.label(
                "More partitions allow more consumers in parallel. Partitions can be added later, but not removed. "
                f"Each replica is stored on another broker; {plural(brokers, 'broker')} available."
            ).classes("ms-help")
            with ui.element("div").classes("ms-chips"):
                ui.label("Settings").classes("ms-muted")
                for name in _OFTEN:
                    ui.button(name, icon="add", on_click=lambda _, name=name: self._add(name)).props(
                        f"flat dense no-caps size=sm data-testid=add-{name}"
                    )
                others = [name for name in self._settings if name not in _OFTEN]
                ui.select(others, label="other setting…", on_change=self._add_selected, with_input=True).props(
                    "dense outlined options-dense"
                ).classes("ms-field-wide")
            self._rows = ui.element("div").classes("ms-stack")
            self._errors = FieldErrors()
            with ui.element("div").classes("ms-actions"):
                ui.button("Cancel", on_click=self._dialog.close).props("flat no-caps")
                self._button = ui.button("Create").props("unelevated no-caps data-testid=create")
                send_form(self._button, self._create)
        for name, value in ({} if template is None else template.settings).items():
            if name in self._settings:
                self._add(name, value)
        self._dialog.open()

    def _check_name(self) -> None:
        wrong = self._wrong(FormValues()).get(_NAME, "") if self._name.value else ""
        self._errors.show(wrong, _NAME)

    def _check_again(self, about: str) -> None:
        """Checks a changed field again if it has an error. Otherwise the user can finish typing first."""
        if self._errors.has_error(about):
            self._errors.show(self._wrong(FormValues()).get(about, ""), about)

    def _add_selected(self, event: Any) -> None:
        if event.value:
            self._add(str(event.value))
            event.sender.set_value(None)

    def _add(self, name: str, value: str | None = None) -> None:
        if name in self._chosen:
            return
        setting = self._settings[name]
        with self._rows, ui.element("div").classes("ms-setting-row") as row:
            field = self._chosen[name] = value_input(setting, (setting.value or "") if value is None else value)
            field.on_value_change(lambda: self._check_again(name))
            ui.button(icon="close", on_click=lambda: self._remove(name, row)).props("flat dense round size=sm").tooltip(
                "Use the broker default"
            )
            ui.label(help_text(setting)).classes("ms-help")

    def _remove(self, name: str, row: ui.element) -> None:
        del self._chosen[name]
        row.delete()
        self._errors.show("", name)

    def _values(self, typed: FormValues) -> dict[str, str]:
        return {setting: typed.text(field).strip() for setting, field in self._chosen.items()}

    def _wrong(self, typed: FormValues) -> dict[str, str]:
        """Errors by field."""
        wrong: dict[str, str] = {}
        if bad := name_error(typed.text(self._name).strip(), self._frame.snapshot.topics):
            wrong[_NAME] = bad
        if not 1 <= (typed.number(self._partitions) or 0) <= MOST_PARTITIONS:
            wrong[_PARTITIONS] = f"enter the number of partitions, 1 to {MOST_PARTITIONS}"
        if not 1 <= (typed.number(self._replicas) or 0) <= self._brokers:
            wrong[_REPLICAS] = f"enter the number of replicas, 1 to {self._brokers} (the number of brokers)"
        return wrong | {key: bad for key, value in self._values(typed).items() if (bad := value_error(key, value))}

    async def _create(self, typed: FormValues) -> None:
        wrong = self._wrong(typed)
        self._errors.show_all(wrong)
        name, values = typed.text(self._name).strip(), self._values(typed)
        partitions, replicas = typed.number(self._partitions), typed.number(self._replicas)
        if wrong or partitions is None or replicas is None:
            return
        self._button.props("loading")
        try:
            await self._frame.act(
                Action.CREATE_TOPIC,
                TopicAdmin(self._frame.console.cluster).create,
                name,
                partitions,
                replicas,
                values,
            )
        except (WireError, UserError) as error:
            self._errors.show(str(error))
            return
        finally:
            self._button.props(remove="loading")
        self._dialog.close()
        self._frame.poll_now()
        self._frame.notify(f"Topic {name} was created.")
        self._created(name)


class Described(Protocol):
    """A setting of a topic or a broker, as forms show it."""

    @property
    def name(self) -> str: ...
    @property
    def explanation(self) -> str: ...
    @property
    def allowed(self) -> str: ...
    @property
    def choices(self) -> tuple[str, ...]: ...


def value_input(setting: Described, value: str) -> Any:
    """An input for a value: a selection if there are few choices, else a text field."""
    if setting.choices:
        options = list(setting.choices) if value in setting.choices or not value else [value, *setting.choices]
        field: Any = ui.select(options, value=value or None, label=setting.name)
    else:
        field = ui.input(setting.name, value=value)
    field.props["data-testid"] = f"value-{setting.name}"
    return field.props("outlined dense").classes("ms-stack")


def help_text(setting: Described) -> str:
    allowed = f" Allowed: {setting.allowed}." if setting.allowed else ""
    return setting.explanation.rstrip() + allowed


class SettingsView:
    def __init__(self, frame: Frame, topic: str) -> None:
        self._frame = frame
        self._topic = topic
        self._settings: dict[str, TopicSetting] = {}
        self._table = DataTable(
            [
                Column("name", "Setting", searched=True, width=270),
                Column("value", "Value", cell="mono", searched=True, width=190),
                Column("source", "Source", cell="badge", width=178),
                Column("without", "Default", cell="mono", width=150),
                Column("explanation", "Description", searched=True),
            ],
            key="name",
            empty="No settings",
            page_size=100,
            sort_by="rank",
            test_id="settings",
        )
        link_column(self._table, "name", self._edit)
        wrap_column(self._table, "explanation")

    async def load(self, changed: dict[str, str | None] | None = None) -> None:
        with self._frame.reporting("The settings cannot be read"):
            try:
                found = await self._frame.run(read_settings, self._frame.console.cluster, self._topic, changed)
            except RefusedError as error:
                if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    return  # the page itself says so
                raise
            self._settings = {each.name: each for each in found}
            self._table.update(
                [
                    {
                        "name": each.name,
                        "value": each.shown_value,
                        "source": each.source.label,
                        "_tones": {"source": "info" if each.is_own else "dim"},
                        "without": each.without if each.is_own else "",
                        "explanation": each.explanation,
                    }
                    for each in found
                ]
            )

    def _edit(self, name: str) -> None:
        setting = self._settings.get(name)
        if setting is not None:
            _Editing(self._frame, self._topic, setting, self)


class _Editing:
    def __init__(self, frame: Frame, topic: str, setting: TopicSetting, view: SettingsView) -> None:
        self._frame = frame
        self._topic = topic
        self._setting = setting
        self._view = view
        with dialog(f"{setting.name} of {topic}", test_id="edit-setting") as self._dialog:
            ui.label(help_text(setting)).classes("ms-help")
            with ui.element("dl").classes("ms-facts"):
                facts = [("Value", setting.shown_value), ("Source", setting.source.label)]
                if setting.source is Source.TOPIC:
                    facts.append(("Default", setting.without or ""))
                for word, text in facts:
                    with ui.element("dt"):
                        ui.label(word)
                    with ui.element("dd"):
                        ui.label(text).classes("ms-mono")
            self._field = value_input(setting, setting.value or "")
            self._errors = FieldErrors()
            may_change = frame.may(Action.CHANGE_SETTINGS)
            if setting.read_only or not may_change:
                self._field.props("disable")
            if setting.read_only:
                self._errors.show("This setting is read-only for topics.")
            with ui.element("div").classes("ms-actions"):
                if setting.is_own and may_change:
                    ui.button("Reset to default", on_click=self._reset).props("flat no-caps data-testid=reset-setting")
                ui.button("Cancel" if may_change else "Close", on_click=self._dialog.close).props("flat no-caps")
                if not setting.read_only and may_change:
                    save = ui.button("Save").props("unelevated no-caps data-testid=save-setting")
                    send_form(save, self._save)
        self._dialog.open()

    async def _save(self, typed: FormValues) -> None:
        text = typed.text(self._field).strip()
        wrong = value_error(self._setting.name, text)
        if wrong:
            self._errors.show(wrong)
            return
        await self._change(text)

    async def _reset(self) -> None:
        await self._change(None)

    async def _change(self, value: str | None) -> None:
        changes = {self._setting.name: value}
        try:
            await self._frame.act(
                Action.CHANGE_SETTINGS, change_settings, self._frame.console.cluster, self._topic, changes
            )
        except (WireError, UserError) as error:
            self._errors.show(str(error))
            return
        self._dialog.close()
        self._frame.notify(
            f"{self._setting.name} was reset to the default."
            if value is None
            else f"{self._setting.name} was set to {value}."
        )
        await self._view.load(changes)


def open_branching(frame: Frame, topic: str) -> None:
    """Shows the dialog that creates a branch, at the end of the topic or at an earlier time; then the branch."""
    with dialog(f"Branch {topic}", test_id="branch") as box:
        name = ui.input("Name of the branch").props("outlined dense autofocus data-testid=branch-name")
        moment = ui.input("Only records before").props("outlined dense data-testid=branch-at")
        ui.label("Empty for all records, or 2026-01-31 12:00 (UTC), or an age such as 7d.").classes("ms-muted")
        ui.label(
            f"The branch has the records of {topic} under the same offsets, and goes on by itself. It shares the files "
            "of the topic, so it takes no space. Either can be deleted without the other."
        ).classes("ms-help")
        errors = FieldErrors()

        async def create(typed: FormValues) -> None:
            branch, text = typed.text(name).strip(), typed.text(moment).strip()
            if not branch:
                errors.show("enter the name of the branch")
                return
            try:
                at_ms = parse_moment(text, UTC, datetime.now(UTC)) if text else None
                frame.visitor.check_topic(topic)
                if frame.visitor.mask_of(topic) is not None:
                    raise UserError(f"Parts of {topic} are hidden from you: a branch would show them.")
                admin = TopicAdmin(frame.console.cluster)
                made = await frame.act(Action.CREATE_TOPIC, admin.branch, topic, branch, at_ms=at_ms)
            except (ValueError, UserError, WireError) as error:
                errors.show(str(error))
                return
            box.close()
            frame.poll_now()
            frame.notify(f"{made.topic} is a branch of {topic}.")
            go("/topics", topic=made.topic)

        with ui.element("div").classes("ms-actions"):
            ui.button("Cancel", on_click=box.close).props("flat no-caps")
            send_form(ui.button("Create branch").props("unelevated no-caps data-testid=branch-create"), create)
    box.open()


_ALL, _OFFSET, _TIME = "all", "offset", "time"
_WHERE = {_ALL: "all records", _OFFSET: "before an offset", _TIME: "before a time"}
_HINTS = {_OFFSET: "the same offset for all chosen partitions", _TIME: "2026-01-31 12:00 (UTC), or an age such as 7d"}


class RecordDeletionDialog:
    """Deletes all records, or those before an offset or a time.

    Nothing is deleted before the preview was confirmed, and then exactly what the preview shows.
    """

    def __init__(self, frame: Frame, topic: str, partitions: int) -> None:
        self._frame = frame
        self._topic = topic
        self._planned: list[RecordDeletion] = []
        self._request_number = 0
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
        self._request_number += 1
        self._planned = []
        self._table.update([])
        self._errors.show("")
        self._do.set_text("Delete records")
        self._do.disable()

    async def _preview(self, typed: FormValues) -> None:
        self._forget()
        request_number, where, text = self._request_number, self._where.value, typed.text(self._at)
        partitions = None if self._partition.value is None else [int(self._partition.value)]
        try:
            offset = parse_offset(text) if where == _OFFSET else None
            moment = parse_moment(text, UTC, datetime.now(UTC)) if where == _TIME else None
            admin = TopicAdmin(self._frame.console.cluster)
            planned = await self._frame.run(admin.plan_deletion, self._topic, partitions, offset, moment)
        except (ValueError, UserError, WireError) as error:
            self._errors.show(str(error))
            return
        if request_number != self._request_number:
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
