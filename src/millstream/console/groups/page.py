"""The Groups page: list of consumer groups, one group with members and lag, and the header shared with queues."""

from dataclasses import dataclass

from nicegui import ui

from millstream.admin.groups import SHARE, Group, GroupAdmin, check_not_active
from millstream.admin.offsets import OffsetMove, plan_reset
from millstream.console.console import UserError, href
from millstream.console.formats import count, plural, short_count
from millstream.console.frame import Frame, console_page, go
from millstream.console.groups.offsets import ResetMode, parse_target
from millstream.console.live.snapshot import Snapshot
from millstream.console.tables import Column, DataTable
from millstream.console.visitor import Action
from millstream.console.widgets import (
    FieldErrors,
    FormValues,
    Points,
    Stat,
    TimeChart,
    card,
    dialog,
    grid,
    heading,
    send_form,
)
from millstream.raw_client import TopicPartition, WireError

_STATE_TONES = {"Stable": "good", "Empty": "dim", "Dead": "bad"}
_WINDOW_S = 900.0


def state_tone(state: str) -> str:
    return _STATE_TONES.get(state, "warn")


@dataclass(frozen=True, slots=True)
class Wording:
    noun: str
    page: str
    offset: str
    """What is deleted for each partition."""


GROUP = Wording("group", "/groups", "its offset in")
QUEUE = Wording("queue", "/queues", "its state of")


class GroupHead:
    def __init__(self, frame: Frame, name: str, wording: Wording) -> None:
        self._frame = frame
        self._name = name
        self._wording = wording
        with heading(name):
            ui.link(f"All {wording.noun}s", wording.page).classes("ms-back")
            move = ui.button("Move offsets…", icon="history", on_click=self._open_reset).props(
                "outline no-caps dense padding='4px 12px' data-testid=open-reset"
            )
            delete = ui.button("Delete…", icon="delete", on_click=self._ask_delete).props(
                "outline color=negative no-caps dense padding='4px 12px' data-testid=delete"
            )
            self._buttons = [frame.offer(Action.MOVE_OFFSETS, move), frame.offer(Action.DELETE_GROUP, delete)]
            if wording is GROUP:
                forget = ui.button("Delete offsets…", icon="playlist_remove", on_click=self._ask_delete_offsets).props(
                    "outline color=negative no-caps dense padding='4px 12px' data-testid=delete-offsets"
                )
                self._buttons.append(frame.offer(Action.DELETE_OFFSETS, forget))
        self._gone = ui.label("").classes("ms-badge ms-warn").props("data-testid=gone")

    def find(self, snapshot: Snapshot) -> Group | None:
        """The group, or None; then the page says that it does not exist."""
        group = snapshot.groups.get(self._name)
        gone = group is None and snapshot.groups_known
        self._gone.set_visibility(gone)
        self._gone.set_text(f"This {self._wording.noun} does not exist. It may have been deleted." if gone else "")
        for button in self._buttons:
            button.set_enabled(group is not None)
        return group

    def lags(self, snapshot: Snapshot) -> Points:
        """The lag over time, for the chart."""
        series = self._frame.console.watcher.history.lags.get(self._name)
        return series.points(snapshot.at - _WINDOW_S) if series is not None else ()

    def _open_reset(self) -> None:
        group = self._frame.snapshot.groups.get(self._name)
        if group is not None:
            open_reset_dialog(self._frame, group)

    def _ask_delete_offsets(self) -> None:
        """Offsets of one topic; the group stays."""
        group = self._frame.snapshot.groups.get(self._name)
        topics = sorted({place.topic for place in group.offsets}) if group is not None else []
        if not topics:
            self._frame.show_error(f"{self._name} has no committed offsets.")
            return
        with dialog(f"Delete offsets of {self._name}", test_id="offset-deletion") as box:
            topic = ui.select(topics, value=topics[0], label="Topic").props(
                "outlined dense options-dense data-testid=offset-topic"
            )
            ui.label(
                "The group begins with this topic as its members are configured (auto.offset.reset). Members must not "
                "be subscribed to it."
            ).classes("ms-help")
            errors = FieldErrors()

            async def delete() -> None:
                groups = GroupAdmin(self._frame.console.cluster)
                try:
                    await self._frame.act(Action.DELETE_OFFSETS, groups.delete_offsets, self._name, str(topic.value))
                except (UserError, WireError) as error:
                    errors.show(f"Offsets not deleted: {error}")
                    return
                self._frame.notify(f"Offsets of {self._name} for {topic.value} were deleted.")
                self._frame.poll_now()
                box.close()

            with ui.element("div").classes("ms-actions"):
                ui.button("Cancel", on_click=box.close).props("flat no-caps autofocus")
                ui.button("Delete offsets", on_click=delete).props(
                    "unelevated color=negative no-caps data-testid=delete-offsets-now"
                )
        box.open()

    async def _ask_delete(self) -> None:
        group = self._frame.snapshot.groups.get(self._name)
        if group is None:
            return
        noun = self._wording.noun
        with self._frame.reporting(f"{noun.capitalize()} not deleted"):
            names = [
                f"{noun} {group.name}",
                *(f"{self._wording.offset} {topic_partition}" for topic_partition in sorted(group.offsets)),
            ]
            if await self._frame.confirm(f"Delete {noun} {group.name}?", names, action=f"Delete {noun}"):
                check_not_active(group)
                await self._frame.act(Action.DELETE_GROUP, GroupAdmin(self._frame.console.cluster).delete, group.name)
                self._frame.poll_now()
                go(self._wording.page)


def member_rows(group: Group) -> list[dict[str, object]]:
    return [
        {
            "id": member.member_id,
            "client": member.client_id + (f" ({member.instance_id})" if member.instance_id else ""),
            "host": member.host,
            "partitions": ", ".join(map(str, sorted(member.assignment))) or "none",
        }
        for member in group.members
    ]


def topics_read(group: Group) -> str:
    return ", ".join(sorted({topic_partition.topic for topic_partition in group.offsets}))


@console_page("/groups")
def groups(frame: Frame) -> None:
    name = frame.parameters.get("group")
    if name is None:
        _list(frame)
    else:
        GroupView(frame, name).build()


def _list(frame: Frame) -> None:
    with heading("Groups", "Classic and consumer protocol groups. Share groups are on the Queues page."):
        pass
    with card(""):
        table = DataTable(
            [
                Column("group", "Group", cell="link", searched=True),
                Column("state", "State", cell="badge", searched=True),
                Column("kind", "Protocol"),
                Column("members", "Members", count, right=True),
                Column("topics", "Topics", searched=True),
                Column("lag", "Lag", short_count, right=True),
                Column("coordinator", "Coordinator", right=True),
            ],
            key="group",
            empty="No consumer groups. A consumer makes one: `millstream consume TOPIC --group NAME`, or see Connect.",
            test_id="groups",
            name="",
        )

    def show(snapshot: Snapshot) -> None:
        table.update([_row(group) for group in snapshot.groups.values() if group.type != SHARE])

    frame.live(show)


def _row(group: Group) -> dict[str, object]:
    return {
        "group": group.name,
        "state": group.state,
        "_tones": {"state": state_tone(group.state)},
        "kind": group.type,
        "members": len(group.members),
        "topics": topics_read(group),
        "lag": group.lag,
        "coordinator": group.coordinator,
        "_href": href("/groups", group=group.name),
    }


class GroupView:
    """One group."""

    def __init__(self, frame: Frame, name: str) -> None:
        self._frame = frame
        self._name = name

    def build(self) -> None:
        self._head = GroupHead(self._frame, self._name, GROUP)
        with card(""), ui.element("div").classes("ms-stats"):
            self._state = Stat("state", test_id="state")
            self._lag = Stat("lag", test_id="lag")
            self._members = Stat("members", test_id="member-count")
            self._kind = Stat("protocol")
            self._assignor = Stat("assignor")
            self._coordinator = Stat("coordinator")
        with card("Lag", note="records, since the console was opened"):
            self._chart = TimeChart(["lag"], test_id="chart-lag", height=210)
        with grid("two"):
            with card("Members"):
                self._member_table = DataTable(
                    [
                        Column("client", "Client", searched=True),
                        Column("host", "Host"),
                        Column("partitions", "Partitions", cell="mono"),
                        Column("id", "Member id", cell="mono"),
                    ],
                    key="id",
                    empty="No active members",
                    filtered=False,
                    test_id="members",
                )
            with card("Offsets"):
                self._offset_table = DataTable(
                    [
                        Column("topic_partition", "Partition", cell="mono", searched=True),
                        Column("offset", "Committed", count, right=True),
                        Column("end", "Log end", count, right=True),
                        Column("lag", "Lag", count, right=True),
                        Column("client", "Read by", searched=True),
                    ],
                    key="topic_partition",
                    empty="No committed offsets",
                    test_id="offsets",
                )
        self._frame.live(self._show)

    def _show(self, snapshot: Snapshot) -> None:
        group = self._head.find(snapshot)
        if group is None:
            return
        self._state.show(group.state, "dim" if state_tone(group.state) == "dim" else "")
        self._lag.show(short_count(group.lag))
        self._members.show(count(len(group.members)))
        self._kind.show(group.type)
        self._assignor.show(group.assignor or "–")
        self._coordinator.show(str(group.coordinator))
        self._chart.update({"lag": self._head.lags(snapshot)})
        self._member_table.update(member_rows(group))
        readers = {
            topic_partition: member.client_id for member in group.members for topic_partition in member.assignment
        }
        self._offset_table.update(
            [
                {
                    "topic_partition": str(topic_partition),
                    "offset": offset,
                    "end": snapshot.ends.get(topic_partition),
                    "lag": group.lags.get(topic_partition),
                    "client": readers.get(topic_partition, ""),
                }
                for topic_partition, offset in sorted(group.offsets.items())
            ]
        )


_HINTS = {
    ResetMode.TIME: "2026-01-31T12:00 in the gateway's time zone, or with Z or +02:00",
    ResetMode.OFFSET: "the same offset for all partitions of the chosen topics",
    ResetMode.SHIFT: "number of records; a negative number moves back",
}


def open_reset_dialog(frame: Frame, group: Group) -> None:
    topics = sorted({topic_partition.topic for topic_partition in group.offsets})
    moves: list[OffsetMove] = []
    asked = 0  # a preview is dropped if the form changed meanwhile
    with ui.dialog() as dialog, ui.card().classes("ms-dialog").style("width: 760px").props("data-testid=reset"):
        ui.label(f"Move offsets of {group.name}").classes("ms-dialog-title")
        if group.members:
            ui.label(
                f"The group has {plural(len(group.members), 'active member')}. You can preview now, and move offsets "
                "after they have stopped."
            ).classes("ms-badge ms-warn")
        with ui.element("div").classes("ms-form"):
            chosen = ui.select(topics, value=topics, multiple=True, label="Topics").props(
                "dense outlined use-chips options-dense"
            )
            where = ui.select(
                {each: each.value for each in ResetMode}, value=ResetMode.EARLIEST, label="New position"
            ).props("dense outlined options-dense data-testid=where")
            text = ui.input(label="Value").props("dense outlined data-testid=value")
            show = ui.button("Preview").props("outline no-caps data-testid=preview")
            send_form(show, lambda typed: preview(typed))
        hint = ui.label("").classes("ms-muted")
        table = DataTable(
            [
                Column("topic_partition", "Partition", cell="mono"),
                Column("old", "From", count, right=True),
                Column("new", "To", count, right=True),
                Column("change", "Change", lambda number: f"{number:+,}", right=True),
                Column("note", "", cell="badge"),
            ],
            key="topic_partition",
            empty="Choose Preview. Nothing changes before you confirm.",
            filtered=False,
            page_size=25,
            test_id="moves",
        )
        errors = FieldErrors()
        with ui.element("div").classes("ms-actions"):
            ui.button("Cancel", on_click=dialog.close).props("flat no-caps")
            do = ui.button("Move offsets", on_click=lambda: execute()).props(
                "unelevated color=negative no-caps data-testid=execute"
            )
            do.disable()

    def chose() -> None:
        needs = where.value in _HINTS
        text.set_visibility(needs)
        hint.set_text(_HINTS.get(where.value, ""))
        forget()

    def forget() -> None:
        nonlocal asked
        asked += 1
        moves.clear()
        errors.show("")
        table.update([])
        do.set_text("Move offsets")
        do.disable()

    async def preview(typed: FormValues) -> None:
        forget()
        mine = asked
        topic_partitions: list[TopicPartition] = [
            topic_partition for topic_partition in group.offsets if topic_partition.topic in (chosen.value or [])
        ]
        try:
            target = parse_target(where.value, typed.text(text))
            planned = await frame.run(plan_reset, frame.console.cluster, group.offsets, topic_partitions, target)
        except (UserError, WireError) as error:
            if mine == asked:
                errors.show(str(error))
            return
        if mine != asked:
            return
        moves.extend(planned)
        table.update(
            [
                {
                    "topic_partition": str(move.partition),
                    "old": move.old,
                    "new": move.new,
                    "change": None if move.old is None else move.new - move.old,
                    "note": "outside the log, set to its nearest end" if move.is_clamped else "",
                    "_tones": {"note": "warn"},
                }
                for move in moves
            ]
        )
        if moves and not group.members:
            do.set_text(f"Move {plural(len(moves), 'offset')} of {group.name}")
            do.enable()

    async def execute() -> None:
        doing = list(moves)
        do.props("loading")
        try:
            check_not_active(group)
            offsets = {move.partition: move.new for move in doing}
            groups = GroupAdmin(frame.console.cluster)
            await frame.act(Action.MOVE_OFFSETS, groups.set_offsets, group.name, offsets, share=group.type == SHARE)
        except (UserError, WireError) as error:
            errors.show(f"Offsets not moved: {error}")
            return
        finally:
            do.props(remove="loading")
        frame.notify(f"{plural(len(doing), 'offset')} of {group.name} moved")
        frame.poll_now()
        dialog.close()

    where.on_value_change(chose)
    text.on_value_change(forget)
    chosen.on_value_change(forget)
    dialog.on("hide", dialog.delete)
    chose()
    dialog.open()
