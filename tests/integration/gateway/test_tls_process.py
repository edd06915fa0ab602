"""The gateway as a process with HTTPS: new certificates while it runs, HSTS, client certificates, and bearer tokens.

A caller acts as itself on the cluster, and as no one else.
"""

import base64
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker
from tests.certificates import LOCAL_HOSTS, Authority, Files, Identity, authority
from tests.integration.gateway.conftest import Response
from tests.sasl import PASSWORD, Issuer, sasl_settings
from tests.system.console.conftest import GatewayProcess
from tests.waiting import TIMEOUT_SECONDS
from tests.waiting import until as wait_until

pytestmark = pytest.mark.timeout(300)
_TOPIC, _READ, _WRITE, _DESCRIBE = 2, 3, 4, 8
RULES = """
[roles]
default = "none"
users = { alice = "operator", "tess@example.com" = "operator", "vic@example.com" = "viewer" }
groups = { ops = "admin" }
[tokens]
user_claim = "email"
groups_claim = "teams"
[[masks]]
topics = ["shared"]
fields = ["value.card"]
[[certificates]]
subject = "CN=billing,O=Millstream"
username = "alice"
password = "PASSWORD"
mechanism = "PLAIN"
""".replace("PASSWORD", PASSWORD)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    found = Issuer(tmp_path_factory.mktemp("keys") / "jwks.json")
    found.rotate("one")
    return found


ADMIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "admin",
    "sasl.password": "admin-secret-1",
}


@pytest.fixture(scope="module")
def broker(issuer: Issuer) -> Iterator[EmbeddedBroker]:
    settings = sasl_settings(issuer) | {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "sasl.oauthbearer.sub.claim.name": "email",
        "millstream.sasl.oauthbearer.groups.claim.name": "teams",
    }
    with EmbeddedBroker(settings) as running:
        with Cluster(running.bootstrap_servers, ADMIN) as cluster:
            for topic in ("shared", "closed"):
                cluster.create_topic(topic, 1, 1)
            rows: list[dict[str, Any]] = []
            for principal in ("User:alice", "User:tess@example.com", "User:vic@example.com", "Group:ops"):
                for operation in (_READ, _WRITE, _DESCRIBE):
                    row = {"resource_type": _TOPIC, "resource_name": "shared", "resource_pattern_type": 3}
                    row |= {"principal": principal, "host": "*", "operation": operation, "permission_type": 3}
                    rows.append(row)
            response = cluster.call("create_acls", creations=rows)
            assert {each.error_code for each in response.results} == {0}
        yield running


class Secured:
    def __init__(self, gateway: GatewayProcess, own: Files, clients: Path, log: Path) -> None:
        self.address = gateway.url.removeprefix("https://")
        self.own, self.clients, self.log = own, clients, log

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        certificate: Path | None = None,
        trusted: Path | None = None,
    ) -> Response:
        context = ssl.create_default_context(cafile=str(trusted or self.own.ca))
        if certificate is not None:
            context.load_cert_chain(certificate)
        connection = http.client.HTTPSConnection(self.address, timeout=TIMEOUT_SECONDS, context=context)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers or {})
            response = connection.getresponse()
            return Response(
                response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
            )
        finally:
            connection.close()

    def shown_certificate(self) -> bytes:
        """The certificate that a new connection gets, not verified."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, _, port = self.address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as plain,
            context.wrap_socket(plain) as wrapped,
        ):
            return wrapped.getpeercert(binary_form=True) or b""


@pytest.fixture(scope="module")
def own_clients() -> Authority:
    return Authority("clients of the gateway")


@pytest.fixture(scope="module")
def secured(
    broker: EmbeddedBroker, own_clients: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("gateway")
    own = authority().sign("gateway", hosts=LOCAL_HOSTS).write(directory, "gateway")
    clients = directory / "clients.pem"
    clients.write_text(own_clients.pem)
    connection, rules = directory / "client.properties", directory / "access.toml"
    connection.write_text("".join(f"{name}={value}\n" for name, value in ADMIN.items()))
    rules.write_text(RULES)
    for file in (connection, rules):
        file.chmod(0o600)
    options = ["--http", "0.0.0.0:0", "--command-config", str(connection), "--pass-through", "PLAIN"]
    options += ["--access-file", str(rules), "--tls-cert", str(own.certificates), "--tls-key", str(own.key)]
    options += ["--tls-client-ca", str(clients), "--limit", "identity_cache_s=1"]
    running = GatewayProcess(broker.bootstrap_servers, directory / "gateway.log", *options)
    yield Secured(running, own, clients, directory / "gateway.log")
    running.stop()
    log = (directory / "gateway.log").read_text()
    assert "Traceback" not in log, log[-3000:]
    assert PASSWORD not in log and "admin-secret" not in log and "eyJ" not in log, "no secrets, no tokens"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def topics(response: Response) -> list[str]:
    assert response.status == 200, response.body
    return [row["name"] for row in response.json["topics"]]


# Bearer tokens


def test_a_token_acts_as_its_user(secured: Secured, issuer: Issuer) -> None:
    token = bearer(issuer.token("4711", email="tess@example.com"))
    assert topics(secured("GET", "/topics", headers=token)) == ["shared"]
    record = {"records": [{"value": {"card": "4111", "n": 1}}]}
    assert secured("POST", "/v1/topics/shared/produce", record, token).status == 200
    refused = secured("POST", "/v1/topics/closed/produce", record, token)
    assert refused.status == 403
    assert refused.json["missing_acl"]["command"] == "millstream acl add User:tess@example.com write --topic closed"


def test_roles_and_groups_are_by_the_claims_of_the_cluster(secured: Secured, issuer: Issuer) -> None:
    # By its `sub` this token would be an operator: the claim of the cluster counts.
    viewer = bearer(issuer.token("tess@example.com", email="vic@example.com"))
    refused = secured("POST", "/v1/topics/shared/produce", {"records": [{"value": 1}]}, viewer)
    assert (refused.status, refused.json["error_code"]) == (403, 40302)
    assert "vic@example.com has the role viewer" in refused.json["message"]
    member = bearer(issuer.token("1", email="omar@example.com", teams="ops"))
    assert topics(secured("GET", "/topics", headers=member)) == ["shared"]
    stranger = bearer(issuer.token("2", email="omar@example.com", groups=["ops"]))
    assert secured("GET", "/topics", headers=stranger).json["error_code"] == 40302


def test_tokens_that_the_cluster_refuses(secured: Secured, issuer: Issuer, tmp_path: Path) -> None:
    other = Issuer(tmp_path / "other.json")
    other.rotate("one")
    for token in (
        other.token("1", email="tess@example.com"),
        issuer.token("1", email="tess@example.com", lives_s=-120),
        issuer.token("1", email="tess@example.com", aud="another"),
        issuer.token("1", email="tess@example.com", iss="https://evil.example"),
        issuer.token("tess@example.com"),  # without the claim
    ):
        assert secured("GET", "/topics", headers=bearer(token)).status == 401
    page = secured("GET", "/metrics", headers=bearer(issuer.token("1", email="tess@example.com"))).body.decode()
    assert 'millstream_gateway_authentications_total{method="bearer",result="failed"} 5' in page
    assert "millstream_gateway_certificate_expires_in_seconds" in page


def test_a_name_and_a_password_become_plain(secured: Secured) -> None:
    def basic(text: str) -> dict[str, str]:
        return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}

    assert topics(secured("GET", "/topics", headers=basic(f"alice:{PASSWORD}"))) == ["shared"]
    for wrong in (f"alice:{PASSWORD}x", f"admin:{PASSWORD}", "alice:", f"alice\0admin:{PASSWORD}"):
        assert secured("GET", "/topics", headers=basic(wrong)).status == 401, wrong


# Client certificates


def test_a_client_certificate_is_the_user_that_the_file_names(
    secured: Secured, own_clients: Authority, tmp_path: Path
) -> None:
    billing = own_clients.client("billing").write(tmp_path, "billing").keystore
    record = {"records": [{"value": {"card": "4111", "n": 1}}]}
    assert secured("POST", "/v1/topics/shared/produce", record, certificate=billing).status == 200
    refused = secured("POST", "/v1/topics/closed/produce", record, certificate=billing)
    assert refused.json["missing_acl"]["principal"] == "User:alice"
    # Certificates of others, and of another authority with the same name, are no one.
    unknown = own_clients.client("shipping").write(tmp_path, "shipping").keystore
    assert secured("GET", "/topics", certificate=unknown).status == 401
    forged = Authority("clients of the gateway").client("billing").write(tmp_path, "forged").keystore
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        secured("GET", "/topics", certificate=forged)
    # A header is no certificate; and who gives credentials is the user of the credentials.
    claims = {"X-SSL-Client-Subject": "CN=billing,O=Millstream", "X-Forwarded-Client-Cert": "Subject=CN=billing"}
    assert secured("GET", "/topics", headers=claims).status == 401
    assert secured("GET", "/topics", headers=bearer("a.b.c"), certificate=billing).status == 401


def test_a_session_of_one_certificate_does_not_become_that_of_another(
    secured: Secured, own_clients: Authority, tmp_path: Path
) -> None:
    """The user belongs to the connection: on a kept-alive one, each request has the same certificate."""
    billing = own_clients.client("billing").write(tmp_path, "billing").keystore
    context = ssl.create_default_context(cafile=str(secured.own.ca))
    context.load_cert_chain(billing)
    connection = http.client.HTTPSConnection(secured.address, timeout=TIMEOUT_SECONDS, context=context)
    for headers, status in (({}, 200), ({"Authorization": "Basic bm86bm8="}, 401), ({}, 200)):
        connection.request("GET", "/topics", headers=headers)
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()


def test_an_authority_that_is_removed_is_not_trusted_any_more(
    secured: Secured, own_clients: Authority, tmp_path: Path
) -> None:
    billing = own_clients.client("billing").write(tmp_path, "billing").keystore
    fresh = Authority("new clients")
    assert secured("GET", "/topics", certificate=billing).status == 200
    secured.clients.write_text(fresh.pem)
    renewed = fresh.client("billing").write(tmp_path, "renewed").keystore

    def is_trusted(certificate: Path) -> bool:
        try:
            return secured("GET", "/topics", certificate=certificate).status == 200
        except (OSError, http.client.HTTPException):
            return False

    try:
        wait_until(lambda: is_trusted(renewed))
        assert not is_trusted(billing)
    finally:
        secured.clients.write_text(own_clients.pem)
        wait_until(lambda: is_trusted(billing))


# The gateway's own certificate


def test_browsers_are_told_to_use_https_only(secured: Secured) -> None:
    for path, status in (("/livez", 200), ("/topics", 401), ("/console/sign-in", 200)):
        response = secured("GET", path)
        assert response.status == status
        assert response.headers["strict-transport-security"] == "max-age=31536000", path
    sign_in = secured("GET", "/console/sign-in")
    assert "Secure" in sign_in.headers["set-cookie"] and "HttpOnly" in sign_in.headers["set-cookie"]


def test_new_certificates_are_taken_over_while_it_runs(secured: Secured, tmp_path: Path) -> None:
    def der(identity: Identity) -> bytes:
        return identity.certificate.public_bytes(Encoding.DER)

    context = ssl.create_default_context(cafile=str(secured.own.ca))
    kept = http.client.HTTPSConnection(secured.address, timeout=TIMEOUT_SECONDS, context=context)
    kept.request("GET", "/livez")
    assert kept.getresponse().read()
    before = secured.shown_certificate()
    # A key that does not fit is not taken: the old certificate stays, and the log says why.
    fresh = authority().sign("gateway", hosts=LOCAL_HOSTS)
    secured.own.certificates.write_text(fresh.chain_pem)
    wait_until(lambda: "certificate_not_replaced" in secured.log.read_text())
    assert secured.shown_certificate() == before and secured("GET", "/livez").status == 200
    secured.own.key.write_text(fresh.key_pem())
    wait_until(lambda: secured.shown_certificate() == der(fresh))
    assert secured("GET", "/livez").status == 200
    kept.request("GET", "/livez")  # a connection that was open goes on
    assert kept.getresponse().status == 200
    kept.close()
    assert secured.log.read_text().count("certificate_not_replaced") == 1


def test_old_versions_of_tls_are_refused(secured: Secured) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    host, _, port = secured.address.rpartition(":")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as plain,
        pytest.raises((ssl.SSLError, OSError)),
    ):
        context.wrap_socket(plain)
