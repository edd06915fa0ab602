"""A table for thousands of rows: filters, sorts and pages on the server, and sends only the visible rows to the browser
when they change.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import events, ui

Row = Mapping[str, Any]
_PAGE_SIZES = [25, 50, 100, 250]
# Values are passed as data and never become part of the template.
_LINK_CELL = """
<q-td :props="props"><a v-if="props.row._href" :href="props.row._href" class="ms-row-link">{{ props.value }}</a>
<span v-else>{{ props.value }}</span></q-td>
"""
_BADGE_CELL = """
<q-td :props="props"><span v-if="props.value !== ''" class="ms-badge"
:class="'ms-' + (props.row._tones?.[props.col.name] ?? 'dim')">{{ props.value }}</span></q-td>
"""
_BAR_CELL = """
<q-td :props="props"><div class="ms-bar"><div :style="{width: (props.row._bars?.[props.col.name] ?? 0) + '%'}"></div>
</div><span class="ms-bar-text">{{ props.value }}</span></q-td>
"""
_MONO_CELL = '<q-td :props="props"><span class="ms-mono">{{ props.value }}</span></q-td>'
_NOWRAP_CELL = '<q-td :props="props"><span class="ms-mono ms-nowrap">{{ props.value }}</span></q-td>'
_CELLS = {"nowrap": _NOWRAP_CELL, "link": _LINK_CELL, "badge": _BADGE_CELL, "bar": _BAR_CELL, "mono": _MONO_CELL}


@dataclass(frozen=True, slots=True)
class Column:
    """`show` formats a value; sorting uses the value. `cell`: text, mono, nowrap, link, badge or bar.

    A row may have `_href` for its links, `_tones` (good, warn, bad, dim, info) and `_bars` (percent) by column.
    """

    name: str
    label: str
    show: Callable[[Any], str] = str
    right: bool = False
    cell: str = "text"
    searched: bool = False


class DataTable:
    """`update` replaces all rows. `key` is the column that identifies a row."""

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        key: str,
        empty: str,
        page_size: int = 50,
        filtered: bool = True,
        sort_by: str | None = None,
        descending: bool = False,
        test_id: str = "",
        on_pick: Callable[[str], Any] | None = None,
    ) -> None:
        self._columns = {column.name: column for column in columns}
        self._key = key
        self._empty = empty
        self._rows: Sequence[Row] = ()
        self._shown: list[dict[str, Any]] | None = None
        self._filter = ""
        self._pagination: dict[str, Any] = {
            "page": 1,
            "rowsPerPage": page_size,
            "sortBy": sort_by or key,
            "descending": descending,
            "rowsNumber": 0,
        }
        with ui.element("div").classes("ms-table-box"):
            with ui.row().classes("ms-table-head") as self.head:
                if filtered:
                    ui.input(placeholder="Filter  /", on_change=self._filter_changed).props(
                        'dense outlined clearable debounce=150 data-filter aria-label="Filter"'
                    ).classes("ms-filter")
                self._count = ui.label("").classes("ms-muted").props("data-testid=row-count")
                self._count.set_visibility(filtered)
            self.table = ui.table(
                rows=[],
                columns=[
                    {
                        "name": column.name,
                        "label": column.label,
                        "field": column.name,
                        "align": "right" if column.right else "left",
                        "sortable": True,
                    }
                    for column in columns
                ],
                row_key="_key",
                pagination=dict(self._pagination),
            ).classes("ms-table")
            self.table.props("flat dense binary-state-sort :rows-per-page-options=" + str(_PAGE_SIZES).replace(" ", ""))
            self.table.props["no-data-label"] = empty
            if test_id:
                self.table.props["data-testid"] = test_id
            for column in columns:
                if column.cell != "text":
                    self.table.add_slot(f"body-cell-{column.name}", _CELLS[column.cell])
            self.table.on("request", self._requested)
            if on_pick is not None:
                self.table.classes("ms-pickable")
                self.table.on("rowClick", lambda event: on_pick(str(event.args[1]["_key"])))

    def update(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._render()

    def _render(self) -> None:
        found = self._found()
        pagination = self._pagination
        per_page = pagination["rowsPerPage"] or len(found) or 1
        pages = max(1, -(-len(found) // per_page))
        pagination["page"] = min(pagination["page"], pages)
        begin = (pagination["page"] - 1) * per_page
        shown = [self._texts(row) for row in found[begin : begin + per_page]]
        counted = pagination["rowsNumber"] != len(found)
        pagination["rowsNumber"] = len(found)
        total = len(self._rows)
        self._count.set_text(f"{total:,}" if len(found) == total else f"{len(found):,} of {total:,}")
        self.table.props["hide-pagination"] = len(found) <= min(_PAGE_SIZES)
        if shown != self._shown or counted:
            self._shown = shown
            self.table.rows = shown
            self.table.pagination = dict(pagination)

    def _found(self) -> list[Row]:
        wanted = self._filter.lower().split()
        searched = [each.name for each in self._columns.values() if each.searched] or [self._key]
        found = [
            row
            for row in self._rows
            if all(any(word in str(row.get(name, "")).lower() for name in searched) for word in wanted)
        ]
        by = self._pagination["sortBy"]
        if by in self._columns:
            found.sort(key=lambda row: _sortable(row.get(by)), reverse=bool(self._pagination["descending"]))
        return found

    def _texts(self, row: Row) -> dict[str, Any]:
        texts: dict[str, Any] = {name: row[name] for name in ("_href", "_tones", "_bars") if name in row}
        for name, column in self._columns.items():
            value = row.get(name)
            texts[name] = "" if value is None else column.show(value)
        texts["_key"] = str(row[self._key])
        return texts

    def _filter_changed(self, event: events.ValueChangeEventArguments[Any]) -> None:
        self._filter = str(event.value or "")
        self._pagination["page"] = 1
        self._render()

    def _requested(self, event: events.GenericEventArguments) -> None:
        requested = event.args["pagination"]
        for name in ("page", "rowsPerPage"):
            self._pagination[name] = max(0, int(requested.get(name) or 0))
        self._pagination["page"] = max(1, self._pagination["page"])
        self._pagination["sortBy"] = requested.get("sortBy")
        self._pagination["descending"] = bool(requested.get("descending"))
        self._shown = None
        self._render()


def _sortable(value: Any) -> tuple[int, float, str]:
    """A sort key: missing values, then numbers, then text."""
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, (int, float)):
        return 1, float(value), ""
    return 2, 0.0, str(value).lower()
