"""A graph with box characters for a terminal, with the same layout as the SVG."""

from collections import defaultdict
from itertools import pairwise

from millstream.pipeline.drawing.graph import Graph, lay_out

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = {
    0: " ",
    _UP: "│",
    _DOWN: "│",
    _UP | _DOWN: "│",
    _LEFT: "─",
    _RIGHT: "─",
    _LEFT | _RIGHT: "─",
    _DOWN | _RIGHT: "╭",
    _DOWN | _LEFT: "╮",
    _UP | _RIGHT: "╰",
    _UP | _LEFT: "╯",
    _UP | _DOWN | _RIGHT: "├",
    _UP | _DOWN | _LEFT: "┤",
    _DOWN | _LEFT | _RIGHT: "┬",
    _UP | _LEFT | _RIGHT: "┴",
    _UP | _DOWN | _LEFT | _RIGHT: "┼",
}
_BOX_HEIGHT = 4
_ROW_HEIGHT = 5


class _Grid:
    def __init__(self) -> None:
        self._lines: dict[tuple[int, int], int] = defaultdict(int)
        self._letters: dict[tuple[int, int], str] = {}

    def across(self, row: int, begin: int, end: int) -> None:
        for column in range(begin, end + 1):
            self._lines[row, column] |= (_LEFT if column > begin else 0) | (_RIGHT if column < end else 0)

    def along(self, column: int, begin: int, end: int) -> None:
        low, high = min(begin, end), max(begin, end)
        for row in range(low, high + 1):
            self._lines[row, column] |= (_UP if row > low else 0) | (_DOWN if row < high else 0)

    def write(self, row: int, column: int, text: str) -> None:
        for at, letter in enumerate(text):
            self._letters[row, column + at] = letter

    def text(self) -> str:
        cells = [*self._lines, *self._letters]
        height = max((row for row, _ in cells), default=0) + 1
        width = max((column for _, column in cells), default=0) + 1
        rows = []
        for row in range(height):
            letters = (
                self._letters.get((row, column)) or _LINES[self._lines.get((row, column), 0)] for column in range(width)
            )
            rows.append("".join(letters).rstrip())
        return "\n".join(rows) + "\n"


def to_text(graph: Graph) -> str:
    layout = lay_out(graph)
    boxes = {box.id: box for box in graph.boxes}
    grid = _Grid()
    top_of = {
        name: round(row * _ROW_HEIGHT) + (0 if name in boxes else _BOX_HEIGHT // 2)
        for name, row in layout.row_of.items()
    }
    middle_of = {name: top + (1 if name in boxes else 0) for name, top in top_of.items()}

    # Each box or bend has its own lane in the gap to its right, so that vertical lines do not overlap.
    x = 0
    left_of: dict[int, int] = {}
    right_of: dict[int, int] = {}
    lane_of: dict[str, int] = {}
    for index, names in enumerate(layout.columns):
        texts = [text for name in names if name in boxes for text in (boxes[name].title, boxes[name].detail)]
        width = max((len(text) + 4 for text in texts), default=1)
        left_of[index], right_of[index] = x, x + width - 1
        labels = [len(route.arrow.label) for route in layout.routes if layout.column_of[route.arrow.begin] == index]
        for lane, name in enumerate(reversed(names)):
            lane_of[name] = x + width + 2 + 2 * lane
        x += width + 2 * len(names) + 6 + max(labels, default=0)
    for route in layout.routes:
        for begin, end in pairwise(route.points):
            lane, row, goal = lane_of[begin], middle_of[begin], middle_of[end]
            start = right_of[layout.column_of[begin]] + 1 if begin in boxes else left_of[layout.column_of[begin]]
            stop = left_of[layout.column_of[end]] - (1 if end in boxes else 0)
            grid.across(row, start, lane)
            grid.along(lane, row, goal)
            grid.across(goal, lane, stop)
            if end in boxes:
                grid.write(goal, stop, "▶")
        if route.arrow.label:
            grid.write(
                middle_of[route.points[1]],
                left_of[layout.column_of[route.points[1]]] - len(route.arrow.label) - 3,
                f" {route.arrow.label} ",
            )
    for name, box in boxes.items():
        column = layout.column_of[name]
        _draw_box(grid, top_of[name], left_of[column], right_of[column], box.title, box.detail)
    return grid.text()


def _draw_box(grid: _Grid, top: int, left: int, right: int, title: str, detail: str) -> None:
    width = right - left - 1
    grid.write(top, left, "┌" + "─" * width + "┐")
    grid.write(top + 1, left, "│ " + title.ljust(width - 1) + "│")
    grid.write(top + 2, left, "│ " + detail.ljust(width - 1) + "│")
    grid.write(top + 3, left, "└" + "─" * width + "┘")
