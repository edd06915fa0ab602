"""Rows as a file: JSON, CSV or Parquet, with the values themselves, not with their texts on the page.

A spreadsheet takes a text in a CSV cell that begins with `=`, `+`, `-` or `@` for a formula. Records and names come
from any client, so such a text gets an apostrophe in front. Numbers stay as they are, and JSON and Parquet have every
text as it is.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def _as_json(columns: Sequence[str], rows: Rows) -> bytes:
    chosen = [{name: row.get(name) for name in columns} for row in rows]
    return json.dumps(chosen, ensure_ascii=False, indent=1, default=str).encode()


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Spreadsheets skip white space before a formula."""
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def safe_cell(value: Any) -> Any:
    """The value for a cell of a spreadsheet: a text that could be a formula gets an apostrophe in front."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def _plain(value: Any) -> Any:
    """As csv writes it: numbers as they are, everything else as text."""
    return value if value is None or isinstance(value, (int, float)) else str(value)


def _as_csv(columns: Sequence[str], rows: Rows) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([safe_cell(name) for name in columns])
    writer.writerows([safe_cell(_plain(row.get(name))) for name in columns] for row in rows)
    return text.getvalue().encode()


def _as_parquet(columns: Sequence[str], rows: Rows) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    arrays = []
    for name in columns:
        values = [row.get(name) for row in rows]
        try:
            arrays.append(pa.array(values))
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # values of several types
            arrays.append(pa.array([None if value is None else str(value) for value in values], pa.string()))
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(arrays, names=list(columns)), sink, compression="zstd")
    return bytes(sink.getvalue())


EXPORTS: Mapping[str, tuple[Callable[[Sequence[str], Rows], bytes], str]] = {
    "json": (_as_json, "application/json"),
    "csv": (_as_csv, "text/csv"),
    "parquet": (_as_parquet, "application/vnd.apache.parquet"),
}
"""By file extension: the function that writes it, and its media type."""


def export(extension: str, columns: Sequence[str], rows: Rows) -> bytes:
    """The bytes of a file. Run it in a thread."""
    return EXPORTS[extension][0](columns, rows)
