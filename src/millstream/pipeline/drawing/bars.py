"""A small bar chart as SVG: for each name a bar or two, as they are and as they would be."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_BAR = 12
_LEFT = 90
_WIDTH = 420
_RIGHT = 70


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    shares: Sequence[float]


def bars_svg(title: str, names: Sequence[str], series: Sequence[Series], mark: float, mark_name: str) -> str:
    """`mark` is a line across all bars, such as the even share."""
    most = max([mark, *(share for each in series for share in each.shares)], default=1.0) or 1.0
    step = _BAR * len(series) + 10
    top = 58
    height = top + step * len(names) + 34
    width = _LEFT + _WIDTH + _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        "<style>text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#111827}.small{font-size:11px;"
        "fill:#4b5563}.paper{fill:#fff}.s0{fill:#2563eb}.s1{fill:#f59e0b}.mark{stroke:#b91c1c;stroke-dasharray:4 3}"
        "@media (prefers-color-scheme:dark){text{fill:#e5e7eb}.small{fill:#a8b0bd}.paper{fill:#0f1319}.s0{fill:#7aa7f7}"
        ".s1{fill:#e8b45a}.mark{stroke:#f08a8a}}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<text x="16" y="24" font-weight="600">{escape(title)}</text>',
    ]
    x = float(_LEFT)
    for index, each in enumerate(series):
        parts.append(f'<rect class="s{index}" x="{x:.0f}" y="36" width="10" height="10"/>')
        parts.append(f'<text class="small" x="{x + 15:.0f}" y="45">{escape(each.name)}</text>')
        x += len(each.name) * 6.2 + 40
    for row, name in enumerate(names):
        y = top + row * step
        middle = y + _BAR * len(series) / 2 + 4
        parts.append(f'<text class="small" x="{_LEFT - 8}" y="{middle:.0f}" text-anchor="end">{escape(name)}</text>')
        for index, each in enumerate(series):
            length = each.shares[row] / most * _WIDTH
            at = y + index * _BAR
            parts.append(f'<rect class="s{index}" x="{_LEFT}" y="{at}" width="{length:.1f}" height="{_BAR - 2}"/>')
            parts.append(f'<text class="small" x="{_LEFT + length + 5:.1f}" y="{at + 9}">{each.shares[row]:.1%}</text>')
    line = _LEFT + mark / most * _WIDTH
    bottom = top + step * len(names)
    parts.append(f'<path class="mark" d="M{line:.1f},{top - 6} V{bottom}"/>')
    parts.append(
        f'<text class="small" x="{line:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(mark_name)}</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def bar_text(share: float, most: float, width: int = 30) -> str:
    """A bar of letters, in eighths."""
    eighths = round(share / most * width * 8) if most else 0
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
