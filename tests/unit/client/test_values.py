"""Values to bytes and back."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.client import EncodingError
from millstream.client.record import (
    decode_json,
    decode_text,
    decoder,
    encode_headers,
    encode_key,
    encode_timestamp,
    encode_value,
)
from tests.examples import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=examples(50), deadline=None)
@given(st.dictionaries(st.text(), JSON) | st.lists(JSON))
def test_json_documents_come_back_as_they_were(document: Any) -> None:
    assert decode_json(encode_value(document)) == document


@settings(max_examples=examples(50), deadline=None)
@given(st.text())
def test_text_comes_back_as_it_was(text: str) -> None:
    assert decode_text(encode_value(text)) == text


@settings(max_examples=examples(50), deadline=None)
@given(st.binary())
def test_bytes_of_any_kind_stay_as_they_are(data: bytes) -> None:
    assert encode_value(data) == encode_value(bytearray(data)) == encode_value(memoryview(data)) == data


def test_json_is_compact_and_keeps_letters() -> None:
    assert encode_value({"a": "ä", "b": [1, 2]}) == '{"a":"ä","b":[1,2]}'.encode()


def test_none_is_a_tombstone_in_both_directions() -> None:
    assert encode_value(None) is None
    assert decode_json(None) is None
    assert decode_text(None) is None


@pytest.mark.parametrize("value", [5, 1.5, object(), {1, 2}, datetime.now(UTC)])
def test_a_value_without_an_obvious_encoding_is_refused(value: Any) -> None:
    with pytest.raises(EncodingError, match="encode it first"):
        encode_value(value)


def test_a_document_that_json_cannot_express_is_refused() -> None:
    with pytest.raises(EncodingError, match="JSON"):
        encode_value({"when": datetime.now(UTC)})


def test_keys_are_bytes_or_text() -> None:
    assert (encode_key("ä"), encode_key(b"\0"), encode_key(None)) == ("ä".encode(), b"\0", None)
    with pytest.raises(EncodingError):
        encode_key(5)  # type: ignore[arg-type]


def test_headers_keep_order_and_doubles() -> None:
    assert encode_headers([("a", "1"), ("b", b"2"), ("a", None)]) == [("a", b"1"), ("b", b"2"), ("a", None)]
    assert encode_headers({"a": "1"}) == [("a", b"1")]
    assert encode_headers({}) is None
    with pytest.raises(EncodingError, match="header 'a'"):
        encode_headers({"a": 1})  # type: ignore[arg-type]


def test_timestamps_are_milliseconds() -> None:
    assert encode_timestamp(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1000
    assert encode_timestamp(42) == 42
    assert encode_timestamp(None) == 0


def test_the_decode_option_chooses_a_decoder() -> None:
    assert decoder(None) is None
    assert decoder("bytes") is None
    for option, expected in (("text", "[1]"), ("json", [1]), (json.loads, [1]), (len, 3)):
        function = decoder(option)  # type: ignore[arg-type]
        assert function is not None
        assert function(b"[1]") == expected
        assert function(None) is None
    with pytest.raises(EncodingError, match="decode"):
        decoder("yaml")  # type: ignore[arg-type]


def test_bytes_that_are_not_what_was_asked_for() -> None:
    with pytest.raises(EncodingError, match="not JSON"):
        decode_json(b"{")
    with pytest.raises(EncodingError, match="not UTF-8"):
        decode_text(b"\xff")
