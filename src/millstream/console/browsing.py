"""Parts that the topics, messages and schemas pages share: rows that can be picked, dialogs, what was typed wrong."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nicegui import ui

from millstream.console.navigation import BASE
from millstream.console.tables import DataTable

_STYLE = f'<link rel="stylesheet" href="{BASE}/assets/browsing.css">'
# Values come into these as data, never as part of the template.
_PICK_CELL = """
<q-td :props="props"><a href="#" class="ms-row-link ms-mono"
@click.prevent.stop="$parent.$emit('pick', props.row._key)">{{ props.value }}</a></q-td>
"""
_SOFT_CELL = '<q-td :props="props"><div class="ms-wrap-cell">{{ props.value }}</div></q-td>'


def use_style() -> None:
    ui.add_head_html(_STYLE)


def let_pick(table: DataTable, column: str, pick: Callable[[str], Any]) -> None:
    """Makes a column links, for the mouse and for keys, that call `pick` with the row's key."""
    table.table.add_slot(f"body-cell-{column}", _PICK_CELL)
    table.table.on("pick", lambda event: pick(str(event.args)))


def show_softly(table: DataTable, column: str) -> None:
    """A column of help texts: smaller, and on as many lines as it takes."""
    table.table.add_slot(f"body-cell-{column}", _SOFT_CELL)


@contextmanager
def dialog(title: str, *, wide: bool = False, test_id: str = "") -> Iterator[ui.dialog]:
    """One that is gone when it is closed. What is made inside is its body; open it afterwards."""
    with ui.dialog() as box, ui.card().classes("ms-dialog" + (" ms-wide-dialog" if wide else "")) as card:
        if test_id:
            card.props["data-testid"] = test_id
        ui.label(title).classes("ms-dialog-title")
        yield box
    box.on("hide", box.delete)


class Complaint:
    """A line in a dialog that says what is wrong with what was typed; empty if nothing is."""

    def __init__(self) -> None:
        self._label = ui.label("").classes("ms-complaint").props("role=alert data-testid=complaint")
        self._label.set_visibility(False)

    def say(self, text: str) -> None:
        self._label.set_text(text)
        self._label.set_visibility(bool(text))
