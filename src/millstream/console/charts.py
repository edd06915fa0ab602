"""Charts over time and bars per broker, in colours that are legible on dark and on light."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nicegui import ui

COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#06b6d4", "#ec4899", "#84cc16")
_INK = "#8a94a6"
_LINE = "rgba(138,148,166,0.22)"
# Drawn on the canvas, not as HTML: names from the cluster stay text.
_TOOLTIP = {"trigger": "axis", "renderMode": "richText", "confine": True}

# The same for every chart, and no part of it comes from the cluster.
_SHORT_NUMBERS = (
    "v => v >= 1e9 ? v / 1e9 + ' G' : v >= 1e6 ? v / 1e6 + ' M' : v >= 1e4 ? v / 1e3 + ' k' : v.toLocaleString('en')"
)

Points = Iterable[tuple[float, float]]


class TimeChart:
    """One or more lines over time; `update` takes points (seconds since 1970, value) by line."""

    def __init__(self, names: Sequence[str], *, unit: str = "", height: int = 190, test_id: str = "") -> None:
        self._names = list(names)
        self.chart = ui.echart(
            {
                "animation": False,
                "color": list(COLOURS),
                "grid": {"left": 8, "right": 14, "top": 30, "bottom": 4, "containLabel": True},
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
        self.update(dict.fromkeys(names, ()))

    def update(self, lines: Mapping[str, Points]) -> None:
        series: list[dict[str, Any]] = [
            {
                "name": name,
                "type": "line",
                "showSymbol": False,
                "lineStyle": {"width": 2},
                "areaStyle": {"opacity": 0.10},
                "data": [[round(at * 1000), round(value, 3)] for at, value in points],
            }
            for name, points in lines.items()
        ]
        options = self.chart.options
        options["series"] = series
        self.chart.update()


class BarChart:
    """Stacked bars by category, such as leaders and followers by broker."""

    def __init__(self, *, unit: str = "", height: int = 190, test_id: str = "") -> None:
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
        options = self.chart.options
        options["yAxis"]["data"] = list(categories)
        options["series"] = [
            {"name": name, "type": "bar", "stack": "all", "barMaxWidth": 22, "data": list(values)}
            for name, values in parts.items()
        ]
        self.chart.update()
