"""Values of single settings: what a person writes, what is allowed, what is said when it is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.setting import (
    ConfigError,
    Setting,
    SettingType,
    at_least,
    between,
    boolean,
    double,
    format_value,
    integer,
    listed,
    long,
    one_of,
    optional_long,
    short,
    some_of,
    string,
)


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (boolean("a", False, ""), " TRUE ", True),
        (boolean("a", True, ""), "false", False),
        (integer("a", 0, ""), " -5 ", -5),
        (integer("a", 0, ""), "+5", 5),
        (long("a", 0, ""), "9223372036854775807", (1 << 63) - 1),
        (short("a", 0, ""), "-32768", -32768),
        (double("a", 0, ""), "0.25", 0.25),
        (string("a", "", ""), "  text ", "text"),
        (listed("a", (), ""), " x , y,,z ", ("x", "y", "z")),
        (listed("a", (), ""), "", ()),
        (optional_long("a", ""), "", None),
    ],
)
def test_values_are_parsed_as_kafka_does(setting: Setting[object], text: str, value: object) -> None:
    assert setting.parse(text) == value


@pytest.mark.parametrize(
    ("setting", "text", "message"),
    [
        (boolean("a.b", False, ""), "yes", "a.b=yes is not allowed: it must be true or false"),
        (integer("a", 0, ""), "1_000", "a=1_000 is not allowed: it must be a whole number"),
        (integer("a", 0, ""), "٣", "a=٣ is not allowed: it must be a whole number"),
        (integer("a", 0, ""), "2147483648", "a=2147483648 is not allowed: a int must be -2147483648 to 2147483647"),
        (integer("a", 0, "", allowed=at_least(1)), "0", "a=0 is not allowed: it must be a whole number, at least 1"),
        (double("a", 0, "", allowed=between(0, 1)), "2", "a=2 is not allowed: it must be a number, 0 to 1"),
        (string("a", "x", "", allowed=one_of("x", "y")), "z", "a=z is not allowed: it must be one of x, y"),
        (
            listed("a", (), "", allowed=some_of("x", "y")),
            "x,z",
            "a=x,z is not allowed: it must be a list of x, y",
        ),
        (boolean("a", False, "", only_default="there is no such thing"), "true", "there is no such thing"),
    ],
)
def test_a_refusal_says_what_is_allowed(setting: Setting[object], text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        setting.parse(text)
    assert message in str(refused.value)
    assert refused.value.name == setting.name


def test_a_megabyte_of_digits_is_refused_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        integer("a", 0, "").parse("9" * 1_000_000)
    assert len(str(refused.value)) < 400


def test_a_password_is_not_shown() -> None:
    secret: Setting[object] = Setting(
        name="a", type=SettingType.PASSWORD, default=None, explanation="", allowed=one_of("x")
    )
    with pytest.raises(ConfigError) as refused:
        secret.parse("hunter2")
    assert "hunter2" not in str(refused.value)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_what_is_printed_is_parsed_back(value: int) -> None:
    text = format_value(value)
    assert text is not None and long("a", 0, "").parse(text) == value


@given(st.text())
def test_any_text_gives_a_value_or_a_refusal(text: str) -> None:
    for setting in (boolean("a", False, ""), long("a", 0, ""), double("a", 0, ""), listed("a", (), "")):
        try:
            setting.parse(text)
        except ConfigError:
            pass
