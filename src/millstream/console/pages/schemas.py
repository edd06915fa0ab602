"""Schemas: all subjects in a table, and with ?subject=NAME one of them."""

from nicegui import ui

from millstream.console.browsing import Typed, dialog
from millstream.console.errors import UserError
from millstream.console.formats import count
from millstream.console.frame import Frame, console_page, go
from millstream.console.parts import card, heading
from millstream.console.schemas.candidate import Candidate
from millstream.console.schemas.detail import SubjectDetail
from millstream.console.schemas.subjects import LEVEL_HELP, LEVELS, set_level, subject_rows
from millstream.console.tables import Column, DataTable

_EVERY_S = 2.0


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
            self._deleted = ui.checkbox("deleted ones", on_change=self._load).props("dense data-testid=deleted")
            self._level = (
                ui.select(list(LEVELS), label="Compatibility of all", on_change=self._level_changed)
                .props("outlined dense options-dense data-testid=global-level")
                .style("min-width: 230px")
            )
            ui.button("Register schema", icon="add", on_click=self._register).props(
                "unelevated no-caps data-testid=open-register"
            )
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
                empty="No schemas yet. Register one, or let a serializer do it.",
                test_id="subjects",
            )
        ui.timer(0.05, self._load, once=True)
        ui.timer(_EVERY_S, self._load)

    async def _load(self) -> None:
        if self._reading:
            return
        self._reading = True
        registry = self._frame.console.registry
        try:
            with self._frame.reporting("The schemas cannot be read"):
                rows = await self._frame.run(subject_rows, registry, deleted=bool(self._deleted.value))
                level = str(await self._frame.run(registry.level, None))
                trouble = registry.trouble
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
        with self._frame.reporting("The level cannot be set"):
            await self._frame.run(set_level, self._frame.console.registry, None, chosen)
            self._frame.say(f"Subjects without a level of their own are checked by {chosen}.")
        await self._load()

    def _register(self) -> None:
        with dialog("Register a schema", wide=True, test_id="register-schema") as box:
            name = ui.input("Subject").props("outlined dense autofocus data-testid=new-subject").classes("ms-stack")
            ui.label("Usually the topic's name with -value or -key behind it: serializers look there.").classes(
                "ms-help"
            )

            def subject(typed: Typed) -> str:
                wanted = typed.text(name).strip()
                if not wanted:
                    raise UserError("a schema is registered under a subject: name one")
                return wanted

            async def registered(stored: str) -> None:
                box.close()
                go("/schemas", subject=stored)

            Candidate(self._frame, subject, registered)
        box.open()
