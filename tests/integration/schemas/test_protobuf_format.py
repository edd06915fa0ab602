"""Protobuf records as typed columns: all types, nested messages, imports, noise, and back."""

import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.schemas import EncodingError, Format, SchemaError, SchemaNotFoundError, make_format
from tests.examples import examples
from tests.unit.schemas.tiny_registry import TinyRegistry

TEXT = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/duration.proto";
message First { int32 z = 1; }
message Outer {
  message Order {
    int64 id = 1;
    string name = 2;
    optional int32 n = 3;
    google.protobuf.Timestamp at = 4;
    google.protobuf.Int64Value wrapped = 5;
    repeated string tags = 6;
    map<string, int32> counts = 7;
    Addr home = 8;
    Sort sort = 9;
    oneof choice { string text = 10; int32 number = 11; }
    uint64 large = 12;
    google.protobuf.Struct free = 13;
    google.protobuf.Duration took = 14;
    repeated Addr others = 15;
    map<int32, Addr> by_number = 16;
    bytes raw = 17;
    uint32 unsigned = 18;
    double d = 19;
    bool on = 20;
  }
  message Addr { string city = 1; }
  enum Sort { A = 0; B = 1; }
}
"""
ROW: dict[str, Any] = {
    "id": 7, "name": "x", "n": None, "at": datetime(2024, 5, 6, 7, 8, 9, 123_456, UTC), "wrapped": 0, "tags": ["a", ""],
    "counts": [("k", 1)], "home": {"city": "B"}, "sort": "B", "text": None, "number": 0, "large": Decimal(2**64 - 1),
    "free": '{"q": 1.0}', "took": timedelta(seconds=-1.5), "others": [{"city": ""}], "by_number": [(1, {"city": "C"})],
    "raw": b"\xff", "unsigned": 2**32 - 1, "d": 0.5, "on": True,
}  # fmt: skip
UNSET: dict[str, Any] = {
    **dict.fromkeys(ROW), "id": 0, "name": "", "tags": [], "counts": [], "sort": "A", "large": Decimal(0), "others": [],
    "by_number": [], "raw": b"", "unsigned": 0, "d": 0.0, "on": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def form() -> Format:
    made = make_format("protobuf", options={"schema": TEXT, "message": "shop.Outer.Order"})
    made.arrow_type()
    return made


def test_all_types_there_and_back(form: Format) -> None:
    rows = pa.array([ROW, None, UNSET], form.arrow_type())
    data = form.encode(rows)
    assert data[1].as_py() is None and data[2].as_py() == b""
    found, errors = pickle.loads(pickle.dumps(form)).decode(data)
    assert found.to_pylist() == rows.to_pylist() and found.type == form.arrow_type()
    assert errors.null_count == 3


def test_an_enum_of_a_newer_writer_is_its_number(form: Format) -> None:
    rows, _ = form.decode(pa.array([b"\x48\x07"]))
    assert rows[0]["sort"].as_py() == "7"
    assert form.encode(rows)[0].as_py() == b"\x48\x07"


def test_rows_that_do_not_fit(form: Format) -> None:
    with pytest.raises(EncodingError, match="no field 'idd'; it has id, name"):
        form.encode(pa.array([{"idd": 1}]))
    with pytest.raises(EncodingError, match=r"Row 1 does not fit shop.Outer.Order: Sort has no 'C'; it has A, B"):
        form.encode(pa.array([{"sort": "A"}, {"sort": "C"}]))
    with pytest.raises(EncodingError, match="tags has a null"):
        form.encode(pa.array([{"tags": ["a", None]}]))
    with pytest.raises(EncodingError, match="Row 0"):
        form.encode(pa.array([{"name": 5}]))


def test_what_json_cannot_say_is_a_bad_record(form: Format) -> None:
    order = form._class()  # type: ignore[attr-defined]
    order.free.fields["x"].number_value = float("nan")
    rows, errors = form.decode(pa.array([order.SerializeToString(), b"\x08\x07"]))
    assert rows[0].as_py() is None and "nan" in errors[0].as_py().lower()
    assert rows[1]["id"].as_py() == 7
    with pytest.raises(EncodingError, match="Row 0"):
        form.encode(pa.array([{"free": "no json"}]))


@given(st.binary(max_size=40))
@settings(max_examples=examples(100))
def test_noise_never_raises(form: Format, noise: bytes) -> None:
    good = b"\x08\x07"
    rows, errors = form.decode(pa.array([good, noise, good]))
    assert rows[0]["id"].as_py() == rows[2]["id"].as_py() == 7
    assert (errors[1].as_py() is None) == rows[1].is_valid


def test_the_registry_s_prefix_and_message_indexes(registry: TinyRegistry) -> None:
    number = registry.register("orders-value", {"schema": TEXT, "schemaType": "PROTOBUF"})
    form = make_format("protobuf", topic="orders", registry_url=registry.url, options={"message": "Order"})
    rows = pa.array([{"id": 7}], pa.struct([("id", pa.int64())]))
    data = form.encode(rows)[0].as_py()
    assert data == b"\x00" + number.to_bytes(4, "big") + b"\x04\x02\x00" + b"\x08\x07"
    first = b"\x00" + number.to_bytes(4, "big") + b"\x00" + b"\x08\x07"
    nowhere = b"\x00" + number.to_bytes(4, "big") + b"\x02\x10" + b"\x08\x07"
    form = pickle.loads(pickle.dumps(form))
    found, errors = form.decode(pa.array([data, first, nowhere, b"\x00\x00\x00\x00\x63\x00", b"x", data[:6]]))
    assert found[0]["id"].as_py() == 7 and found.null_count == 5
    texts = errors.to_pylist()
    assert texts[0] is None
    assert texts[1] == "a message shop.First, where shop.Outer.Order is read"
    assert "no message at index [8]" in texts[2] and "does not have schema 99" in texts[3]
    assert "no schema registry prefix" in texts[4] and "a message index of 2 levels" in texts[5]


def test_protobuf_schemas_may_have_references(registry: TinyRegistry) -> None:
    base = 'syntax = "proto3"; package common; message Money { int64 cents = 1; }'
    whole = 'syntax = "proto3"; import "common/money.proto"; message Sale { common.Money price = 1; }'
    registry.register("money", {"schema": base, "schemaType": "PROTOBUF"})
    reference = {"name": "common/money.proto", "subject": "money", "version": 1}
    registry.register("sales-value", {"schema": whole, "schemaType": "PROTOBUF", "references": [reference]})
    form = make_format("protobuf", topic="sales", registry_url=registry.url)
    rows = pa.array([{"price": {"cents": 5}}], form.arrow_type())
    assert form.decode(form.encode(rows))[0].to_pylist() == rows.to_pylist()


def test_a_schema_is_never_made_up(registry: TinyRegistry) -> None:
    with pytest.raises(SchemaNotFoundError, match="subject 'orders-value'"):
        make_format("protobuf", topic="orders", registry_url=registry.url).encode(pa.array([{"id": 1}]))
    given_text = 'syntax = "proto3"; message M { int64 id = 1; }'
    form = make_format("protobuf", topic="orders", registry_url=registry.url, options={"schema": given_text})
    assert form.encode(pa.array([{"id": 1}]))[0].as_py() == b"\x00\x00\x00\x00\x01\x00\x08\x01"
    assert registry.schemas[0]["schemaType"] == "PROTOBUF"


@pytest.mark.parametrize(
    ("text", "message", "reason"),
    [
        ("message {", None, "cannot be compiled"),
        ('syntax = "proto3";', None, "no message"),
        ('syntax = "proto3"; message A { int32 a = 1; }', "B", "no message 'B'; it has A"),
        ('syntax = "proto3"; message A { A next = 1; }', None, r"contains itself at \$\.next"),
        ('syntax = "proto3"; message A { }', None, "has no fields"),
        ('syntax = "proto3"; import "x.proto"; message A { int32 a = 1; }', None, "cannot be compiled.*x.proto"),
    ],
)
def test_protobuf_schemas_without_columns_are_refused(text: str, message: str | None, reason: str) -> None:
    options = {"schema": text} if message is None else {"schema": text, "message": message}
    with pytest.raises(SchemaError, match=reason):
        make_format("protobuf", options=options).arrow_type()


def test_a_record_without_a_required_field_is_a_bad_record() -> None:
    text = (
        'syntax = "proto2"; message M { required int32 a = 1; optional N n = 2; message N { required int32 b = 1; } }'
    )
    form = make_format("protobuf", options={"schema": text})
    rows, errors = form.decode(pa.array([b"\x08\x05", b"", b"\x08\x05\x12\x00"]))
    assert rows.to_pylist() == [{"a": 5, "n": None}, None, None]
    assert errors.to_pylist() == [None, "a is missing, and required", "n.b is missing, and required"]
