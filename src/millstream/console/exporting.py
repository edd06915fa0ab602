"""Rows as a file: JSON, CSV or Parquet, with the values themselves, not with their texts on the page."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def _as_json(columns: Sequence[str], rows: Rows) -> bytes:
    chosen = [{name: row.get(name) for name in columns} for row in rows]
    return json.dumps(chosen, ensure_ascii=False, indent=1, default=str).encode()


def _as_csv(columns: Sequence[str], rows: Rows) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([row.get(name) for name in columns] for row in rows)
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
