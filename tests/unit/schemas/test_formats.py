"""Formats by name, and mistakes in their options."""

import pytest

from millstream.schemas import SchemaError, make_format


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("avor", {}, "no format 'avor'; did you mean 'avro'"),
        ("xml", {}, "there are json, avro, protobuf"),
        ("json", {}, "needs a schema"),
        ("json", {"shema": "a int"}, "no option 'shema'; did you mean 'schema'"),
        ("avro", {"registry.url": "nowhere"}, "not the address of a schema registry"),
        ("avro", {"registry.url": "http://x", "registry.user": "a", "registry.token": "b"}, "not both"),
        ("avro", {"registry.url": "http://x", "registry.timeout.ms": "soon"}, "must be a number of milliseconds"),
        ("avro", {"registry.url": "http://x", "register": "maybe"}, "register is 'maybe'; it must be true or false"),
    ],
)
def test_wrong_options_of_a_format_are_refused(kind: str, options: dict[str, str], reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        make_format(kind, topic="orders", options=options)
    with pytest.raises(SchemaError, match="must be key or value, not 'header'"):
        make_format("json", role="header", options={"schema": "a int"})


def test_a_subject_is_needed() -> None:
    with pytest.raises(SchemaError, match="set the subject"):
        make_format("avro", options={"registry.url": "http://127.0.0.1:1"}).arrow_type()
    with pytest.raises(SchemaError, match="CA file '/no/such' cannot be read"):
        make_format(
            "avro", topic="t", options={"registry.url": "https://127.0.0.1:1", "registry.ca": "/no/such"}
        ).arrow_type()
