"""Mapping rules: Kafka's examples, the edges of the syntax, and what RE2 refuses."""

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from millstream.node.security.core.principal_mapping import MappingError, PrincipalMapping, distinguished_name

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
def test_rules_map_names_to_principals(rules: str, name: str) -> None:
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


A = x509.NameAttribute


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            x509.Name(
                [
                    A(NameOID.COUNTRY_NAME, "DE"),
                    A(NameOID.STATE_OR_PROVINCE_NAME, "Bayern"),
                    A(NameOID.LOCALITY_NAME, "München"),
                    A(NameOID.ORGANIZATION_NAME, 'Ex, "Inc" <a>;b\\c=d+e#f'),
                    A(NameOID.ORGANIZATIONAL_UNIT_NAME, " lead trail "),
                    A(NameOID.COMMON_NAME, "#alice"),
                ]
            ),
            r"CN=\#alice,OU=\ lead trail\ ,O=Ex\, \"Inc\" \<a\>\;b\\c\=d\+e\#f,L=München,ST=Bayern,C=DE",
        ),
        (
            x509.Name(
                [
                    A(NameOID.DOMAIN_COMPONENT, "org"),
                    A(NameOID.DOMAIN_COMPONENT, "example"),
                    A(NameOID.USER_ID, "u1"),
                    A(NameOID.EMAIL_ADDRESS, "a@example.org"),
                    A(NameOID.SERIAL_NUMBER, "123"),
                    A(NameOID.STREET_ADDRESS, "Street 1"),
                    A(NameOID.TITLE, "Dr"),
                ]
            ),
            "2.5.4.12=#0c024472,STREET=Street 1,2.5.4.5=#1303313233,"
            "1.2.840.113549.1.9.1=#160d61406578616d706c652e6f7267,UID=u1,DC=example,DC=org",
        ),
        (
            x509.Name(
                [
                    x509.RelativeDistinguishedName([A(NameOID.COMMON_NAME, "multi"), A(NameOID.USER_ID, "x")]),
                    x509.RelativeDistinguishedName([A(NameOID.ORGANIZATION_NAME, "O")]),
                ]
            ),
            "O=O,CN=multi+UID=x",
        ),
        (x509.Name([A(NameOID.GIVEN_NAME, "x" * 200)]), "2.5.4.42=#0c81c8" + "78" * 200),
        (x509.Name([]), ""),
    ],
)
def test_distinguished_names_are_written_as_java_does(name: x509.Name, text: str) -> None:
    # As it arrives: encoded and decoded, so that values have the types of a certificate.
    assert distinguished_name(name) == text
