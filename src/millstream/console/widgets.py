"""Widgets that several pages share: cards, numbers, dialogs, forms and charts.

A form is sent with the values that its fields show in the browser at that time, because the key events that the gateway
got may be late or lost with a connection. The gateway never writes into a field that a user may be typing in.
"""

import json
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from nicegui import ui

from millstream.console.tables import DataTable

_SEND = "(event) => emit(millstreamTyped(event.target))"


def link_column(table: DataTable, column: str, pick: Callable[[str], Any]) -> None:
    """Makes the cells of a column links that call `pick` with the key of the row."""
    table.set_cell(column, "pick")
    table.table.on("pick", lambda event: pick(str(event.args)))


def wrap_column(table: DataTable, column: str) -> None:
    """Shows a column of long texts in small print, with line breaks. Other cells of its rows get line breaks, too."""
    table.set_cell(column, "soft")
    table.table.classes("ms-wrapped")


@contextmanager
def dialog(title: str, *, wide: bool = False, test_id: str = "") -> Iterator[ui.dialog]:
    """A dialog that is deleted when closed. The block makes its body; call `open` afterwards."""
    with ui.dialog() as box, ui.card().classes("ms-dialog" + (" ms-wide-dialog" if wide else "")) as card:
        if test_id:
            card.props["data-testid"] = test_id
        ui.label(title).classes("ms-dialog-title")
        yield box
    box.on("hide", box.delete)


class FormValues:
    """The values of the text fields when a form was sent."""

    def __init__(self, shown: Any = None) -> None:
        self._shown = shown if isinstance(shown, dict) else {}

    def text(self, field: Any) -> str:
        """The text of a field. For a selection, the selected value."""
        shown = self._shown.get(field.html_id)
        return str(shown) if shown is not None else str(field.value or "")

    def number(self, field: Any) -> int | None:
        """The whole number in a field; None if it is not a number."""
        try:
            return int(self.text(field))
        except ValueError:
            return None


def send_form(button: ui.button, act: Callable[[FormValues], Awaitable[None]]) -> ui.button:
    """A click calls `act` with the values of the fields in the same dialog or card."""
    return button.on("click", lambda event: act(FormValues(event.args)), js_handler=_SEND)


def send_form_on_enter(field: ui.input, act: Callable[[FormValues], Awaitable[None]]) -> ui.input:
    """Enter in the field sends the form."""
    return field.on("keydown.enter", lambda event: act(FormValues(event.args)), js_handler=_SEND)


def number_input(label: str, value: int, least: int, most: int) -> ui.input:
    """A field for a whole number. Unlike `ui.number`, the gateway does not change it while the user types."""
    return ui.input(label, value=str(value)).props(f"type=number min={least} max={most} step=1 outlined dense")


def fill_if_empty(field: ui.input, text: str) -> None:
    """Fills in an empty field. The browser decides, because only it knows the current input."""
    wanted = json.dumps(text).replace("<", "\\u003c")
    ui.run_javascript(
        f"{{ const field = getElement({field.id}); if (!field.inputValue) field.inputValue = {wanted}; }}"
    )


class FieldErrors:
    """Errors of the fields of a dialog, one line per field.

    The error of a field stays until that field is correct or the form is sent again.
    """

    def __init__(self) -> None:
        self._about: dict[str, str] = {}
        self._label = ui.label("").classes("ms-complaint").props("role=alert data-testid=complaint")
        self._update()

    def show(self, text: str, about: str = "") -> None:
        """Sets the error of a field. An empty text removes it."""
        self._about.pop(about, None)
        if text:
            self._about[about] = text
        self._update()

    def show_all(self, texts: Mapping[str, str]) -> None:
        """Sets all errors, by field."""
        self._about = dict(texts)
        self._update()

    def has_error(self, field: str) -> bool:
        return field in self._about

    def _update(self) -> None:
        self._label.set_text("\n".join(self._about.values()))
        self._label.set_visibility(bool(self._about))


class LiveSelect(ui.select):
    """A selection whose options may change while it is open.

    The browser sends the index of an option in its list, which may be older than the list of the gateway. So the option
    is found by its text instead.
    """

    def _event_args_to_value(self, e: Any) -> Any:
        if not isinstance(e.args, dict):
            return super()._event_args_to_value(e)
        shown = e.args.get("label")
        # A removed option cannot be selected; the selection does not change.
        return self._values[self._labels.index(shown)] if shown in self._labels else self.value


@contextmanager
def card(title: str, *, note: str = "", classes: str = "") -> Iterator[ui.element]:
    with ui.element("section").classes(f"ms-card {classes}") as box:
        if title:
            with ui.element("header").classes("ms-card-head"):
                ui.label(title).classes("ms-card-title")
                if note:
                    ui.label(note).classes("ms-muted")
        yield box


@contextmanager
def grid(columns: str = "auto") -> Iterator[ui.element]:
    """Cards in rows: auto, two or three per row; on a narrow screen, one per row."""
    with ui.element("div").classes(f"ms-grid ms-grid-{columns}") as box:
        yield box


class Stat:
    """A large number with a label."""

    def __init__(self, word: str, *, test_id: str = "") -> None:
        with ui.element("div").classes("ms-stat") as self._box:
            self._value = ui.label("–").classes("ms-stat-value")
            if test_id:
                self._value.props["data-testid"] = test_id
            ui.label(word).classes("ms-stat-word")

    def show(self, text: str, tone: str = "") -> None:
        self._value.set_text(text)
        self._box.classes(remove="ms-good ms-warn ms-bad ms-dim", add=f"ms-{tone}" if tone else "")


@contextmanager
def heading(title: str, subtitle: str = "") -> Iterator[ui.element]:
    """The heading of a page. The block makes the buttons at its right."""
    with ui.element("div").classes("ms-heading"):
        with ui.element("div"):
            with ui.element("h1").classes("ms-title").props("data-testid=page-title"):
                ui.label(title)
            if subtitle:
                ui.label(subtitle).classes("ms-muted")
        with ui.element("div").classes("ms-heading-actions") as actions:
            yield actions


class Missing:
    """Says that the object of a page does not exist. Then the page offers nothing to do with it."""

    def __init__(self, noun: str) -> None:
        text = f"This {noun} does not exist. It may have been deleted."
        self._label = ui.label(text).classes("ms-muted ms-missing").props("role=status data-testid=missing")
        self._label.set_visibility(False)

    def show(self, is_missing: bool, *parts: ui.element) -> None:
        """Shows the text, or the parts of the page. A part is no element whose visibility depends on the role."""
        self._label.set_visibility(is_missing)
        for part in parts:
            part.set_visibility(not is_missing)


COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#06b6d4", "#ec4899", "#84cc16")
_INK = "#8a94a6"
_LINE = "rgba(138,148,166,0.22)"
# Drawn on the canvas, not as HTML, so names from the cluster stay text.
_TOOLTIP = {"trigger": "axis", "renderMode": "richText", "confine": True}

# A constant; no part of it comes from the cluster.
_SHORT_NUMBERS = (
    "v => v >= 1e9 ? v / 1e9 + ' G' : v >= 1e6 ? v / 1e6 + ' M' : v >= 1e4 ? v / 1e3 + ' k' : v.toLocaleString('en')"
)

Points = Iterable[tuple[float, float]]
_AXIS_EVERY_MS = 5000
"""How often the end of the time axis moves when there are no new points: so a gap at the end is seen."""


class TimeChart:
    """One or more lines over time; `update` takes points (seconds since 1970, value) by line."""

    def __init__(self, names: Sequence[str], *, unit: str = "", height: int = 190, test_id: str = "") -> None:
        self.chart = ui.echart(
            {
                "animation": False,
                "color": list(COLOURS),
                "grid": {"left": 8, "right": 28, "top": 30, "bottom": 4, "containLabel": True},
                "tooltip": _TOOLTIP,
                "legend": {"top": 0, "left": 4, "textStyle": {"color": _INK}, "icon": "roundRect", "itemHeight": 3},
                "xAxis": {
                    "type": "time",
                    "axisLabel": {"color": _INK, "hideOverlap": True},
                    "axisLine": {"lineStyle": {"color": _LINE}},
                    "splitLine": {"show": False},
                },
                "yAxis": {
                    "type": "value",
                    "min": 0,
                    "name": unit,
                    "nameTextStyle": {"color": _INK, "align": "left"},
                    "axisLabel": {"color": _INK, ":formatter": _SHORT_NUMBERS},
                    "splitLine": {"lineStyle": {"color": _LINE}},
                    "splitNumber": 4,
                },
                "series": [],
            }
        ).style(f"height: {height}px")
        self.chart.classes("ms-chart")
        if test_id:
            self.chart.props["data-testid"] = test_id
        self._sent_ms = 0
        self._told_ms = 0
        self._keep({name: [] for name in names})
        ui.on(f"chart-{self.chart.id}", self.chart.update)  # the browser has missed points: a tab was opened late

    def update(self, lines: Mapping[str, Points]) -> None:
        """Sends the points that are new. A value that is not a number is a gap."""
        now_ms = round(time.time() * 1000)
        data = {name: [_point(at, value) for at, value in points] for name, points in lines.items()}
        self._keep(data)
        last = max((rows[-1][0] for rows in data.values() if rows), default=0)
        if last <= self._sent_ms and now_ms - self._told_ms < _AXIS_EVERY_MS:
            return
        new = [[name, [row for row in rows if row[0] > self._sent_ms]] for name, rows in data.items()]
        first = min((rows[0][0] for rows in data.values() if rows), default=0)
        arguments = json.dumps([self._sent_ms, first, now_ms, new]).replace("<", "\\u003c")
        self._sent_ms, self._told_ms = last, now_ms
        self.chart.client.run_javascript(f"millstreamChart({self.chart.id}, {arguments})")

    def _keep(self, data: Mapping[str, list[tuple[int, float | None]]]) -> None:
        """The lines for a browser that loads the page or shows the chart for the first time. Not sent by this."""
        series = [
            {
                "name": name,
                "type": "line",
                "showSymbol": False,
                "connectNulls": False,
                "lineStyle": {"width": 2},
                "areaStyle": {"opacity": 0.10},
                "data": rows,
            }
            for name, rows in data.items()
        ]
        dict.__setitem__(self.chart.options, "series", series)


def _point(at: float, value: float) -> tuple[int, float | None]:
    return round(at * 1000), None if math.isnan(value) else round(value, 3)


class BarChart:
    """Stacked bars by category, such as leaders and followers by broker."""

    def __init__(
        self, *, unit: str = "", height: int = 190, test_id: str = "", least_step: float | None = None
    ) -> None:
        """`least_step`: between two numbers of the axis; 1 for what can only be counted."""
        self._shown: tuple[list[str], dict[str, list[float]]] | None = None
        self.chart = ui.echart(
            {
                "animation": False,
                "color": list(COLOURS),
                "grid": {"left": 8, "right": 24, "top": 30, "bottom": 4, "containLabel": True},
                "tooltip": {**_TOOLTIP, "axisPointer": {"type": "shadow"}},
                "legend": {"top": 0, "left": 4, "textStyle": {"color": _INK}, "icon": "roundRect"},
                "xAxis": {
                    "type": "value",
                    "name": unit,
                    "minInterval": least_step,
                    "axisLabel": {"color": _INK, "hideOverlap": True},
                    "splitLine": {"lineStyle": {"color": _LINE}},
                },
                "yAxis": {
                    "type": "category",
                    "inverse": True,
                    "axisLabel": {"color": _INK},
                    "axisLine": {"lineStyle": {"color": _LINE}},
                    "data": [],
                },
                "series": [],
            }
        ).style(f"height: {height}px")
        self.chart.classes("ms-chart")
        if test_id:
            self.chart.props["data-testid"] = test_id

    def update(self, categories: Sequence[str], parts: Mapping[str, Sequence[float]]) -> None:
        shown = list(categories), {name: list(values) for name, values in parts.items()}
        if shown == self._shown:
            return
        self._shown = shown
        options = self.chart.options
        dict.__setitem__(options["yAxis"], "data", shown[0])
        series = [
            {"name": name, "type": "bar", "stack": "all", "barMaxWidth": 22, "data": values}
            for name, values in shown[1].items()
        ]
        dict.__setitem__(options, "series", series)
        self.chart.update()
