"""Digests of rows: the same for the same rows in any order and split, and other ones for other rows."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millstream.spark.sink.input_identity import DigestingRows, RowDigest, digest_of

SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("small", pa.int8()),
        ("share", pa.float64()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("price", pa.decimal128(20, 2)),
        ("day", pa.date32()),
        ("time", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.int32()), ("names", pa.list_(pa.string()))])),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("nothing", pa.null()),
        ("long", pa.large_string()),
    ]
)


def row(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "small": number % 100,
        "share": number / 3,
        "flag": number % 2 == 0,
        "text": f"text {number}",
        "bytes": b"x" * number,
        "price": Decimal(number) * 10**12,
        "day": date(2026, 1, 1 + number),
        "time": datetime(2026, 1, 1, 0, 0, number, tzinfo=UTC),
        "tags": [f"t{number}", None, "u"],
        "place": {"x": number, "names": ["a", f"b{number}"]},
        "counts": [("a", number), ("b", 2)],
        "nothing": None,
        "long": f"long {number}",
    }


ROWS = [row(number) for number in range(20)] + [dict.fromkeys(SCHEMA.names)]


def _digest(rows: list[dict[str, Any]]) -> RowDigest:
    return digest_of(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))


def test_neither_order_nor_split_matters() -> None:
    whole = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)
    mixed = random.Random(1).sample(ROWS, len(ROWS))
    assert digest_of(whole) == _digest(mixed)
    assert digest_of(whole) == digest_of(whole.slice(0, 7)) + digest_of(whole.slice(7, 1)) + digest_of(whole.slice(8))
    passed = DigestingRows(iter([whole.slice(3), whole.slice(0, 0), whole.slice(0, 3)]))
    assert sum(batch.num_rows for batch in passed) == len(ROWS)
    assert passed.digest == digest_of(whole)
    assert digest_of(whole.slice(0, 0)) == RowDigest()


@pytest.mark.parametrize("column", [name for name in SCHEMA.names if name != "nothing"])
def test_any_other_value_is_found(column: str) -> None:
    for value in (row(8)[column], None):
        changed = [dict(each) for each in ROWS]
        changed[3][column] = value
        assert _digest(changed) != _digest(ROWS)
    swapped = [dict(each) for each in ROWS]
    swapped[3][column], swapped[4][column] = swapped[4][column], swapped[3][column]  # the same values, in other rows
    assert _digest(swapped) != _digest(ROWS)


def test_what_is_nearly_the_same_is_found() -> None:
    base = row(5)
    others: list[dict[str, Any]] = [
        {**base, "tags": ["u", None, "t5"]},
        {**base, "tags": ["t5", "u", None]},
        {**base, "tags": []},
        {**base, "tags": [None]},
        {**base, "text": ""},
        {**base, "text": base["long"], "long": base["text"]},
        {**base, "place": {"x": None, "names": None}},
        {**base, "place": {"x": 5, "names": []}},
        {**base, "bytes": b"xxxx\0"},
    ]
    digests = {_digest([each]).total for each in (base, *others)}
    assert len(digests) == len(others) + 1
    assert _digest([base, base]) != _digest([base])
    assert _digest([{**base, "counts": [("b", 2), ("a", 5)]}]) == _digest([base])  # a map has no order
