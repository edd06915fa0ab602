"""Groups: who reads what, how far behind and since when; offsets moved after a preview; groups deleted."""

from nicegui import ui

from millstream.console.charts import TimeChart
from millstream.console.formats import count, short_count
from millstream.console.frame import Frame, console_page, href
from millstream.console.groups.head import GROUP, GroupHead, member_rows, state_tone, topics_read
from millstream.console.live.group_reading import SHARE
from millstream.console.live.snapshot import Group, Snapshot
from millstream.console.parts import Stat, card, grid, heading
from millstream.console.tables import Column, DataTable


@console_page("/groups")
def groups(frame: Frame) -> None:
    name = frame.parameters.get("group")
    if name is None:
        _list(frame)
    else:
        GroupView(frame, name).build()


def _list(frame: Frame) -> None:
    with heading("Groups", "Consumer groups of both protocols; share groups are on the page of queues"):
        pass
    with card(""):
        table = DataTable(
            [
                Column("group", "Group", cell="link", searched=True),
                Column("state", "State", cell="badge", searched=True),
                Column("kind", "Protocol"),
                Column("members", "Members", count, right=True),
                Column("topics", "Topics", searched=True),
                Column("lag", "Behind", short_count, right=True),
                Column("coordinator", "Coordinator", right=True),
            ],
            key="group",
            empty="No consumer group has read from this cluster yet",
            test_id="groups",
        )

    def show(snapshot: Snapshot) -> None:
        table.update([_row(group) for group in snapshot.groups.values() if group.kind != SHARE])

    frame.live(show)


def _row(group: Group) -> dict[str, object]:
    return {
        "group": group.name,
        "state": group.state,
        "_tones": {"state": state_tone(group.state)},
        "kind": group.kind,
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
            self._lag = Stat("records behind", test_id="lag")
            self._members = Stat("members", test_id="member-count")
            self._kind = Stat("protocol")
            self._assignor = Stat("assignor")
            self._coordinator = Stat("coordinating broker")
        with card("Lag", note="records behind, while the console is open"):
            self._chart = TimeChart(["behind"], test_id="chart-lag", height=210)
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
                    empty="No members: nobody reads for this group now",
                    filtered=False,
                    test_id="members",
                )
            with card("Offsets"):
                self._offset_table = DataTable(
                    [
                        Column("place", "Partition", cell="mono", searched=True),
                        Column("offset", "Committed", count, right=True),
                        Column("end", "Log end", count, right=True),
                        Column("lag", "Behind", count, right=True),
                        Column("client", "Read by", searched=True),
                    ],
                    key="place",
                    empty="No offsets are committed",
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
        self._kind.show(group.kind)
        self._assignor.show(group.assignor or "–")
        self._coordinator.show(str(group.coordinator))
        self._chart.update({"behind": self._head.lags(snapshot)})
        self._member_table.update(member_rows(group))
        readers = {place: member.client for member in group.members for place in member.partitions}
        self._offset_table.update(
            [
                {
                    "place": str(place),
                    "offset": offset,
                    "end": snapshot.ends.get(place),
                    "lag": group.lags.get(place),
                    "client": readers.get(place, ""),
                }
                for place, offset in sorted(group.offsets.items())
            ]
        )
