"""Durations and sizes as people write them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.common.quantities import parse_duration, parse_duration_ms, parse_iso_duration_ms, parse_size


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500ms", 500),
        ("5s", 5_000),
        ("1.5s", 1_500),
        ("90 seconds", 90_000),
        ("2 minutes", 120_000),
        ("15min", 900_000),
        (" 1h 30m ", 5_400_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        ("1 Week", 604_800_000),
        ("PT5M", 300_000),
        ("p1dt2h", 93_600_000),
        ("PT0.25S", 250),
    ],
)
def test_durations_with_units_and_in_iso_8601_are_parsed(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == timedelta(milliseconds=milliseconds)
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", " ", "5", "s", "5 parsecs", "-5s", "P", "PT", "5s x", "1e3s", "٣s", "2026-01-31"])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


def test_a_number_without_a_unit_has_the_default_unit() -> None:
    assert parse_duration("250", unit="ms") == timedelta(milliseconds=250)
    assert parse_duration("2m", unit="ms") == timedelta(minutes=2)


def test_microseconds_are_exact_and_smaller_parts_are_refused() -> None:
    assert parse_duration("500us") == timedelta(microseconds=500)
    with pytest.raises(ValueError, match="milliseconds"):
        parse_duration_ms("500us")
    with pytest.raises(ValueError, match="microseconds"):
        parse_duration("0.5us")


def test_a_duration_beyond_all_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        parse_duration("999999999999 weeks")


@given(st.text(max_size=30))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        assert parse_duration(text) >= timedelta(0)
    except ValueError:
        pass


@pytest.mark.parametrize("text", ["5s", "P", "PT", "-PT1S", "PT1", "P1Y"])
def test_only_iso_durations_are_iso_durations(text: str) -> None:
    assert parse_iso_duration_ms(text) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1048576", 1 << 20),
        ("512k", 512 << 10),
        ("64 MB", 64 << 20),
        ("64MiB", 64 << 20),
        ("1.5 GB", 3 << 29),
        (" 1g ", 1 << 30),
    ],
)
def test_sizes_have_units_in_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1", "0", "0.1b", "1 parsec", "1 MB x", "٣"])
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)
