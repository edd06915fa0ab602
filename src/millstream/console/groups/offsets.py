"""Where a group's offsets are to go: a plan, row by row, that is shown first and then carried out as it was shown.

An offset that a partition does not have is brought to the partition's nearest end, and the row says so.

The dialog that moves a group's offsets: choose, look at the preview, then do exactly that.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from nicegui import ui

from millstream.console.console import UserError
from millstream.console.formats import count, plural
from millstream.console.frame import Frame
from millstream.console.live.reading import SHARE
from millstream.console.live.snapshot import Group
from millstream.console.tables import Column, DataTable
from millstream.console.widgets import Complaint, Typed, send_form
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import EARLIEST, LATEST, Cluster, CoordinatorKind, TopicPartition, WireError
from millstream.raw_client.errors import error_code, refusal


class Where(Enum):
    EARLIEST = "to the beginning"
    LATEST = "to the end"
    TIME = "to a time"
    OFFSET = "to an offset"
    SHIFT = "forward or back by"


@dataclass(frozen=True, slots=True)
class Target:
    where: Where
    number: int = 0
    """An offset, a shift, or milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Move:
    place: TopicPartition
    old: int | None
    new: int
    clamped: bool


def target_of(where: Where, text: str) -> Target:
    """What was typed beside the choice."""
    if where in (Where.EARLIEST, Where.LATEST):
        return Target(where)
    text = text.strip()
    if where is Where.TIME:
        try:
            return Target(where, int(datetime.fromisoformat(text).timestamp() * 1000))
        except (ValueError, OverflowError, OSError):
            raise UserError("write a time such as 2026-01-31T12:00 or 2026-01-31T12:00:00Z") from None
    try:
        number = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise UserError("write a whole number, such as 42 or -100") from None
    if where is Where.OFFSET and number < 0:
        raise UserError("an offset cannot be negative: shift by a negative number to go back")
    return Target(where, number)


def plan(
    cluster: Cluster, committed: Mapping[TopicPartition, int], places: Collection[TopicPartition], target: Target
) -> list[Move]:
    """The moves, in order; nothing is changed."""
    lows = cluster.offsets(dict.fromkeys(places, EARLIEST))
    highs = cluster.offsets(dict.fromkeys(places, LATEST), read_committed=False)
    at_time = cluster.offsets(dict.fromkeys(places, target.number)) if target.where is Where.TIME else {}
    moves = []
    for place in sorted(places):
        low, high, old = lows[place].offset, highs[place].offset, committed.get(place)
        match target.where:
            case Where.EARLIEST:
                new = low
            case Where.LATEST:
                new = high
            case Where.TIME:
                new = high if at_time[place].offset < 0 else at_time[place].offset
            case Where.OFFSET:
                new = target.number
            case Where.SHIFT:
                if old is None:
                    continue  # there is nothing to shift
                new = old + target.number
        moves.append(Move(place, old, min(max(new, low), high), not low <= new <= high))
    return moves


def carry_out(cluster: Cluster, group: Group, moves: Sequence[Move]) -> None:
    """The group must have no members: they would write over it."""
    refuse_if_active(group)
    offsets = {move.place: move.new for move in moves}
    if group.kind != SHARE:
        cluster.commit_offsets(group.name, offsets)
        return
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append({"partition_index": partition, "start_offset": offset})
    answer = cluster.call_coordinator(
        group.name,
        CoordinatorKind.GROUP,
        "alter_share_group_offsets",
        group_id=group.name,
        topics=[{"topic_name": topic, "partitions": rows} for topic, rows in topics.items()],
    )
    for row in (answer, *(row for topic in answer.responses for row in topic.partitions)):
        _check(group.name, row.error_code, getattr(row, "error_message", None))


def delete_group(cluster: Cluster, group: Group) -> None:
    refuse_if_active(group)
    answer = cluster.call_coordinator(group.name, CoordinatorKind.GROUP, "delete_groups", groups_names=[group.name])
    for row in answer.results:
        _check(group.name, row.error_code, None)


def refuse_if_active(group: Group) -> None:
    if group.members:
        count = len(group.members)
        raise UserError(
            f"group {group.name!r} has {count} member{'' if count == 1 else 's'}: stop them first, or wait until their"
            " session has timed out"
        )


def _check(group: str, number: int, message: str | None) -> None:
    if number:
        code = error_code(number)
        if code in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
            raise UserError(f"group {group!r} has members: stop them first ({code.name})")
        raise refusal(f"group {group!r}", code, message)


_HINTS = {
    Where.TIME: "2026-01-31T12:00, of the gateway's clock, or with Z or +02:00",
    Where.OFFSET: "an offset, for every partition chosen",
    Where.SHIFT: "records; negative goes back",
}


def open_reset_dialog(frame: Frame, group: Group) -> None:
    topics = sorted({place.topic for place in group.offsets})
    moves: list[Move] = []
    asked = 0  # a preview that something was changed after is not shown
    with ui.dialog() as dialog, ui.card().classes("ms-dialog").style("width: 760px").props("data-testid=reset"):
        ui.label(f"Move offsets of {group.name}").classes("ms-dialog-title")
        if group.members:
            ui.label(
                f"{plural(len(group.members), 'member')} read here: offsets can be looked at, and moved once they have "
                "stopped."
            ).classes("ms-badge ms-warn")
        with ui.element("div").classes("ms-form"):
            chosen = ui.select(topics, value=topics, multiple=True, label="Topics").props(
                "dense outlined use-chips options-dense"
            )
            where = ui.select({each: each.value for each in Where}, value=Where.EARLIEST, label="Where").props(
                "dense outlined options-dense data-testid=where"
            )
            text = ui.input(label="Value").props("dense outlined data-testid=value")
            show = ui.button("Preview").props("outline no-caps data-testid=preview")
            send_form(show, lambda typed: preview(typed))
        hint = ui.label("").classes("ms-muted")
        table = DataTable(
            [
                Column("place", "Partition", cell="mono"),
                Column("old", "From", count, right=True),
                Column("new", "To", count, right=True),
                Column("change", "Change", lambda number: f"{number:+,}", right=True),
                Column("note", "", cell="badge"),
            ],
            key="place",
            empty="Nothing is changed before you have seen what would be",
            filtered=False,
            page_size=25,
            test_id="moves",
        )
        complaint = Complaint()
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
        complaint.say("")
        table.update([])
        do.set_text("Move offsets")
        do.disable()

    async def preview(typed: Typed) -> None:
        forget()
        mine = asked
        places: list[TopicPartition] = [place for place in group.offsets if place.topic in (chosen.value or [])]
        try:
            target = target_of(where.value, typed.text(text))
            planned = await frame.run(plan, frame.console.cluster, group.offsets, places, target)
        except (UserError, WireError) as error:
            if mine == asked:
                complaint.say(str(error))
            return
        if mine != asked:
            return
        moves.extend(planned)
        table.update(
            [
                {
                    "place": str(move.place),
                    "old": move.old,
                    "new": move.new,
                    "change": None if move.old is None else move.new - move.old,
                    "note": "brought to the nearest end" if move.clamped else "",
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
            await frame.run(carry_out, frame.console.cluster, group, doing)
        except (UserError, WireError) as error:
            complaint.say(f"Offsets not moved: {error}")
            return
        finally:
            do.props(remove="loading")
        frame.say(f"{plural(len(doing), 'offset')} of {group.name} moved")
        frame.changed()
        dialog.close()

    where.on_value_change(chose)
    text.on_value_change(forget)
    chosen.on_value_change(forget)
    dialog.on("hide", dialog.delete)
    chose()
    dialog.open()
