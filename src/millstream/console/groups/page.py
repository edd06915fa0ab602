"""Groups: who reads what, how far behind and since when; offsets moved after a preview; groups deleted.

What the pages of a consumer group and of a queue have in common: its name, what can be done to it, its members.
"""

from dataclasses import dataclass

from nicegui import ui

from millstream.console.formats import count, short_count
from millstream.console.frame import Frame, console_page, go, href
from millstream.console.groups.offsets import delete_group, open_reset_dialog
from millstream.console.live.reading import SHARE
from millstream.console.live.snapshot import Group, Snapshot
from millstream.console.tables import Column, DataTable
from millstream.console.widgets import Points, Stat, TimeChart, card, grid, heading

_STATE_TONES = {"Stable": "good", "Empty": "dim", "Dead": "bad"}
_WINDOW_S = 900.0


def state_tone(state: str) -> str:
    return _STATE_TONES.get(state, "warn")


@dataclass(frozen=True, slots=True)
class Wording:
    noun: str
    page: str
    offset: str
    """What is deleted of each partition."""


GROUP = Wording("group", "/groups", "its offset in")
QUEUE = Wording("queue", "/queues", "what it knows of")


class GroupHead:
    def __init__(self, frame: Frame, name: str, wording: Wording) -> None:
        self._frame = frame
        self._name = name
        self._wording = wording
        with heading(name):
            ui.link(f"All {wording.noun}s", wording.page).classes("ms-back")
            self._buttons = [
                ui.button("Move offsets…", icon="history", on_click=self._open_reset).props(
                    "outline no-caps dense padding='4px 12px' data-testid=open-reset"
                ),
                ui.button("Delete…", icon="delete", on_click=self._ask_delete).props(
                    "outline color=negative no-caps dense padding='4px 12px' data-testid=delete"
                ),
            ]
        self._gone = ui.label("").classes("ms-badge ms-warn").props("data-testid=gone")

    def find(self, snapshot: Snapshot) -> Group | None:
        """The group, if it is there; where it is not, the page says so."""
        group = snapshot.groups.get(self._name)
        gone = group is None and snapshot.groups_known
        self._gone.set_visibility(gone)
        self._gone.set_text(f"There is no such {self._wording.noun} now; it may have been deleted." if gone else "")
        for button in self._buttons:
            button.set_enabled(group is not None)
        return group

    def lags(self, snapshot: Snapshot) -> Points:
        """For a chart."""
        series = self._frame.console.watcher.history.lags.get(self._name)
        return series.points(snapshot.at - _WINDOW_S) if series is not None else ()

    def _open_reset(self) -> None:
        group = self._frame.snapshot.groups.get(self._name)
        if group is not None:
            open_reset_dialog(self._frame, group)

    async def _ask_delete(self) -> None:
        group = self._frame.snapshot.groups.get(self._name)
        if group is None:
            return
        noun = self._wording.noun
        with self._frame.reporting(f"{noun.capitalize()} not deleted"):
            names = [f"{noun} {group.name}", *(f"{self._wording.offset} {place}" for place in sorted(group.offsets))]
            if await self._frame.confirm(f"Delete {noun} {group.name}?", names, action=f"Delete {noun}"):
                await self._frame.run(delete_group, self._frame.console.cluster, group)
                self._frame.changed()
                go(self._wording.page)


def member_rows(group: Group) -> list[dict[str, object]]:
    return [
        {
            "id": member.id,
            "client": member.client + (f" ({member.instance})" if member.instance else ""),
            "host": member.host,
            "partitions": ", ".join(map(str, sorted(member.partitions))) or "none",
        }
        for member in group.members
    ]


def topics_read(group: Group) -> str:
    return ", ".join(sorted({place.topic for place in group.offsets}))


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
