"""Brokers with users and ACLs: Millstream and Apache Kafka with the same settings. Users log in by SASL/PLAIN."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream.raw_client import Cluster
from millstream.testing.node_process import NodeProcess, free_ports
from tests.waiting import TIMEOUT_SECONDS
from tools import apache_kafka

USERS = ("admin", "nothing", "exact", "alice")
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def settings() -> dict[str, str]:
    users = " ".join(f'user_{name}="{name}-secret"' for name in USERS)
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f"{_MODULE} {users};",
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:admin;User:ANONYMOUS",
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }


def options(user: str) -> dict[str, str]:
    """Options of a client that logs in as this user."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"{user}-secret",
    }


def in_a_file(path: Path, given: dict[str, str]) -> list[str]:
    """Arguments of a node with these settings. Secrets may not be arguments themselves."""
    path.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    return ["--config", str(path)]


class Secured:
    def __init__(self, ports: dict[str, int], log_file: Path) -> None:
        self.ports = ports
        self.log_file = log_file

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['SASL']}"

    @property
    def open_address(self) -> str:
        """The listener between brokers, without authentication: its clients are super users."""
        return f"127.0.0.1:{self.ports['PLAINTEXT']}"

    def cluster(self, user: str) -> Cluster:
        return Cluster(self.address, options(user))


@contextmanager
def secured_millstream(directory: Path, more: dict[str, str] | None = None) -> Iterator[Secured]:
    sasl, plain = free_ports(2)
    ports = {"SASL": sasl, "PLAINTEXT": plain}
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    given = {"listeners": listeners, **settings(), **(more or {})}
    arguments = ["--data-dir", str(directory / "data"), *in_a_file(directory / "broker.properties", given)]
    process = NodeProcess("the broker", arguments, directory / "broker.log", stop_timeout=TIMEOUT_SECONDS)
    process.spawn()
    try:
        process.wait_until_ready(60)
        yield Secured(ports, directory / "broker.log")
    finally:
        process.reap(signal.SIGTERM)


@contextmanager
def secured_pair(directory: Path) -> Iterator[Secured]:
    """A broker and, in a process of its own, its controller: changes are forwarded in Envelopes."""
    sasl, plain, controller = free_ports(3)
    both = {
        **settings(),
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
    }
    listeners = f"SASL://127.0.0.1:{sasl},PLAINTEXT://127.0.0.1:{plain}"
    roles = {
        "controller": {"node.id": "1", "listeners": f"CONTROLLER://127.0.0.1:{controller}"},
        "broker": {"node.id": "2", "listeners": listeners},
    }
    processes = []
    for role, own in roles.items():
        given = {**both, **own, "process.roles": role}
        if role == "controller":
            del given["inter.broker.listener.name"]
        arguments = ["--data-dir", str(directory / role), "--no-http"]
        arguments += in_a_file(directory / f"{role}.properties", given)
        processes.append(NodeProcess(role, arguments, directory / f"{role}.log", stop_timeout=TIMEOUT_SECONDS))
    try:
        for process in processes:
            process.spawn()
        for process in processes:
            process.wait_until_ready(60)
        yield Secured({"SASL": sasl, "PLAINTEXT": plain, "CONTROLLER": controller}, directory / "broker.log")
    finally:
        for process in reversed(processes):
            process.reap(signal.SIGTERM)


@contextmanager
def secured_kafka(directory: Path) -> Iterator[Secured]:
    sasl, plain, controller = free_ports(3)
    ports = {"SASL": sasl, "PLAINTEXT": plain, "CONTROLLER": controller}
    shown = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items() if name != "CONTROLLER")
    broker = apache_kafka.ApacheKafkaBroker(
        apache_kafka.resolve(),
        directory / "kafka",
        {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
            "advertised.listeners": shown,
            **settings(),
        },
        jvm=("-Xmx300M", "-Xms300M"),
        port=plain,
        voters={1: f"127.0.0.1:{controller}"},
    )
    with broker:
        yield Secured(ports, directory / "kafka")
