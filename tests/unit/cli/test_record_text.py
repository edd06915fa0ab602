"""Records as text and back."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.cli.record_text import as_json, from_json, start_of, template
from millstream.cli.terminal import CommandFailedError
from millstream.client import Record
from millstream.client.record import encode_headers, encode_key, encode_value
from tests.examples import examples


def record(
    key: bytes | None = b"k", value: bytes | None = b"v", headers: list[tuple[str, bytes | None]] | None = None
) -> Record[Any]:
    return Record("t", 1, 42, key, value, value, 1700000000000, headers or [])


@settings(max_examples=examples(50), deadline=None)
@given(
    st.none() | st.binary(),
    st.none() | st.binary(),
    st.lists(st.tuples(st.text(), st.none() | st.binary()), max_size=3),
)
def test_json_lines_lose_nothing(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    message = from_json(json.dumps(as_json(record(key, value, headers))).encode(), 1)
    assert (encode_key(message.key), encode_value(message.value)) == (key, value)
    assert (encode_headers(message.headers) or []) == headers
    assert message.timestamp == 1700000000000


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("end", "latest"),
        ("17", 17),
        ("-5", -5),
        ("90s", timedelta(seconds=90)),
        ("2h", timedelta(hours=2)),
        ("250ms", timedelta(milliseconds=250)),
        ("@1000", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("2026-01-31T12:00:00+00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31).astimezone()),
    ],
)
def test_start_of_parses_positions(text: str, start: object) -> None:
    assert start_of(text) == start


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("%t-%p@%o", b"t-1@42"),
        ("%k=%s\\n", b"k=v\n"),
        ("%K,%S", b"1,1"),
        ("%T", b"1700000000000"),
        ("100%%", b"100%"),
        ("\\x41\\t\\\\\\q", b"A\t\\\\q"),
        ("%h", b"a=1,b="),
        ("", b""),
        ("ü", "ü".encode()),
        ("trailing%", b"trailing%"),
    ],
)
def test_a_template_formats_a_record(form: str, expected: bytes) -> None:
    assert template(form)(record(headers=[("a", b"1"), ("b", None)])) == expected


def test_a_template_formats_nulls() -> None:
    assert template("%k|%K|%s|%S")(record(None, None)) == b"|-1||-1"


def test_an_unknown_field_of_a_template_is_an_error() -> None:
    with pytest.raises(CommandFailedError, match="%z is unknown"):
        template("%z")
