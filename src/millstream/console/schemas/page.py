"""The Schemas page: list of subjects, one subject with its versions, and the form that checks or registers a schema."""

from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui

from millstream.console.console import UserError
from millstream.console.formats import count, plural
from millstream.console.frame import Frame, console_page, go
from millstream.console.schemas.diff import Change, Row, Side, counts, readable, side_by_side
from millstream.console.schemas.subjects import (
    EXAMPLES,
    LEVEL_HELP,
    LEVELS,
    TYPES,
    SubjectState,
    check,
    delete_subject,
    delete_version,
    forget_level,
    read_subject,
    register,
    set_level,
    subject_rows,
)
from millstream.console.tables import Column, DataTable
from millstream.console.visitor import Action
from millstream.console.widgets import (
    FormValues,
    LiveSelect,
    Missing,
    card,
    dialog,
    fill_if_empty,
    heading,
    link_column,
    send_form,
)
from millstream.registry.errors import NotFoundError, RegistryError
from millstream.registry.records import StoredSchema


class SchemaForm:
    """A form that checks and registers a schema. `subject` returns the subject; `registered` is called with its
    name."""

    def __init__(
        self,
        frame: Frame,
        subject: Callable[[FormValues], str],
        registered: Callable[[str], Awaitable[Any]],
        type_: str = "AVRO",
    ) -> None:
        self._frame = frame
        self._subject = subject
        self._registered = registered
        self._first_type = type_
        self._request_number = 0
        with ui.element("div").classes("ms-form"):
            self._type = (
                ui.select(list(TYPES), value=type_, label="Type", on_change=self._type_changed)
                .props("outlined dense options-dense data-testid=schema-type")
                .classes("ms-field")
            )
        self._text = (
            ui.textarea("Schema", placeholder=EXAMPLES[type_])
            .props("outlined spellcheck=false data-testid=schema-text")
            .classes("ms-stack ms-editor")
        )
        self._verdict = ui.element("div").classes("ms-verdict").props("role=status data-testid=verdict")
        self._verdict.set_visibility(False)
        with ui.element("div").classes("ms-actions"):
            to_check = ui.button("Check", icon="rule").props("outline no-caps data-testid=check")
            send_form(to_check, self._check)
            to_register = ui.button("Register", icon="add").props("unelevated no-caps data-testid=register")
            frame.offer(Action.REGISTER_SCHEMA, to_register)
            send_form(to_register, self._register)

    def fill(self, text: str, type_: str) -> None:
        """Fills in a schema after the page was loaded, unless the user has already entered something."""
        if self._type.value == self._first_type and not self._text.value:
            self._type.set_value(type_)
            fill_if_empty(self._text, text)

    def _type_changed(self) -> None:
        self._text.props["placeholder"] = EXAMPLES[str(self._type.value)]

    async def _check(self, typed: FormValues) -> None:
        registry = self._frame.console.registry
        request_number = self._ask()
        with self._frame.reporting("The schema cannot be checked"):
            try:
                against = await self._frame.run(check, registry, self._subject(typed), *self._typed(typed))
            except RegistryError as error:
                if request_number == self._request_number:
                    self._say("bad", "The schema is not valid", [error.message])
                return
            if request_number != self._request_number:
                return  # another check was started meanwhile
            if against:
                self._say("bad", "The schema is not compatible", against)
            else:
                self._say("good", "The schema is compatible and can be registered", [])

    async def _register(self, typed: FormValues) -> None:
        registry = self._frame.console.registry
        self._ask()
        with self._frame.reporting("The schema cannot be registered"):
            try:
                stored = await self._frame.act(
                    Action.REGISTER_SCHEMA, register, registry, self._subject(typed), *self._typed(typed)
                )
            except RegistryError as error:
                self._say("bad", "The schema was not registered", [error.message])
                return
            self._say("good", f"Version {stored.version} of {stored.subject} has id {stored.id}", [])
            self._frame.notify(f"Version {stored.version} of {stored.subject} is registered.")
            await self._registered(str(stored.subject))

    def _ask(self) -> int:
        self._request_number += 1
        return self._request_number

    def _typed(self, typed: FormValues) -> tuple[str, str]:
        return typed.text(self._text), str(self._type.value)

    def _say(self, tone: str, title: str, reasons: list[str]) -> None:
        self._verdict.clear()
        self._verdict.classes(remove="ms-good ms-bad", add=f"ms-{tone}")
        with self._verdict:
            ui.label(title).classes("ms-problem-what")
            if reasons:
                with ui.element("ul"):
                    for reason in reasons[:50]:
                        with ui.element("li"):
                            ui.label(reason)
        self._verdict.set_visibility(True)


_OF_ALL = "(default)"


class SubjectDetail:
    def __init__(self, frame: Frame, name: str) -> None:
        self._frame = frame
        self._name = name
        self._state: SubjectState | None = None
        self._busy = False
        self._wanted: tuple[int, ...] = tuple(frame.url.number(name, 0, 1, 2**31 - 1) for name in ("before", "after"))
        """Versions to compare, of the URL; 0: none."""
        with ui.link(target="/schemas").classes("ms-back"):
            ui.icon("arrow_back")
            ui.label("Schemas")
        with heading(name) as actions:
            self._level = (
                ui.select([_OF_ALL, *LEVELS], value=_OF_ALL, label="Compatibility", on_change=self._level_changed)
                .props("outlined dense options-dense data-testid=level")
                .style("min-width: 230px")
            )
            self._level.disable()  # until the level of the subject is known
            self._delete = ui.button("Delete", icon="delete_outline", on_click=self._delete_all).props(
                "outline color=negative no-caps data-testid=delete-subject"
            )
            frame.offer(Action.DELETE_SCHEMA, self._delete)
        self._missing = Missing("subject")
        self._level_help = ui.label("").classes("ms-help").props("data-testid=level-help")
        with card("Compare versions") as comparison:
            with ui.element("div").classes("ms-form"):
                self._before = (
                    LiveSelect([], label="Before", on_change=self._compare)
                    .props("outlined dense options-dense data-testid=before")
                    .style("min-width: 220px")
                )
                self._after = (
                    LiveSelect([], label="After", on_change=self._compare)
                    .props("outlined dense options-dense data-testid=after")
                    .style("min-width: 220px")
                )
            self._diff = DiffView()
        with card(
            "Check or register a schema", note="checked against the versions that the compatibility level covers"
        ) as candidate:
            self._candidate = SchemaForm(frame, lambda typed: name, self._registered)
        with card("Versions") as versions:
            self._versions = DataTable(
                [
                    Column("version", "Version", width=100),
                    Column("id", "Id", right=True),
                    Column("type", "Type", cell="badge"),
                    Column("state", "State", cell="badge"),
                    Column("references", "References"),
                    Column("action", ""),
                ],
                key="version",
                empty="No versions",
                filtered=False,
                sort_by="version",
                descending=True,
                test_id="versions",
            )
            link_column(self._versions, "action", self._delete_one)
        self._parts = (actions, comparison, candidate, versions)
        ui.timer(0.05, self._load, once=True)

    async def _load(self, *, show_last: bool = True) -> None:
        with self._frame.reporting("The subject cannot be read"):
            try:
                state = await self._frame.run(read_subject, self._frame.console.registry, self._name)
            except NotFoundError:
                self._missing.show(True, *self._parts)
                return
            self._missing.show(False, *self._parts)
            first = self._state is None
            self._state = state
            self._busy = True  # these changes do not come from the user
            try:
                self._level.set_value(state.level if state.own_level else _OF_ALL)
                self._offer_versions(state, show_last=show_last)
            finally:
                self._busy = False
            self._level.set_enabled(self._frame.may(Action.SET_COMPATIBILITY))
            self._level_help.set_text(f"{state.level}: {LEVEL_HELP[state.level]}")
            may_delete = self._frame.may(Action.DELETE_SCHEMA)
            self._delete.set_text("Delete" if state.live else "Delete permanently")
            self._versions.update([_version_row(each, may_delete) for each in state.versions])
            self._show_difference()
            if first:
                last = state.versions[-1]
                self._candidate.fill(readable(last.text), last.type)

    def _offer_versions(self, state: SubjectState, *, show_last: bool) -> None:
        options = {
            each.version: f"version {each.version} (id {each.id})" + (", deleted" if each.deleted else "")
            for each in reversed(state.versions)
        }
        numbers = sorted(options)
        if all(number in options for number in self._wanted):
            wanted, self._wanted = self._wanted, (0, 0)  # later loads show what is new
            self._before.set_options(options, value=wanted[0])
            self._after.set_options(options, value=wanted[1])
            return
        after = numbers[-1] if show_last or self._after.value not in options else self._after.value
        earlier = [number for number in numbers if number < after]
        before = self._before.value if not show_last and self._before.value in options else None
        if before is None:
            before = earlier[-1] if earlier else after
        self._before.set_options(options, value=before)
        self._after.set_options(options, value=after)

    def _compare(self) -> None:
        if not self._busy:
            self._frame.url.write(before=self._before.value, after=self._after.value)
            self._show_difference()

    def _show_difference(self) -> None:
        if self._state is None:
            return
        versions = {each.version: each for each in self._state.versions}
        before, after = versions.get(self._before.value), versions.get(self._after.value)
        if after is not None:
            same = before is None or before.version == after.version
            self._diff.show(None if same or before is None else before.text, after.text)

    async def _registered(self, _: str) -> None:
        await self._load()

    async def _level_changed(self) -> None:
        state, chosen = self._state, str(self._level.value)
        if self._busy or state is None or chosen == (state.level if state.own_level else _OF_ALL):
            return
        registry = self._frame.console.registry
        with self._frame.reporting("The compatibility level cannot be set"):
            if chosen == _OF_ALL:
                await self._frame.act(Action.SET_COMPATIBILITY, forget_level, registry, self._name)
            else:
                await self._frame.act(Action.SET_COMPATIBILITY, set_level, registry, self._name, chosen)
            self._frame.notify(f"The compatibility level of {self._name} is {chosen}.")
        await self._load(show_last=False)

    async def _delete_one(self, key: str) -> None:
        state = self._state
        found = [each for each in state.live if str(each.version) == key] if state is not None else []
        if not found:
            return
        version = found[0]
        agreed = await self._frame.confirm(
            f"Delete version {version.version} of {self._name}?",
            [f"version {version.version} with id {version.id}, {version.type}"],
            action="Soft delete",
            more=f"Records written with id {version.id} can still be read. It is no longer used in checks.",
        )
        if agreed:
            with self._frame.reporting("The version cannot be deleted"):
                await self._frame.act(
                    Action.DELETE_SCHEMA, delete_version, self._frame.console.registry, self._name, version.version
                )
                self._frame.notify(f"Version {version.version} was deleted.")
            await self._load()

    async def _delete_all(self) -> None:
        state = self._state
        if state is None:
            return
        permanent = not state.live
        going = state.versions if permanent else state.live
        agreed = await self._frame.confirm(
            f"Delete {self._name} permanently?" if permanent else f"Delete {self._name}?",
            [f"version {each.version} with id {each.id}, {each.type}" for each in going],
            action="Delete permanently" if permanent else "Soft delete",
            more="Records written with these ids can no longer be decoded."
            if permanent
            else "Records written with these ids can still be read. A second delete is permanent.",
        )
        if not agreed:
            return
        with self._frame.reporting("The subject cannot be deleted"):
            await self._frame.act(
                Action.DELETE_SCHEMA, delete_subject, self._frame.console.registry, self._name, permanent=permanent
            )
            self._frame.notify(f"{self._name} was deleted permanently." if permanent else f"{self._name} was deleted.")
            go("/schemas")


def _version_row(version: StoredSchema, may_delete: bool) -> dict[str, object]:
    return {
        "version": version.version,
        "id": version.id,
        "type": version.type,
        "state": "deleted" if version.deleted else "live",
        "_tones": {"type": "info", "state": "warn" if version.deleted else "good"},
        "references": ", ".join(f"{each.subject} {each.version}" for each in version.references),
        "action": "delete" if may_delete and not version.deleted else "",
    }


_EVERY_SECONDS = 2.0


@console_page("/schemas")
def schemas(frame: Frame) -> None:
    subject = frame.parameters.get("subject", "")
    if subject:
        SubjectDetail(frame, subject)
    else:
        _Subjects(frame)


class _Subjects:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._shown_level = ""
        self._reading = False
        with heading("Schemas"):
            self._deleted = ui.checkbox("Show deleted", value=frame.url.flag("deleted"), on_change=self._load)
            self._deleted.props("dense data-testid=deleted")
            frame.url.remember(self._deleted, "deleted", push=True)
            self._level = (
                ui.select(list(LEVELS), label="Default compatibility", on_change=self._level_changed)
                .props("outlined dense options-dense data-testid=global-level")
                .style("min-width: 230px")
            )
            self._level.set_enabled(frame.may(Action.SET_COMPATIBILITY))
            new = ui.button("Register schema", icon="add", on_click=self._register)
            frame.offer(Action.REGISTER_SCHEMA, new).props("unelevated no-caps data-testid=open-register")
        self._level_help = ui.label("").classes("ms-help")
        self._trouble = ui.label("").classes("ms-complaint")
        self._trouble.set_visibility(False)
        with card(""):
            self._table = DataTable(
                [
                    Column("subject", "Subject", cell="link"),
                    Column("type", "Type", cell="badge"),
                    Column("versions", "Versions", count, right=True),
                    Column("version", "Latest", right=True),
                    Column("id", "Id", right=True),
                    Column("level", "Compatibility"),
                    Column("state", "State", cell="badge"),
                ],
                key="subject",
                empty="No schemas. Register one here or with a serializer.",
                test_id="subjects",
                name="",
            )
        ui.timer(0.05, self._load, once=True)
        ui.timer(_EVERY_SECONDS, self._load)

    async def _load(self) -> None:
        if self._reading:
            return
        self._reading = True
        registry = self._frame.console.registry
        try:
            with self._frame.reporting("The schemas cannot be read"):
                rows = await self._frame.run(subject_rows, registry, deleted=bool(self._deleted.value))
                level = str(await self._frame.run(registry.level, None))
                trouble = registry.not_ready_reason
                self._trouble.set_text(f"The registry is not up to date: {trouble}" if trouble else "")
                self._trouble.set_visibility(bool(trouble))
                self._table.update(rows)
                if level != self._shown_level:
                    self._shown_level = level
                    self._level.set_value(level)
                    self._level_help.set_text(f"{level}: {LEVEL_HELP[level]}")
        finally:
            self._reading = False

    async def _level_changed(self) -> None:
        chosen = str(self._level.value or "")
        if not chosen or chosen == self._shown_level:
            return
        with self._frame.reporting("The compatibility level cannot be set"):
            await self._frame.act(Action.SET_COMPATIBILITY, set_level, self._frame.console.registry, None, chosen)
            self._frame.notify(f"The default compatibility level is {chosen}.")
        await self._load()

    def _register(self) -> None:
        with dialog("Register a schema", wide=True, test_id="register-schema") as box:
            name = ui.input("Subject").props("outlined dense autofocus data-testid=new-subject").classes("ms-stack")
            ui.label("Usually the topic name followed by -value or -key, as serializers expect.").classes("ms-help")

            def subject(typed: FormValues) -> str:
                wanted = typed.text(name).strip()
                if not wanted:
                    raise UserError("enter a subject")
                return wanted

            async def registered(stored: str) -> None:
                box.close()
                go("/schemas", subject=stored)

            SchemaForm(self._frame, subject, registered)
        box.open()


MOST_ROWS = 2000


class DiffView:
    def __init__(self) -> None:
        self._note = ui.label("").classes("ms-muted").props("data-testid=diff-note")
        self._box = ui.element("div").classes("ms-diff").props("data-testid=diff")

    def show(self, before: str | None, after: str) -> None:
        """Shows the differences; without `before`, only the new version."""
        laid_out = readable(after)
        rows = side_by_side(laid_out if before is None else readable(before), laid_out)
        came, went = counts(rows)
        if before is None:
            self._note.set_text(plural(len(rows), "line"))
        else:
            self._note.set_text(
                f"{plural(came, 'line')} added, {plural(went, 'line')} removed" if came or went else "No differences"
            )
        if len(rows) > MOST_ROWS:
            self._note.set_text(f"{self._note.text}; the first {MOST_ROWS:,} lines are shown")
        self._box.clear()
        with self._box:
            for row in rows[:MOST_ROWS]:
                _side(row, row.before, "ms-went")
                _side(row, row.after, "ms-came")


def _side(row: Row, side: Side | None, tone: str) -> None:
    if side is None:
        ui.element("div").classes("ms-number ms-blank")
        ui.element("div").classes("ms-blank")
        return
    ui.label(str(side.number)).classes("ms-number")
    tone = "" if row.change is Change.SAME else tone
    if not any(marked for _, marked in side.parts):
        ui.label(side.text).classes(tone)
        return
    with ui.element("div").classes(tone):
        for text, marked in side.parts:
            with ui.element("mark" if marked else "span"):
                ui.label(text).style("display: inline")
