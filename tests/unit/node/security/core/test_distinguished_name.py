"""Subjects of certificates as Java's `X500Principal.getName()` writes them; the texts were made with Java 21."""

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from millstream.node.security.core.distinguished_name import distinguished_name

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
def test_names(name: x509.Name, text: str) -> None:
    # As it arrives: encoded and decoded, so that values have the types of a certificate.
    assert distinguished_name(name) == text
