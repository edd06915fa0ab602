"""Nodes that use TLS everywhere: a node is lost, certificates are replaced under load, bad ones are refused."""

import hashlib
import os
import signal
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from cryptography.hazmat.primitives.serialization import Encoding

from millstream.testing.embedded import EmbeddedBroker
from millstream.testing.embedded_cluster import EmbeddedCluster
from tests.certificates import Authority, Files, Identity, authority
from tests.waiting import TIMEOUT_SECONDS
from tests.waiting import until as wait_until


def _serves(address: str, node: Files, own: Files, expected: object) -> bool:
    return served_certificate(address, node, own) == expected


def client_settings(bootstrap: str, node: Files, own: Files) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "ssl",
        "ssl.ca.location": str(node.ca),
        "ssl.certificate.location": str(own.certificates),
        "ssl.key.location": str(own.key),
    }


def served_certificate(address: str, trust: Files, own: Files) -> str:
    """The SHA-256 of the certificate that a node shows to a new connection."""
    context = ssl.create_default_context(cafile=str(trust.ca))
    context.load_cert_chain(own.keystore)
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as wrapped,
    ):
        certificate = wrapped.getpeercert(binary_form=True)
    assert certificate is not None
    return hashlib.sha256(certificate).hexdigest()


def fingerprint(identity: Identity) -> str:
    return hashlib.sha256(identity.certificate.public_bytes(Encoding.DER)).hexdigest()


class Load:
    """A producer with acks=all that never stops, and what went wrong."""

    def __init__(self, settings: dict[str, str], topic: str) -> None:
        self.acknowledged = 0
        self.failed: list[KafkaError] = []
        self._producer = Producer({**settings, "acks": "all", "linger.ms": "5", "enable.idempotence": "true"})
        self._topic = topic
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ends.wait(0.002):
            self._producer.produce(self._topic, b"%d" % number, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.acknowledged += 1

    def goes_on(self) -> None:
        """Waits until more records are acknowledged."""
        before = self.acknowledged
        wait_until(lambda: self.acknowledged > before + 50)

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        assert self._producer.flush(TIMEOUT_SECONDS) == 0


@pytest.mark.slow
def test_three_nodes_with_tls_everywhere(tmp_path: Path) -> None:
    own = authority().client("loader").write(tmp_path, "loader")
    nodes = {number: authority().node(f"node-{number}").write(tmp_path, f"node-{number}") for number in (1, 2, 3)}
    with EmbeddedCluster(
        3,
        {"default.replication.factor": 3, "min.insync.replicas": 2, "ssl.client.auth": "required"},
        node_settings={number: files.properties() for number, files in nodes.items()},
        security_protocol="SSL",
        data_dir=tmp_path / "cluster",
    ) as cluster:
        settings = client_settings(cluster.bootstrap_servers, nodes[1], own)
        admin = AdminClient(settings)
        admin.create_topics([NewTopic("load", 6, 3)])["load"].result(TIMEOUT_SECONDS)
        load = Load(settings, "load")
        try:
            load.goes_on()
            for number, files in nodes.items():  # the same names, new keys
                fresh = authority().node(f"node-{number}")
                fresh.write(tmp_path / "fresh", f"node-{number}")
                os.replace(tmp_path / "fresh" / files.keystore.name, files.keystore)
                address = cluster.address(number)
                wait_until(partial(_serves, address, nodes[1], own, fingerprint(fresh)))
                load.goes_on()
            cluster.kill(3)
            load.goes_on()
            cluster.start(3)
            load.goes_on()
        finally:
            load.close()
        assert load.failed == []
        assert load.acknowledged > 200


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return authority().client("admin").write(tmp_path_factory.mktemp("own"), "admin")


@pytest.fixture
def node(tmp_path: Path) -> Files:
    return authority().node().write(tmp_path, "node")


@pytest.fixture
def broker(node: Files) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({**node.properties(), "ssl.client.auth": "requested"}, security_protocol="SSL") as started:
        yield started


def replace(files: Files, identity: Identity, directory: Path) -> None:
    identity.write(directory / "fresh", files.name)
    os.replace(directory / "fresh" / files.keystore.name, files.keystore)


def test_sighup_and_bad_certificates(broker: EmbeddedBroker, node: Files, own: Files, tmp_path: Path) -> None:
    address = broker.bootstrap_servers
    first = served_certificate(address, node, own)
    node.keystore.write_text("this is not a certificate")
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: "certificate_refused" in broker.log_file.read_text())
    assert served_certificate(address, node, own) == first
    replace(node, authority().node("another name"), tmp_path)
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: "has another subject (CN=another name,O=Millstream" in broker.log_file.read_text())
    assert served_certificate(address, node, own) == first
    fresh = authority().node()
    replace(node, fresh, tmp_path)
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: served_certificate(address, node, own) == fingerprint(fresh))


def alter(admin: AdminClient, **settings: str) -> None:
    entries = [
        ConfigEntry("listener.name.ssl." + name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_SECONDS)


def test_certificates_by_dynamic_settings(broker: EmbeddedBroker, node: Files, own: Files, tmp_path: Path) -> None:
    address = broker.bootstrap_servers
    admin = AdminClient(client_settings(address, node, own))
    first = served_certificate(address, node, own)
    stranger = Authority("a stranger").node().write(tmp_path, "stranger")
    for bad, reason in (
        (str(tmp_path / "missing.pem"), "cannot be read: No such file"),
        (str(stranger.keystore), "is not trusted by this node's own trust store"),
        (str(node.keystore_p12), "private key found in PEM format"),
    ):
        with pytest.raises(KafkaException, match=reason):
            alter(admin, **{"ssl.keystore.location": bad})
        assert served_certificate(address, node, own) == first
    fresh = authority().node()
    files = fresh.write(tmp_path, "second")
    alter(admin, **{"ssl.keystore.location": str(files.keystore)})
    wait_until(lambda: served_certificate(address, node, own) == fingerprint(fresh))
    resource = ConfigResource(ResourceType.BROKER, "1")
    (described,) = [future.result(TIMEOUT_SECONDS) for future in admin.describe_configs([resource]).values()]
    assert described["listener.name.ssl.ssl.keystore.location"].value == str(files.keystore)
    broker.restart()
    wait_until(lambda: served_certificate(address, node, own) == fingerprint(fresh))


def test_metrics_and_probes_over_tls(broker: EmbeddedBroker, node: Files, own: Files) -> None:
    context = ssl.create_default_context(cafile=str(node.ca))
    with urllib.request.urlopen(
        f"https://{broker.bootstrap_servers}/metrics", context=context, timeout=TIMEOUT_SECONDS
    ) as page:
        text = page.read().decode()
    (line,) = [each for each in text.splitlines() if each.startswith("millstream_certificate_expires_in_seconds{")]
    assert 364 * 86400 < float(line.split()[-1]) <= 365 * 86400
    assert 'millstream_tls_handshakes_total{listener="SSL"}' in text
