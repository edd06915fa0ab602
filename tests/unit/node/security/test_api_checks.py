"""Every API that a node offers has a row in the table of checks, and its principal survives an Envelope."""

import pytest

from millstream.formats.model.access_control import Principal
from millstream.formats.protocol.schema import request_schema
from millstream.node.controller.controller_apis import FORWARDED_APIS
from millstream.node.security.__main__ import document
from millstream.node.security.api_checks import API_CHECKS
from millstream.node.server.principal_codec import address_bytes, address_text, decode_principal, encode_principal
from millstream.node.server.service import Peer
from tests.repository import REPOSITORY


def test_forwarded_apis_have_rows() -> None:
    assert set(FORWARDED_APIS) <= set(API_CHECKS)


def test_rows_are_of_known_apis_and_say_what_is_checked() -> None:

    for name, row in API_CHECKS.items():
        if name not in ("produce", "fetch"):
            assert request_schema(name).api_key > 1
        assert row.needs or row.note, f"{name} says nothing"
        assert row.guard or row.where or row.note, f"{name} is checked nowhere"


def test_principal_in_an_envelope() -> None:
    peer = Peer("h", 1, "L", principal=Principal("User", "CN=été"), token_authenticated=True)
    assert decode_principal(encode_principal(peer)) == (peer.principal, True, ())
    peer.groups = (Principal("Group", "ops"), Principal("Group", "dev"))
    assert decode_principal(encode_principal(peer)) == (peer.principal, True, peer.groups)


def test_principal_has_kafkas_bytes() -> None:
    assert encode_principal(Peer("h", 1, "L", principal=Principal("User", "bob"))) == b"\0\0\x05User\x04bob\0\0"


def test_malformed_principals_are_refused() -> None:
    good = encode_principal(Peer("h", 1, "L", groups=(Principal("Group", "ops"),)))
    for end in range(len(good)):
        with pytest.raises(ValueError):
            decode_principal(good[:end])
    for bad in (good + b"\0", b"\0\1" + good[2:], b"\xff" * 40):
        with pytest.raises(ValueError):
            decode_principal(bad)


@pytest.mark.parametrize("host", ["10.1.2.3", "::1", "2001:db8::7"])
def test_addresses_are_converted_to_bytes_and_text(host: str) -> None:
    assert address_text(address_bytes(host)) == host


def test_docs_are_generated_from_the_table() -> None:
    text = (REPOSITORY / "docs" / "authorization.md").read_text()
    assert text == document(), "run python -m millstream.node.security > docs/authorization.md"
