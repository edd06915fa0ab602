"""The Reassignments page: replicas that are being moved, with progress, throttle and cancellation; and plans that are
carried out after a preview: balance the cluster, drain a broker, place chosen partitions.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nicegui import ui

from millstream.admin.cluster import Reassignment
from millstream.admin.moves import read_throttle
from millstream.console.console import UserError
from millstream.console.formats import count, plural, size
from millstream.console.frame import Frame, console_page
from millstream.console.live.moves import (
    BALANCE,
    DRAIN,
    PLACE,
    MoveRun,
    Preview,
    Wish,
    broker_rows,
    cancel_moves,
    change_throttle,
    last_run,
    move_rows,
    parse_partitions,
    parse_rate,
    preview_plan,
    start_run,
    stop_run,
)
from millstream.console.live.snapshot import Snapshot, bytes_left, progress_of
from millstream.console.tables import Column, DataTable
from millstream.console.visitor import Action
from millstream.console.widgets import FieldErrors, FormValues, LiveSelect, card, dialog, heading, send_form
from millstream.raw_client import WireError

_PLANS = {BALANCE: "balance the cluster", DRAIN: "drain a broker", PLACE: "place partitions of a topic"}
_HELP = {
    BALANCE: "Spreads replicas, data and leaders over the live brokers and racks, with as few moves as possible. "
    "Use it after a broker was added or lost.",
    DRAIN: "Moves all replicas off a broker, so that it can be stopped for good. The broker is cordoned first: it "
    "gets no new replicas until you allow them again on its page. When it has none left, stop its process and "
    "unregister it on its page.",
    PLACE: "Replicas that are on a chosen broker stay. Leave the brokers empty to keep all replicas, and the number "
    "of replicas empty to keep it.",
}
_THROTTLE_EVERY_SECONDS = 5.0
_MOST_REPLICAS = 100


def reassignment_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    return [_row(snapshot, each) for each in snapshot.reassignments]


def _row(snapshot: Snapshot, move: Reassignment) -> dict[str, Any]:
    percent = progress_of(snapshot, move)
    return {
        "partition": str(move.partition),
        "adding": ", ".join(map(str, move.adding)) or "–",
        "removing": ", ".join(map(str, move.removing)) or "–",
        "progress": f"{percent:.0f} %",
        "left": bytes_left(snapshot, move),
        "_bars": {"progress": percent},
    }


REASSIGNMENT_COLUMNS = (
    Column("partition", "Partition", cell="mono", searched=True),
    Column("adding", "To", width=90),
    Column("removing", "From", width=90),
    Column("progress", "Copied", cell="bar"),
    Column("left", "Left", size, right=True, width=90),
)


@console_page("/reassignments", title="Reassignments", within="/cluster")
def reassignments(frame: Frame) -> None:
    with ui.link(target="/cluster").classes("ms-back"):
        ui.icon("arrow_back")
        ui.label("Cluster")
    with heading("Reassignments", "Replicas that are moved between brokers"):
        pass
    _Moves(frame)
    if frame.may(Action.MOVE_REPLICAS):
        _PlanForm(frame)


class _Moves:
    """What is being moved."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._rates: dict[int, int] = {}
        may = frame.may(Action.MOVE_REPLICAS)
        with card("In progress"):
            with ui.element("div").classes("ms-status") as self._run:
                self._status = ui.label("").props("role=status data-testid=run-status")
                self._stop = ui.button("Stop", icon="stop", on_click=self._stop_run).props(
                    "outline dense no-caps padding='2px 10px' data-testid=run-stop"
                )
            with ui.element("div").classes("ms-status"):
                self._throttle_text = ui.label("").classes("ms-muted").props("data-testid=throttle")
                button = ui.button("Throttle…", icon="speed", on_click=self._open_throttle)
                self._throttle = frame.offer(Action.MOVE_REPLICAS, button).props(
                    "outline dense no-caps padding='2px 10px' data-testid=open-throttle"
                )
            self._table = DataTable(
                REASSIGNMENT_COLUMNS,
                key="partition",
                empty="No reassignments",
                test_id="reassignments",
                on_select=self._select if may else None,
            )
            with self._table.head:
                self._cancel = ui.button("", icon="undo", on_click=self._cancel_selected).props(
                    "outline dense color=negative no-caps data-testid=cancel-selected"
                )
            self._cancel.set_visibility(False)
        frame.live(self._show)
        ui.timer(_THROTTLE_EVERY_SECONDS, self._read_throttle, immediate=True)

    def _show(self, snapshot: Snapshot) -> None:
        self._table.update(reassignment_rows(snapshot))
        run = last_run(snapshot.cluster_id)
        self._status.set_text("" if run is None else run.text(with_names=self._frame.may(Action.MOVE_REPLICAS)))
        self._run.set_visibility(run is not None)
        is_running = run is not None and not run.is_done and not run.stopping.is_set()
        self._stop.set_visibility(is_running and self._frame.may(Action.MOVE_REPLICAS))

    async def _read_throttle(self) -> None:
        up = [each.id for each in self._frame.snapshot.brokers if each.is_up]
        if not up:
            return
        try:
            self._rates = await self._frame.run(read_throttle, self._frame.console.cluster, up)
        except (WireError, UserError):
            self._throttle_text.set_text("The throttle is not known.")
            return
        rates = sorted(set(self._rates.values()))
        shown = f"{size(rates[0])}/s" + (f" to {size(rates[-1])}/s" if len(rates) > 1 else "") if rates else "none"
        left = ". Nothing is moved: remove it." if rates and not self._frame.snapshot.reassignments else ""
        self._throttle_text.set_text(f"Throttle on each broker: {shown}{left}")

    async def _stop_run(self) -> None:
        run = last_run(self._frame.snapshot.cluster_id)
        if run is None:
            return
        with self._frame.reporting("The plan was not stopped"):
            await self._frame.act(Action.MOVE_REPLICAS, stop_run, f"stop: {run.preview.wish.words}", run)
            self._show(self._frame.snapshot)

    def _select(self, names: Sequence[str]) -> None:
        self._cancel.set_text(f"Cancel {plural(len(names), 'move')}…")
        self._cancel.set_visibility(bool(names))

    async def _cancel_selected(self) -> None:
        chosen = [each for each in self._frame.snapshot.reassignments if str(each.partition) in self._table.selected]
        lines = [f"{each.partition}: stays on {_before(each)}" for each in chosen]
        if not chosen or not await self._frame.confirm(
            f"Cancel {plural(len(chosen), 'move')}?",
            lines,
            action="Cancel the moves",
            more="The new replicas are removed, with what they have copied. No record is lost.",
        ):
            return
        with self._frame.reporting("The moves were not cancelled"):
            partitions = [each.partition for each in chosen]
            refused = await self._frame.act(
                Action.MOVE_REPLICAS,
                cancel_moves,
                f"cancel: {', '.join(map(str, partitions))}",
                self._frame.console.cluster,
                partitions,
            )
            if refused:
                partition, why = next(iter(refused.items()))
                raise UserError(f"{plural(len(refused), 'move')} refused, for example {partition}: {why}")
            self._frame.notify(f"{plural(len(chosen), 'move')} cancelled.")
        self._table.unselect()
        self._select([])
        self._frame.poll_now()

    def _open_throttle(self) -> None:
        with dialog("Throttle of moves", test_id="throttle-dialog") as box:
            rate = ui.input("Bytes per second on each broker, such as 50 MB").props(
                "outlined dense autofocus data-testid=rate"
            )
            ui.label(
                "For the moves under way. A plan that is carried out here removes the throttle at its end; otherwise "
                "remove it when the moves are done. Replication that is no move is not limited."
            ).classes("ms-help")
            errors = FieldErrors()

            async def change(text: str, *, is_removal: bool) -> None:
                run = last_run(self._frame.snapshot.cluster_id)
                try:
                    wanted = 0 if is_removal else parse_rate(text)
                    if wanted is None:
                        raise UserError("throttle: enter a number of bytes, such as 50 MB")
                    cluster = self._frame.console.cluster
                    await self._frame.act(Action.MOVE_REPLICAS, change_throttle, wanted, cluster, run)
                except (WireError, UserError) as error:
                    errors.show(str(error))
                    return
                box.close()
                self._frame.notify("The throttle was removed." if is_removal else "The throttle was set.")
                await self._read_throttle()

            with ui.element("div").classes("ms-actions"):
                ui.button("Remove throttle", on_click=lambda: change("", is_removal=True)).props(
                    "flat no-caps data-testid=remove-throttle"
                )
                ui.button("Cancel", on_click=box.close).props("flat no-caps")
                send_form(
                    ui.button("Set").props("unelevated no-caps data-testid=set-throttle"),
                    lambda typed: change(typed.text(rate), is_removal=False),
                )
        box.open()


def _before(move: Reassignment) -> str:
    return ", ".join(str(each) for each in move.replicas if each not in move.adding)


class _PlanForm:
    """Nothing is moved before the preview was confirmed, and then what the preview shows."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._preview: Preview | None = None
        self._throttle: int | None = None
        self._request_number = 0
        url = frame.url
        with card("Plan", note="shown first, then carried out"):
            with ui.element("div").classes("ms-form"):
                self._kind = (
                    ui.select(_PLANS, value=url.choice("plan", _PLANS, BALANCE), label="Plan")
                    .props("outlined dense options-dense data-testid=plan")
                    .classes("ms-field-wide")
                )
                self._broker = self._select("Broker", url.text("broker"), "plan-broker")
                self._topic = self._select("Topic", url.text("topic"), "plan-topic").classes("ms-field-wide")
                self._partitions = self._text(
                    "Partitions, such as 0,2,5-7", url.text("partitions", "all"), "partitions"
                )
                self._targets = self._text("Brokers, such as 1,2,3", url.text("brokers"), "targets")
                self._replicas = self._text("Number of replicas", url.text("replicas"), "replicas")
                self._rate = self._text("Throttle, such as 50 MB (per second)", "", "plan-rate")
                self._ask = ui.button("Preview").props("outline no-caps data-testid=plan-preview")
                send_form(self._ask, self._show_preview)
            self._help = ui.label("").classes("ms-help")
            self._errors = FieldErrors()
            self._summary = ui.label("").props("role=status data-testid=plan-summary")
            with ui.element("div").classes("ms-stack") as self._tables:
                self._brokers = DataTable(
                    [
                        Column("id", "Broker", width=90),
                        Column("replicas", "Replicas"),
                        Column("leaders", "Preferred leaders"),
                        Column("bytes", "Data"),
                    ],
                    key="id",
                    empty="",
                    filtered=False,
                    test_id="planned-brokers",
                )
                self._moves = DataTable(
                    [
                        Column("partition", "Partition", cell="mono", searched=True),
                        Column("from", "Replicas now", width=150),
                        Column("to", "After", width=150),
                        Column("bytes", "To copy", size, right=True, width=100),
                        Column("note", "", cell="badge", width=130),
                    ],
                    key="partition",
                    empty="Nothing to move",
                    page_size=25,
                    test_id="planned",
                )
            with ui.element("div").classes("ms-actions"):
                self._start = ui.button("Move", on_click=self._carry_out).props(
                    "unelevated no-caps data-testid=plan-start"
                )
        for field, name in (
            (self._kind, "plan"),
            (self._broker, "broker"),
            (self._topic, "topic"),
            (self._partitions, "partitions"),
            (self._targets, "brokers"),
            (self._replicas, "replicas"),
        ):
            url.remember(field, name)
            field.on_value_change(self._changed)
        self._rate.on_value_change(self._forget)
        frame.live(self._offer)
        self._changed()

    @staticmethod
    def _select(label: str, value: str, test_id: str) -> LiveSelect:
        options = [value] if value else []
        field = LiveSelect(options, value=value or None, label=label, with_input=True)
        field.props(f"outlined dense options-dense data-testid={test_id}").classes("ms-field")
        return field

    @staticmethod
    def _text(label: str, value: str, test_id: str) -> ui.input:
        return ui.input(label, value=value).props(f"outlined dense data-testid={test_id}").classes("ms-field-wide")

    def _offer(self, snapshot: Snapshot) -> None:
        """The choices of the cluster. What is chosen stays."""
        for field, found in (
            (self._broker, [str(each.id) for each in snapshot.brokers]),
            (self._topic, sorted(snapshot.topics)),
        ):
            options = found if field.value is None or field.value in found else [field.value, *found]
            if options != field.options:
                field.set_options(options, value=field.value)

    def _changed(self) -> None:
        kind = str(self._kind.value)
        self._broker.set_visibility(kind == DRAIN)
        for field in (self._topic, self._partitions, self._targets, self._replicas):
            field.set_visibility(kind == PLACE)
        self._help.set_text(_HELP[kind])
        self._forget()

    def _forget(self) -> None:
        self._request_number += 1
        self._preview = None
        self._errors.show("")
        self._summary.set_text("")
        self._tables.set_visibility(False)
        self._start.set_visibility(False)

    def _wish(self, typed: FormValues) -> Wish:
        kind = str(self._kind.value)
        if kind == BALANCE:
            return Wish(kind)
        if kind == DRAIN:
            broker = str(self._broker.value or "")
            if not broker.isdigit():
                raise UserError("broker: choose the broker to drain")
            return Wish(kind, broker=int(broker))
        topic = self._frame.snapshot.topics.get(str(self._topic.value or ""))
        if topic is None:
            raise UserError("topic: choose a topic")
        partitions = parse_partitions(typed.text(self._partitions), topic.name, len(topic.partitions))
        targets = typed.text(self._targets).replace(" ", "")
        if targets and not re.fullmatch(r"\d{1,9}(,\d{1,9})*", targets):
            raise UserError("brokers: enter their ids, such as 1,2,3")
        text = typed.text(self._replicas).strip()
        replicas = typed.number(self._replicas)
        if text and (replicas is None or not 1 <= replicas <= _MOST_REPLICAS):
            raise UserError(f"number of replicas: enter a number from 1 to {_MOST_REPLICAS}")
        if not targets and replicas is None:
            raise UserError("enter the brokers, the number of replicas, or both")
        ids = tuple(dict.fromkeys(map(int, targets.split(",")))) if targets else None
        return Wish(kind, None, partitions, ids, replicas if text else None)

    async def _show_preview(self, typed: FormValues) -> None:
        self._forget()
        request_number = self._request_number
        self._ask.props("loading")
        try:
            wish, rate = self._wish(typed), parse_rate(typed.text(self._rate))
            found = await self._frame.run(preview_plan, self._frame.console.cluster, wish)
        except (UserError, WireError) as error:
            if request_number == self._request_number:
                self._errors.show(str(error))
            return
        finally:
            self._ask.props(remove="loading")
        if request_number != self._request_number:
            return
        self._preview, self._throttle = found, rate
        if not found.plan:
            is_drained = wish.kind == DRAIN
            self._summary.set_text("The broker has no replicas." if is_drained else "Nothing to move.")
            self._start.set_visibility(False)
            return
        self._summary.set_text(self._sum(found, rate))
        self._moves.update(move_rows(found.plan))
        self._brokers.update(broker_rows(found))
        self._tables.set_visibility(True)
        self._start.set_text(f"Move {plural(len(found.plan), 'partition')}")
        self._start.set_visibility(True)

    @staticmethod
    def _sum(preview: Preview, rate: int | None) -> str:
        replicas = sum(len(each.adding) for each in preview.plan)
        moved = f"{plural(len(preview.plan), 'partition')}, {plural(replicas, 'new replica')}"
        text = f"{moved}, {size(preview.bytes)} to copy"
        if rate is None:
            return f"{text}."
        received: Counter[int] = Counter()
        for each in preview.plan:
            for broker in each.adding:
                received[broker] += each.moved_bytes // len(each.adding)
        seconds = max(received.values(), default=0) / rate
        return f"{text}; with {size(rate)}/s on each broker, at least {count(seconds)} s."

    async def _carry_out(self) -> None:
        preview = self._preview
        if preview is None or not preview.plan:
            return
        visitor, loop = self._frame.visitor, asyncio.get_running_loop()

        def ended() -> None:
            with suppress(RuntimeError):  # the gateway has ended
                loop.call_soon_threadsafe(visitor.release)

        run = MoveRun(self._frame.console.cluster, preview, self._throttle, visitor.name, ended)
        self._start.props("loading")
        visitor.hold()  # the connection stays open until the plan is carried out
        try:
            await self._frame.act(Action.MOVE_REPLICAS, start_run, preview.wish.words, run)
        except (UserError, WireError) as error:
            visitor.release()
            self._errors.show(str(error))
            return
        finally:
            self._start.props(remove="loading")
        self._forget()
        self._frame.poll_now()
        self._frame.notify("The moves were started.")
