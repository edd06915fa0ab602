"""The Queues page: share groups with pending, in-flight and archived records, and the redrive of dead letters."""

from nicegui import ui

from millstream.access.masking import HIDDEN
from millstream.admin.groups import SHARE, Group
from millstream.console.console import href
from millstream.console.formats import count, plural, short_count
from millstream.console.frame import Frame, console_page
from millstream.console.groups.page import QUEUE, BulkActions, GroupHead, member_rows, state_tone, topics_read
from millstream.console.live.snapshot import Snapshot
from millstream.console.queues.dead_letters import DeadLetters, pending_dead_letters, redrive, redrive_group
from millstream.console.queues.delivery import DEAD_LETTER_TOPIC, Delivery, read_delivery, read_settings
from millstream.console.tables import Column, DataTable
from millstream.console.visitor import Action
from millstream.console.widgets import Stat, TimeChart, card, grid, heading
from millstream.raw_client import TopicPartition

_LOOK_EVERY_SECONDS = 2.0


@console_page("/queues")
def queues(frame: Frame) -> None:
    name = frame.parameters.get("group")
    if name is None:
        _list(frame)
    else:
        QueueView(frame, name).build()


def _list(frame: Frame) -> None:
    with heading("Queues", "Share groups: each record is delivered to one of the members"):
        pass
    bulk = BulkActions(frame, QUEUE)
    with card(""):
        table = DataTable(
            [
                Column("group", "Queue", cell="link", searched=True),
                Column("state", "State", cell="badge"),
                Column("members", "Members", count, right=True),
                Column("topics", "Topics", searched=True),
                Column("lag", "Pending", short_count, right=True),
                Column("held", "In flight", count, right=True),
            ],
            key="group",
            empty="No share groups. A share consumer (KIP-932) makes one; `millstream share` changes its settings.",
            test_id="queues",
            name="",
            on_select=bulk.on_select,
        )
    bulk.attach(table)

    def show(snapshot: Snapshot) -> None:
        table.update(
            [
                {
                    "group": group.name,
                    "state": group.state,
                    "_tones": {"state": state_tone(group.state)},
                    "members": len(group.members),
                    "topics": topics_read(group),
                    "lag": group.lag,
                    "held": _in_flight(snapshot, group),
                    "_href": href("/queues", group=group.name),
                }
                for group in snapshot.groups.values()
                if group.type == SHARE
            ]
        )

    frame.live(show)


def _in_flight(snapshot: Snapshot, group: Group) -> int | None:
    """None if the brokers do not report it."""
    if not snapshot.metrics:
        return None
    return sum(snapshot.acquired.get(group.name, {}).values())


class QueueView:
    """One share group."""

    def __init__(self, frame: Frame, name: str) -> None:
        self._frame = frame
        self._name = name
        self._delivery: dict[TopicPartition, Delivery] = {}
        self._letter_topic = ""
        self._busy = False

    def build(self) -> None:
        self._head = GroupHead(self._frame, self._name, QUEUE)
        with card(""), ui.element("div").classes("ms-stats"):
            self._state = Stat("state", test_id="state")
            self._waiting = Stat("pending", test_id="waiting")
            self._held = Stat("in flight", test_id="in-flight")
            self._again = Stat("waiting for redelivery", test_id="redelivered")
            self._given_up = Stat("archived", test_id="given-up")
            self._letters = Stat("dead letters", test_id="dead-letters")
            self._members = Stat("members", test_id="member-count")
        with grid("two"):
            with card("Pending", note="records, since the console was opened"):
                self._chart = TimeChart(["pending"], test_id="chart-waiting")
            with card("Members"):
                self._member_table = DataTable(
                    [
                        Column("client", "Client"),
                        Column("host", "Host"),
                        Column("partitions", "Partitions", cell="mono"),
                    ],
                    key="id",
                    empty="No active consumers; pending records are not processed.",
                    filtered=False,
                    test_id="members",
                )
        with card("Partitions"):
            self._partition_table = DataTable(
                [
                    Column("topic_partition", "Partition", cell="mono", searched=True),
                    Column("start", "Start offset", count, right=True),
                    Column("end", "Log end", count, right=True),
                    Column("lag", "Pending", count, right=True),
                    Column("held", "In flight", count, right=True),
                    Column("again", "For redelivery", count, right=True),
                    Column("tries", "Max. deliveries", count, right=True),
                    Column("done", "Done out of order", count, right=True),
                    Column("given_up", "Archived", count, right=True),
                ],
                key="topic_partition",
                empty="No partitions: the group has not read any records",
                filtered=False,
                test_id="partitions",
            )
        with grid("two"):
            with card("Dead letters"):
                self._letter_note = ui.label("").classes("ms-muted").props("data-testid=letter-note")
                self._redrive = ui.button("Show dead letters…", icon="undo", on_click=self._open_letters).props(
                    "outline no-caps dense padding='4px 12px' data-testid=open-letters"
                )
                self._redrive.set_visibility(False)
            with card("Settings"):
                self._setting_table = DataTable(
                    [Column("name", "Setting", cell="mono", searched=True), Column("value", "Value", cell="mono")],
                    key="name",
                    empty="Loading…",
                    filtered=False,
                    test_id="settings",
                )
                self._setting_table.table.classes("ms-wrapped")
        self._frame.live(self._show)
        ui.timer(_LOOK_EVERY_SECONDS, self._look, immediate=True)

    async def _look(self) -> None:
        """Reads the delivery state, only for the group on this page."""
        snapshot = self._frame.snapshot
        group = snapshot.groups.get(self._name)
        if group is None or self._busy:
            return
        self._busy = True
        try:
            with self._frame.reporting("The delivery state cannot be read"):
                cluster = self._frame.console.cluster
                self._delivery = await self._frame.run(read_delivery, cluster, self._name, group.offsets)
                settings = await self._frame.run(read_settings, cluster, self._name)
                self._setting_table.update([{"name": key, "value": value} for key, value in settings.items()])
                self._letter_topic = settings.get(DEAD_LETTER_TOPIC, "")
                self._show(self._frame.snapshot)
        finally:
            self._busy = False

    def _show(self, snapshot: Snapshot) -> None:
        group = self._head.find(snapshot)
        if group is None:
            return
        held = _in_flight(snapshot, group)
        self._state.show(group.state, "dim" if state_tone(group.state) == "dim" else "")
        self._waiting.show(short_count(group.lag))
        self._held.show("–" if held is None else count(held))
        again = sum(each.redelivered for each in self._delivery.values())
        self._again.show(count(again), "warn" if again else "")
        self._given_up.show(count(sum(each.given_up for each in self._delivery.values())))
        self._members.show(count(len(group.members)))
        self._chart.update({"pending": self._head.lags(snapshot)})
        self._member_table.update(member_rows(group))
        self._partition_table.update(
            [self._row(snapshot, group, topic_partition) for topic_partition in sorted(group.offsets)]
        )
        self._show_letters(snapshot)

    def _row(self, snapshot: Snapshot, group: Group, topic_partition: TopicPartition) -> dict[str, object]:
        delivery = self._delivery.get(topic_partition)
        return {
            "topic_partition": str(topic_partition),
            "start": group.offsets[topic_partition],
            "end": snapshot.ends.get(topic_partition),
            "lag": group.lags.get(topic_partition),
            "held": snapshot.acquired.get(group.name, {}).get(topic_partition, 0) if snapshot.metrics else None,
            "again": delivery.redelivered if delivery else None,
            "tries": delivery.most_deliveries if delivery else None,
            "done": delivery.done if delivery else None,
            "given_up": delivery.given_up if delivery else None,
        }

    def _show_letters(self, snapshot: Snapshot) -> None:
        topic = snapshot.topics.get(self._letter_topic)
        if topic is None:
            self._letters.show("–")
            self._letter_note.set_text(
                f"{self._letter_topic} does not exist yet: there are no dead letters."
                if self._letter_topic
                else f"Rejected records are dropped. Set {DEAD_LETTER_TOPIC} of this group to keep them."
            )
        else:
            sent = snapshot.groups.get(redrive_group(self._name))
            ends = [(each.topic_partition, snapshot.ends.get(each.topic_partition, 0)) for each in topic.partitions]
            left = sum(
                max(0, end - (sent.offsets.get(topic_partition, 0) if sent else 0)) for topic_partition, end in ends
            )
            self._letters.show(count(left), "warn" if left else "")
            self._letter_note.set_text(
                f"{plural(left, 'dead letter')} in {topic.name}, including those of other groups." if left else
                f"No dead letters in {topic.name}."
            )  # fmt: skip
        self._redrive.set_visibility(topic is not None)

    async def _open_letters(self) -> None:
        with self._frame.reporting("The dead letters cannot be read"):
            letters = await self._frame.run(
                pending_dead_letters, self._frame.console.cluster, self._name, self._letter_topic
            )
            _letters_dialog(self._frame, self._name, letters)


def _letters_dialog(frame: Frame, group: str, letters: DeadLetters) -> None:
    with ui.dialog() as dialog, ui.card().classes("ms-dialog").classes("ms-wide-dialog").props("data-testid=letters"):
        ui.label(f"Dead letters of {group}").classes("ms-dialog-title")
        if letters.more:
            ui.label(f"The first {len(letters.letters):,} are shown; there are more.").classes("ms-muted")
        table = DataTable(
            [
                Column("source", "Source", cell="mono", searched=True, width=170),
                Column("reason", "Reason", searched=True, width=250),
                Column("tries", "Deliveries", right=True, width=96),
                Column("key", "Key", cell="mono", searched=True, width=140),
                Column("value", "Value", cell="mono", searched=True),
            ],
            key="source",
            empty=f"No dead letters of {group} in {letters.topic}",
            page_size=25,
            sort_by="rank",
            test_id="letter-rows",
        )
        mask_of = frame.visitor.mask_of  # a topic with masked fields shows none of them here
        table.update(
            [
                {
                    "source": f"{letter.topic}-{letter.partition} @ {letter.offset}",
                    "reason": letter.reason,
                    "tries": letter.deliveries,
                    "key": HIDDEN if hidden else _shown(letter.record.key),
                    "value": HIDDEN if hidden else _shown(letter.record.value),
                }
                for letter in letters.letters
                for hidden in (bool(mask_of(letter.topic) or mask_of(letters.topic)),)
            ]
        )
        targets = sorted({letter.topic for letter in letters.letters})
        ui.label(
            f"They are sent back to {', '.join(targets)}, each to its original partition." if targets else ""
        ).classes("ms-muted")
        with ui.element("div").classes("ms-actions"):
            ui.button("Cancel", on_click=dialog.close).props("flat no-caps")
            send = ui.button(f"Send {plural(len(letters.letters), 'record')} back", on_click=lambda: execute()).props(
                "unelevated color=primary no-caps data-testid=redrive"
            )
            frame.offer(Action.REDRIVE, send).set_enabled(bool(letters.letters))

    async def execute() -> None:
        send.disable()
        with frame.reporting("The dead letters were not sent back"):
            for topic in targets:  # headers of the records name them, and any producer may write headers
                frame.visitor.check_topic(topic)
            number = await frame.act(Action.REDRIVE, redrive, frame.console.cluster, group, letters)
            frame.notify(f"{plural(number, 'record')} sent back")
            frame.poll_now()
        dialog.close()

    dialog.on("hide", dialog.delete)
    dialog.open()


def _shown(data: bytes | None) -> str:
    if data is None:
        return ""
    text = data[:200].decode("utf-8", "replace")
    return text + ("…" if len(data) > 200 else "")
