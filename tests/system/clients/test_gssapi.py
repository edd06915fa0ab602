"""Kerberos: Kafka's Java clients and kcat, and a cluster whose nodes authenticate to each other, with a real KDC."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing import EmbeddedBroker
from millstream.testing.embedded_cluster import EmbeddedCluster
from tests.kerberos import REALM, Realm, login_module
from tests.sasl import MODULES, authenticate, handshake
from tests.system.cluster.kafka_tools import KafkaTools
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire
from tools import apache_kafka, install_test_clients

_numbers = itertools.count()
RULES = f"RULE:[2:$1@$0](app@.*)s/@.*//,RULE:[1:$1@$0](.*@{REALM})s/@.*//,RULE:[2:$1](kafka)"


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    try:
        library = install_test_clients.kerberos()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"Kerberos: {reason}")
    with Realm(tmp_path_factory.mktemp("realm")).running() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in {**library, **running.environment}.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture(scope="module")
def service(realm: Realm) -> Path:
    return realm.keytab("kafka/localhost")


@pytest.fixture(scope="module")
def client(realm: Realm) -> Path:
    return realm.keytab("client")


def settings(service: Path) -> dict[str, str]:
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal.to.local.rules": RULES,
        "sasl.mechanism.controller.protocol": "GSSAPI",
        "listener.name.plaintext.gssapi.sasl.jaas.config": login_module(service, "kafka/localhost"),
        "listener.name.controller.gssapi.sasl.jaas.config": login_module(service, "kafka/localhost"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:kafka;User:client",
        "connection.failed.authentication.delay.ms": "20",
    }


@pytest.fixture(scope="module")
def broker(service: Path) -> Iterator[EmbeddedBroker]:
    """GSSAPI is the default of `sasl.enabled.mechanisms`, as in Kafka."""
    given = settings(service) | {"advertised.listeners": "SASL_PLAINTEXT://localhost:0"}
    given = {name.replace("name.plaintext.", "name.sasl_plaintext."): value for name, value in given.items()}
    del given["listener.security.protocol.map"]
    with EmbeddedBroker(given, security_protocol="SASL_PLAINTEXT") as running:
        yield running
        log = running.log_file.read_text()
        assert "handler_failed" not in log and "Traceback" not in log, log[-3000:]


@pytest.fixture(scope="module")
def bootstrap(broker: EmbeddedBroker) -> str:
    return broker.bootstrap_servers.replace("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def tools(
    kafka: apache_kafka.KafkaDistribution, realm: Realm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaTools]:
    options = (f"-Djava.security.krb5.conf={realm.config}",)
    running = KafkaTools(tmp_path_factory.mktemp("tools") / "tools.log", options)
    yield running
    running.close()


def config(directory: Path, keytab: Path, principal: str) -> str:
    file = directory / f"java-{next(_numbers)}.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka\n"
        f"sasl.jaas.config={login_module(keytab, principal)}\n"
    )
    return str(file)


def test_java_logs_in_by_kerberos(tools: KafkaTools, bootstrap: str, client: Path, tmp_path: Path) -> None:
    at = ("--bootstrap-server", bootstrap, "--topic", "by-java", "--command-config", config(tmp_path, client, "client"))
    tools("org.apache.kafka.tools.ConsoleProducer", *at, stdin="from java\n")
    assert "from java" in tools("kafka-console-consumer", *at, "--from-beginning", "--max-messages", "1")


def test_rules_make_the_user_of_an_acl(
    tools: KafkaTools, bootstrap: str, realm: Realm, client: Path, tmp_path: Path
) -> None:
    """The principal app/localhost is the user app, by a rule; without an ACL it sees no topic."""
    app = config(tmp_path, realm.keytab("app/localhost"), "app/localhost")
    admin = config(tmp_path, client, "client")
    at = ("--bootstrap-server", bootstrap, "--command-config")
    tools("kafka-topics", *at, admin, "--create", "--topic", "of-app")
    assert "of-app" not in tools("kafka-topics", *at, app, "--list")
    grant = ("--add", "--allow-principal", "User:app", "--operation", "Describe", "--topic", "of-app")
    tools("kafka-acls", *at, admin, *grant)
    until(lambda: "of-app" in tools("kafka-topics", *at, app, "--list"), "the ACL of User:app has no effect")


def test_a_principal_without_a_rule_is_refused(
    tools: KafkaTools, broker: EmbeddedBroker, bootstrap: str, realm: Realm, tmp_path: Path
) -> None:
    stranger = config(tmp_path, realm.keytab("stranger/localhost"), "stranger/localhost")
    code, said = tools.outcome("kafka-topics", "--bootstrap-server", bootstrap, "--command-config", stranger, "--list")
    assert code and "invalid credentials with SASL mechanism GSSAPI" in said, said
    assert f"applies to 'stranger/localhost@{REALM}'" in broker.log_file.read_text()


def test_messages_that_are_no_tickets_end_the_login(bootstrap: str) -> None:
    for messages in ([b""], [b"no ticket"], [b"\x60\x82\x02\x00" + bytes(100)]):
        with Wire(bootstrap) as wire:
            assert handshake(wire, "GSSAPI").error_code == 0
            assert [authenticate(wire, message).error_code for message in messages][-1] == 58


def test_kcat_logs_in_by_kerberos(bootstrap: str, client: Path) -> None:
    try:
        install_test_clients.kcat_with_kerberos()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(str(reason))
    options = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.keytab": str(client),
        "sasl.kerberos.principal": f"client@{REALM}",
    }
    words = [word for name, value in options.items() for word in ("-X", f"{name}={value}")]

    def kcat(*arguments: str, stdin: str = "") -> str:
        command = ["kcat", *words, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, input=stdin, env=os.environ
        )
        return done.stdout + done.stderr

    assert "rror" not in kcat("-P", "-t", "by-kcat", stdin="from kcat")
    assert "from kcat" in kcat("-C", "-t", "by-kcat", "-o", "beginning", "-c", "1", "-q")


def test_nodes_authenticate_to_each_other(realm: Realm) -> None:
    """Brokers and controllers; the name of a node is as its address is written."""
    given = settings(realm.keytab("kafka/127.0.0.1"))
    given = {name: value.replace("kafka/localhost", "kafka/127.0.0.1") for name, value in given.items()}
    given |= {
        "connections.max.reauth.ms": "4000",
        "listener.name.plaintext.sasl.enabled.mechanisms": "GSSAPI,PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": f'{MODULES}.plain.PlainLoginModule required user_client="c";',
    }
    with EmbeddedCluster(3, given) as cluster:
        options: dict[str, Any] = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "client",
            "sasl.password": "c",
        }
        admin = AdminClient(options)
        admin.create_topics([NewTopic("t", 3, 3, config={"min.insync.replicas": "3"})])["t"].result(TIMEOUT_SECONDS)
        producer, failures = Producer({**options, "acks": "all"}), []
        producer.produce("t", b"x", on_delivery=lambda error, _: failures.append(error))
        assert producer.flush(TIMEOUT_SECONDS) == 0 and failures == [None]
        for number in cluster.nodes:
            log = cluster.log_file(number).read_text()
            assert "login_failed" not in log and "Traceback" not in log, log[-3000:]
