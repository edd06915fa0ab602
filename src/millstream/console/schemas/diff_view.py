"""Two versions of a schema side by side on the page; text only, whatever the schemas hold."""

from nicegui import ui

from millstream.console.formats import plural
from millstream.console.schemas.diff import Change, Row, Side, counts, readable, side_by_side

MOST_ROWS = 2000


class DiffView:
    def __init__(self) -> None:
        self._note = ui.label("").classes("ms-muted").props("data-testid=diff-note")
        self._box = ui.element("div").classes("ms-diff").props("data-testid=diff")

    def show(self, before: str | None, after: str) -> None:
        """Without a version before, the other alone."""
        laid_out = readable(after)
        rows = side_by_side(laid_out if before is None else readable(before), laid_out)
        came, went = counts(rows)
        if before is None:
            self._note.set_text(plural(len(rows), "line"))
        else:
            self._note.set_text(
                f"{plural(came, 'line')} came, {plural(went, 'line')} went" if came or went else "They are the same"
            )
        if len(rows) > MOST_ROWS:
            self._note.set_text(f"{self._note.text}; the first {MOST_ROWS:,} lines are shown")
        self._box.clear()
        with self._box:
            for row in rows[:MOST_ROWS]:
                _side(row, row.before, "ms-went")
                _side(row, row.after, "ms-came")


def _side(row: Row, side: Side | None, tone: str) -> None:
    if side is None:
        ui.element("div").classes("ms-number ms-blank")
        ui.element("div").classes("ms-blank")
        return
    ui.label(str(side.number)).classes("ms-number")
    tone = "" if row.change is Change.SAME else tone
    if not any(marked for _, marked in side.parts):
        ui.label(side.text).classes(tone)
        return
    with ui.element("div").classes(tone):
        for text, marked in side.parts:
            with ui.element("mark" if marked else "span"):
                ui.label(text).style("display: inline")
