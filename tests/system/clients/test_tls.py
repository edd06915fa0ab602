"""Every client over TLS: without a certificate of its own, and with one that the broker requests or requires."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Files, authority
from tests.system.clients import brokers
from tests.system.clients.client_program import ClientFailedError, ClientProgram, ClientSecurity
from tests.system.clients.conftest import GetClient
from tests.system.clients.corpus import assert_same, record


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def node(directory: Path) -> Files:
    return authority().node().write(directory, "node")


@pytest.fixture(scope="module")
def own(directory: Path) -> Files:
    return authority().client("client").write(directory, "client")


@pytest.fixture(scope="module")
def requested(directory: Path, node: Files) -> Iterator[str]:
    """A broker with PKCS12 stores that asks for a certificate and does without it."""
    yield from _broker(directory, "requested", node.pkcs12_properties())


@pytest.fixture(scope="module")
def required(directory: Path, node: Files) -> Iterator[str]:
    """A broker with PEM stores that requires a certificate."""
    yield from _broker(directory, "required", node.properties())


def _broker(directory: Path, client_auth: str, stores: dict[str, str]) -> Iterator[str]:
    settings = {**stores, "ssl.client.auth": client_auth, "security.inter.broker.protocol": "SSL"}
    started = brokers.MillstreamProcess(directory / client_auth, settings, protocol="SSL")
    started.start()
    # By name: clients check the certificate against it.
    yield started.bootstrap_servers.replace("127.0.0.1", "localhost")
    started.stop()


def security(node: Files, own: Files | None) -> ClientSecurity:
    if own is None:
        return ClientSecurity("SSL", ca=str(node.ca))
    return ClientSecurity(
        "SSL", ca=str(node.ca), certificate=str(own.certificates), key=str(own.key), keystore=str(own.keystore)
    )


@pytest.fixture
def secured(client: ClientProgram) -> Iterator[ClientProgram]:
    yield client
    client.security = None


def write_and_read(client: ClientProgram, bootstrap: str, topic: str) -> None:
    randomness = random.Random(topic)
    records = [record(b"key-%d" % n, randomness.randbytes(5_000)) for n in range(200)]
    client.produce(bootstrap, topic, records)
    assert_same(client.consume(bootstrap, topic, 0, len(records)), records)


def test_clients_without_a_certificate_write_and_read(secured: ClientProgram, requested: str, node: Files) -> None:
    secured.security = security(node, None)
    write_and_read(secured, requested, f"tls-{secured.name}")


def test_clients_with_a_certificate_write_and_read(
    secured: ClientProgram, required: str, node: Files, own: Files
) -> None:
    secured.security = security(node, own)
    write_and_read(secured, required, f"tls-{secured.name}")


@pytest.mark.slow
def test_with_a_certificate_that_is_not_required(
    secured: ClientProgram, requested: str, node: Files, own: Files
) -> None:
    secured.security = security(node, own)
    write_and_read(secured, requested, f"tls-own-{secured.name}")


def test_without_the_required_certificate(get_client: GetClient, required: str, node: Files) -> None:
    client = get_client("kcat")
    client.security = security(node, None)
    try:
        with pytest.raises(ClientFailedError):
            client.consume(required, "tls-refused", 0, 1, timeout_ms=3_000)
    finally:
        client.security = None
