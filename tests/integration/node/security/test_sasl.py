"""SASL on the wire: what is served before authentication, logins by each mechanism, and what an attacker may try."""

from __future__ import annotations

import base64
import struct
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.node.security.core.oauthbearer import oauthbearer_client
from millstream.testing import EmbeddedBroker
from tests.certificates import authority
from tests.integration.node.security.conftest import Connect
from tests.sasl import (
    FAILURE_DELAY_MS,
    LISTENER,
    MODULES,
    PASSWORD,
    Issuer,
    authenticate,
    handshake,
    plain,
    scram,
    upsertion,
)
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Closed, Wire, framed, request

FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


def is_served(wire: Wire) -> bool:
    return bool(wire.call("metadata", 12, topics=[]).brokers)


@pytest.mark.parametrize(
    ("api", "version", "fields"),
    [
        ("metadata", 12, {"topics": None}),
        ("sasl_authenticate", 2, {"auth_bytes": b"\0admin\0admin-secret-1"}),
        ("describe_cluster", 1, {}),
        ("list_groups", 4, {}),
        ("envelope", 0, {"request_data": b"x", "client_host_address": b"1234"}),
    ],
)
def test_nothing_else_is_served_before_the_handshake(wire: Wire, api: str, version: int, fields: dict) -> None:  # type: ignore[type-arg]
    assert wire.call("api_versions", 3, client_software_name="a", client_software_version="1").error_code == 0
    wire.send(api, version, **fields)
    assert wire.is_closed()


def test_nothing_else_is_served_during_a_login(wire: Wire) -> None:
    handshake(wire, "PLAIN")
    wire.send("metadata", 12, topics=None)
    assert wire.is_closed()


def test_a_second_handshake_is_an_illegal_state(wire: Wire) -> None:
    handshake(wire, "PLAIN")
    assert handshake(wire, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert wire.is_closed()


def test_requests_that_do_not_wait_for_the_login_are_refused(wire: Wire) -> None:
    """The first response of a failed login is all there is, whatever was sent behind it."""
    wire.call("sasl_handshake", 1, mechanism="PLAIN")
    login = framed(request("sasl_authenticate", 2, {"auth_bytes": b"\0admin\0wrong"}, 7))
    wire.send_raw(login + framed(request("metadata", 12, {"topics": None}, 8)))
    correlation_id, response = wire.receive("sasl_authenticate", 2)
    assert (correlation_id, response.error_code) == (7, FAILED)
    assert wire.is_closed()


@pytest.mark.parametrize("user", ["admin", "unknown"])
def test_the_response_to_a_failed_login_is_delayed(wire: Wire, user: str) -> None:
    """By connection.failed.authentication.delay.ms. The delay is a lower bound, which no busy machine can miss."""
    handshake(wire, "PLAIN")
    sent = time.monotonic()
    assert authenticate(wire, f"\0{user}\0wrong".encode()).error_code == FAILED
    assert time.monotonic() - sent >= FAILURE_DELAY_MS / 2 / 1000  # half: timers have whole milliseconds
    assert wire.is_closed()


def test_an_unknown_mechanism_gets_the_enabled_ones(wire: Wire) -> None:
    response = handshake(wire, "GSSAPI")
    assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert response.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    assert wire.is_closed()


def test_a_right_password_logs_in_and_a_wrong_one_does_not(connect: Connect) -> None:
    wire = connect()
    response = plain(wire, "alice", PASSWORD)
    assert (response.error_code, response.auth_bytes, response.session_lifetime_ms) == (0, b"", 0)
    assert is_served(wire)
    for user, password in (("alice", "wrong"), ("nobody", PASSWORD)):
        other = connect()
        response = plain(other, user, password)
        assert (response.error_code, response.error_message) == (
            FAILED, "Authentication failed: Invalid username or password",
        )  # fmt: skip
        assert other.is_closed()


def test_a_handshake_of_version_0_is_followed_by_messages_without_a_header(connect: Connect) -> None:
    wire = connect()
    assert wire.call("sasl_handshake", 0, mechanism="PLAIN").error_code == 0
    wire.send_raw(framed(f"\0alice\0{PASSWORD}".encode()))
    assert wire.receive_raw() == b""
    assert is_served(wire)
    wrong = connect()
    wrong.call("sasl_handshake", 0, mechanism="PLAIN")
    wrong.send_raw(framed(b"\0a\0b"))
    assert wrong.is_closed()


def test_sasl_after_authentication_is_an_illegal_state(wire: Wire) -> None:
    plain(wire)
    assert handshake(wire, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert authenticate(wire, b"x").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert is_served(wire)


def test_large_and_truncated_frames(connect: Connect) -> None:
    large = connect()
    large.send_raw(struct.pack(">i", 600_000) + b"\0\x11\0\x01")
    assert large.is_closed()
    for frame in (b"\0\x11\0\x01\0\0\0\x07\0\x02a", b"\0\x24", b"\0\x11\0\x01\0\0\0\x07\xff\xff\xff\xff"):
        wire = connect()
        wire.send_raw(framed(frame))
        assert wire.is_closed()
    after = connect()
    handshake(after, "PLAIN")
    after.send_raw(struct.pack(">i", 600_000))
    assert after.is_closed()


# SCRAM


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_scram_user_logs_in(wire: Wire, scram_user: str, mechanism: str) -> None:
    assert scram(wire, mechanism, scram_user, "scram-secret-1").error_code == 0
    assert is_served(wire)


def test_unknown_users_cannot_be_told_from_wrong_passwords(connect: Connect, scram_user: str) -> None:
    responses, salts = [], []
    for user in (scram_user, "nobody", "nobody"):
        wire = connect()
        handshake(wire, "SCRAM-SHA-256")
        first = authenticate(wire, f"n,,n={user},r=abc".encode()).auth_bytes.decode()
        fields = dict(part.split("=", 1) for part in first.split(","))
        salts.append(fields["s"])
        final = authenticate(wire, f"c=biws,r={fields['r']},p={'A' * 43}=".encode())
        responses.append((len(fields["s"]), fields["i"], final.error_code, final.error_message))
        assert wire.is_closed()
    assert responses[0] == responses[1] == responses[2]
    assert salts[1] == salts[2] != salts[0]
    assert responses[0][3] == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    )


def test_a_recorded_login_does_not_work_again(connect: Connect, scram_user: str) -> None:
    from millstream.node.security.core.scram import SCRAM_SHA_256, scram_client

    client = scram_client(SCRAM_SHA_256, scram_user, "scram-secret-1", "recorded")
    victim, attacker = connect(), connect()
    for each in (victim, attacker):
        handshake(each, "SCRAM-SHA-256")
    first = next(client)
    final = client.send(authenticate(victim, first).auth_bytes)
    assert authenticate(victim, final).error_code == 0
    assert authenticate(attacker, first).error_code == 0
    assert authenticate(attacker, final).error_code == FAILED


def test_changes_of_users_and_their_errors(wire: Wire, connect: Connect) -> None:
    plain(wire)

    def alter(deletions: list[tuple[str, int]], *upsertions: object) -> list[tuple[str, int]]:
        rows = [{"name": name, "mechanism": mechanism} for name, mechanism in deletions]
        response = wire.call("alter_user_scram_credentials", 0, deletions=rows, upsertions=list(upsertions))
        return [(row.user, row.error_code) for row in response.results]

    new = upsertion("una", "una-password", "SCRAM-SHA-256")
    assert alter([], new) == [("una", 0)]
    assert scram(connect(), "SCRAM-SHA-256", "una", "una-password").error_code == 0
    assert scram(connect(), "SCRAM-SHA-512", "una", "una-password").error_code == FAILED, "another mechanism"
    assert alter([], new, new) == [("una", ErrorCode.DUPLICATE_RESOURCE)]
    assert alter([("una", 1)], new) == [("una", ErrorCode.DUPLICATE_RESOURCE)]
    assert alter([("nobody", 1)]) == [("nobody", ErrorCode.RESOURCE_NOT_FOUND)]
    assert alter([("una", 9)]) == [("una", ErrorCode.UNSUPPORTED_SASL_MECHANISM)]
    assert alter([("", 1)]) == [("", ErrorCode.UNACCEPTABLE_CREDENTIAL)]
    for iterations in (4095, 16385, -1):
        bad = upsertion("una", "x", "SCRAM-SHA-256", iterations)
        assert alter([], bad) == [("una", ErrorCode.UNACCEPTABLE_CREDENTIAL)]
    described = wire.call("describe_user_scram_credentials", 0, users=[{"name": "una"}, {"name": "nobody"}])
    assert [(row.user, row.error_code) for row in described.results] == [
        ("una", 0), ("nobody", ErrorCode.RESOURCE_NOT_FOUND),
    ]  # fmt: skip
    assert [(info.mechanism, info.iterations) for info in described.results[0].credential_infos] == [(1, 4096)]
    twice = wire.call("describe_user_scram_credentials", 0, users=[{"name": "una"}, {"name": "una"}])
    assert [row.error_code for row in twice.results] == [ErrorCode.DUPLICATE_RESOURCE]
    assert alter([("una", 1)]) == [("una", 0)]
    assert scram(connect(), "SCRAM-SHA-256", "una", "una-password").error_code == FAILED


# OAUTHBEARER


def bearer(wire: Wire, token: str) -> bool:
    handshake(wire, "OAUTHBEARER")
    response = authenticate(wire, oauthbearer_client(token))
    assert response.error_code == 0
    if not response.auth_bytes:
        assert response.session_lifetime_ms > 0
        return is_served(wire)
    assert response.auth_bytes == b'{"status":"invalid_token"}'
    assert authenticate(wire, b"\x01").error_code == FAILED
    assert wire.is_closed()
    return False


def test_only_valid_tokens_log_in(connect: Connect, issuer: Issuer) -> None:
    assert bearer(connect(), issuer.token("tom"))
    assert not bearer(connect(), issuer.token("tom", lives_s=-60))
    assert not bearer(connect(), issuer.token("tom", aud="another-cluster"))
    assert not bearer(connect(), issuer.token("tom", nbf=time.time() + 120))
    assert not bearer(connect(), "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ0b20iLCJpYXQiOjEsImV4cCI6OTk5OTk5OTk5OX0.")


def test_rotated_keys_are_read_again(connect: Connect, issuer: Issuer) -> None:
    old = issuer.token("tom")
    issuer.rotate("second")
    assert bearer(connect(), issuer.token("tom")), "an unknown key is read at once"
    assert not bearer(connect(), old)


# Re-authentication


def test_a_session_with_an_end(connect: Connect, scram_user: str) -> None:
    wire = connect()
    response = scram(wire, "SCRAM-SHA-512", scram_user, "scram-secret-1")
    assert response.session_lifetime_ms == 3000
    assert scram(wire, "SCRAM-SHA-512", scram_user, "scram-secret-1").session_lifetime_ms == 3000
    assert is_served(wire)
    other = connect()
    scram(other, "SCRAM-SHA-512", scram_user, "scram-secret-1")
    assert plain(other).error_code == FAILED, "the mechanism cannot be changed"
    assert other.is_closed()

    def is_closed_after_its_end() -> bool:
        try:
            return not is_served(wire)
        except Closed:
            return True

    until(is_closed_after_its_end, "a session is served after its end")


# Delegation tokens


def test_delegation_tokens_log_in(connect: Connect) -> None:
    owner = connect()
    plain(owner, "alice", PASSWORD)
    made = owner.call(
        "create_delegation_token",
        3,
        owner_principal_type=None,
        owner_principal_name=None,
        renewers=[{"principal_type": "User", "principal_name": "admin"}],
        max_lifetime_ms=-1,
    )
    assert (made.error_code, made.principal_name) == (0, "alice")
    password = base64.b64encode(made.hmac).decode()
    by_token = connect()
    response = scram(by_token, "SCRAM-SHA-256", made.token_id, password, {"tokenauth": "true"})
    assert response.error_code == 0 and response.session_lifetime_ms > 0, "the session ends with the token"
    fields: dict[str, Any] = {
        "owner_principal_type": None,
        "owner_principal_name": None,
        "renewers": [],
        "max_lifetime_ms": -1,
    }
    refused = by_token.call("create_delegation_token", 3, **fields)
    assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert scram(connect(), "SCRAM-SHA-256", made.token_id, password).error_code == FAILED, "a token is no user"
    wrong = scram(connect(), "SCRAM-SHA-256", made.token_id, "wrong", {"tokenauth": "true"})
    unknown = scram(connect(), "SCRAM-SHA-256", "unknown", password, {"tokenauth": "true"})
    assert wrong.error_code == unknown.error_code == FAILED and wrong.error_message == unknown.error_message

    renewer = connect()
    plain(renewer)
    assert renewer.call("renew_delegation_token", 2, hmac=made.hmac, renew_period_ms=60_000).error_code == 0
    nobody = owner.call("renew_delegation_token", 2, hmac=b"unknown", renew_period_ms=60_000)
    assert nobody.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    described = owner.call("describe_delegation_token", 3, owners=None)
    assert [token.token_id for token in described.tokens] == [made.token_id]
    assert owner.call("expire_delegation_token", 2, hmac=made.hmac, expiry_time_period_ms=-1).error_code == 0
    late = scram(connect(), "SCRAM-SHA-256", made.token_id, password, {"tokenauth": "true"})
    assert late.error_code == FAILED


def test_only_owners_and_renewers_use_a_token(connect: Connect) -> None:
    owner, other = connect(), connect()
    plain(owner, "alice", PASSWORD)
    plain(other)
    fields: dict[str, Any] = {
        "owner_principal_type": None,
        "owner_principal_name": None,
        "renewers": [],
        "max_lifetime_ms": 1000,
    }
    made = owner.call("create_delegation_token", 3, **fields)
    for api, period in (
        ("renew_delegation_token", "renew_period_ms"),
        ("expire_delegation_token", "expiry_time_period_ms"),
    ):
        response = other.call(api, 2, hmac=made.hmac, **{period: 100})
        assert response.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    bad = {**fields, "renewers": [{"principal_type": "Group", "principal_name": "g"}]}
    assert owner.call("create_delegation_token", 3, **bad).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


# SASL_SSL


def test_a_client_logs_in_by_sasl_after_tls(tmp_path: Path) -> None:
    """The same gate behind TLS, with librdkafka; a client without TLS gets nothing."""
    from confluent_kafka.admin import AdminClient

    files = authority().node().write(tmp_path, "node")
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        f"{LISTENER}.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required "
        'username="n" password="n" user_n="n" user_alice="tls-secret";',
        **files.properties(),
    }
    with EmbeddedBroker(settings) as broker:
        client: dict[str, Any] = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(files.ca),
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "tls-secret",
        }
        assert AdminClient(client).list_topics(timeout=TIMEOUT_SECONDS).brokers
        with Wire(broker.bootstrap_servers) as wire, pytest.raises(Closed):
            plain(wire, "alice", "tls-secret")


def test_http_gets_probes_and_no_metrics_where_clients_log_in(broker: EmbeddedBroker) -> None:
    url = f"http://{broker.bootstrap_servers}"
    assert urllib.request.urlopen(f"{url}/livez", timeout=TIMEOUT_SECONDS).status == 200
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_SECONDS)
    with refused.value as response:
        assert b"on a listener without SASL" in response.read()
