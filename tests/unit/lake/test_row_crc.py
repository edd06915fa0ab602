"""Checksums of rows: what they depend on, and what they do not."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from millstream.lake.row_crc import RowCrc, row_crc

ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "id": number,
            "name": None if number == 3 else f"n{number}",
            "raw": bytes([number]) * number,
            "price": number / 2,
            "exact": Decimal(number) / 4,
            "is_new": number % 2 == 0,
            "day": date(2026, 1, 1 + number),
            "at": datetime(2026, 1, 1, number, tzinfo=UTC),
            "tags": [f"t{each}" for each in range(number)],
            "who": {"first": f"f{number}", "age": number},
            "more": [("a", number), ("b", 1)],
        }
        for number in range(5)
    ],
    schema=pa.schema(
        [
            pa.field("id", pa.int32()),
            pa.field("name", pa.string()),
            pa.field("raw", pa.binary()),
            pa.field("price", pa.float32()),
            pa.field("exact", pa.decimal128(10, 2)),
            pa.field("is_new", pa.bool_()),
            pa.field("day", pa.date32()),
            pa.field("at", pa.timestamp("ms", "UTC")),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("who", pa.struct([pa.field("first", pa.string()), pa.field("age", pa.int32())])),
            pa.field("more", pa.map_(pa.string(), pa.int64())),
        ]
    ),
)


def test_order_of_rows_and_columns_does_not_matter() -> None:
    whole = row_crc(ROWS)
    assert row_crc(ROWS.take(pa.array([4, 2, 0, 1, 3]))) == whole
    assert row_crc(ROWS.select(list(reversed(ROWS.schema.names)))) == whole
    assert row_crc(ROWS.slice(0, 2)) + row_crc(ROWS.slice(2)) == whole
    assert whole - row_crc(ROWS.slice(2)) == row_crc(ROWS.slice(0, 2))
    assert row_crc(ROWS.slice(0, 0)) == RowCrc()


def test_evolution_does_not_matter() -> None:
    wide = pa.schema(
        [
            {"id": pa.field("id", pa.int64()), "price": pa.field("price", pa.float64())}.get(each.name, each)
            if each.name not in ("at", "who")
            else pa.field("at", pa.timestamp("us", "UTC"))
            if each.name == "at"
            else each
            for each in ROWS.schema
        ]
    )
    arrays = [ROWS.column(each.name).cast(each.type) for each in wide]
    evolved = pa.RecordBatch.from_arrays(arrays, schema=wide).append_column("added", pa.nulls(5, pa.string()))
    who = pa.StructArray.from_arrays(
        [*ROWS.column("who").flatten(), pa.nulls(5, pa.string())], names=["first", "age", "city"]
    )
    evolved = evolved.set_column(evolved.schema.get_field_index("who"), "who", who)
    assert row_crc(evolved) == row_crc(ROWS)


@pytest.mark.parametrize("name", ROWS.schema.names)
def test_a_changed_value_changes_the_checksum(name: str) -> None:
    rows = ROWS.to_pylist()
    rows[1][name], rows[2][name] = rows[2][name], rows[1][name]
    changed = pa.RecordBatch.from_pylist(rows, schema=ROWS.schema)
    assert changed.num_rows == ROWS.num_rows and row_crc(changed) != row_crc(ROWS)


def test_null_is_not_the_empty_text_and_names_matter() -> None:
    def crc(name: str, value: str | None) -> int:
        return row_crc(pa.RecordBatch.from_arrays([pa.array([value], pa.string())], names=[name])).crc

    assert len({crc("a", None), crc("a", ""), crc("a", "x"), crc("b", "x")}) == 4
