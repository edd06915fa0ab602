"""The dialog that moves a group's offsets: choose, look at the preview, then do exactly that."""

from nicegui import ui

from millstream.console.browsing import Complaint, Typed, send_form
from millstream.console.errors import UserError
from millstream.console.formats import count, plural
from millstream.console.frame import Frame
from millstream.console.groups.offset_moves import Move, Where, carry_out, plan, target_of
from millstream.console.live.snapshot import Group
from millstream.console.tables import Column, DataTable
from millstream.raw_client import TopicPartition, WireError

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
