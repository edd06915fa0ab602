"""The text format and the instruments, without a node."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from millstream.common.prometheus import Histogram, Page, counter, gauge, histogram, number
from millstream.node.metrics.requests import kafka_name
from tests.integration.node.metrics.conftest import Scraped

SIZE = gauge("size_bytes", "How large.", "name", "place")
TIME = histogram("time_seconds", "How long.", "api")


def page_of(page: Page) -> Scraped:
    return Scraped(b"".join(page.chunks()).decode())


def test_samples_of_a_family_stand_together_whatever_their_order() -> None:
    page, count = Page(), counter("count_total", "How many.")
    page.add(SIZE, 1, "a", "x")
    page.add(count, 2)
    page.add(SIZE, 3, "b", "x")
    assert b"".join(page.chunks()).decode() == (
        "# HELP size_bytes How large.\n# TYPE size_bytes gauge\n"
        'size_bytes{name="a",place="x"} 1\nsize_bytes{name="b",place="x"} 3\n'
        "# HELP count_total How many.\n# TYPE count_total counter\ncount_total 2\n"
    )


def test_a_family_without_samples_is_left_out() -> None:
    page = Page()
    page.lines(SIZE)
    assert list(page.chunks()) == []


@given(some.text())
def test_any_text_survives_as_a_label(text: str) -> None:
    text = "".join(letter for letter in text if len(f"a{letter}b".splitlines()) == 1 or letter == "\n")
    page = Page()
    page.add(SIZE, 1, text, "x")
    assert page_of(page)("size_bytes", name=text, place="x") == 1


def test_labels_have_to_be_complete() -> None:
    with pytest.raises(ValueError):
        Page().add(SIZE, 1, "a")


@given(some.lists(some.floats(0, 100)))
def test_a_histogram_counts_each_value_up_to_its_bound(values: list[float]) -> None:
    found = Histogram((0.5, 1.0, 50.0))
    for value in values:
        found.observe(value)
    page = Page()
    page.add_histogram(TIME, found, "Produce")
    shown = page_of(page)
    for bound in (0.5, 1.0, 50.0, math.inf):
        assert shown("time_seconds_bucket", le=number(bound)) == sum(value <= bound for value in values)
    assert shown("time_seconds_count") == found.count == len(values)
    assert shown("time_seconds_sum") == pytest.approx(sum(values))


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "1"), (3, "3"), (3.0, "3"), (0.1, "0.1"), (1e300, "1e+300"), (math.inf, "+Inf"), (1 << 70, str(1 << 70))],
)
def test_numbers_are_written_as_prometheus_expects(value: float, text: str) -> None:
    assert number(value) == text


def test_apis_have_the_names_that_kafka_gives_them() -> None:
    assert [kafka_name(api) for api in ("produce", "list_offsets", "end_txn")] == ["Produce", "ListOffsets", "EndTxn"]
