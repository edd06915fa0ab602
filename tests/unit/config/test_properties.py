"""Java's .properties format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.loading import parse_properties
from millstream.config.setting import ConfigError


def parsed(text: str) -> list[tuple[str, str]]:
    return [(item.name, item.value) for item in parse_properties(text, "f")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", [("a", "b")]),
        ("a = b ", [("a", "b ")]),  # Java keeps blanks at the end; settings strip them
        ("  a:b\n", [("a", "b")]),
        ("a b c", [("a", "b c")]),
        ("a", [("a", "")]),
        ("a=", [("a", "")]),
        ("# x\n! y\n\n \t\na=b", [("a", "b")]),
        ("a=b\\\n    c,\\\n    d\ne=f", [("a", "bc,d"), ("e", "f")]),
        ("a=b\\\\\nc=d", [("a", "b\\"), ("c", "d")]),
        ("a=b\\", [("a", "b")]),
        ("\\\n# x\na=b", [("a", "b")]),
        ("a\\ b\\=c=d", [("a b=c", "d")]),
        ("a=\\t\\n\\u00e9\\q", [("a", "\t\n\u00e9q")]),
        ("a=1\r\nb=2\rc=3", [("a", "1"), ("b", "2"), ("c", "3")]),
        ("a=1\na=2", [("a", "1"), ("a", "2")]),
        ("listeners=PLAINTEXT://:9092,CONTROLLER://:9093", [("listeners", "PLAINTEXT://:9092,CONTROLLER://:9093")]),
        ("a=# no comment", [("a", "# no comment")]),
    ],
)
def test_properties_are_parsed_as_java_does(text: str, expected: list[tuple[str, str]]) -> None:
    assert parsed(text) == expected


def test_places_are_the_lines_where_settings_begin() -> None:
    items = parse_properties("# one\na=b\\\n c\n\nd=e", "server.properties")
    assert [item.place for item in items] == ["server.properties:2", "server.properties:5"]


def test_a_bad_escape_names_its_line() -> None:
    with pytest.raises(ConfigError, match=r"^f:2: \\u12 is not a character"):
        parsed("a=b\nc=\\u12")


def escaped(text: str) -> str:
    return "".join(
        f"\\{c}" if c in "=: \\#!" else {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}.get(c, c) for c in text
    )


@given(st.lists(st.tuples(st.text(min_size=1), st.text())))
def test_escaped_properties_are_parsed_back(pairs: list[tuple[str, str]]) -> None:
    assert parsed("\n".join(f"{escaped(name)}={escaped(value)}" for name, value in pairs)) == pairs


@given(st.text(alphabet=st.sampled_from("ab=: \\\n\r\t#!u0")))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parsed(text)
    except ConfigError as error:
        assert "\n" not in str(error)
