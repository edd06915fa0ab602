"""Tables of each format for tests, and rows to put into them; no Spark here."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millstream.lake.data_files import WrittenFile, write_files
from millstream.lake.options import parse_options
from millstream.lake.table import LakeTable, open_or_create

FORMATS = ("delta", "iceberg")
BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)

RECORDS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
    ]
)


def records(start: int, count: int, *, topic: str = "orders", partition: int = 0, days: int = 0) -> pa.RecordBatch:
    """Records as a topic has them; `days` later than the first ones."""
    offsets = range(start, start + count)
    return pa.RecordBatch.from_pylist(
        [
            {
                "key": f"k{offset % 3}".encode(),
                "value": f"v{offset}".encode(),
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "timestamp": BEGIN + timedelta(days=days, seconds=offset),
            }
            for offset in offsets
        ],
        schema=RECORDS,
    )


def opened(path: Path, table_format: str, rows: pa.Schema = RECORDS, **options: str) -> LakeTable:
    given = {"path": str(path), "tableFormat": table_format, **options}
    return open_or_create(parse_options(given), rows)


def written(table: LakeTable, *batches: pa.RecordBatch) -> list[WrittenFile]:
    return write_files(batches, table.layout(), "test")


def rows_of(table: LakeTable, **scan: Any) -> list[dict[str, Any]]:
    plan = table.scan(**scan)
    return [row for batch in plan.read(plan.files) for row in batch.to_pylist()]


@pytest.fixture(params=FORMATS)
def table_format(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
