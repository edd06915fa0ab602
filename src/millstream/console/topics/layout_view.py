"""Where the partitions of a topic are: a row for each, a column for each broker, leaders and replicas in colours."""

from nicegui import ui

from millstream.console.formats import count
from millstream.console.live.snapshot import Snapshot
from millstream.console.tables import Column, DataTable
from millstream.console.topics.rows import brokers_of, layout_rows

# A cell is "word|size"; both are data, never part of the template.
_REPLICA_CELL = """
<q-td :props="props"><span class="ms-replica"
:class="'ms-replica-' + (props.row._tones?.[props.col.name] ?? 'none')">
<span>{{ String(props.value).split('|')[0] }}</span>
<span class="ms-replica-size">{{ String(props.value).split('|')[1] ?? '' }}</span></span></q-td>
"""


class LayoutView:
    """Made anew when a broker comes or goes, since brokers are its columns."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._brokers: list[int] | None = None
        with ui.element("header").classes("ms-card-head"):
            ui.label("Layout").classes("ms-card-title")
            ui.label("who holds which partition, and who leads it").classes("ms-muted")
            with ui.element("div").classes("ms-legend"):
                for role, word in (("leader", "leader"), ("insync", "in sync"), ("behind", "behind or down")):
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
        table = DataTable(
            [
                Column("partition", "Partition"),
                *(Column(f"b{broker}", f"Broker {broker}") for broker in brokers),
                Column("end", "End offset", count, right=True),
                Column("epoch", "Leader epoch", count, right=True),
            ],
            key="partition",
            empty="No partitions",
            filtered=partitions > 25,
            page_size=100,
            test_id="layout",
        )
        for broker in brokers:
            table.table.add_slot(f"body-cell-b{broker}", _REPLICA_CELL)
        return table
