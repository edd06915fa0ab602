"""The Topics page: list of topics, and one topic with partitions, hot keys, settings, reading groups and its table."""

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from millstream.admin.topics import ConfigResource, TopicAdmin
from millstream.console.console import UserError, href
from millstream.console.formats import count, plural, rate, short_count, size
from millstream.console.frame import Frame, console_page, go
from millstream.console.live.snapshot import Snapshot
from millstream.console.tables import Column, DataTable
from millstream.console.topics.dialogs import (
    RecordDeletionDialog,
    SettingsView,
    TopicTemplate,
    open_branching,
    open_creation,
)
from millstream.console.topics.hot_keys import EVERY_SECONDS, HotKeysView
from millstream.console.topics.rows import (
    brokers_of,
    contents_of,
    deletion_summary,
    health,
    layout_rows,
    log_starts,
    readers_of,
    topic_rows,
)
from millstream.console.topics.settings import MOST_PARTITIONS
from millstream.console.topics.table_status import EVERY_SECONDS as TABLE_EVERY_SECONDS
from millstream.console.topics.table_status import TableStatusView
from millstream.console.visitor import Action
from millstream.console.widgets import (
    FieldErrors,
    FormValues,
    Missing,
    Stat,
    TimeChart,
    card,
    dialog,
    heading,
    number_input,
    send_form,
)
from millstream.raw_client import WireError


class LayoutView:
    """The replicas by broker. It is rebuilt when brokers are added or removed, because they are its columns."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._brokers: list[int] | None = None
        with ui.element("header").classes("ms-card-head"):
            ui.label("Layout").classes("ms-card-title")
            ui.label("replicas of each partition by broker").classes("ms-muted")
            with ui.element("div").classes("ms-legend"):
                for role, word in (("leader", "leader"), ("insync", "in sync"), ("behind", "not in sync or down")):
                    ui.label(word).classes(f"ms-replica ms-replica-{role}")
        self._box = ui.element("div").classes("ms-stack")
        self._table: DataTable | None = None

    def update(self, snapshot: Snapshot) -> None:
        topic = snapshot.topics.get(self._topic)
        if topic is None:
            return
        brokers = brokers_of(topic, snapshot)
        if brokers != self._brokers or self._table is None:
            self._brokers = brokers
            self._box.clear()
            with self._box:
                self._table = self._make(brokers, len(topic.partitions))
        self._table.update(layout_rows(topic, snapshot, brokers))

    @staticmethod
    def _make(brokers: list[int], partitions: int) -> DataTable:
        return DataTable(
            [
                Column("partition", "Partition", width=96),
                *(Column(f"b{broker}", f"Broker {broker}", cell="replica") for broker in brokers),
                Column("end", "End offset", count, right=True),
                Column("epoch", "Leader epoch", count, right=True),
            ],
            key="partition",
            empty="No partitions",
            filtered=partitions > 25,
            page_size=100,
            test_id="layout",
        )


_CHART_SECONDS = 300.0
_TABS = {
    "partitions": ("Partitions", "grid_on"),
    "hot": ("Hot keys", "whatshot"),
    "settings": ("Settings", "tune"),
    "readers": ("Readers", "group_work"),
    "table": ("Table", "table_chart"),
}
"""By their name in the URL: label and icon."""


class TopicDetail:
    def __init__(self, frame: Frame, topic: str) -> None:
        self._frame = frame
        self._topic = topic
        with ui.link(target="/topics").classes("ms-back"):
            ui.icon("arrow_back")
            ui.label("Topics")
        with heading(topic) as actions:
            ui.button("Messages", icon="mail_outline", on_click=lambda: go("/messages", topic=topic)).props(
                "outline no-caps"
            )
            clone = ui.button("Clone…", icon="content_copy", on_click=self._clone)
            frame.offer(Action.CREATE_TOPIC, clone).props("outline no-caps data-testid=clone-topic")
            replicas = ui.button(
                "Move replicas…", icon="move_down", on_click=lambda: go("/reassignments", plan="place", topic=topic)
            )
            frame.offer(Action.MOVE_REPLICAS, replicas).props("outline no-caps data-testid=move-replicas")
            branch = ui.button("Branch…", icon="call_split", on_click=lambda: open_branching(frame, topic))
            frame.offer(Action.CREATE_TOPIC, branch).props("outline no-caps data-testid=branch-topic")
            records = ui.button("Delete records…", icon="auto_delete", on_click=self._delete_records)
            frame.offer(Action.DELETE_RECORDS, records).props(
                "outline color=negative no-caps data-testid=open-delete-records"
            )
            more = ui.button("Add partitions", icon="add", on_click=self._add_partitions)
            frame.offer(Action.ADD_PARTITIONS, more).props("outline no-caps data-testid=add-partitions")
            delete = ui.button("Delete", icon="delete_outline", on_click=self._delete)
            frame.offer(Action.DELETE_TOPIC, delete).props("outline color=negative no-caps data-testid=delete-topic")
        self._missing = Missing("topic")
        with card("") as numbers, ui.element("div").classes("ms-stats"):
            self._stats = {
                "state": Stat("state", test_id="topic-state"),
                "partitions": Stat("partitions", test_id="topic-partitions"),
                "replicas": Stat("replication factor"),
                "written": Stat("records written"),
                "rate": Stat("records/s in", test_id="topic-rate"),
                "size": Stat("on disk, all replicas", test_id="topic-size"),
                "readers": Stat("groups reading"),
            }
        with ui.tabs().classes("ms-tabs").props("align=left no-caps dense inline-label outside-arrows") as tabs:
            layout, hot, settings, readers, table = (
                ui.tab(name, label, icon=icon).props(f"data-testid=tab-{name}") for name, (label, icon) in _TABS.items()
            )
        chosen = frame.url.choice("tab", _TABS, next(iter(_TABS)))
        with ui.tab_panels(tabs, value=chosen, animated=False).classes("ms-panels") as panels:
            with ui.tab_panel(layout):
                with card(""):
                    self._layout = LayoutView(topic)
                with card("Records written", note="per second"):
                    self._chart = TimeChart(["records/s"], test_id="topic-chart")
            with ui.tab_panel(hot):
                self._hot = HotKeysView(frame, topic)
            with ui.tab_panel(settings), card("Settings", note=_note_on_settings(frame)):
                self._settings = SettingsView(frame, topic)
            with ui.tab_panel(readers), card("Groups that read this topic"):
                self._readers = DataTable(
                    [
                        Column("group", "Group", cell="link"),
                        Column("kind", "Kind", cell="badge"),
                        Column("members", "Members", count, right=True),
                        Column("lag", "Lag", count, right=True),
                    ],
                    key="group",
                    empty="No group has committed offsets or assigned members for this topic",
                    test_id="readers",
                )
            with ui.tab_panel(table):
                self._table = TableStatusView(frame, topic)
        self._parts = (actions, numbers, tabs, panels)
        self._is_loaded = False
        frame.live(self._show)
        watching = {
            "hot": ui.timer(EVERY_SECONDS, self._hot.load, active=chosen == "hot"),
            "table": ui.timer(TABLE_EVERY_SECONDS, self._table.load, active=chosen == "table"),
        }

        async def opened(event: Any) -> None:
            """Reads reports only while the tab is open."""
            frame.url.write(tab=event.value, push=True)
            for name, timer in watching.items():
                timer.active = event.value == name
            if event.value == "hot":
                await self._hot.load()
            elif event.value == "table":
                await self._table.load()

        tabs.on_value_change(opened)

    def _show(self, snapshot: Snapshot) -> None:
        topic = snapshot.topics.get(self._topic)
        self._missing.show(topic is None and snapshot.topics_at > 0, *self._parts)
        if topic is None:
            return
        if not self._is_loaded:
            self._is_loaded = True
            ui.timer(0.01, self._settings.load, once=True)
        stats = self._stats
        state, tone = health(topic, snapshot)
        stats["state"].show(state, tone)
        stats["partitions"].show(count(len(topic.partitions)))
        stats["replicas"].show(count(max((len(each.replicas) for each in topic.partitions), default=0)))
        ends = [
            snapshot.ends[each.topic_partition] for each in topic.partitions if each.topic_partition in snapshot.ends
        ]
        stats["written"].show(short_count(sum(ends)) if len(ends) == len(topic.partitions) else "–")
        known = snapshot.rates.get(self._topic)
        stats["rate"].show("–" if known is None else rate(known).removesuffix("/s"))
        stats["size"].show(size(snapshot.size(topic)) if snapshot.disks else "–")
        readers = readers_of(self._topic, snapshot)
        stats["readers"].show(count(len(readers)) if snapshot.groups_known else "–")
        self._layout.update(snapshot)
        self._readers.update(
            [
                {
                    "group": reader.group,
                    "kind": reader.kind,
                    "members": reader.members,
                    "lag": reader.lag,
                    "_href": href("/queues" if reader.kind == "share" else "/groups", group=reader.group),
                }
                for reader in readers
            ]
        )
        series = self._frame.console.watcher.history.topics.get(self._topic)
        self._chart.update({"records/s": series.points(snapshot.at - _CHART_SECONDS) if series is not None else ()})

    def _delete_records(self) -> None:
        topic = self._frame.snapshot.topics.get(self._topic)
        if topic is not None:
            RecordDeletionDialog(self._frame, self._topic, len(topic.partitions))

    async def _clone(self) -> None:
        topic = self._frame.snapshot.topics.get(self._topic)
        if topic is None:
            return
        admin = TopicAdmin(self._frame.console.cluster)
        with self._frame.reporting(f"The settings of {self._topic} cannot be read"):
            found = await self._frame.run(admin.settings, ConfigResource.TOPIC, self._topic)
            own = {each.name: each.value for each in found if each.is_own and each.value is not None}
            replicas = max((len(each.replicas) for each in topic.partitions), default=1)
            template = TopicTemplate(self._topic, len(topic.partitions), replicas, own)
            open_creation(self._frame, lambda name: go("/topics", topic=name), template)

    def _add_partitions(self) -> None:
        topic = self._frame.snapshot.topics.get(self._topic)
        if topic is None:
            return
        there = len(topic.partitions)
        with dialog(f"Add partitions to {self._topic}", test_id="more-partitions") as box:
            wanted = number_input("New number of partitions", there + 1, there + 1, MOST_PARTITIONS).props(
                "autofocus data-testid=partition-count"
            )
            ui.label(
                f"The topic has {there} now. Partitions cannot be removed. After the change, records of a key can go "
                "to another partition: consumers that need the order must first read all existing records."
            ).classes("ms-help")
            errors = FieldErrors()

            async def add(typed: FormValues) -> None:
                number = typed.number(wanted) or 0
                if not there < number <= MOST_PARTITIONS:
                    errors.show(f"enter a number from {there + 1} to {MOST_PARTITIONS}")
                    return
                try:
                    await self._frame.act(
                        Action.ADD_PARTITIONS,
                        TopicAdmin(self._frame.console.cluster).add_partitions,
                        self._topic,
                        number,
                    )
                except (WireError, UserError) as error:
                    errors.show(str(error))
                    return
                box.close()
                self._frame.poll_now()
                self._frame.notify(f"{self._topic} has {number} partitions.")

            with ui.element("div").classes("ms-actions"):
                ui.button("Cancel", on_click=box.close).props("flat no-caps")
                send_form(ui.button("Add").props("unelevated no-caps data-testid=add"), add)
        box.open()

    async def _delete(self) -> None:
        topic = self._frame.snapshot.topics.get(self._topic)
        if topic is None:
            return
        cluster = self._frame.console.cluster
        starts: dict[int, int] | None = None
        try:
            starts = await self._frame.run(log_starts, cluster, self._topic, len(topic.partitions))
        except WireError:
            pass  # a partition without a leader: its size is not known, but it can be deleted
        going = contents_of(self._topic, self._frame.snapshot, starts)
        agreed = await self._frame.confirm(
            f"Delete topic {self._topic}?",
            deletion_summary(going),
            action="Delete permanently",
            more="This cannot be undone.",
        )
        if not agreed:
            return
        with self._frame.reporting(f"{self._topic} cannot be deleted"):
            await self._frame.act(Action.DELETE_TOPIC, TopicAdmin(cluster).delete, self._topic)
            self._frame.poll_now()
            self._frame.notify(f"Topic {self._topic} was deleted.")
            go("/topics")


def _note_on_settings(frame: Frame) -> str:
    return f"choose a setting to {'change it' if frame.may(Action.CHANGE_SETTINGS) else 'read more about it'}"


@console_page("/topics")
def topics(frame: Frame) -> None:
    topic = frame.parameters.get("topic", "")
    if topic:
        TopicDetail(frame, topic)
    else:
        _list(frame)


def _list(frame: Frame) -> None:
    with heading("Topics"):
        internal = ui.checkbox("Show internal", value=frame.url.flag("internal")).props("dense data-testid=internal")
        create = ui.button(
            "Create topic", icon="add", on_click=lambda: open_creation(frame, lambda name: go("/topics", topic=name))
        )
        frame.offer(Action.CREATE_TOPIC, create).props("unelevated no-caps data-testid=open-create")

    def select(names: Sequence[str]) -> None:
        bulk.set_text(f"Delete {plural(len(names), 'topic')}…")
        bulk.set_visibility(bool(names))

    async def delete_selected() -> None:
        names = [name for name in table.selected if name in frame.snapshot.topics]
        words = [line for name in names for line in deletion_summary(contents_of(name, frame.snapshot, None))]
        if not names or not await frame.confirm(
            f"Delete {plural(len(names), 'topic')}?", words, action="Delete permanently", more="This cannot be undone."
        ):
            return
        with frame.reporting("Not all topics were deleted"):
            for name in names:
                await frame.act(Action.DELETE_TOPIC, TopicAdmin(frame.console.cluster).delete, name)
            frame.notify(f"{plural(len(names), 'topic')} deleted.")
        table.unselect()
        select([])
        frame.poll_now()

    with card(""):
        table = DataTable(
            [
                Column("topic", "Topic", cell="link"),
                Column("state", "State", cell="badge"),
                Column("partitions", "Partitions", count, right=True),
                Column("replicas", "Replicas", count, right=True),
                Column("rate", "Records/s", rate, right=True),
                Column("size", "On disk", size, right=True),
                Column("readers", "Groups", count, right=True),
            ],
            key="topic",
            empty="No topics. Create one here or with a producer."
            if frame.may(Action.CREATE_TOPIC)
            else "No topics that you may see.",
            test_id="topics",
            name="",
            on_select=select if frame.may(Action.DELETE_TOPIC) else None,
        )
        with table.head:
            bulk = ui.button("", icon="delete_outline", on_click=lambda: delete_selected()).props(
                "outline dense color=negative no-caps data-testid=delete-selected"
            )
        bulk.set_visibility(False)

    def show(snapshot: Snapshot) -> None:
        table.update(topic_rows(snapshot, internal=bool(internal.value)))

    internal.on_value_change(lambda: show(frame.snapshot))
    frame.url.remember(internal, "internal", push=True)
    frame.live(show)
