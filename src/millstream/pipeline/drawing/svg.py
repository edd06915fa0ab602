"""A graph as a standalone SVG: light and dark colours, no script, no font to load."""

from html import escape
from itertools import pairwise

from millstream.pipeline.drawing.graph import Box, Graph, Layout, lay_out

_WIDTH_PER_LETTER = 7.3
_DETAIL_PER_LETTER = 6.1
_BOX_HEIGHT = 46
_ROW = 74
_GAP = 78
_MARGIN = 24
_LEGEND_HEIGHT = 34

_MEANING = {
    "topic": "topic",
    "table": "table",
    "sql": "SQL",
    "python": "Python",
    "window": "window",
    "join": "join",
    "latest": "latest per key",
    "dedup": "no repetitions",
    "route": "route",
    "stateful": "state",
    "console": "console",
    "dead_letters": "dead letters",
}
_COLOURS = {
    # kind: (fill, line) in light, then in dark
    "topic": ("#dbeafe", "#2563eb", "#172f5a", "#7aa7f7"),
    "table": ("#dcfce7", "#15803d", "#12381f", "#6fcf8f"),
    "latest": ("#dcfce7", "#15803d", "#12381f", "#6fcf8f"),
    "console": ("#f3f4f6", "#4b5563", "#2b2f36", "#aab2bf"),
    "dead_letters": ("#fee2e2", "#b91c1c", "#4a1717", "#f08a8a"),
    "sql": ("#fef3c7", "#b45309", "#43310c", "#e8b45a"),
    "python": ("#fef9c3", "#a16207", "#3d360d", "#e0c75a"),
    "window": ("#ede9fe", "#6d28d9", "#2f2250", "#b39bf0"),
    "join": ("#ffe4e6", "#be185d", "#47182d", "#f08bb5"),
    "dedup": ("#e0f2fe", "#0369a1", "#11324a", "#74bfe8"),
    "route": ("#ffedd5", "#c2410c", "#47240f", "#f0a06a"),
    "stateful": ("#f5d0fe", "#a21caf", "#421649", "#df8ee8"),
}


def to_svg(graph: Graph) -> str:
    layout = lay_out(graph)
    boxes = {box.id: box for box in graph.boxes}
    widths = {box.id: _box_width(box) for box in graph.boxes}
    lefts, column_widths, total = _column_places(layout, widths)
    middle = {
        name: (lefts[layout.column_of[name]] + column_widths[layout.column_of[name]] / 2, _y(layout.row_of[name]))
        for name in layout.row_of
    }
    used = [kind for kind in _MEANING if any(box.kind == kind for box in graph.boxes)]
    legend_width = sum(_legend_step(kind) for kind in used) + 2 * _MARGIN
    width = max(total, legend_width)
    bottom = max((place[1] for place in middle.values()), default=0) + _BOX_HEIGHT / 2 + _MARGIN
    height = bottom + _LEGEND_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="{escape(f"The pipeline {graph.name}")}">',
        f"<title>{escape(graph.name)}</title>",
        _style(used),
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0,0 L8,4 L0,8 z"/></marker></defs>',
        f'<rect class="paper" width="{width:.0f}" height="{height:.0f}"/>',
    ]
    parts += _arrows(layout, middle, widths, boxes)
    parts += [_box(box, middle[box.id], widths[box.id]) for box in graph.boxes]
    parts += _legend(used, bottom)
    return "\n".join([*parts, "</svg>", ""])


def _y(row: float) -> float:
    return _MARGIN + _BOX_HEIGHT / 2 + row * _ROW


def _box_width(box: Box) -> float:
    letters = max(len(box.title) * _WIDTH_PER_LETTER, len(box.detail) * _DETAIL_PER_LETTER)
    return max(96.0, round(letters) + 36)


def _column_places(layout: Layout, widths: dict[str, float]) -> tuple[list[float], list[float], float]:
    lefts: list[float] = []
    column_widths: list[float] = []
    x = float(_MARGIN)
    labels = {layout.column_of[route.arrow.begin]: 0.0 for route in layout.routes}
    for route in layout.routes:
        column = layout.column_of[route.arrow.begin]
        labels[column] = max(labels[column], len(route.arrow.label) * _DETAIL_PER_LETTER)
    for index, names in enumerate(layout.columns):
        width = max((widths.get(name, 0.0) for name in names), default=0.0)
        lefts.append(x)
        column_widths.append(width)
        x += width + max(_GAP, labels.get(index, 0.0) + 44)
    return lefts, column_widths, lefts[-1] + column_widths[-1] + _MARGIN if lefts else 2.0 * _MARGIN


def _arrows(
    layout: Layout, middle: dict[str, tuple[float, float]], widths: dict[str, float], boxes: dict[str, Box]
) -> list[str]:
    drawn: list[str] = []
    for route in layout.routes:
        points = [middle[name] for name in route.points]
        points[0] = (points[0][0] + widths[route.points[0]] / 2, points[0][1])
        points[-1] = (points[-1][0] - widths[route.points[-1]] / 2 - 2, points[-1][1])
        curves = [_curve(begin, end) for begin, end in pairwise(points)]
        if boxes[route.arrow.end].kind == "dead_letters":
            # Shared parts of arrows to the dead letters are drawn once, so that dashes do not overlap.
            tips = [""] * (len(curves) - 1) + [' marker-end="url(#tip)"']
            lines = [
                f'<path class="arrow dead" d="M{begin[0]:.1f},{begin[1]:.1f}{curve}"{tip}/>'
                for begin, curve, tip in zip(points, curves, tips, strict=False)
            ]
            drawn += [line for line in lines if line not in drawn]
        else:
            start = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
            drawn.append(f'<path class="arrow" d="{start}{"".join(curves)}" marker-end="url(#tip)"/>')
        if route.arrow.label:
            drawn.append(_label(route.arrow.label, points[0], points[1]))
    return drawn


def _curve(begin: tuple[float, float], end: tuple[float, float]) -> str:
    half = (end[0] - begin[0]) / 2
    return f" C{begin[0] + half:.1f},{begin[1]:.1f} {end[0] - half:.1f},{end[1]:.1f} {end[0]:.1f},{end[1]:.1f}"


def _label(text: str, near: tuple[float, float], beyond: tuple[float, float]) -> str:
    """The name of a branch, at the first part of its arrow."""
    share = min(1.0, (len(text) * _DETAIL_PER_LETTER / 2 + 14) / max(1.0, beyond[0] - near[0]))
    bent = 3 * share**2 - 2 * share**3
    x, y = near[0] + share * (beyond[0] - near[0]), near[1] + bent * (beyond[1] - near[1])
    return f'<text class="label" x="{x:.1f}" y="{y - 5:.1f}">{escape(text)}</text>'


def _box(box: Box, centre: tuple[float, float], width: float) -> str:
    x, y = centre
    below = 4 if box.kind in ("table", "latest") else 0  # room for the lid
    tooltip = f"{_MEANING[box.kind]} {box.title}" + (f" (line {box.line})" if box.line else "")
    title = f'<text class="title" x="{x:.1f}" y="{y - 3 + below:.1f}">{escape(box.title)}</text>'
    detail = f'<text class="detail" x="{x:.1f}" y="{y + 13 + below / 2:.1f}">{escape(box.detail)}</text>'
    outline = _shape(box.kind, x - width / 2, y - _BOX_HEIGHT / 2, width, _BOX_HEIGHT)
    return f'<g class="{box.kind}"><title>{escape(tooltip)}</title>{outline}{title}{detail}</g>'


def _shape(kind: str, x: float, y: float, width: float, height: float) -> str:
    """One outline per kind, so that colours are not needed to tell them apart."""
    right, bottom = x + width, y + height
    if kind in ("topic", "dead_letters"):
        return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{height / 2:.1f}"/>'
    if kind in ("table", "latest"):
        lid = min(6.0, height / 5)
        return (
            f'<path d="M{x:.1f},{y + lid:.1f} v{height - 2 * lid:.1f} a{width / 2:.1f},{lid:.1f} 0 0 0 {width:.1f},0 '
            f'v{-(height - 2 * lid):.1f} a{width / 2:.1f},{lid:.1f} 0 0 0 {-width:.1f},0 z"/>'
            f'<path class="open" d="M{x:.1f},{y + lid:.1f} a{width / 2:.1f},{lid:.1f} 0 0 0 {width:.1f},0"/>'
        )
    cut = min(12.0, height / 3)
    corners = {
        "window": [(x + cut, y), (right - cut, y), (right, y + height / 2), (right - cut, bottom), (x + cut, bottom)],
        "route": [(x, y), (right - cut, y), (right, y + height / 2), (right - cut, bottom), (x, bottom)],
        "join": [(x, y), (right - cut, y + cut / 2), (right, y + height / 2), (right - cut, bottom - cut / 2)],
        "dedup": [(x, y), (right, y + cut / 2), (right, bottom - cut / 2), (x, bottom)],
    }
    if kind in corners:
        closing = {"window": [(x, y + height / 2)], "join": [(x, bottom), (x + cut, y + height / 2)]}.get(kind, [])
        points = " ".join(f"{px:.1f},{py:.1f}" for px, py in corners[kind] + closing)
        return f'<polygon points="{points}"/>'
    radius = 10 if kind == "python" else 2
    outline = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}"/>'
    if kind == "stateful":
        outline += f'<path class="open" d="M{x + 6:.1f},{y:.1f} V{bottom:.1f} M{right - 6:.1f},{y:.1f} V{bottom:.1f}"/>'
    if kind == "console":
        outline += f'<path class="open" d="M{x:.1f},{y + 7:.1f} H{right:.1f}"/>'
    return outline


def _legend_step(kind: str) -> float:
    return len(_MEANING[kind]) * _DETAIL_PER_LETTER + 48


def _legend(kinds: list[str], top: float) -> list[str]:
    drawn = []
    x = float(_MARGIN)
    for kind in kinds:
        shape = _shape(kind, x, top, 26, 16)
        text = f'<text class="legend" x="{x + 32:.1f}" y="{top + 12:.1f}">{escape(_MEANING[kind])}</text>'
        drawn.append(f'<g class="{kind}">{shape}{text}</g>')
        x += _legend_step(kind)
    return drawn


def _style(kinds: list[str]) -> str:
    light = "".join(f".{kind}{{fill:{_COLOURS[kind][0]};stroke:{_COLOURS[kind][1]}}}" for kind in kinds)
    dark = "".join(f".{kind}{{fill:{_COLOURS[kind][2]};stroke:{_COLOURS[kind][3]}}}" for kind in kinds)
    return (
        "<style>"
        "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;stroke:none;fill:#111827}"
        ".title{font-size:13px;font-weight:600;text-anchor:middle}"
        ".detail{font-size:11px;text-anchor:middle;fill:#4b5563}"
        ".legend,.label{font-size:11px;fill:#4b5563}.label{text-anchor:middle;font-style:italic}"
        ".paper{fill:#fff}.open{fill:none}.arrow{fill:none;stroke:#6b7280;stroke-width:1.4}"
        ".dead{stroke-dasharray:4 3}.tip{fill:#6b7280}g>rect,g>path,g>polygon{stroke-width:1.4}"
        f"{light}"
        "@media (prefers-color-scheme:dark){text{fill:#e5e7eb}.detail,.legend,.label{fill:#a8b0bd}.paper{fill:#0f1319}"
        f".arrow{{stroke:#8b94a3}}.tip{{fill:#8b94a3}}{dark}}}"
        "</style>"
    )
