"""What the messages page is made of, without a cluster: positions, filters, and records as text."""

import base64
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
import pytest

from millstream.console.messages.expressions import FilterError, parse_expression
from millstream.console.messages.query import (
    IN_HEADERS,
    IN_KEY,
    PositionError,
    RecordFilter,
    parse_moment,
    parse_offset,
    shown_moment,
)
from millstream.console.messages.reading import FoundRecord
from millstream.console.messages.text import header_line, hexadecimal, kind_label, one_line, seen, tree_of, written_out
from millstream.console.messages.writing import InvalidInputError, draft_of, parse_bytes, parse_headers
from millstream.registry.decoding import Decoded, decode_without_schema

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PARIS = timezone(timedelta(hours=1))


def decode(data: bytes | None) -> Decoded:
    return Decoded("null", None) if data is None else decode_without_schema(data)


def record(value: Any = None, key: bytes | None = None, **headers: bytes) -> FoundRecord:
    data = value if value is None or isinstance(value, bytes) else orjson.dumps(value)
    return FoundRecord(0, 7, 0, key, data, tuple(headers.items()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5m", NOW - timedelta(minutes=5)),
        ("2 h ago", NOW - timedelta(hours=2)),
        ("2026-02-28 10:00", datetime(2026, 2, 28, 9, 0, tzinfo=UTC)),
        ("2026-02-28T10:00:00+00:00", datetime(2026, 2, 28, 10, 0, tzinfo=UTC)),
        ("@1767225600000", datetime(2026, 1, 1, tzinfo=UTC)),
        ("12:30", datetime(2026, 3, 1, 11, 30, tzinfo=UTC)),
        ("23:59:59", datetime(2026, 2, 28, 22, 59, 59, tzinfo=UTC)),  # has not come yet today, so it was yesterday's
    ],
)
def test_times_are_read_in_the_zone_of_the_reader(text: str, expected: datetime) -> None:
    assert parse_moment(text, PARIS, NOW) == expected.timestamp() * 1000


@pytest.mark.parametrize("text", ["", "soon", "99:99", "9999999999d", "2026-13-01", "@", "-5m"])
def test_what_is_no_time_says_how_one_is_written(text: str) -> None:
    with pytest.raises(PositionError, match="enter a time such as"):
        parse_moment(text, UTC, NOW)


def test_offsets_are_parsed_or_refused() -> None:
    assert parse_offset(" 1,234 ") == 1234
    for text in ("", "-1", "x", "٣", "9" * 19):
        with pytest.raises(PositionError):
            parse_offset(text)


def test_times_are_shown_to_the_millisecond() -> None:
    assert shown_moment(1_767_225_600_123, PARIS) == "2026-01-01 01:00:00.123"
    assert shown_moment(-1, UTC) == "–"
    assert shown_moment(1 << 62, UTC).startswith("@")


DOCUMENT = {
    "id": 17,
    "name": "Ada Lovelace",
    "paid": True,
    "total": 99.5,
    "none": None,
    "lines": [{"sku": "A"}, {"sku": "B"}],
    "odd key": {"x.y": 1},
}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("value.id == 17", True),
        ("value.name.contains('Love') && value.paid", True),
        ("value.total >= 99.5 && value.total < 100", True),
        ("value.none == null", True),
        ("value.lines[1].sku == 'B'", True),
        ("value.lines.exists(line, line.sku == 'A')", True),
        ("has(value.id) && !has(value.missing)", True),
        ("value['odd key']['x.y'] == 1", True),
        ("partition == 0 && offset >= 0 && time >= timestamp('1970-01-01T00:00:00Z')", True),
        ("value.missing == 1", False),
        ("value.id == 18", False),
        ("value.lines[7].sku == 'A'", False),
        ("value.lines.all(a, value.lines.all(b, a == b))", False),
    ],
)
def test_expressions_match_records(text: str, matches: bool) -> None:
    expression = parse_expression(text)
    assert expression is not None
    assert RecordFilter(decode, expression=expression)(record(DOCUMENT)) is matches
    assert not expression.misfits


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("total == 5", "write value.total"),
        ("value.total = 5", "write == to compare"),
        ("value.total >", "is not an expression"),
        ("value.total == 5 && nme == 'x'", "'nme' is not defined"),
        ("x" * 600, "the maximum is 500"),
    ],
)
def test_what_is_no_expression_says_what_to_write(text: str, reason: str) -> None:
    with pytest.raises(FilterError, match=reason):
        parse_expression(text)


def test_records_that_cannot_be_compared_are_counted_with_the_reason() -> None:
    for text, reason in (("value.name > 5", "overload"), ("value.id", "not true or false")):
        expression = parse_expression(text)
        assert expression is not None and not RecordFilter(decode, expression=expression)(record(DOCUMENT))
        assert expression.misfits == 1 and reason in expression.reason
    deep = parse_expression("value.a.all(x, value.a.all(y, x + y >= 0))")
    assert deep is not None and not RecordFilter(decode, expression=deep)(record({"a": list(range(2000))}))
    assert "too long" in deep.reason


_TEN = "[0,0,0,0,0,0,0,0,0,0]"


def _nested(loop: str) -> str:
    text = "true"
    for _ in range(12):
        text = f"{_TEN}.{loop}(x,{text})"
    return text


@pytest.mark.parametrize(
    "text",
    [
        _nested("all"),  # lists of the expression itself
        _nested("existsOne"),
        f"'''it's''' != 'a' && {_nested('all')} && key != 'z'",  # loops behind an apostrophe
        "key.all(a, key.all(b, key.all(c, true)))",
    ],
)
def test_loops_in_loops_are_bounded_whatever_they_go_through(text: str) -> None:
    """An evaluation cannot be interrupted: without the bound these would run for hours."""
    expression = parse_expression(text)
    found = record({"a": 1}, orjson.dumps([0] * 5000))
    assert expression is not None and not expression.holds("t", found, decode(found.key), decode(found.value))
    assert expression.reason == "its lists are too long for lists in lists"


def test_texts_cannot_grow_from_loop_to_loop() -> None:
    with pytest.raises(FilterError, match=r"too many \+"):
        parse_expression("['a']" + ".map(x,x+x+x+x+x+x+x+x+x+x)" * 15 + "[0] == ''")


def test_an_empty_expression_filters_nothing() -> None:
    assert parse_expression("  ") is None
    assert not RecordFilter(decode)


def test_a_value_as_a_tree_is_text_and_bounded() -> None:
    tree = tree_of({"a": [1, None, True, "<b>\u202e"], "big": 2**60})
    (first, second) = tree["c"]
    assert [each["t"] for each in first["c"]] == ["1", "null", "true", '"<b>\\u202e"']
    assert second["t"] == str(2**60), "numbers are exact"
    cut = tree_of(list(range(10_000)), 50)
    assert len(cut["c"]) == 50 and "9,951 more" in cut["c"][-1]["t"]


def test_a_record_to_edit_has_its_formats() -> None:
    sent = record({"id": 1}, b"\xff", trace=b"abc")
    draft = draft_of("t", sent, decode(sent.key), Decoded("avro", {"id": 1}, 7))
    assert (draft.key_form, draft.value_form, draft.value_subject) == ("base64", "schema", "id:7")
    assert draft.headers == "trace: abc" and json.loads(draft.value) == {"id": 1}


def test_text_is_found_in_key_value_and_headers_whatever_its_case() -> None:
    there = record(b"Hello W\xc3\x96RLD", b"Key-1", trace=b"Abc")
    for text in ("hello", "wörld", "KEY-1", "TRACE", "abc"):
        assert RecordFilter(decode, text)(there), text
    assert RecordFilter(decode, "key", IN_KEY)(there)
    assert not RecordFilter(decode, "key", IN_HEADERS)(there)
    assert not RecordFilter(decode, "nothing")(there)
    assert not RecordFilter(decode, "x")(record(None))


def test_text_behind_a_schema_is_looked_for_in_what_it_means() -> None:
    def through_registry(data: bytes | None) -> Decoded:
        return Decoded("avro", {"city": "Zürich"}, 1)

    assert RecordFilter(through_registry, "ZÜRICH")(record(b"\x00\x00\x00\x00\x01..."))


def test_a_line_is_one_line_and_cut() -> None:
    assert one_line(Decoded("text", "a\nb\tc\x00\u202ed")) == "a⏎b⇥c␀\\u202ed"
    assert one_line(Decoded("text", "x" * 1000), 10) == "x" * 10 + "…"
    assert one_line(Decoded("json", {"a": [1, None]})) == '{"a":[1,null]}'
    assert one_line(Decoded("null", None)) == "null"
    assert one_line(Decoded("json", "quoted")) == "quoted"


def test_what_is_written_out_says_how_much_was_left_out() -> None:
    piece = written_out(Decoded("text", "x" * 100), 40)
    assert (len(piece.text), piece.left_out) == (40, 60)
    assert written_out(Decoded("json", {"a": 1})).text == '{\n  "a": 1\n}'
    assert written_out(Decoded("text", "<script>")).text == "<script>"


def test_half_characters_can_be_sent_to_a_browser() -> None:
    seen("\ud800 \udfff").encode()
    assert kind_label(Decoded("avro", {}, 7)) == "Avro #7"
    assert kind_label(Decoded("binary", "", 7, "no such schema")) == "binary"


def test_hexadecimal_has_offsets_bytes_and_what_is_printable() -> None:
    piece = hexadecimal(bytes(range(60, 80)))
    first, second = piece.text.splitlines()
    assert first == "00000000  3c 3d 3e 3f 40 41 42 43  44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK"
    assert second.startswith("00000010  4c 4d 4e 4f") and second.endswith("  LMNO")
    assert hexadecimal(b"x" * 100, 32).left_out == 68


def test_headers_are_text_or_hexadecimal() -> None:
    assert header_line(b"caf\xc3\xa9") == "café"
    assert header_line(b"\xff\x00") == "0xff00"
    assert header_line(None) == "null"
    assert header_line(b"x" * 10_000).endswith("…")


def test_typed_keys_and_values_become_bytes() -> None:
    assert parse_bytes("ü", "text", "key") == b"\xc3\xbc"
    assert parse_bytes("ignored", "null", "key") is None
    assert parse_bytes(' {"a": 1} ', "JSON", "value") == b' {"a": 1} '
    assert parse_bytes(base64.b64encode(b"\x00\xff").decode(), "base64", "value") == b"\x00\xff"
    for text, form in (("{", "JSON"), ("a?", "base64")):
        with pytest.raises(InvalidInputError, match="value"):
            parse_bytes(text, form, "value")


def test_headers_are_typed_a_line_each() -> None:
    assert parse_headers("a: 1\n\nb\n c : x:y") == (("a", b"1"), ("b", None), ("c", b"x:y"))
    with pytest.raises(InvalidInputError, match="Line 2"):
        parse_headers("a: 1\n: 2")
