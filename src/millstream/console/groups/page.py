"""The Groups page: list of consumer groups, one group with members and lag; and what queues share with it: the header
of a page, and actions on one or several groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nicegui import ui

from millstream.admin.groups import SHARE, Group, GroupAdmin, check_not_active
from millstream.admin.offsets import OffsetMove, ResetTarget, plan_reset
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
    Missing,
    Points,
    Stat,
    TimeChart,
    card,
    dialog,
    grid,
    heading,
    send_form,
)
from millstream.raw_client import Cluster, TopicPartition, WireError

_STATE_TONES = {"Stable": "good", "Empty": "dim", "Dead": "bad"}
_WINDOW_SECONDS = 900.0


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
        with ui.link(target=wording.page).classes("ms-back"):
            ui.icon("arrow_back")
            ui.label(f"{wording.noun.capitalize()}s")
        with heading(name) as self._actions:
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
        self._missing = Missing(wording.noun)

    def find(self, snapshot: Snapshot) -> Group | None:
        """The group, or None; then the page says that it does not exist."""
        group = snapshot.groups.get(self._name)
        self._missing.show(group is None and snapshot.groups_known, self._actions)
        for button in self._buttons:
            button.set_enabled(group is not None)
        return group

    def lags(self, snapshot: Snapshot) -> Points:
        """The lag over time, for the chart."""
        series = self._frame.console.watcher.history.lags.get(self._name)
        return series.points(snapshot.at - _WINDOW_SECONDS) if series is not None else ()

    def _open_reset(self) -> None:
        group = self._frame.snapshot.groups.get(self._name)
        if group is not None:
            open_reset_dialog(self._frame, [group])

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


class BulkActions:
    """Buttons for the groups that are selected in a list. Groups with active members are left out."""

    def __init__(self, frame: Frame, wording: Wording) -> None:
        self._frame = frame
        self._wording = wording
        self._table: DataTable | None = None
        may_select = frame.may(Action.MOVE_OFFSETS) or frame.may(Action.DELETE_GROUP)
        self.on_select = self._select if may_select else None

    def attach(self, table: DataTable) -> None:
        """Puts the buttons above the table. They are shown while rows are selected."""
        self._table = table
        with table.head, ui.element("div").classes("ms-chips").style("width: auto") as self._box:
            self._move = ui.button("", icon="history", on_click=self._open_reset).props(
                "outline dense no-caps data-testid=move-selected"
            )
            self._frame.offer(Action.MOVE_OFFSETS, self._move)
            self._delete = ui.button("", icon="delete_outline", on_click=self._ask_delete).props(
                "outline dense color=negative no-caps data-testid=delete-selected"
            )
            self._frame.offer(Action.DELETE_GROUP, self._delete)
        self._box.set_visibility(False)

    def _select(self, names: Sequence[str]) -> None:
        selected = plural(len(names), self._wording.noun)
        self._move.set_text(f"Move offsets of {selected}…")
        self._delete.set_text(f"Delete {selected}…")
        self._box.set_visibility(bool(names))

    def _selected(self) -> tuple[list[Group], list[Group]]:
        """The groups without, and with, active members."""
        assert self._table is not None
        known = self._frame.snapshot.groups
        found = [known[name] for name in self._table.selected if name in known]
        return [each for each in found if not each.is_active], [each for each in found if each.is_active]

    def _open_reset(self) -> None:
        resting, active = self._selected()
        if resting:
            open_reset_dialog(self._frame, resting, left_out=active)
        else:
            self._refuse()

    def _refuse(self) -> None:
        self._frame.show_error(f"All selected {self._wording.noun}s have active members: stop their consumers first.")

    async def _ask_delete(self) -> None:
        resting, active = self._selected()
        if not resting:
            self._refuse()
            return
        noun = self._wording.noun
        agreed = await self._frame.confirm(
            f"Delete {plural(len(resting), noun)}?",
            [f"{noun} {each.name}: {plural(len(each.offsets), 'partition')}" for each in resting],
            action=f"Delete {plural(len(resting), noun)}",
            more=_left_out(active) or "Their offsets are deleted too.",
        )
        if not agreed:
            return
        admin = GroupAdmin(self._frame.console.cluster)
        failed: list[str] = []
        for each in resting:
            try:
                await self._frame.act(Action.DELETE_GROUP, admin.delete, each.name)
            except (UserError, WireError) as error:
                failed.append(f"{each.name}: {error}")
        if failed:
            self._frame.show_error(f"{plural(len(failed), noun)} not deleted, for example {failed[0]}")
        else:
            self._frame.notify(f"{plural(len(resting), noun)} deleted.")
        assert self._table is not None
        self._table.unselect()
        self._select([])
        self._frame.poll_now()


def _left_out(active: Sequence[Group]) -> str:
    names = ", ".join(each.name for each in active[:5]) + (" …" if len(active) > 5 else "")
    return f"Left out, because they have active members: {names}." if active else ""


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
    with heading(
        "Groups", "Groups of the classic, consumer and streams protocols. Share groups are on the Queues page."
    ):
        pass
    bulk = BulkActions(frame, GROUP)
    with card(""):
        table = DataTable(
            [
                Column("group", "Group", cell="link", searched=True),
                Column("state", "State", cell="badge", searched=True),
                Column("kind", "Protocol", width=110),
                Column("members", "Members", count, right=True),
                Column("topics", "Topics", searched=True),
                Column("lag", "Lag", short_count, right=True),
                Column("coordinator", "Coordinator", right=True),
            ],
            key="group",
            empty="No consumer groups. A consumer makes one: `millstream consume TOPIC --group NAME`, or see Connect.",
            test_id="groups",
            name="",
            on_select=bulk.on_select,
        )
    bulk.attach(table)

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


def preview_resets(
    cluster: Cluster, groups: Sequence[Group], topics: Sequence[str], target: ResetTarget
) -> list[tuple[Group, OffsetMove]]:
    """The moves of all groups in the partitions of these topics. Nothing is changed."""
    return [
        (group, move)
        for group in groups
        for move in plan_reset(cluster, group.offsets, [each for each in group.offsets if each.topic in topics], target)
    ]


def open_reset_dialog(frame: Frame, groups: Sequence[Group], left_out: Sequence[Group] = ()) -> None:
    """Moves the offsets of one group, or of several, as the preview shows it."""
    topics = sorted({topic_partition.topic for group in groups for topic_partition in group.offsets})
    named = groups[0].name if len(groups) == 1 else plural(len(groups), "group")
    members = sum(len(group.members) for group in groups)
    moves: list[tuple[Group, OffsetMove]] = []
    request_number = 0  # a preview is dropped if the form changed meanwhile
    with ui.dialog() as dialog, ui.card().classes("ms-dialog").style("width: 760px").props("data-testid=reset"):
        ui.label(f"Move offsets of {named}").classes("ms-dialog-title")
        if members:
            ui.label(
                f"The group has {plural(members, 'active member')}. You can preview now, and move offsets "
                "after they have stopped."
            ).classes("ms-badge ms-warn")
        if left_out:
            ui.label(_left_out(left_out)).classes("ms-muted")
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
                *([Column("group", "Group")] if len(groups) > 1 else []),
                Column("topic_partition", "Partition", cell="mono"),
                Column("old", "From", count, right=True),
                Column("new", "To", count, right=True),
                Column("change", "Change", lambda number: f"{number:+,}", right=True),
                Column("note", "", cell="badge"),
            ],
            key="key",
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
        nonlocal request_number
        request_number += 1
        moves.clear()
        errors.show("")
        table.update([])
        do.set_text("Move offsets")
        do.disable()

    async def preview(typed: FormValues) -> None:
        forget()
        mine = request_number
        try:
            target = parse_target(where.value, typed.text(text))
            planned = await frame.run(preview_resets, frame.console.cluster, groups, list(chosen.value or []), target)
        except (UserError, WireError) as error:
            if mine == request_number:
                errors.show(str(error))
            return
        if mine != request_number:
            return
        moves.extend(planned)
        table.update([_move_row(group, move) for group, move in moves])
        if moves and not members:
            do.set_text(f"Move {plural(len(moves), 'offset')} of {named}")
            do.enable()

    async def execute() -> None:
        by_group: dict[str, dict[TopicPartition, int]] = {}
        for group, move in moves:
            by_group.setdefault(group.name, {})[move.partition] = move.new
        admin = GroupAdmin(frame.console.cluster)
        done = 0
        do.props("loading")
        try:
            for group in groups:
                if group.name in by_group:
                    check_not_active(group)
                    offsets, is_share = by_group[group.name], group.type == SHARE
                    await frame.act(Action.MOVE_OFFSETS, admin.set_offsets, group.name, offsets, share=is_share)
                    done += 1
        except (UserError, WireError) as error:
            before = f"Moved for {done} of {len(by_group)} groups. " if len(by_group) > 1 else ""
            errors.show(f"{before}Offsets not moved: {error}")
            frame.poll_now()
            return
        finally:
            do.props(remove="loading")
        frame.notify(f"{plural(sum(map(len, by_group.values())), 'offset')} of {named} moved")
        frame.poll_now()
        dialog.close()

    where.on_value_change(chose)
    text.on_value_change(forget)
    chosen.on_value_change(forget)
    dialog.on("hide", dialog.delete)
    chose()
    dialog.open()


def _move_row(group: Group, move: OffsetMove) -> dict[str, object]:
    return {
        "key": f"{group.name} {move.partition}",
        "group": group.name,
        "topic_partition": str(move.partition),
        "old": move.old,
        "new": move.new,
        "change": None if move.old is None else move.new - move.old,
        "note": "outside the log, set to its nearest end" if move.is_clamped else "",
        "_tones": {"note": "warn"},
    }
