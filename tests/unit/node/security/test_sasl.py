"""The states of a connection, PLAIN, and random sequences of requests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.node.security.core.plain import PlainServer, plain_client
from millstream.node.security.core.sasl import (
    Authenticated,
    AuthenticationError,
    Challenge,
    IllegalStateError,
    SaslConversation,
    Stage,
    session_lifetime_ms,
)
from tests.examples import examples
from tests.unit.node.security.logins import run

USERS = {"alice": "right", "bob": "bobs"}


class TwoSteps:
    """A mechanism that wants `one` and then `two`."""

    def __init__(self) -> None:
        self._expected = b"one"

    async def step(self, message: bytes) -> Challenge | Authenticated:
        if message != self._expected:
            raise AuthenticationError("wrong")
        if message == b"two":
            return Authenticated(b"", "alice")
        self._expected = b"two"
        return Challenge(b"go on")


class Endless:
    async def step(self, message: bytes) -> Challenge:
        return Challenge(b"more")


def conversation() -> SaslConversation:
    return SaslConversation({"PLAIN": lambda: PlainServer(lambda: USERS), "TWO": TwoSteps, "ENDLESS": Endless})


def shake(of: SaslConversation, mechanism: str, now_s: float = 0.0) -> bool:
    return of.handshake(mechanism, is_raw=False, now_s=now_s)


def test_a_login_by_password() -> None:
    login = conversation()
    login.api_versions()
    assert shake(login, "PLAIN")
    result = run(login.step(plain_client("alice", "right")))
    assert isinstance(result, Authenticated) and result.user == "alice" and login.stage is Stage.AUTHENTICATED


@pytest.mark.parametrize(
    ("message", "is_public"),
    [
        (plain_client("alice", "wrong"), True),
        (plain_client("nobody", "right"), True),
        (plain_client("nobody", ""), True),
        (plain_client("", "right"), True),
        (b"bob\0alice\0right", True),
        (b"alice\0right", False),
        (b"\0a\0b\0c", False),
        (b"\xff\0alice\0right", False),
        (b"", False),
    ],
)
def test_a_wrong_password_message_fails(message: bytes, is_public: bool) -> None:
    login = conversation()
    shake(login, "PLAIN")
    with pytest.raises(AuthenticationError) as caught:
        run(login.step(message))
    assert caught.value.is_public is is_public and login.stage is Stage.FAILED
    with pytest.raises(IllegalStateError):
        run(login.step(plain_client("alice", "right")))


def test_an_unknown_mechanism_ends_the_conversation() -> None:
    login = conversation()
    assert not shake(login, "GSSAPI")
    with pytest.raises(IllegalStateError):
        shake(login, "PLAIN")


def test_messages_are_limited() -> None:
    login = conversation()
    shake(login, "ENDLESS")
    with pytest.raises(AuthenticationError, match="more than"):
        for _ in range(100):
            run(login.step(b"x"))
    many = conversation()
    with pytest.raises(IllegalStateError):
        for _ in range(100):
            many.api_versions()


def test_a_message_before_the_handshake_is_illegal() -> None:
    with pytest.raises(IllegalStateError):
        run(conversation().step(plain_client("alice", "right")))


def test_authentication_again_keeps_mechanism_and_principal() -> None:
    def authenticated() -> SaslConversation:
        login = conversation()
        shake(login, "PLAIN")
        run(login.step(plain_client("alice", "right")))
        return login

    endless = authenticated()
    with pytest.raises(IllegalStateError):
        shake(endless, "PLAIN", 10.0)  # a session without an end is not renewed
    again = authenticated()
    again.ends_at_s = 100.0
    assert shake(again, "PLAIN", 10.0)
    run(again.step(plain_client("alice", "right")))
    again.ends_at_s = 200.0
    with pytest.raises(IllegalStateError):
        shake(again, "PLAIN", 10.5)  # not more than once a second
    for mechanism, message in (("TWO", b"one"), ("PLAIN", plain_client("bob", "bobs"))):
        other = authenticated()
        other.ends_at_s = 100.0
        shake(other, mechanism, 10.0)
        with pytest.raises(AuthenticationError):
            run(other.step(message))
        assert other.stage is Stage.FAILED


def test_the_lifetime_of_a_session() -> None:
    assert session_lifetime_ms(None, 0, 1000) is None
    assert session_lifetime_ms(None, 500, 1000) == 500
    assert session_lifetime_ms(1200, 500, 1000) == 200
    assert session_lifetime_ms(9000, 500, 1000) == 500
    assert session_lifetime_ms(900, 0, 1000) == 0


_ACTIONS = st.one_of(
    st.just(("versions", b"")),
    st.sampled_from([("handshake", name) for name in (b"PLAIN", b"TWO", b"ENDLESS", b"NONE")]),
    st.tuples(
        st.just("step"),
        st.one_of(
            st.sampled_from([b"one", b"two", plain_client("alice", "right"), plain_client("bob", "wrong")]),
            st.binary(max_size=20),
        ),
    ),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(_ACTIONS, max_size=12))
def test_no_sequence_authenticates_without_the_right_messages(actions: list[tuple[str, bytes]]) -> None:
    """An oracle over the sequence of requests decides what must happen."""
    login = conversation()
    right = {b"PLAIN": [plain_client("alice", "right")], b"TWO": [b"one", b"two"]}
    expected: list[bytes] | None = None
    for action, value in actions:
        before = login.stage
        try:
            if action == "versions":
                login.api_versions()
            elif action == "handshake":
                shake(login, value.decode())
                expected = list(right.get(value, [b""]))
            else:
                run(login.step(value))
                if expected:
                    expected = expected[1:] if value == expected[0] else None
        except (AuthenticationError, IllegalStateError):
            assert login.stage is Stage.FAILED
        assert before is not Stage.FAILED or login.stage is Stage.FAILED, "a failed connection stays failed"
        if login.stage is Stage.AUTHENTICATED:
            assert expected == [] and login.who is not None and login.who.user == "alice"
