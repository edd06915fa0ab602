"""The table of records: a line each, everything as text, picked by mouse or keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from nicegui import ui

from millstream.console.formats import size
from millstream.console.messages.matching import Decode
from millstream.console.messages.position import shown_moment
from millstream.console.messages.reading import FoundRecord
from millstream.console.messages.text import kind_label, one_line

MOST_ROWS = 1000
_MOST_HELD = 1 << 16
"""Bytes of a record that an open page keeps; a thousand rows of a megabyte each would be too much."""
_LINE = 300
_KEY = 80
_COLUMNS = (
    ("time", "Time", "width: 196px"),
    ("partition", "Partition", "width: 74px"),
    ("offset", "Offset", "width: 96px"),
    ("key", "Key", "width: 15%"),
    ("kind", "Value is", "width: 104px"),
    ("value", "Value", ""),
    ("size", "Size", "width: 78px"),
)
# Values come into these as data, never as part of the template.
_TEXT_CELL = """
<q-td :props="props"><span class="ms-cut" :class="{'ms-null': props.row.nulls[props.col.name]}">{{ props.value }}</span>
</q-td>
"""
_PICK_CELL = """
<q-td :props="props"><a href="#" class="ms-row-link ms-mono"
@click.prevent.stop="$parent.$emit('pick', props.row.id)">{{ props.value }}</a></q-td>
"""
_KIND_CELL = """
<q-td :props="props"><span class="ms-badge" :class="'ms-' + props.row.tone">{{ props.value }}</span></q-td>
"""
_TONES = {"avro": "info", "protobuf": "info", "json-schema": "info", "json": "good", "text": "dim", "binary": "warn"}


@dataclass(frozen=True, slots=True)
class Line:
    """A row, and the record it shows: without key, value and headers if these are large, to be read again."""

    record: FoundRecord
    is_whole: bool
    row: dict[str, Any]


class RecordTable:
    """`pick` is called with the line that was chosen."""

    def __init__(self, pick: Callable[[Line], Any]) -> None:
        self._lines: dict[str, Line] = {}
        self._pick = pick
        self._table = ui.table(
            rows=[],
            columns=[
                {"name": name, "label": label, "field": name, "align": "left", "headerStyle": style, "style": style}
                for name, label, style in _COLUMNS
            ],
            row_key="id",
            pagination={"rowsPerPage": 0},
        )
        self._table.classes("ms-records").props("flat dense hide-bottom data-testid=records")
        self._table.add_slot("body-cell-key", _TEXT_CELL)
        self._table.add_slot("body-cell-value", _TEXT_CELL)
        self._table.add_slot("body-cell-offset", _PICK_CELL)
        self._table.add_slot("body-cell-kind", _KIND_CELL)
        self._table.on("pick", lambda event: self._picked(str(event.args)))
        self._table.on("rowClick", lambda event: self._picked(str(event.args[1]["id"])))

    def __len__(self) -> int:
        return len(self._lines)

    def replace(self, lines: Sequence[Line]) -> None:
        self._lines = {line.row["id"]: line for line in lines}
        self._send()

    def append(self, lines: Sequence[Line]) -> None:
        self._lines |= {line.row["id"]: line for line in lines}
        self._send()

    def put_on_top(self, lines: Sequence[Line], most: int) -> None:
        """What came last first; the oldest go when there are more than `most`."""
        together = {line.row["id"]: line for line in reversed(lines)} | self._lines
        self._lines = dict(list(together.items())[:most])
        self._send()

    def neighbour(self, record: FoundRecord, step: int) -> Line | None:
        keys = list(self._lines)
        at = keys.index(_id(record)) + step if _id(record) in self._lines else -1
        return self._lines[keys[at]] if 0 <= at < len(keys) else None

    def _send(self) -> None:
        self._table.rows = [line.row for line in self._lines.values()]

    def _picked(self, key: str) -> Any:
        return self._pick(self._lines[key]) if key in self._lines else None


def lines_of(records: Sequence[FoundRecord], decode: Decode, zone: tzinfo) -> list[Line]:
    """Records as rows; decodes, so it is nothing for the event loop."""
    return [_line(record, decode, zone) for record in records]


def _line(record: FoundRecord, decode: Decode, zone: tzinfo) -> Line:
    held = len(record.key or b"") + len(record.value or b"") + sum(len(value or b"") for _, value in record.headers)
    is_whole = held <= _MOST_HELD
    kept = record if is_whole else record._replace(key=None, value=None, headers=())
    return Line(kept, is_whole, _row(record, decode, zone))


def _row(record: FoundRecord, decode: Decode, zone: tzinfo) -> dict[str, Any]:
    key, value = decode(record.key), decode(record.value)
    return {
        "id": _id(record),
        "time": shown_moment(record.timestamp_ms, zone),
        "partition": record.partition,
        "offset": f"{record.offset:,}",
        "key": one_line(key, _KEY),
        "kind": kind_label(value),
        "tone": "warn" if value.problem else _TONES.get(value.kind, "dim"),
        "value": one_line(value, _LINE),
        "size": size(len(record.value or b"")),
        "nulls": {"key": record.key is None, "value": record.value is None},
    }


def _id(record: FoundRecord) -> str:
    return f"{record.partition}@{record.offset}"
