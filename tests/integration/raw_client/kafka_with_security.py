"""Apache Kafka, or our broker, with one listener of every kind, and the certificates that go with them."""

import hashlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millstream.raw_client import Cluster
from millstream.testing.node_process import NodeProcess, free_ports
from tests.waiting import TIMEOUT_SECONDS
from tools import apache_kafka

LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "CONTROLLER": "PLAINTEXT",
    "SSL": "SSL",
    "MUTUAL": "SSL",
    "SASL": "SASL_PLAINTEXT",
    "SASLTLS": "SASL_SSL",
}
KEY_PASSWORD = "key,secret"
MECHANISMS = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
_ITERATIONS = 4096


@dataclass(frozen=True)
class Certificates:
    directory: Path

    @property
    def trusted(self) -> str:
        return str(self.directory / "ca.pem")

    @property
    def other_authority(self) -> str:
        return str(self.directory / "other-ca.pem")

    @property
    def server(self) -> str:
        return str(self.directory / "server-both.pem")

    @property
    def client(self) -> str:
        return str(self.directory / "client.pem")

    @property
    def client_key(self) -> str:
        """Encrypted with KEY_PASSWORD."""
        return str(self.directory / "client.key")

    @classmethod
    def make(cls, directory: Path) -> "Certificates":
        def openssl(*arguments: str) -> None:
            subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

        new_key = ("-newkey", "rsa:2048", "-nodes")
        for name in ("ca", "other-ca"):
            openssl("req", "-x509", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
        (directory / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        for name in ("server", "client"):
            openssl("req", *new_key, "-keyout", f"{name}-open.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
            openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
        both = (directory / "server-open.key").read_text() + (directory / "server.pem").read_text()
        (directory / "server-both.pem").write_text(both)
        secret = ("-v2", "aes-256-cbc", "-passout", f"pass:{KEY_PASSWORD}")
        openssl("pkcs8", "-topk8", "-in", "client-open.key", "-out", "client.key", *secret)
        return cls(directory)


@dataclass(frozen=True)
class SecuredKafka:
    ports: dict[str, int]
    certificates: Certificates

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def add_user(self, name: str, password: str) -> None:
        """Lets a user in by both kinds of SCRAM."""
        with Cluster(self.address("PLAINTEXT")) as cluster:
            for number, algorithm in MECHANISMS.values():
                salt = os.urandom(16)
                salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, _ITERATIONS)
                row = {"name": name, "mechanism": number, "iterations": _ITERATIONS}
                rows = [row | {"salt": salt, "salted_password": salted}]
                response = cluster.call("alter_user_scram_credentials", deletions=[], upsertions=rows)
                assert [row.error_code for row in response.results] == [0], response


@contextmanager
def secured_kafka(directory: Path) -> Iterator[SecuredKafka]:
    certificates = Certificates.make(directory)
    ports = dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))
    settings = secured_settings(ports, certificates)
    settings["advertised.listeners"] = ",".join(
        f"{name}://127.0.0.1:{port}" for name, port in ports.items() if name != "CONTROLLER"
    )
    broker = apache_kafka.ApacheKafkaBroker(
        apache_kafka.resolve(),
        directory / "kafka",
        settings,
        jvm=("-Xmx300M", "-Xms300M"),
        port=ports["PLAINTEXT"],
        voters={1: f"127.0.0.1:{ports['CONTROLLER']}"},
    )
    with broker:
        yield SecuredKafka(ports, certificates)


@contextmanager
def secured_millstream(directory: Path, more: Mapping[str, str] = {}) -> Iterator[SecuredKafka]:
    """Our broker with the same listeners, users and authorizer, and more settings."""
    certificates = Certificates.make(directory)
    names = [name for name in LISTENERS if name != "CONTROLLER"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    settings = secured_settings(ports, certificates) | {"inter.broker.listener.name": "PLAINTEXT", **more}
    # In a file, because options of the command line must not hold secrets.
    file = directory / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    file.chmod(0o600)
    arguments = ["--data-dir", str(directory / "data"), "--config", str(file), "--no-http"]
    process = NodeProcess("the broker", arguments, directory / "broker.log", stop_timeout=TIMEOUT_SECONDS)
    process.spawn()
    try:
        process.wait_until_ready(60)
        yield SecuredKafka(ports, certificates)
    finally:
        process.reap(signal.SIGTERM)


def secured_settings(ports: dict[str, int], certificates: Certificates) -> dict[str, str]:
    """One listener for each port, by name; users of PLAIN; the authorizer."""
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.server,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.trusted,
        "listener.name.mutual.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:alice;User:CN=client",
    }
    for listener in ("sasl", "sasltls"):
        prefix = f"listener.name.{listener}"
        settings[f"{prefix}.sasl.enabled.mechanisms"] = ",".join(("PLAIN", *MECHANISMS))
        settings[f"{prefix}.plain.sasl.jaas.config"] = f'{plain} user_alice="wonderland";'
        for mechanism in MECHANISMS:
            settings[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = scram
    return settings
