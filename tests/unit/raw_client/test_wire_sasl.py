"""SCRAM against the examples in its RFCs, and servers that cannot be trusted."""

import pytest

from millstream.raw_client import SetupError
from millstream.raw_client.security import scram

RFC_7677_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def begun(username: str = "user", password: str = "pencil"):  # type: ignore[no-untyped-def]
    return scram("sha256", username, password, "broker", RFC_7677_NONCE)


def test_example_of_rfc_7677() -> None:
    conversation = begun()
    assert next(conversation) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    final = conversation.send(SERVER_FIRST)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        conversation.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_commas_and_equals_in_a_name() -> None:
    assert next(begun("a=b,c")) == b"n,,n=a=3Db=2Cc,r=rOprNGfwEbeRWgbNEkqO"


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (SERVER_FIRST.replace(b"rOpr", b"xxxx"), "nonce does not match"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22Z,i=4096", "nonce does not match"),
        (SERVER_FIRST.replace(b"4096", b"1"), "1 iterations"),
        (SERVER_FIRST.replace(b"4096", b"99999999"), "99999999 iterations"),
        (b"\xff", "is malformed"),
        (SERVER_FIRST.replace(b"s=", b"t="), "is malformed"),
        (SERVER_FIRST.replace(b"W22Z", b"!!!!"), "is malformed"),
    ],
)
def test_a_server_with_wrong_scram_messages_is_refused(response: bytes, said: str) -> None:
    conversation = begun()
    next(conversation)
    with pytest.raises(SetupError, match=said):
        conversation.send(response)


@pytest.mark.parametrize("response", [b"v=AAAA", b"", b"e=other-error"])
def test_a_server_that_does_not_know_the_password(response: bytes) -> None:
    conversation = begun()
    next(conversation)
    conversation.send(SERVER_FIRST)
    with pytest.raises(SetupError, match="has the password"):
        conversation.send(response)
