"""Hints for misspelt names."""

import pytest

from millstream.common.close_match import close_match, did_you_mean

KNOWN = ("retention.ms", "retention.bytes", "Cleanup.Policy")


@pytest.mark.parametrize(
    ("name", "found"),
    [("retention.m", "retention.ms"), ("RETENTION.MS", "retention.ms"), ("cleanup.polcy", "Cleanup.Policy")],
)
def test_the_closest_name_is_found_without_regard_to_case(name: str, found: str) -> None:
    assert close_match(name, KNOWN) == found


def test_a_name_that_is_not_similar_has_no_match() -> None:
    assert close_match("zzz", KNOWN) is None
    assert close_match("retention.m", ()) is None


def test_the_cutoff_is_the_least_similarity() -> None:
    assert close_match("retenton", KNOWN, cutoff=0.5) == "retention.ms"
    assert close_match("retenton", KNOWN, cutoff=0.9) is None


def test_the_hint_has_the_name_or_the_text_for_no_match() -> None:
    assert did_you_mean("retention.m", KNOWN) == "did you mean 'retention.ms'?"
    assert did_you_mean("retention.m", KNOWN, quoted=False) == "did you mean retention.ms?"
    assert did_you_mean("zzz", KNOWN, otherwise="there are two") == "there are two"


def test_a_very_long_name_is_compared_in_time() -> None:
    assert close_match("x" * 1_000_000, KNOWN) is None
