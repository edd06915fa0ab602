"""One topic's settings in a table, with help texts and where each value comes from, and a dialog to change one."""

from nicegui import ui

from millstream.console.browsing import Complaint, Typed, dialog, let_pick, send_form, show_softly
from millstream.console.frame import Frame
from millstream.console.tables import Column, DataTable
from millstream.console.topics.creating import help_text, value_input
from millstream.console.topics.settings import Source, TopicSetting, change_settings, complaint, read_settings
from millstream.raw_client import WireError

# The value comes in as data, never as part of the template.
_VALUE_CELL = '<q-td :props="props"><div class="ms-value-cell ms-mono">{{ props.value }}</div></q-td>'


class SettingsView:
    def __init__(self, frame: Frame, topic: str) -> None:
        self._frame = frame
        self._topic = topic
        self._settings: dict[str, TopicSetting] = {}
        self._table = DataTable(
            [
                Column("name", "Setting", searched=True),
                Column("value", "Value", cell="mono", searched=True),
                Column("source", "From", cell="badge"),
                Column("without", "Without it", cell="mono"),
                Column("explanation", "What it does", searched=True),
            ],
            key="name",
            empty="The broker describes no settings",
            page_size=100,
            sort_by="rank",
            test_id="settings",
        )
        let_pick(self._table, "name", self._edit)
        show_softly(self._table, "explanation")
        self._table.table.add_slot("body-cell-value", _VALUE_CELL)

    async def load(self, changed: dict[str, str | None] | None = None) -> None:
        with self._frame.reporting("The settings cannot be read"):
            found = await self._frame.run(read_settings, self._frame.console.cluster, self._topic, changed)
            self._settings = {each.name: each for each in found}
            self._table.update(
                [
                    {
                        "name": each.name,
                        "value": _value(each),
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
                facts = [("Value now", _value(setting)), ("It comes from", setting.source.label)]
                if setting.source is Source.TOPIC:
                    facts.append(("Without it", setting.without or ""))
                for word, text in facts:
                    with ui.element("dt"):
                        ui.label(word)
                    with ui.element("dd"):
                        ui.label(text).classes("ms-mono")
            self._field = value_input(setting, setting.value or "")
            self._complaint = Complaint()
            if setting.read_only:
                self._field.props("disable")
                self._complaint.say("This one cannot be changed for a topic.")
            with ui.element("div").classes("ms-actions"):
                if setting.is_own:
                    ui.button("Back to default", on_click=self._reset).props("flat no-caps data-testid=reset-setting")
                ui.button("Cancel", on_click=self._dialog.close).props("flat no-caps")
                if not setting.read_only:
                    save = ui.button("Save").props("unelevated no-caps data-testid=save-setting")
                    send_form(save, self._save)
        self._dialog.open()

    async def _save(self, typed: Typed) -> None:
        text = typed.text(self._field).strip()
        wrong = complaint(self._setting.name, text)
        if wrong:
            self._complaint.say(wrong)
            return
        await self._change(text)

    async def _reset(self) -> None:
        await self._change(None)

    async def _change(self, value: str | None) -> None:
        changes = {self._setting.name: value}
        try:
            await self._frame.run(change_settings, self._frame.console.cluster, self._topic, changes)
        except WireError as error:
            self._complaint.say(str(error))
            return
        self._dialog.close()
        self._frame.say(
            f"{self._setting.name} is the default again." if value is None else f"{self._setting.name} is {value}."
        )
        await self._view.load(changes)


def _value(setting: TopicSetting) -> str:
    if setting.value is None:
        return "secret"
    words = setting.value_in_words
    if words == "no limit":
        return words  # nineteen digits say less
    return f"{setting.value} ({words})" if words else setting.value
