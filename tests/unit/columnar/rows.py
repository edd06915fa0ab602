"""Records as the columns should show them, made from the plain codec of the records room."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from millstream.formats.records.record import NO_OFFSET, Record

RECORDS = st.builds(
    Record,
    key=st.none() | st.binary(max_size=40),
    value=st.none() | st.binary(max_size=300),
    headers=st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=3).map(tuple),
    timestamp=st.integers(-1, 1 << 44),
    offset=st.just(NO_OFFSET),
)
BATCHES = st.lists(RECORDS, min_size=1, max_size=12)

EXAMPLE = [
    Record(b"key", b"value", (("name", b"content"), ("empty", b""), ("null", None)), 1_700_000_000_000),
    Record(None, b"\x00" * 300, (), 1_700_000_000_123),
    Record(b"", None, (("\u00fc", b"\xff"),), 1_699_999_999_999),
]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def shown(records: Iterable[Record], topic: str = "orders", partition: int = 0, kind: int = 0) -> list[dict[str, Any]]:
    """Rows of numbered records."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
            "timestampType": kind,
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for record in records
    ]


def numbered(records: Iterable[Record], first: int = 0) -> list[Record]:
    return [record._replace(offset=first + number) for number, record in enumerate(records)]


def rows_in(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    rows = []
    for batch in batches:
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows
