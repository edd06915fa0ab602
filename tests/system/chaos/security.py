"""A secured campaign: nodes as `millstream security init` makes them, and a client user with just the ACLs it needs.

Clients use SASL_SSL with SCRAM-SHA-512; nodes and controllers authenticate each other by certificates. The harness asks
nodes as the first administrator, the workload writes and reads as a user that is not a super user. A login that is
refused is a problem whenever it happens: both users exist from the beginning. What the network needs (addresses, the
place of the data) is put over the files that `security init` makes; everything else is as it makes them.
"""

import hashlib
import os
import socket
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path

from millstream.cli.security.cluster_files import MECHANISM, CertificateAuthority, NodePlan, make_cluster
from millstream.config.jaas import parse_jaas
from millstream.config.loading import parse_properties
from millstream.formats.model.access_control import AclOperation, AclPatternType, AclPermission, AclResourceType
from millstream.node.security.first_users import read_first_users, write_first_users
from tests.sasl import scram, upsertion
from tests.system.chaos.network import Network
from tests.wire import Wire

ADMINISTRATOR = "admin"
CLIENT = "chaos-client"
_CLIENT_PASSWORD = "chaos-client-secret"
_DAYS = 30
_OWN_ADDRESSES = ("listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs")


class LoginRefusedError(Exception):
    """A node refused a user that exists."""


class Security:
    """The files of the cluster in a directory, and connections as the administrator."""

    def __init__(self, directory: Path, node_count: int, network: Network) -> None:
        self._directory = directory / "security"
        self._network = network
        numbers = range(1, node_count + 1)
        self._hosts = {number: network.kafka_address(number)[0] for number in numbers}
        plans = [NodePlan(number, *network.kafka_address(number)) for number in numbers]
        self.administrator_file = make_cluster(self._directory, plans, ADMINISTRATOR, _DAYS, None)
        """The settings of commands (`--command-config`)."""
        properties = _read(self.administrator_file)
        module = parse_jaas(properties["sasl.jaas.config"], name="sasl.jaas.config")
        self._password = module.options["password"]
        self._trusted = properties["ssl.truststore.location"]
        self._context = ssl.create_default_context(cafile=self._trusted)
        ca = self._directory / "ca"
        self._authority = CertificateAuthority.load((ca / "ca.pem").read_bytes(), (ca / "ca.key").read_bytes())

    # Nodes

    def node_properties(self, number: int, data_dir: Path) -> dict[str, str]:
        """The settings file of a node, with the addresses of this network."""
        made = _read(self._place(number) / "server.properties")
        listeners = {
            "CLIENT": self._network.kafka_address(number),
            "CONTROLLER": self._network.controller_address(number),
            "NODES": self._network.node_address(number),
        }
        addresses = ",".join(f"{name}://{host}:{port}" for name, (host, port) in listeners.items())
        controllers = {each: self._network.controller_address(each) for each in self._hosts}
        voters = ",".join(f"{each}@{host}:{port}" for each, (host, port) in controllers.items())
        return made | dict(zip(_OWN_ADDRESSES, (addresses, addresses, voters, str(data_dir)), strict=True))

    def prepare(self, number: int, data_dir: Path) -> None:
        """The first user of the cluster, in the data directory of a node."""
        write_first_users(str(data_dir), read_first_users(str(self._place(number) / "data")))

    def replace_certificate(self, number: int) -> str:
        """A new key and certificate in the place of the node's old ones; returns the fingerprint of the new one."""
        pem = self._authority.sign(f"node-{number}", self._names(number), _DAYS)
        keystore = self._place(number) / "keystore.pem"
        fresh = keystore.with_suffix(".new")
        fresh.write_text(pem)
        fresh.chmod(0o600)
        os.replace(fresh, keystore)
        certificate = pem[pem.index("-----BEGIN CERTIFICATE-----") :]
        first = certificate[: certificate.index("-----END CERTIFICATE-----")] + "-----END CERTIFICATE-----\n"
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()

    def fingerprint(self, address: str, timeout_s: float) -> str:
        """That of the certificate which a node shows to a new client."""
        host, _, port = address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout_s) as plain,
            self._context.wrap_socket(plain, server_hostname=host) as wrapped,
        ):
            return hashlib.sha256(wrapped.getpeercert(binary_form=True) or b"").hexdigest()

    def _names(self, number: int) -> list[str]:
        host = self._hosts[number]
        return [host, "localhost"] if host == "127.0.0.1" else [host]

    def _place(self, number: int) -> Path:
        return self._directory / f"node-{number}"

    # Clients

    def connect(self, address: str, timeout_s: float) -> Wire:
        """A connection as the administrator."""
        wire = Wire(address, timeout_s)
        try:
            wire.socket = self._context.wrap_socket(wire.socket, server_hostname=address.rpartition(":")[0])
            response = scram(wire, MECHANISM, ADMINISTRATOR, self._password)
        except BaseException:
            wire.close()
            raise
        if response.error_code:
            wire.close()
            raise LoginRefusedError(f"{address} refused {ADMINISTRATOR}: {response.error_message}")
        return wire

    def client_settings(self) -> Mapping[str, str]:
        """For librdkafka, as the user of the workload."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self._trusted,
            "sasl.mechanism": MECHANISM,
            "sasl.username": CLIENT,
            "sasl.password": _CLIENT_PASSWORD,
        }

    def add_client(self, wire: Wire, topic: str, groups: Iterable[str]) -> None:
        """The user of the workload, which may write and read the topic, and use the groups; nothing else."""
        row = upsertion(CLIENT, _CLIENT_PASSWORD, MECHANISM)
        (result,) = wire.call("alter_user_scram_credentials", 0, deletions=[], upsertions=[row]).results
        if result.error_code:
            raise RuntimeError(f"adding {CLIENT}: error {result.error_code} {result.error_message}")
        rights = [(AclResourceType.TOPIC, topic, AclOperation.WRITE), (AclResourceType.TOPIC, topic, AclOperation.READ)]
        rights += [(AclResourceType.GROUP, group, AclOperation.READ) for group in groups]
        creations = [
            {
                "resource_type": int(resource),
                "resource_name": name,
                "resource_pattern_type": int(AclPatternType.LITERAL),
                "principal": f"User:{CLIENT}",
                "host": "*",
                "operation": int(operation),
                "permission_type": int(AclPermission.ALLOW),
            }
            for resource, name, operation in rights
        ]
        for result in wire.call("create_acls", 3, creations=creations).results:
            if result.error_code:
                raise RuntimeError(f"adding an ACL of {CLIENT}: error {result.error_code} {result.error_message}")


def _read(path: Path) -> dict[str, str]:
    return {each.name: each.value for each in parse_properties(path.read_text(), str(path))}
