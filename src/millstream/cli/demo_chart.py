"""The result of `millstream demo` as a chart: bars in the terminal, and the same as an SVG."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from millstream.pipeline.skew import bar_text

_COLOURS = ("#2563eb", "#f59e0b", "#15803d", "#be185d", "#6d28d9", "#0369a1")


@dataclass(frozen=True, slots=True)
class Revenue:
    """What each shop took in each minute."""

    minutes: Sequence[str]
    shops: Sequence[str]
    """The one that took most comes first."""
    amounts: dict[tuple[str, str], float]

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> "Revenue":
        amounts: dict[tuple[str, str], float] = defaultdict(float)
        for row in rows:
            amounts[row["window_start"], row["shop"]] += float(row["revenue"])
        minutes = sorted({minute for minute, _ in amounts})
        totals: dict[str, float] = defaultdict(float)
        for (_, shop), amount in amounts.items():
            totals[shop] += amount
        return cls(minutes, sorted(totals, key=lambda shop: (-totals[shop], shop)), dict(amounts))

    def of_minute(self, minute: str) -> float:
        return sum(self.amounts.get((minute, shop), 0.0) for shop in self.shops)

    def of_shop(self, shop: str) -> float:
        return sum(self.amounts.get((minute, shop), 0.0) for minute in self.minutes)


def bars(revenue: Revenue, *, last: int = 20, width: int = 40) -> list[tuple[str, str, str]]:
    """For each of the last minutes: its time, a bar, the amount."""
    minutes = revenue.minutes[-last:]
    most = max((revenue.of_minute(minute) for minute in minutes), default=0.0)
    return [
        (minute[11:16], bar_text(revenue.of_minute(minute), most, width), f"{revenue.of_minute(minute):,.2f}")
        for minute in minutes
    ]


def svg(revenue: Revenue, title: str = "Revenue per minute") -> str:
    """A column for each minute, in it a piece for each shop."""
    width, height, left, top, bottom = 760, 340, 70, 64, 46
    inner_width, inner_height = width - left - 20, height - top - bottom
    most = max((revenue.of_minute(minute) for minute in revenue.minutes), default=0.0) or 1.0
    step = inner_width / max(1, len(revenue.minutes))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">',
        "<style>text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#111827}.paper{fill:#fff}"
        "@media (prefers-color-scheme:dark){text{fill:#e5e7eb}.paper{fill:#0f1319}}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<text x="16" y="24" font-weight="600">{escape(title)}</text>',
    ]
    x = float(left)
    for index, shop in enumerate(revenue.shops):
        parts.append(f'<rect x="{x:.0f}" y="36" width="10" height="10" fill="{_COLOURS[index % len(_COLOURS)]}"/>')
        parts.append(f'<text x="{x + 15:.0f}" y="45">{escape(shop)}</text>')
        x += len(shop) * 7.0 + 40
    for part in range(5):
        amount = most * part / 4
        y = top + inner_height * (1 - part / 4)
        parts.append(f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{amount:,.0f}</text>')
        parts.append(f'<path d="M{left},{y:.1f} h{inner_width}" stroke="#9ca3af" stroke-opacity="0.3"/>')
    labelled = max(1, len(revenue.minutes) // 8)
    for column, minute in enumerate(revenue.minutes):
        at = left + column * step
        y = float(top + inner_height)
        for index, shop in enumerate(revenue.shops):
            size = revenue.amounts.get((minute, shop), 0.0) / most * inner_height
            y -= size
            colour = _COLOURS[index % len(_COLOURS)]
            parts.append(
                f'<rect x="{at:.1f}" y="{y:.1f}" width="{step * 0.85:.1f}" height="{size:.1f}" fill="{colour}"/>'
            )
        if column % labelled == 0:
            middle = at + step * 0.42
            parts.append(f'<text x="{middle:.0f}" y="{height - 24}" text-anchor="middle">{minute[11:16]}</text>')
    return "\n".join([*parts, "</svg>", ""])
