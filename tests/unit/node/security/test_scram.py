"""SCRAM (RFC 5802): the server against its client, and against what an attacker could send."""

import base64

import pytest

from millstream.node.security.core.sasl import Authenticated, AuthenticationError, Challenge
from millstream.node.security.core.scram import (
    SCRAM_MECHANISMS,
    SCRAM_SHA_256,
    Credential,
    Found,
    ScramMechanism,
    ScramServer,
    ServerRefusedError,
    credential_of,
    fake_credential,
    salted_password,
    scram_client,
)
from tests.unit.node.security.logins import run

SECRET = b"of the cluster"


def made(mechanism: ScramMechanism, password: str, salt: bytes = b"salt0salt1") -> Credential:
    return credential_of(mechanism, salted_password(mechanism, password, salt, 4096), salt, 4096)


def server(mechanism: ScramMechanism = SCRAM_SHA_256, nonce: str = "server-nonce", **users: str) -> ScramServer:
    async def find(name: str, by_token: bool) -> Found:
        if name in users:
            return Found(made(mechanism, users[name]), True, name)
        return Found(fake_credential(mechanism, name, SECRET, None), False, name)

    return ScramServer(mechanism, find, lambda: nonce)


def challenge(of: ScramServer, message: bytes) -> bytes:
    result = run(of.step(message))
    assert isinstance(result, Challenge)
    return result.data


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS.values())
def test_a_client_that_knows_the_password_logs_in_and_sees_that_the_server_does(mechanism: ScramMechanism) -> None:
    login, client = server(mechanism, **{"a,b=c": "pässword"}), scram_client(mechanism, "a,b=c", "pässword", "mine")
    final = client.send(challenge(login, next(client)))
    result = run(login.step(final))
    assert isinstance(result, Authenticated) and result.user == "a,b=c"
    with pytest.raises(StopIteration):
        client.send(result.data)


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = credential_of(SCRAM_SHA_256, salted_password(SCRAM_SHA_256, "pencil", salt, 4096), salt, 4096)

    async def find(name: str, by_token: bool) -> Found:
        return Found(credential, name == "user", name)

    login = ScramServer(SCRAM_SHA_256, find, lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = challenge(login, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    result = run(
        login.step(
            b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        )
    )
    assert isinstance(result, Authenticated) and result.data == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_a_wrong_password_and_an_unknown_user_fail_in_the_same_way() -> None:
    reasons = []
    for user in ("alice", "nobody"):
        login, client = server(alice="right"), scram_client(SCRAM_SHA_256, user, "wrong", "mine")
        final = client.send(challenge(login, next(client)))
        with pytest.raises(AuthenticationError) as caught:
            run(login.step(final))
        assert not caught.value.is_public
        reasons.append(str(caught.value))
    assert reasons[0] == reasons[1]


def test_an_unknown_user_has_always_the_same_salt_which_looks_like_others() -> None:
    real = made(SCRAM_SHA_256, "x", salt=b"1a2b3c4d5e6f7g8h9i0j1k2l3m")
    one, again = (fake_credential(SCRAM_SHA_256, "nobody", SECRET, real) for _ in range(2))
    other = fake_credential(SCRAM_SHA_256, "someone", SECRET, real)
    assert one == again and one.salt != other.salt
    assert len(one.salt) == len(real.salt) and one.salt.isalnum() and one.iterations == real.iterations
    binary = fake_credential(SCRAM_SHA_256, "nobody", SECRET, made(SCRAM_SHA_256, "x", salt=bytes(range(100, 200))))
    assert len(binary.salt) == 100 and not binary.salt.isalnum()


def test_a_recorded_login_cannot_be_played_again() -> None:
    login, client = server(alice="right"), scram_client(SCRAM_SHA_256, "alice", "right", "mine")
    first = next(client)
    final = client.send(challenge(login, first))
    run(login.step(final))
    second = server(nonce="another-nonce", alice="right")
    challenge(second, first)
    with pytest.raises(AuthenticationError, match="nonce"):
        run(second.step(final))


def test_a_changed_header_is_found() -> None:
    """A man in the middle who changes `y` to `n`, so that channel binding is not used, changes what is proved."""
    login, client = server(alice="right"), scram_client(SCRAM_SHA_256, "alice", "right", "mine")
    final = client.send(challenge(login, next(client)))
    with pytest.raises(AuthenticationError, match="channel binding"):
        run(login.step(final.replace(b"c=biws", b"c=" + base64.b64encode(b"y,,"))))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=alice",
        b"n,,r=nonce,n=alice",
        b"n,,n=alice,r=",
        b"n,,n=,r=nonce",
        b"n,,n=a=zz,r=nonce",
        b"n,,n=alice,r=nonce,r=other",
        b"n,,m=must,n=alice,r=nonce",
        b"y,,n=alice,r=nonce",
        b"p=tls-unique,,n=alice,r=nonce",
        b"n,,n=alice,r=\xff\xfe",
        b"n,,n=alice,r=" + b"x" * 2000,
        b"\0" * 50,
    ],
)
def test_a_malformed_first_message_fails(message: bytes) -> None:
    with pytest.raises(AuthenticationError):
        run(server(alice="right").step(message))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"c=biws",
        b"c=biws,r=mineserver-nonce",
        b"c=biws,r=mineserver-nonce,p=",
        b"c=biws,r=mineserver-nonce,p=AAAA",
        b"c=biws,r=mineserver-nonce,p=not base64",
        b"r=mineserver-nonce,c=biws,p=AAAA",
        b"c=biws,r=mineserver-nonce,p=" + base64.b64encode(bytes(32)),
        b"c=biws,r=mineserver-nonce,p=" + base64.b64encode(bytes(64)),
    ],
)
def test_a_malformed_or_wrong_final_message_fails(message: bytes) -> None:
    login = server(alice="right")
    challenge(login, b"n,,n=alice,r=mine")
    with pytest.raises(AuthenticationError):
        run(login.step(message))


def test_another_authorization_id_is_refused() -> None:
    with pytest.raises(AuthenticationError, match="authorization id"):
        run(server(alice="right").step(b"n,a=admin,n=alice,r=mine"))


@pytest.mark.parametrize(
    "message",
    [b"", b"r=other,s=c2FsdA==,i=4096", b"r=minex,s=c2FsdA==,i=1", b"r=minex,s=c2FsdA==,i=99999999", b"r=mine"],
)
def test_a_client_refuses_wrong_messages_of_a_server(message: bytes) -> None:
    client = scram_client(SCRAM_SHA_256, "alice", "right", "mine")
    next(client)
    with pytest.raises(ServerRefusedError):
        client.send(message)


def test_a_client_refuses_a_server_that_does_not_know_the_user() -> None:
    login, client = server(alice="right"), scram_client(SCRAM_SHA_256, "alice", "right", "mine")
    client.send(challenge(login, next(client)))
    with pytest.raises(ServerRefusedError, match="prove"):
        client.send(b"v=AAAA")
