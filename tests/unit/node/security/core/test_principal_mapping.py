"""Mapping rules: Kafka's examples, the edges of the syntax, and what RE2 refuses."""

import pytest

from millstream.node.security.core.principal_mapping import MappingError, PrincipalMapping

NAME = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", NAME),
        ("", NAME),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", "duke"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/U,DEFAULT", "DUKE@SERVICEUSERS"),
        ("RULE:^CN=nobody$/x/, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", "duke"),
        ("RULE:^cn=.*$/x/,DEFAULT", NAME),
        ("RULE:^CN=(Duke),.*$/$1-$2/", "Duke-$2"),
        ("RULE:^CN=(Duke),.*$/a\\/b\\$1/", "a/b$1"),
        ("RULE:^CN=(Duke)(x)?,.*$/$1$2/", "Duke"),
        ("RULE:^CN=(Duke),OU=[a-zA-Z,]+Users,.*$/$1/\nDEFAULT", "Duke"),
    ],
)
def test_names(rules: str, name: str) -> None:
    assert PrincipalMapping(rules).name(NAME) == name


def test_a_name_without_a_rule_is_refused() -> None:
    with pytest.raises(MappingError, match=r"no rule .* applies to 'CN=Duke"):
        PrincipalMapping("RULE:^CN=other.*$/$1/").name(NAME)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("default", "is not a rule; write DEFAULT or RULE:pattern/replacement/"),
        ("RULE:^CN=(.*?)$", "is not a rule"),
        ("RULE:^CN=(.*?)$/$1/X", "is not a rule"),
        ("DEFAULT,RULE:(/x/", "the pattern '\\(' is not valid"),
        ("RULE:^CN=(?!root).*$/x/", "is not valid"),
    ],
)
def test_rules_that_are_refused(rules: str, message: str) -> None:
    with pytest.raises(MappingError, match=message):
        PrincipalMapping(rules)


def test_an_expensive_pattern_costs_linear_time() -> None:
    mapping = PrincipalMapping("RULE:^(a+)+$/x/,DEFAULT")
    assert mapping.name("a" * 10_000 + "!") == "a" * 10_000 + "!"
