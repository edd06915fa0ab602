"""Roles, masks and permissions on subjects, from the text of an access file."""

import json
from typing import Any, NamedTuple

import pytest

from millstream.access.masking import Mask, parse_path
from millstream.access.patterns import matches
from millstream.access.roles import Role
from millstream.access.rules_file import AccessFileError, parse_rules
from millstream.access.subjects import SubjectOperation

RULES = """
[roles]
default = "viewer"
users = { ann = "admin" }
groups = { ops = "operator" }

[[masks]]
topics = ["pay*"]
fields = ["value.card.number", "value.items.iban", "headers.authorization", "value.**.secret"]
visible_to = "operator"
visible_to_users = ["vic"]

[[subjects]]
principals = ["User:ann", "Group:ops"]
subjects = ["orders-*"]
operations = ["read", "write"]

[[subjects]]
principals = ["*"]
subjects = ["public-*"]
"""


class Decoded(NamedTuple):
    kind: str
    value: Any
    problem: str | None = None


def decode(data: bytes | None) -> Decoded:
    assert data is not None
    try:
        return Decoded("json", json.loads(data))
    except ValueError:
        return Decoded("text", data.decode())


def test_roles_come_from_users_and_groups() -> None:
    roles = parse_rules(RULES).roles
    assert roles.role_of("ann") is Role.ADMIN
    assert roles.role_of("bob", ["ops", "others"]) is Role.OPERATOR
    assert roles.role_of("bob") is Role.VIEWER
    assert parse_rules("").roles.role_of("anyone") is Role.ADMIN
    assert parse_rules('[roles]\nusers = { ann = "admin" }').roles.role_of("bob") is Role.NONE


def test_masked_fields_are_replaced_at_any_place() -> None:
    mask = parse_rules(RULES).masking.mask_of("payments", Role.VIEWER, "bob")
    assert mask is not None
    value = {"card": {"number": "4111", "brand": "v"}, "items": [{"iban": "DE1"}, {"iban": "DE2"}], "a": {"secret": 1}}
    shown = json.loads(mask.value(json.dumps(value).encode(), decode) or b"")
    assert shown == {
        "card": {"number": "***", "brand": "v"},
        "items": [{"iban": "***"}, {"iban": "***"}],
        "a": {"secret": "***"},
    }
    assert mask.headers([("Authorization", b"x"), ("trace", b"y")]) == (("Authorization", b"***"), ("trace", b"y"))
    assert mask.key(b"k", decode) == b"k"


@pytest.mark.parametrize("data", [b"plain 4111", b"\xff\x00".decode("latin-1").encode(), b'"4111"', b"[1, 2]", b"17"])
def test_what_has_no_fields_is_hidden_as_a_whole(data: bytes) -> None:
    assert Mask((parse_path("value.card"),)).value(data, decode) == b"***"
    assert Mask((parse_path("value"),)).value(data, decode) == b"***"


def test_tombstones_and_duplicate_names_are_no_way_around() -> None:
    mask = Mask((parse_path("value.card"),))
    assert mask.value(None, decode) is None
    assert mask.value(b'{"card": "1", "card": "2"}', decode) == b'{"card":"***"}'


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        ("value.card.number", {"card": "4111", "n": 1}, {"card": "***", "n": 1}),
        ("value.card.number", {"card": 4111}, {"card": "***"}),
        ("value.card.number", {"card": ["4111", {"number": 2, "b": 3}]}, {"card": ["***", {"number": "***", "b": 3}]}),
        ("value.card.number", {"card": [["4111"]]}, {"card": [["***"]]}),
        ("value.card.number", {"card": None}, {"card": None}),
        ("value.card.number", {"card.number": "4111", "card.brand": "v"}, {"card.number": "***", "card.brand": "v"}),
        ("value.card.number", {"Card": {"NUMBER": "4111"}}, {"Card": {"NUMBER": "***"}}),
        ("value.a.b.c", {"a.b": {"c": 1, "d": 2}}, {"a.b": {"c": "***", "d": 2}}),
        ("value.a.b.c", {"a.b": "4111"}, {"a.b": "***"}),
        ("value.card", {"card.number": "4111", "cards": 1}, {"card.number": "***", "cards": 1}),
        ("value.card.*", {"card.number": "4111"}, {"card.number": "***"}),
        ("value.*.number", {"card.number": "4111", "card.brand": "v"}, {"card.number": "***", "card.brand": "v"}),
        (
            "value.**.number",
            {"a.card.number": "4111", "b.c": {"number": 1}},
            {"a.card.number": "***", "b.c": {"number": "***"}},
        ),
        ("value.card.**", {"card.a.b": "4111", "d.e": 1}, {"card.a.b": "***", "d.e": 1}),
        ("value.card", {"." * 100_000: "4111"}, {"." * 100_000: "***"}),
        ("value.**.card", {"." * 100_000: "4111"}, {"." * 100_000: "***"}),
        ("value.items.iban", {"items": ["DE1", "DE2"]}, {"items": ["***", "***"]}),
        ("value.**.card.number", {"a": {"b": [{"card": "4111"}]}}, {"a": {"b": [{"card": "***"}]}}),
        ("value.*.iban", {"id": 7, "payer": {"iban": "DE1"}}, {"id": 7, "payer": {"iban": "***"}}),
        ("value.*", {"id": 7, "payer": {"iban": "DE1"}}, {"id": "***", "payer": "***"}),
        ("value.**", {"id": 7, "payer": {"iban": "DE1"}}, {"id": "***", "payer": "***"}),
    ],
)
def test_another_shape_of_the_value_is_no_way_around(path: str, value: Any, shown: Any) -> None:
    masked = Mask((parse_path(path),)).value(json.dumps(value).encode(), decode)
    assert json.loads(masked or b"") == shown


@pytest.mark.parametrize("path", ["value.card", "value.**.card", "value.a"])
def test_a_value_too_deep_to_look_into_is_hidden(path: str) -> None:
    """Not an error: one record would keep a reader from all that follow it."""
    deep = b'{"a":' * 900 + b"1" + b"}" * 900
    assert Mask((parse_path(path),)).value(deep, decode) in (b"***", b'{"a":"***"}', deep)
    lists = b"[" * 900 + b"{}" + b"]" * 900
    assert Mask((parse_path(path),)).value(lists, decode) in (b"***", lists)


def test_those_with_the_right_see_all() -> None:
    masking = parse_rules(RULES).masking
    assert masking.mask_of("payments", Role.OPERATOR, "bob") is None
    assert masking.mask_of("payments", Role.VIEWER, "vic") is None
    assert masking.mask_of("other", Role.VIEWER, "bob") is None


def test_hot_key_reports_do_not_show_masked_keys() -> None:
    masking = parse_rules('[[masks]]\ntopics = ["people"]\nfields = ["key"]\nvisible_to = "operator"\n').masking
    mask = masking.mask_of("__millstream_hot_keys", Role.VIEWER, "bob")
    assert mask is not None and mask.hides("value") and not mask.hides("key")
    assert masking.mask_of("__millstream_hot_keys", Role.OPERATOR, "bob") is None
    values_only = parse_rules('[[masks]]\ntopics = ["people"]\nfields = ["value.iban"]\n').masking
    assert values_only.mask_of("__millstream_hot_keys", Role.VIEWER, "bob") is None


def test_subjects_are_denied_unless_a_rule_allows_them() -> None:
    rules = parse_rules(RULES).subjects
    ann, bob = rules.of("ann", ()), rules.of("bob", ())
    assert ann.allows(SubjectOperation.WRITE, "orders-value")
    assert not ann.allows(SubjectOperation.DELETE, "orders-value")
    assert not ann.allows(SubjectOperation.COMPAT, None)
    assert not bob.allows(SubjectOperation.READ, "orders-value")
    assert bob.allows(SubjectOperation.READ, "public-a")
    assert rules.of("bob", ["ops"]).allows(SubjectOperation.READ, "orders-value")
    assert parse_rules("").subjects.of("bob", ()).allows(SubjectOperation.DELETE, None)


@pytest.mark.parametrize(
    "text",
    [
        "role = 1",
        '[roles]\nuser = { ann = "admin" }',
        '[roles]\nusers = { ann = "root" }',
        '[[masks]]\ntopics = ["a"]\nfields = ["card"]',
        '[[masks]]\ntopics = ["a"]\nfields = ["value"]\nvisible_to = "none"',
        '[[subjects]]\nprincipals = ["ann"]\nsubjects = ["*"]',
        '[oidc]\nissuer = "http://elsewhere.example"\nclient_id = "c"',
        '[oidc]\nissuer = "http://localhost.elsewhere.example"\nclient_id = "c"',
        '[oidc]\nissuer = "http://127.0.0.1@elsewhere.example"\nclient_id = "c"',
        '[oidc]\nissuer = "https://"\nclient_id = "c"',
        '[tokens]\nuser = "sub"',
        '[oidc]\nissuer = "https://i.example"\nclient_id = "c"\nalgorithms = ["none"]',
        '[oidc]\nissuer = "https://i.example"\nclient_id = "c"\nalgorithms = ["HS256"]',
    ],
)
def test_a_mistake_in_the_file_is_an_error(text: str) -> None:
    with pytest.raises(AccessFileError):
        parse_rules(text)


def test_patterns_match_whole_names() -> None:
    assert matches("a*c*e", "abcde") and matches("*", "") and matches("a", "a")
    assert not matches("a*a", "a") and not matches("a*", "ba") and not matches("ab*ba", "aba")
