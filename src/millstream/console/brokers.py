"""The page of a broker, and that of all brokers: settings with value, source and default, changed after a preview; and
log levels.

A value of one broker takes precedence over the value of all brokers, that over the file of the broker, and that over
the default. The preview shows, for each broker, the value before and after the change. The cluster checks it first
(validate_only), so what is refused is refused in the preview.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from millstream.admin.cluster import ClusterAdmin
from millstream.admin.topics import ConfigChange, ConfigEntry, ConfigOperation, ConfigResource, TopicAdmin
from millstream.config.catalog import broker_setting
from millstream.config.setting import SettingType
from millstream.console.console import UserError
from millstream.console.formats import count, size
from millstream.console.frame import Frame, console_page, go
from millstream.console.live.moves import removable_broker, unregister_broker
from millstream.console.live.problems import broker_state
from millstream.console.live.snapshot import Snapshot
from millstream.console.tables import Column, DataTable
from millstream.console.topics.dialogs import help_text, value_input
from millstream.console.topics.settings import SOURCES, Source, choices_of, readable_value
from millstream.console.visitor import Action
from millstream.console.widgets import (
    FieldErrors,
    FormValues,
    Missing,
    Stat,
    card,
    dialog,
    heading,
    link_column,
    send_form,
    wrap_column,
)
from millstream.raw_client import Cluster, UnreachableError, WireError

_RETRY_INTERVAL_SECONDS = 0.1
_KNOWN_AFTER_SECONDS = 5.0
"""How long a broker may take until it has a change."""
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
_LEVEL_TONES = {"TRACE": "warn", "DEBUG": "warn", "INFO": "good", "WARN": "dim", "ERROR": "dim", "FATAL": "dim"}
_ROOT = "root"
_SECRET, _NOT_SET = "(secret)", "not set"
_PRECEDENCE = (Source.BROKER, Source.ALL_BROKERS, Source.FILE, Source.DEFAULT)


@dataclass(frozen=True, slots=True)
class Layer:
    """One of the values that could apply. The first layer of a setting is in effect."""

    source: Source
    name: str
    """That of the setting, or of another one that stands for it: log.retention.hours for log.retention.ms."""
    value: str | None


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    name: str
    value: str | None
    is_secret: bool
    source: Source
    layers: tuple[Layer, ...]
    explanation: str
    allowed: str
    choices: tuple[str, ...]
    is_read_only: bool
    """It is changed in the file of the broker, with a restart."""

    @property
    def shown_value(self) -> str:
        return self.text_of(self.value, is_set=bool(self.layers))

    @property
    def default(self) -> str | None:
        found = [each.value for each in self.layers if each.source is Source.DEFAULT]
        return found[-1] if found else None

    def text_of(self, value: str | None, *, is_set: bool = True) -> str:
        if value is None:
            return _SECRET if self.is_secret and is_set else _NOT_SET
        return readable_value(self.name, value)

    def has(self, scope: Source) -> bool:
        """Whether it has a value of one broker, or of all."""
        return any(each.source is scope and each.name == self.name for each in self.layers)

    def after(self, scope: Source, value: str | None) -> str:
        """The text of the value in effect, when the value of a scope is set, or removed (None)."""
        layers = [each for each in self.layers if each.source is not scope or each.name != self.name]
        if value is not None:
            rank = _PRECEDENCE.index(scope)
            before = [each for each in layers if each.source in _PRECEDENCE[:rank]]
            layers = [*before, Layer(scope, self.name, None if self.is_secret else value), *layers[len(before) :]]
        return self.text_of(layers[0].value if layers else None, is_set=bool(layers))


def setting_of(entry: ConfigEntry) -> BrokerSetting:
    known = broker_setting(entry.name)
    return BrokerSetting(
        entry.name,
        None if entry.is_sensitive else entry.value,
        entry.is_sensitive,
        SOURCES.get(entry.source, Source.UNKNOWN),
        tuple(Layer(SOURCES.get(source, Source.UNKNOWN), name, value) for name, value, source in entry.synonyms),
        (entry.documentation or (known.explanation if known else "")).replace("`", ""),
        known.allowed_text() if known else "",
        choices_of(known) if known is None or known.type is not SettingType.PASSWORD else (),
        entry.is_read_only,
    )


def read_broker(
    cluster: Cluster, broker: str, changed: Mapping[str, str | None] | None = None, scope: Source = Source.BROKER
) -> list[BrokerSetting]:
    """All settings of a broker, those that are changed first. Waits until the broker has the values just `changed`
    (None: removed)."""
    until = time.monotonic() + _KNOWN_AFTER_SECONDS
    while True:
        found = [setting_of(entry) for entry in TopicAdmin(cluster).settings(ConfigResource.BROKER, broker)]
        by_name = {each.name: each for each in found}
        is_known = all(_has_value(by_name.get(name), scope, value) for name, value in (changed or {}).items())
        if is_known or time.monotonic() > until:
            return sorted(found, key=lambda each: (each.source is Source.DEFAULT, each.name))
        time.sleep(_RETRY_INTERVAL_SECONDS)


def _has_value(setting: BrokerSetting | None, scope: Source, value: str | None) -> bool:
    if setting is None or value is None:
        return value is None and (setting is None or not setting.has(scope))
    return any(each.source is scope and (setting.is_secret or each.value == value) for each in setting.layers)


def read_all_brokers(
    cluster: Cluster, changed: Mapping[str, str | None] | None = None, scope: Source = Source.ALL_BROKERS
) -> list[BrokerSetting]:
    """The settings that can be set for all brokers while they run, with the value that is set. From the broker that
    responds first, because only brokers know which ones there are."""
    failed: UnreachableError | None = None
    for broker in cluster.brokers():
        try:
            found = read_broker(cluster, str(broker.node_id), changed, scope)
        except UnreachableError as error:
            failed = error
            continue
        return sorted(
            (each for each in found if not each.is_read_only or each.has(scope)),
            key=lambda each: (not each.has(scope), each.name),
        )
    raise failed or UserError("no broker responds.")


@dataclass(frozen=True, slots=True)
class Effect:
    """The change on one broker."""

    broker: int
    before: str
    after: str
    note: str = ""


def preview_change(cluster: Cluster, broker: str, name: str, value: str | None, brokers: Sequence[int]) -> list[Effect]:
    """Checks a change without carrying it out, and returns what it changes on each broker. An empty `broker`: the value
    of all brokers. WireError if the cluster refuses it."""
    admin = TopicAdmin(cluster)
    admin.change(ConfigResource.BROKER, broker, [_change(name, value)], validate_only=True)
    scope = Source.BROKER if broker else Source.ALL_BROKERS
    effects = []
    for number in [int(broker)] if broker else brokers:
        try:
            entries = admin.settings(ConfigResource.BROKER, str(number), [name])
        except UnreachableError:
            effects.append(Effect(number, "?", "?", "no response: it takes the value when it runs"))
            continue
        if entries:
            setting = setting_of(entries[0])
            note = "keeps its own value" if not broker and setting.has(Source.BROKER) else ""
            effects.append(Effect(number, setting.shown_value, setting.after(scope, value), note))
        else:
            effects.append(Effect(number, _NOT_SET, _NOT_SET if value is None else value))
    return effects


def change_setting(cluster: Cluster, broker: str, name: str, changes: Sequence[ConfigChange]) -> None:
    """`name` is for the record of the action. The values are not recorded: they may be secrets."""
    TopicAdmin(cluster).change(ConfigResource.BROKER, broker, changes)


def _change(name: str, value: str | None) -> ConfigChange:
    return ConfigChange(name, value, ConfigOperation.DELETE if value is None else ConfigOperation.SET)


def read_levels(cluster: Cluster, broker: str) -> dict[str, str]:
    """The level of each logger."""
    found = TopicAdmin(cluster).settings(ConfigResource.BROKER_LOGGER, broker)
    return {each.name: each.value or "" for each in found}


def change_level(cluster: Cluster, broker: str, logger: str, level: str | None) -> None:
    """None: the level of the logger above counts again."""
    TopicAdmin(cluster).change(ConfigResource.BROKER_LOGGER, broker, [_change(logger, level)])


@console_page("/brokers", title="Broker", within="/cluster")
def brokers(frame: Frame) -> None:
    broker = frame.parameters.get("broker", "")
    with ui.link(target="/cluster").classes("ms-back"):
        ui.icon("arrow_back")
        ui.label("Cluster")
    if broker:
        _BrokerView(frame, broker)
    else:
        with heading("All brokers", "Settings of all brokers. A value of one broker takes precedence."):
            pass
        with card("Settings", note=_note(frame)):
            view = SettingsTable(frame, "")
        ui.timer(0.01, view.load, once=True)


def _note(frame: Frame) -> str:
    may = frame.may(Action.CHANGE_BROKER_SETTINGS)
    return f"choose a setting to {'change it' if may else 'read more about it'}"


_TABS = {"settings": ("Settings", "tune"), "loggers": ("Log levels", "notes")}


class _BrokerView:
    def __init__(self, frame: Frame, broker: str) -> None:
        self._broker = broker
        self._frame = frame
        with heading(f"Broker {broker}") as actions:
            self._allow = ui.button("Allow new replicas", icon="lock_open", on_click=self._uncordon).props(
                "outline no-caps data-testid=uncordon"
            )
            ui.button("All brokers", icon="hub", on_click=lambda: go("/brokers")).props("outline no-caps")
            drain = ui.button(
                "Drain…", icon="output", on_click=lambda: go("/reassignments", plan="drain", broker=broker)
            )
            frame.offer(Action.MOVE_REPLICAS, drain).props("outline no-caps data-testid=open-drain")
            unregister = ui.button("Unregister…", icon="delete", on_click=self._unregister)
            frame.offer(Action.UNREGISTER_BROKER, unregister).props(
                "outline no-caps color=negative data-testid=unregister"
            )
        self._missing = Missing("broker")
        with card("") as numbers, ui.element("div").classes("ms-stats"):
            self._stats = {
                "state": Stat("state", test_id="broker-state"),
                "address": Stat("address"),
                "rack": Stat("rack"),
                "leads": Stat("leaders"),
                "replicas": Stat("replicas"),
                "disk": Stat("logs"),
            }
        with ui.tabs().classes("ms-tabs").props("align=left no-caps dense inline-label outside-arrows") as tabs:
            settings, loggers = (
                ui.tab(name, label, icon=icon).props(f"data-testid=tab-{name}") for name, (label, icon) in _TABS.items()
            )
        chosen = frame.url.choice("tab", _TABS, "settings")
        with ui.tab_panels(tabs, value=chosen, animated=False).classes("ms-panels") as panels:
            with ui.tab_panel(settings), card("Settings", note=_note(frame)):
                view = SettingsTable(frame, broker)
            with ui.tab_panel(loggers), card("Log levels", note="a restart of the broker resets them"):
                levels = LevelsTable(frame, broker)
        self._parts = (actions, numbers, tabs, panels)
        self._loads: Mapping[str, Callable[[], Any]] = {"settings": view.load, "loggers": levels.load}
        self._chosen = chosen
        self._is_loaded = False
        frame.live(self._show)

        async def opened(event: Any) -> None:
            frame.url.write(tab=event.value if event.value != "settings" else None, push=True)
            await self._loads[str(event.value)]()

        tabs.on_value_change(opened)

    def _show(self, snapshot: Snapshot) -> None:
        broker = next((each for each in snapshot.brokers if str(each.id) == self._broker), None)
        self._missing.show(broker is None and snapshot.number > 0, *self._parts)
        if broker is None:
            return
        if not self._is_loaded:
            self._is_loaded = True
            ui.timer(0.01, self._loads[self._chosen], once=True)
        state, tone = broker_state(snapshot, broker)
        disk = snapshot.disks.get(broker.id)
        is_cordoned = disk is not None and disk.is_cordoned
        self._allow.set_visibility(is_cordoned and self._frame.may(Action.MOVE_REPLICAS))
        self._stats["state"].show(state, "" if tone == "good" else tone)
        self._stats["address"].show(broker.address)
        self._stats["rack"].show(broker.rack or "–")
        self._stats["leads"].show(count(snapshot.leader_counts.get(broker.id, 0)))
        self._stats["replicas"].show(count(snapshot.replica_counts.get(broker.id, 0)))
        self._stats["disk"].show("–" if disk is None else size(disk.used_bytes))

    async def _uncordon(self) -> None:
        with self._frame.reporting("The broker is still cordoned"):
            admin = ClusterAdmin(self._frame.console.cluster)
            await self._frame.act(Action.MOVE_REPLICAS, admin.uncordon, int(self._broker))
            self._frame.notify(
                f"Broker {self._broker} gets new replicas again. Balance the cluster to move some to it."
            )
            self._frame.poll_now()

    async def _unregister(self) -> None:
        frame, cluster = self._frame, self._frame.console.cluster
        with frame.reporting("The broker was not unregistered"):
            broker = await frame.run(removable_broker, cluster, int(self._broker))
            more = "The cluster forgets it, with its cordon. A broker that starts with this id registers again."
            quorum = frame.snapshot.quorum
            if quorum is not None and any(each.id == broker.id for each in quorum.voters):
                more += f" Its node stays a voter: `millstream cluster quorum remove {broker.id}` ends that."
            lines = [f"broker {broker.id} at {broker.address}: stopped, no replicas"]
            if await frame.confirm(f"Unregister broker {broker.id}?", lines, action="Unregister", more=more):
                await frame.act(Action.UNREGISTER_BROKER, unregister_broker, broker.id, cluster)
                frame.poll_now()
                go("/cluster")


class SettingsTable:
    """The settings of one broker, or, without one, of all brokers."""

    def __init__(self, frame: Frame, broker: str) -> None:
        self._frame = frame
        self._broker = broker
        self._scope = Source.BROKER if broker else Source.ALL_BROKERS
        self._settings: dict[str, BrokerSetting] = {}
        value = Column("value", "Value" if broker else "Value of all brokers", cell="mono", searched=True, width=170)
        self._table = DataTable(
            [
                Column("name", "Setting", searched=True, width=250),
                value,
                Column("source", "Source", cell="badge", width=178),
                Column("default", "Default", cell="mono", width=110),
                Column("change", "Change", cell="badge", width=130),
                Column("explanation", "Description", searched=True),
            ],
            key="name",
            empty="No settings match. Clear the filter, or show all.",
            sort_by="rank",
            test_id="broker-settings",
            name="",
        )
        link_column(self._table, "name", self._edit)
        wrap_column(self._table, "explanation")
        with self._table.head:
            self._only_changed = ui.checkbox(
                "Only changed", value=frame.url.flag("changed"), on_change=self._show
            ).props("dense data-testid=only-changed")
        frame.url.remember(self._only_changed, "changed", push=True)

    async def load(self, changed: Mapping[str, str | None] | None = None, scope: Source | None = None) -> None:
        cluster = self._frame.console.cluster
        with self._frame.reporting("The settings cannot be read"):
            if self._broker:
                found = await self._frame.run(read_broker, cluster, self._broker, changed, scope or self._scope)
            else:
                found = await self._frame.run(read_all_brokers, cluster, changed)
            self._settings = {each.name: each for each in found}
            self._show()

    def _show(self) -> None:
        rows = [self._row(each) for each in self._settings.values()]
        self._table.update([row for row in rows if row["_is_changed"] or not self._only_changed.value])

    def _row(self, setting: BrokerSetting) -> dict[str, Any]:
        if self._broker:
            value, source = setting.shown_value, setting.source.label
            is_changed = setting.source is not Source.DEFAULT
        else:
            own = next((each for each in setting.layers if each.source is self._scope), None)
            is_changed = own is not None
            value = "" if own is None else setting.text_of(own.value)
            source = own.source.label if own is not None else ""
        default = setting.default
        return {
            "name": setting.name,
            "value": value,
            "source": source,
            "default": "" if default is None else readable_value(setting.name, default),
            "change": "restart" if setting.is_read_only else "while running",
            "_tones": {
                "source": "info" if is_changed else "dim",
                "change": "dim" if setting.is_read_only else "good",
            },
            "explanation": setting.explanation,
            "_is_changed": is_changed,
        }

    def _edit(self, name: str) -> None:
        setting = self._settings.get(name)
        if setting is not None:
            _Editing(self._frame, self._broker, setting, self)


class _Editing:
    """The dialog of one setting. Nothing is changed before the preview was confirmed, and then what it shows."""

    def __init__(self, frame: Frame, broker: str, setting: BrokerSetting, view: SettingsTable) -> None:
        self._frame = frame
        self._broker = broker
        self._setting = setting
        self._view = view
        self._planned: tuple[str, str | None] | None = None
        self._request_number = 0
        may_change = frame.may(Action.CHANGE_BROKER_SETTINGS) and not setting.is_read_only
        with dialog(setting.name, wide=True, test_id="edit-broker-setting") as self._dialog:
            ui.label(help_text(setting)).classes("ms-help")
            with ui.element("dl").classes("ms-facts").props("data-testid=layers"):
                for at, layer in enumerate(setting.layers):
                    with ui.element("dt"):
                        ui.label(layer.source.label + (", in effect" if at == 0 else ""))
                    with ui.element("dd"):
                        other = "" if layer.name == setting.name else f" ({layer.name})"
                        ui.label(setting.text_of(layer.value) + other).classes("ms-mono")
            if may_change:
                self._form()
            self._errors = FieldErrors()
            if setting.is_read_only:
                ui.label("It is set in the file of the broker, and the broker is restarted.").classes("ms-help").props(
                    "data-testid=read-only"
                )
            with ui.element("div").classes("ms-actions"):
                ui.button("Cancel" if may_change else "Close", on_click=self._dialog.close).props("flat no-caps")
                if may_change:
                    self._do = ui.button("Change", on_click=self._execute).props(
                        "unelevated no-caps data-testid=save-setting"
                    )
                    self._do.disable()
        self._dialog.open()

    def _form(self) -> None:
        setting = self._setting
        with ui.element("div").classes("ms-form"):
            scopes = {self._broker: f"broker {self._broker}"} if self._broker else {}
            scopes[""] = "all brokers"
            self._scope = (
                ui.select(scopes, value=self._broker, label="For", on_change=self._scope_changed)
                .props("outlined dense options-dense data-testid=scope")
                .classes("ms-field")
            )
            with ui.element("div").classes("ms-field-wide"):
                self._field = value_input(setting, setting.value or "")
                if setting.is_secret:
                    self._field.props("type=password autocomplete=new-password")
            self._field.on_value_change(self._forget)
            send_form(
                ui.button("Preview").props("outline no-caps data-testid=preview-setting"),
                lambda typed: self._preview(typed.text(self._field).strip()),
            )
            self._reset = ui.button("Preview reset", on_click=lambda: self._preview(None)).props(
                "flat no-caps data-testid=preview-reset"
            )
        self._table = DataTable(
            [
                Column("broker", "Broker", width=96),
                Column("before", "Value now", cell="mono"),
                Column("after", "Value after", cell="mono"),
                Column("note", "", cell="badge", width=180),
            ],
            key="broker",
            empty="Choose Preview. Nothing changes before you confirm.",
            filtered=False,
            test_id="effects",
        )
        self._offer_reset()

    def _offer_reset(self) -> None:
        scope = Source.BROKER if self._scope.value else Source.ALL_BROKERS
        self._reset.set_visibility(self._setting.has(scope))

    def _scope_changed(self) -> None:
        self._offer_reset()
        self._forget()

    def _forget(self) -> None:
        self._request_number += 1
        self._planned = None
        self._table.update([])
        self._errors.show("")
        self._do.set_text("Change")
        self._do.disable()

    async def _preview(self, value: str | None) -> None:
        self._forget()
        request_number, target, name = self._request_number, str(self._scope.value), self._setting.name
        running = [each.id for each in self._frame.snapshot.brokers if each.is_up]
        try:
            effects = await self._frame.run(preview_change, self._frame.console.cluster, target, name, value, running)
        except (WireError, UserError) as error:
            if request_number == self._request_number:
                self._errors.show(str(error))
            return
        if request_number != self._request_number:
            return
        self._planned = target, value
        self._table.update(
            [
                {
                    "broker": each.broker,
                    "before": each.before,
                    "after": each.after,
                    "note": each.note or ("no change" if each.before == each.after else "changes"),
                    "_tones": {"note": "dim" if each.note or each.before == each.after else "info"},
                }
                for each in effects
            ]
        )
        where = f"broker {target}" if target else "all brokers"
        self._do.set_text(f"Reset on {where}" if value is None else f"Set on {where}")
        self._do.enable()

    async def _execute(self) -> None:
        if self._planned is None:
            return
        (target, value), name = self._planned, self._setting.name
        cluster = self._frame.console.cluster
        self._do.props("loading")
        try:
            await self._frame.act(
                Action.CHANGE_BROKER_SETTINGS, change_setting, cluster, target, name, [_change(name, value)]
            )
        except (WireError, UserError) as error:
            self._errors.show(str(error))
            return
        finally:
            self._do.props(remove="loading")
        self._dialog.close()
        where = f"broker {target}" if target else "all brokers"
        self._frame.notify(f"{name} was {'reset' if value is None else 'changed'} on {where}.")
        await self._view.load({name: value}, Source.BROKER if target else Source.ALL_BROKERS)


class LevelsTable:
    """The loggers of a broker with their levels."""

    def __init__(self, frame: Frame, broker: str) -> None:
        self._frame = frame
        self._broker = broker
        self._levels: dict[str, str] = {}
        self._table = DataTable(
            [Column("logger", "Logger", searched=True), Column("level", "Level", cell="badge", width=120)],
            key="logger",
            empty="No loggers",
            test_id="loggers",
        )
        if frame.may(Action.CHANGE_LOG_LEVELS):
            link_column(self._table, "logger", self._edit)

    async def load(self) -> None:
        with self._frame.reporting("The log levels cannot be read"):
            self._levels = await self._frame.run(read_levels, self._frame.console.cluster, self._broker)
            self._table.update(
                [
                    {"logger": name, "level": level, "_tones": {"level": _LEVEL_TONES.get(level, "dim")}}
                    for name, level in self._levels.items()
                ]
            )

    def _edit(self, logger: str) -> None:
        with dialog(f"Level of {logger}", test_id="edit-level") as box:
            level = ui.select(list(_LEVELS), value=self._levels.get(logger), label="Level").props(
                "outlined dense options-dense data-testid=level"
            )
            ui.label(
                f"On broker {self._broker}, until it restarts. It also counts for loggers below that have no level of "
                "their own. TRACE and DEBUG write much to the log."
            ).classes("ms-help")
            errors = FieldErrors()

            async def change(wanted: str | None) -> None:
                cluster = self._frame.console.cluster
                try:
                    await self._frame.act(Action.CHANGE_LOG_LEVELS, change_level, cluster, self._broker, logger, wanted)
                except (WireError, UserError) as error:
                    errors.show(str(error))
                    return
                box.close()
                self._frame.notify(f"{logger}: {wanted or 'the level of the logger above'}")
                await self.load()

            async def save(typed: FormValues) -> None:
                await change(str(level.value))

            with ui.element("div").classes("ms-actions"):
                if logger != _ROOT:
                    ui.button("Reset", on_click=lambda: change(None)).props("flat no-caps data-testid=reset-level")
                ui.button("Cancel", on_click=box.close).props("flat no-caps")
                send_form(ui.button("Set").props("unelevated no-caps data-testid=save-level"), save)
        box.open()
