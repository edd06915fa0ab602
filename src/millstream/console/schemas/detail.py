"""One subject: versions, two of them side by side, its level, and a check of what was pasted."""

from nicegui import ui

from millstream.console.browsing import LiveChoice, let_pick
from millstream.console.frame import Frame, go
from millstream.console.parts import card, heading
from millstream.console.schemas.candidate import Candidate
from millstream.console.schemas.diff import readable
from millstream.console.schemas.diff_view import DiffView
from millstream.console.schemas.subjects import (
    LEVEL_HELP,
    LEVELS,
    SubjectState,
    delete_subject,
    delete_version,
    forget_level,
    read_subject,
    set_level,
)
from millstream.console.tables import Column, DataTable
from millstream.registry.records import StoredSchema

_OF_ALL = "(as for all subjects)"


class SubjectDetail:
    def __init__(self, frame: Frame, name: str) -> None:
        self._frame = frame
        self._name = name
        self._state: SubjectState | None = None
        self._busy = False
        with ui.link(target="/schemas").classes("ms-back"):
            ui.icon("arrow_back")
            ui.label("Schemas")
        with heading(name):
            self._level = (
                ui.select([_OF_ALL, *LEVELS], value=_OF_ALL, label="Compatibility", on_change=self._level_changed)
                .props("outlined dense options-dense data-testid=level")
                .style("min-width: 230px")
            )
            self._level.disable()  # until it is known which one the subject has
            self._delete = ui.button("Delete", icon="delete_outline", on_click=self._delete_all).props(
                "outline color=negative no-caps data-testid=delete-subject"
            )
        self._level_help = ui.label("").classes("ms-help").props("data-testid=level-help")
        with card("Versions side by side"):
            with ui.element("div").classes("ms-form"):
                self._before = (
                    LiveChoice([], label="Before", on_change=self._compare)
                    .props("outlined dense options-dense data-testid=before")
                    .style("min-width: 220px")
                )
                self._after = (
                    LiveChoice([], label="After", on_change=self._compare)
                    .props("outlined dense options-dense data-testid=after")
                    .style("min-width: 220px")
                )
            self._diff = DiffView()
        with card("Check or register a schema", note="compared by the level above with the versions that count"):
            self._candidate = Candidate(frame, lambda typed: name, self._registered)
        with card("Versions"):
            self._versions = DataTable(
                [
                    Column("version", "Version"),
                    Column("id", "Id", right=True),
                    Column("type", "Type", cell="badge"),
                    Column("state", "State", cell="badge"),
                    Column("references", "Refers to"),
                    Column("action", ""),
                ],
                key="version",
                empty="No versions",
                filtered=False,
                sort_by="version",
                descending=True,
                test_id="versions",
            )
            let_pick(self._versions, "action", self._delete_one)
        ui.timer(0.05, self._load, once=True)

    async def _load(self, *, show_last: bool = True) -> None:
        with self._frame.reporting("The subject cannot be read"):
            state = await self._frame.run(read_subject, self._frame.console.registry, self._name)
            first = self._state is None
            self._state = state
            self._busy = True  # what is set here was not chosen by anybody
            try:
                self._level.set_value(state.level if state.own_level else _OF_ALL)
                self._offer_versions(state, show_last=show_last)
            finally:
                self._busy = False
            self._level.enable()
            self._level_help.set_text(f"{state.level}: {LEVEL_HELP[state.level]}")
            self._delete.set_text("Delete" if state.live else "Delete for good")
            self._versions.update([_version_row(each) for each in state.versions])
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
        after = numbers[-1] if show_last or self._after.value not in options else self._after.value
        earlier = [number for number in numbers if number < after]
        before = self._before.value if not show_last and self._before.value in options else None
        if before is None:
            before = earlier[-1] if earlier else after
        self._before.set_options(options, value=before)
        self._after.set_options(options, value=after)

    def _compare(self) -> None:
        if not self._busy:
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
        with self._frame.reporting("The level cannot be set"):
            if chosen == _OF_ALL:
                await self._frame.run(forget_level, registry, self._name)
            else:
                await self._frame.run(set_level, registry, self._name, chosen)
            self._frame.say(f"{self._name} is checked by {chosen}.")
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
            action="Delete softly",
            more=f"Records that were written with id {version.id} can still be read; nobody can register against it.",
        )
        if agreed:
            with self._frame.reporting("The version cannot be deleted"):
                await self._frame.run(delete_version, self._frame.console.registry, self._name, version.version)
                self._frame.say(f"Version {version.version} is deleted.")
            await self._load()

    async def _delete_all(self) -> None:
        state = self._state
        if state is None:
            return
        permanent = not state.live
        going = state.versions if permanent else state.live
        agreed = await self._frame.confirm(
            f"Delete {self._name} for good?" if permanent else f"Delete {self._name}?",
            [f"version {each.version} with id {each.id}, {each.type}" for each in going],
            action="Delete for good" if permanent else "Delete softly",
            more="Records that were written with these ids can never be decoded again."
            if permanent
            else "Records that were written with these ids can still be read. Deleting once more is for good.",
        )
        if not agreed:
            return
        with self._frame.reporting("The subject cannot be deleted"):
            await self._frame.run(delete_subject, self._frame.console.registry, self._name, permanent=permanent)
            self._frame.say(f"{self._name} is gone." if permanent else f"{self._name} is deleted.")
            go("/schemas")


def _version_row(version: StoredSchema) -> dict[str, object]:
    return {
        "version": version.version,
        "id": version.id,
        "type": version.type,
        "state": "deleted" if version.deleted else "live",
        "_tones": {"type": "info", "state": "warn" if version.deleted else "good"},
        "references": ", ".join(f"{each.subject} {each.version}" for each in version.references),
        "action": "" if version.deleted else "delete",
    }
