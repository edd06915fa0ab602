"""The files of a secured cluster: an authority, a directory for each node, and client properties of the first user.

Clients use SASL_SSL with SCRAM-SHA-512; nodes and controllers authenticate each other by certificates. Each file that
has a key or a password is readable by its owner only.
"""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from millstream.cli import exit_codes
from millstream.cli.security.certificates import CertificateAuthority
from millstream.cli.terminal import CommandFailedError
from millstream.common.lazy_dataclass import dataclass
from millstream.config.exposure import is_loopback
from millstream.node.security.core.scram import SCRAM_MECHANISMS
from millstream.node.security.first_users import make_credential, write_first_users

MECHANISM = "SCRAM-SHA-512"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PORTS_APART = 10


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node: its host, and its ports for clients, controllers and other nodes."""

    number: int
    host: str
    port: int

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def bind_host(self) -> str:
        """Every interface, except for a node that only this machine uses."""
        return self.host if is_loopback(self.host) else ""


def plan_nodes(hosts: Sequence[str], port: int) -> list[NodePlan]:
    """One node per host. Nodes on the same host get different ports."""
    seen: dict[str, int] = {}
    plans = []
    for number, host in enumerate(hosts, 1):
        plans.append(NodePlan(number, host, port + _PORTS_APART * seen.get(host, 0)))
        seen[host] = seen.get(host, 0) + 1
    return plans


def make_cluster(directory: Path, nodes: Sequence[NodePlan], user: str, days: int, installed: str | None) -> Path:
    """Writes all files; returns the client properties. `installed` is the directory of a node on its own machine."""
    if directory.exists() and any(directory.iterdir()):
        raise CommandFailedError(f"{directory} is not empty: give another directory", exit_codes.EXISTS)
    directory.mkdir(parents=True, exist_ok=True)
    os.chmod(directory, 0o700)
    authority = CertificateAuthority.make("Millstream cluster authority")
    write_secret(directory / "ca" / "ca.key", authority.key_pem)
    write_secret(directory / "ca" / "ca.pem", authority.certificate_pem)
    password = secrets.token_urlsafe(24)
    credential = make_credential(user, password, SCRAM_MECHANISMS[MECHANISM])
    for plan in nodes:
        place = directory / plan.name
        names = dict.fromkeys((plan.host, "localhost", "127.0.0.1") if is_loopback(plan.host) else (plan.host,))
        write_secret(place / "keystore.pem", authority.sign(plan.name, list(names), days))
        write_secret(place / "ca.pem", authority.certificate_pem)
        settings = node_settings(plan, nodes, installed or str(place.absolute()), user)
        write_secret(place / "server.properties", _properties(settings))
        write_first_users(str(place / "data"), [credential])
    client = directory / "client"
    write_secret(client / "ca.pem", authority.certificate_pem)
    properties = client / "client.properties"
    write_secret(properties, _properties(client_settings(client, nodes, user, password)))
    return properties


def node_settings(plan: NodePlan, nodes: Sequence[NodePlan], place: str, user: str) -> dict[str, str]:
    ports = {"CLIENT": 0, "CONTROLLER": 1, "NODES": 2}
    return {
        "process.roles": "broker,controller",
        "node.id": str(plan.number),
        "controller.quorum.voters": ",".join(f"{each.number}@{each.host}:{each.port + 1}" for each in nodes),
        "listeners": ",".join(f"{name}://{plan.bind_host}:{plan.port + more}" for name, more in ports.items()),
        "advertised.listeners": ",".join(f"{name}://{plan.host}:{plan.port + more}" for name, more in ports.items()),
        "listener.security.protocol.map": "CLIENT:SASL_SSL,NODES:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "NODES",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": f"{place}/data",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"{place}/keystore.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"{place}/ca.pem",
        "listener.name.client.sasl.enabled.mechanisms": MECHANISM,
        "listener.name.nodes.ssl.client.auth": "required",
        "listener.name.controller.ssl.client.auth": "required",
        "authorizer.class.name": AUTHORIZER,
        "super.users": ";".join([f"User:{user}", *(f"User:CN={each.name}" for each in nodes)]),
        "default.replication.factor": str(min(3, len(nodes))),
        "min.insync.replicas": str(max(1, min(3, len(nodes)) - 1)),
        "millstream.audit.enable": "true",
        "millstream.audit.gateways": f"User:{user}",
    }


def client_settings(place: Path, nodes: Sequence[NodePlan], user: str, password: str) -> dict[str, str]:
    return {
        "bootstrap.servers": ",".join(f"{each.host}:{each.port}" for each in nodes),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": f'{_LOGIN} required username="{user}" password="{password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(place.absolute() / "ca.pem"),
    }


def write_secret(path: Path, text: str) -> None:
    """Writes a new file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _properties(settings: dict[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
