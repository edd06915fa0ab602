"""Topics: all of them in a table, and with ?topic=NAME one of them."""

from nicegui import ui

from millstream.console.formats import count, rate, size
from millstream.console.frame import Frame, console_page, go
from millstream.console.live.snapshot import Snapshot
from millstream.console.parts import card, heading
from millstream.console.tables import Column, DataTable
from millstream.console.topics.creating import open_creation
from millstream.console.topics.detail import TopicDetail
from millstream.console.topics.rows import topic_rows


@console_page("/topics")
def topics(frame: Frame) -> None:
    topic = frame.parameters.get("topic", "")
    if topic:
        TopicDetail(frame, topic)
    else:
        _list(frame)


def _list(frame: Frame) -> None:
    with heading("Topics"):
        internal = ui.checkbox("internal ones").props("dense data-testid=internal")
        ui.button(
            "Create topic", icon="add", on_click=lambda: open_creation(frame, lambda name: go("/topics", topic=name))
        ).props("unelevated no-caps data-testid=open-create")
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
            empty="No topics yet. Create one, or let a producer do it.",
            test_id="topics",
        )

    def show(snapshot: Snapshot) -> None:
        table.update(topic_rows(snapshot, internal=bool(internal.value)))

    internal.on_value_change(lambda: show(frame.snapshot))
    frame.live(show)
