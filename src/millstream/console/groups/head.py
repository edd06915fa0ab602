"""What the pages of a consumer group and of a queue have in common: its name, what can be done to it, its members."""

from dataclasses import dataclass

from nicegui import ui

from millstream.console.charts import Points
from millstream.console.frame import Frame, go
from millstream.console.groups.offset_moves import delete_group
from millstream.console.groups.reset_dialog import open_reset_dialog
from millstream.console.live.snapshot import Group, Snapshot
from millstream.console.parts import heading

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
