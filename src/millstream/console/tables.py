"""A table for thousands of rows: filters, sorts and pages on the server, and sends only the cells that have changed to
the browser. Filter, sort order and page are in the URL; the rows can be saved as JSON, CSV or Parquet.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import events, ui

from millstream.console.exporting import EXPORTS, export
from millstream.console.url_state import url_state

Row = Mapping[str, Any]
PAGE_SIZES = (25, 50, 100, 250)
_WIDTHS_PX = {"badge": 140, "bar": 160, "replica": 132}
_RIGHT_PX = 104
_LETTER_PX, _AROUND_LABEL_PX = 6.8, 38
"""A letter of a label in the header, and what is around it: the padding and the arrow of the sort order."""
_FLEXIBLE_PX = 130
"""What a column without a width has at least; below, the table scrolls."""
CELLS = ("text", "mono", "nowrap", "link", "pick", "badge", "bar", "wrap", "soft", "replica")


@dataclass(frozen=True, slots=True)
class Column:
    """`show` formats a value; sorting uses the value. `cell`: text, mono, link, pick (a link that calls the page),
    badge, bar, wrap and soft (with line breaks), or replica. Other texts are cut, with the whole as title.

    A row may have `_href` for its links, `_tones` (good, warn, bad, dim, info) and `_bars` (percent) by column.
    """

    name: str
    label: str
    show: Callable[[Any], str] = str
    right: bool = False
    cell: str = "text"
    searched: bool = False
    width: int = 0
    """In pixels. 0: that of its kind; columns of texts share the rest."""

    def document(self) -> dict[str, Any]:
        width = self.least_px if self.width or self.right or self.cell in _WIDTHS_PX else 0
        style = f"width: {width}px" if width else ""
        return {
            "name": self.name,
            "label": self.label,
            "field": self.name,
            "align": "right" if self.right else "left",
            "sortable": True,
            "cell": self.cell,
            "headerStyle": style,
        }

    @property
    def least_px(self) -> int:
        wanted = self.width or _WIDTHS_PX.get(self.cell) or (_RIGHT_PX if self.right else _FLEXIBLE_PX)
        label = round(len(self.label) * _LETTER_PX) + _AROUND_LABEL_PX
        return max(wanted, label) if self.right else wanted


class _TableElement(ui.element, component="static/data_table.js"):
    pass


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
        name: str | None = None,
        exported: bool | None = None,
        on_pick: Callable[[str], Any] | None = None,
        on_select: Callable[[Sequence[str]], Any] | None = None,
    ) -> None:
        """`name`: the prefix of its state in the URL, by default `test_id`; empty for the main table of a page. A table
        without both has no state there. `exported`: whether it can be saved, by default if it can be filtered.
        `on_pick` is called with the key of a row that was clicked, `on_select` with those that are selected."""
        self._columns = {column.name: column for column in columns}
        self._key = key
        self._rows: Sequence[Row] = ()
        self._shown: dict[str, dict[str, Any]] = {}
        self._name = test_id or "table"
        self._has_state = name is not None or bool(test_id)
        self._state = url_state().part(test_id if name is None else name)
        self._first_sort = sort_by or key, descending
        self._first_size = page_size
        self._filter = self._state.text("filter") if self._has_state and filtered else ""
        self.selected: Sequence[str] = ()
        self._pagination = self._first_pagination()
        with ui.element("div").classes("ms-table-box"):
            with ui.element("div").classes("ms-table-head") as self.head:
                if filtered:
                    ui.input(placeholder="Filter  /", value=self._filter, on_change=self._filter_changed).props(
                        'dense outlined clearable debounce=150 data-filter aria-label="Filter"'
                    ).classes("ms-filter")
                self._count = ui.label("").classes("ms-muted").props("data-testid=row-count")
                self._count.set_visibility(filtered)
                if filtered if exported is None else exported:
                    self._add_export()
            self.table = _TableElement()
            self.table.props["columns"] = [column.document() for column in columns]
            self.table.props["empty"] = empty
            self.table.props["leastWidth"] = f"{sum(column.least_px for column in columns)}px"
            self.table.props["pickable"] = on_pick is not None
            self.table.props["selectable"] = on_select is not None
            if test_id:
                self.table.props["data-testid"] = test_id
            self._version = 0
            self._keep([])
            self.table.on("request", self._requested)
            self.table.on("resync", lambda: self.table.update())
            self.table.on("shown", lambda event: self.table.update() if event.args != self._version else None)
            if on_pick is not None:
                self.table.on("rowPick", lambda event: on_pick(str(event.args)))
            if on_select is not None:
                self.table.on("select", lambda event: self._selected(event.args, on_select))

    def update(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._render()

    def set_cell(self, column: str, cell: str) -> None:
        """Changes how a column is shown."""
        assert cell in CELLS
        for each in self.table.props["columns"]:
            if each["name"] == column:
                each["cell"] = cell

    def set_empty(self, text: str) -> None:
        """The text of a table without rows."""
        if self.table.props["empty"] != text:
            self.table.props["empty"] = text
            self.table.update()

    def unselect(self) -> None:
        """Selects no row."""
        self.selected = ()
        self._call("unselect")

    def _first_pagination(self) -> dict[str, Any]:
        """As the URL has it."""
        sort_by, descending = self._first_sort
        page, size = 1, self._first_size
        if self._has_state:
            wanted = self._state.text("sort")
            if wanted.removeprefix("-") in self._columns:
                sort_by, descending = wanted.removeprefix("-"), wanted.startswith("-")
            page = self._state.number("page", 1, 1, 1_000_000)
            found = self._state.number("rows", size, 1, max(PAGE_SIZES))
            size = found if found in PAGE_SIZES else size
        return {"page": page, "rowsPerPage": size, "sortBy": sort_by, "descending": descending, "rowsNumber": 0}

    def _render(self, *, forced: bool = False) -> None:
        """Sends what has changed. `forced`: the user has selected this order, so it is not held back."""
        found = self._found()
        pagination = dict(self._pagination)
        per_page = pagination["rowsPerPage"] or len(found) or 1
        pages = max(1, -(-len(found) // per_page))
        page = min(pagination["page"], pages)  # the wanted page is kept: at first there may be no rows
        pagination |= {"page": page, "rowsNumber": len(found)}
        shown = {
            texts["_key"]: texts
            for row in found[(page - 1) * per_page : page * per_page]
            for texts in [self._texts(row)]
        }
        total = len(self._rows)
        self._count.set_text(f"{total:,}" if len(found) == total else f"{len(found):,} of {total:,}")
        changes = {key: changed for key, texts in shown.items() if (changed := _changed(self._shown.get(key), texts))}
        patch: dict[str, Any] = {"rows": changes}
        if list(shown) != list(self._shown):
            patch["order"] = list(shown)
        if pagination != self.table.props["pagination"]:
            patch["page"] = pagination
        if changes or len(patch) > 1:
            self._shown = shown
            self._version += 1
            self._keep(list(shown.values()), pagination)
            self._call("patch", {"version": self._version, "forced": forced, **patch})

    def _call(self, method: str, *arguments: Any) -> None:
        """Calls a method of the table in the browser. Without the `return` of NiceGUI's `run_method`, which makes the
        browser parse everything twice."""
        self.table.client.run_javascript(f"runMethod({self.table.id}, {json.dumps(method)}, {json.dumps(arguments)})")

    def _keep(self, rows: list[dict[str, Any]], pagination: Mapping[str, Any] | None = None) -> None:
        """The state for a browser that loads the page or has lost a message. It is not sent by this."""
        props: dict[str, Any] = self.table.props
        # `props.update` would send the whole table.
        dict.update(props, rows=rows, version=self._version, pagination=dict(pagination or self._pagination))

    def _found(self) -> list[Row]:
        wanted = self._filter.lower().split()
        found = list(self._rows)
        if wanted:
            searched = [each.name for each in self._columns.values() if each.searched] or [self._key]
            found = [
                row
                for row in found
                if all(any(word in str(row.get(name, "")).lower() for name in searched) for word in wanted)
            ]
        by = self._pagination["sortBy"]
        if by in self._columns:
            found.sort(key=lambda row: _sortable(row.get(by)), reverse=bool(self._pagination["descending"]))
        return found

    def _texts(self, row: Row) -> dict[str, Any]:
        texts: dict[str, Any] = {name: row[name] for name in ("_tones", "_bars") if name in row}
        if "_href" in row:
            texts["_href"] = self._state.base + row["_href"]
        for name, column in self._columns.items():
            value = row.get(name)
            texts[name] = "" if value is None else column.show(value)
        texts["_key"] = str(row[self._key])
        return texts

    def _filter_changed(self, event: events.ValueChangeEventArguments[Any]) -> None:
        self._filter = str(event.value or "")
        self._pagination["page"] = 1
        self._write_state(push=False)
        self._render(forced=True)

    def _requested(self, event: events.GenericEventArguments) -> None:
        requested = event.args
        size = int(requested.get("rowsPerPage") or 0)
        self._pagination["page"] = max(1, int(requested.get("page") or 1))
        self._pagination["rowsPerPage"] = size if size in PAGE_SIZES else self._first_size
        self._pagination["sortBy"] = requested.get("sortBy")
        self._pagination["descending"] = bool(requested.get("descending"))
        self._write_state(push=True)
        self._render(forced=True)

    def _write_state(self, *, push: bool) -> None:
        if not self._has_state:
            return
        by, descending = self._pagination["sortBy"], self._pagination["descending"]
        page, size = self._pagination["page"], self._pagination["rowsPerPage"]
        self._state.write(
            filter=self._filter,
            sort=None if (by, descending) == self._first_sort or not by else ("-" if descending else "") + by,
            page=page if page > 1 else None,
            rows=size if size != self._first_size else None,
            push=push,
        )

    def _selected(self, keys: Any, on_select: Callable[[Sequence[str]], Any]) -> Any:
        self.selected = [str(key) for key in keys] if isinstance(keys, list) else []
        return on_select(self.selected)

    def _add_export(self) -> None:
        with ui.button(icon="download", color=None).props('flat dense round aria-label="Save as"') as button:
            button.props["data-testid"] = f"export-{self._name}"
            button.classes("ms-export").tooltip("Save the rows")
            with ui.menu():
                for extension in EXPORTS:
                    ui.menu_item(extension.upper() if extension != "parquet" else "Parquet", self._saver(extension))

    def _saver(self, extension: str) -> Callable[[], Any]:
        async def save() -> None:
            rows = self._found()
            content = await asyncio.to_thread(export, extension, list(self._columns), rows)
            ui.download.content(content, f"{self._name}.{extension}", EXPORTS[extension][1])

        return save


def _changed(before: Mapping[str, Any] | None, after: dict[str, Any]) -> dict[str, Any]:
    """The cells that are not as before; those that are gone are None."""
    if before is None:
        return after
    changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return changed | dict.fromkeys(before.keys() - after.keys())


def _sortable(value: Any) -> tuple[int, float, str]:
    """A sort key: missing values, then numbers, then text."""
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, (int, float)):
        return 1, float(value), ""
    return 2, 0.0, str(value).lower()
