"""Three nodes that authenticate to each other by OAUTHBEARER, brokers and controllers, with tokens of a token service.

The tokens are short, so that nodes have to authenticate again with new ones. One node takes its token from a file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing.embedded_cluster import EmbeddedCluster
from tests.sasl import ISSUER, MODULES
from tests.token_service import TokenService
from tests.waiting import TIMEOUT_SECONDS, until

NODES = (1, 2, 3)
SECRET = "secret-of-the-nodes"
LIVES_SECONDS = 6
"""A session ends with its token."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[TokenService]:
    with TokenService(tmp_path, {"nodes": SECRET}, LIVES_SECONDS).running() as running:
        yield running


@pytest.fixture
def token_file(service: TokenService, tmp_path: Path) -> Iterator[Path]:
    """A token that something renews, as an agent on the machine does."""
    path, ended = tmp_path / "token", threading.Event()

    def renew() -> None:
        while True:
            path.with_suffix(".new").write_text(service.issuer.token("nodes", lives_s=LIVES_SECONDS))
            path.with_suffix(".new").replace(path)
            if ended.wait(1):
                return

    thread = threading.Thread(target=renew)
    thread.start()
    yield path
    ended.set()
    thread.join()


def settings(service: TokenService) -> dict[str, str]:
    module = f"{MODULES}.oauthbearer.OAuthBearerLoginModule required"
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "listener.name.plaintext.oauthbearer.sasl.jaas.config": f"{module} clientId=nodes clientSecret={SECRET};",
        "listener.name.controller.oauthbearer.sasl.jaas.config": f"{module};",
        "listener.name.controller.sasl.oauthbearer.client.credentials.client.id": "nodes",
        "listener.name.controller.sasl.oauthbearer.client.credentials.client.secret": SECRET,
        "listener.name.controller.sasl.oauthbearer.scope": "quorum",
        "sasl.oauthbearer.jwks.endpoint.url": service.keys,
        "sasl.oauthbearer.token.endpoint.url": service.tokens,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.clock.skew.seconds": "0",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:nodes;User:client",
    }


def test_nodes_authenticate_by_tokens_and_renew_them(service: TokenService, token_file: Path) -> None:
    own = {3: {"sasl.oauthbearer.token.endpoint.url": f"file://{token_file}"}}
    with EmbeddedCluster(3, settings(service), node_settings=own) as cluster:
        client: dict[str, Any] = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: _new_token(service),
        }
        admin = AdminClient(client)
        admin.poll(0)
        admin.create_topics([NewTopic("t", 3, 3, config={"min.insync.replicas": "3"})])["t"].result(TIMEOUT_SECONDS)
        producer = Producer({**client, "acks": "all"})
        failures: list[object] = []

        def write() -> None:
            producer.produce("t", b"x", on_delivery=lambda error, _: failures.append(error) if error else None)
            assert producer.flush(TIMEOUT_SECONDS) == 0 and not failures

        write()
        before = len(service.given)
        assert "nodes" in service.given and "quorum" in service.scopes
        until(lambda: len(service.given) > before + 1, "the nodes have not asked for new tokens")
        write()
        for number in NODES:
            log = cluster.log_file(number).read_text()
            assert SECRET not in log and "eyJ" not in log and "Traceback" not in log, log[-3000:]


def _new_token(service: TokenService) -> tuple[str, float]:
    return service.issuer.token("client", lives_s=60), time.time() + 60


def test_a_node_without_a_valid_token_says_so(service: TokenService) -> None:
    wrong = {"sasl.oauthbearer.client.credentials.client.secret": "wrong"}
    wrong |= {f"listener.name.controller.{name}": value for name, value in wrong.items()}
    cluster = EmbeddedCluster(3, settings(service), node_settings={3: wrong})
    try:
        cluster.spawn(2, 3)
        until(lambda: "login_failed" in _log(cluster, 3), "no failed login in the log")
        assert "check client id, secret and scope" in _log(cluster, 3)
    finally:
        cluster.close()


def _log(cluster: EmbeddedCluster, number: int) -> str:
    file = cluster.log_file(number)
    return file.read_text() if file.exists() else ""
