"""Limits as they are said on the command line."""

from dataclasses import fields, replace

import pytest

from millstream.gateway.http import configuration as limits
from millstream.gateway.http.configuration import GatewayError, Limits, read_limits


def test_what_is_said_counts_and_the_rest_stays() -> None:
    assert read_limits(()) == Limits()
    said = read_limits(("max_streams=5", "body_timeout_s=0.5", "max_streams=7"))
    assert said == replace(Limits(), max_streams=7, body_timeout_s=0.5)


def test_every_limit_has_a_range_with_its_default_in_it() -> None:
    for field in fields(Limits):
        lowest, highest = limits._RANGES[field.name]
        assert isinstance(field.default, int | float)
        assert lowest <= field.default <= highest
        assert read_limits((f"{field.name}={lowest}", f"{field.name}={highest}"))


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("max_streams", "an integer from 0 to 1000000"),
        ("max_streams=many", "an integer"),
        ("max_streams=1.5", "an integer"),
        ("max_streams=-1", "from 0"),
        ("max_body_bytes=99999999999", "to 536870912"),
        ("body_timeout_s=nan", "a number from 0.1"),
        ("produce_timeout_s=inf", "to 86400"),
        ("max_stream=5", "one of max_body_bytes, "),
        ("=5", "NAME=VALUE"),
    ],
)
def test_wrong_limits_are_refused(word: str, says: str) -> None:
    with pytest.raises(GatewayError) as refused:
        read_limits((word,))
    assert str(refused.value).startswith(f"--limit {word}: ") and says in str(refused.value)
