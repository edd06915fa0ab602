"""ACLs with other people's programs: librdkafka as user, Kafka's `kafka-acls`; and `millstream acl`."""

import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from millstream.cli.main import main
from tests.integration.node.security.secured_broker import Secured, options, secured_millstream
from tests.system.cluster.kafka_tools import KafkaTools
from tests.waiting import TIMEOUT_SECONDS

TOPIC = "acls-orders"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_millstream(tmp_path_factory.mktemp("acls")) as broker:
        with broker.cluster("admin") as admin:
            admin.create_topic(TOPIC, 1, 1)
        yield broker


def acl(secured: Secured, *arguments: str, user: str = "admin", fails: bool = False) -> str:
    said, complained = StringIO(), StringIO()
    with NamedTemporaryFile("w", suffix=".properties") as file:
        file.write("".join(f"{name}={value}\n" for name, value in options(user).items()))
        file.flush()
        with redirect_stdout(said), redirect_stderr(complained):
            code = main(["acl", *arguments, "-b", secured.address, "--command-config", file.name])
    assert (code != 0) is fails, said.getvalue() + complained.getvalue()
    return complained.getvalue() if fails else said.getvalue()


def librdkafka(secured: Secured, user: str, **more: object) -> dict[str, object]:
    return {"bootstrap.servers": secured.address, **options(user), **more}


def produced(secured: Secured, user: str, **more: object) -> KafkaError | None:
    results: list[KafkaError | None] = []
    producer = Producer(librdkafka(secured, user, **more))
    producer.produce(TOPIC, b"v", on_delivery=lambda error, _: results.append(error))
    assert producer.flush(TIMEOUT_SECONDS) == 0
    return results[0]


def consumed(secured: Secured, user: str, group: str) -> bytes:
    consumer = Consumer(librdkafka(secured, user, **{"group.id": group, "auto.offset.reset": "earliest"}))
    try:
        consumer.subscribe([TOPIC])
        while True:
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None, "no record and no error"
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            return message.value() or b""
    finally:
        consumer.close()


def test_commands_permit_what_they_say(secured: Secured) -> None:
    refused = produced(secured, "alice", **{"enable.idempotence": True})
    assert refused is not None and "AUTHORIZATION_FAILED" in refused.name()
    said = acl(secured, "explain", "User:alice", "write", "--topic", TOPIC)
    assert said.startswith("DENIED") and f"millstream acl add User:alice write --topic {TOPIC}" in said
    acl(secured, "add", "User:alice", "produce", "consume", "--topic", TOPIC, "--group", "acls-group")
    assert produced(secured, "alice", **{"enable.idempotence": True}) is None
    assert consumed(secured, "alice", "acls-group") == b"v"
    with pytest.raises(KafkaException, match=r"GROUP_AUTHORIZATION_FAILED|not authorized|Access denied"):
        consumed(secured, "alice", "acls-other")
    said = acl(secured, "explain", "User:alice", "describe", "--topic", TOPIC)
    assert said.startswith("ALLOWED") and "ALLOW User:alice" in said
    acl(secured, "add", "User:*", "write", "--topic", "acls-", "--prefixed", "--deny", "--host", "127.0.0.0/8")
    said = acl(secured, "explain", "User:alice", "write", "--topic", TOPIC)
    assert "denial wins" in said and "millstream acl remove" in said
    refused = produced(secured, "alice")
    assert refused is not None and refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    acl(secured, "remove", "User:*", "write", "--topic", "acls-", "--prefixed", "--deny", "--host", "127.0.0.0/8")
    assert produced(secured, "alice") is None
    rows = json.loads(acl(secured, "list", "--topic", TOPIC, "--json"))
    assert {row["operation"] for row in rows} == {"READ", "WRITE", "DESCRIBE"}
    acl(secured, "remove", "User:alice", "produce", "consume", "--topic", TOPIC, "--group", "acls-group")
    assert json.loads(acl(secured, "list", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "alice", "read", "--topic", "t"), "User:alice"),
        (("add", "User:alice", "reed", "--topic", "t"), "read"),
        (("add", "User:alice", "read"), "--topic"),
        (("add", "User:alice", "consume", "--topic", "t"), "--group"),
        (("add", "User:alice", "cluster_action", "--topic", "t"), "cluster"),
        (("add", "User:alice", "read", "--topic", "t", "--host", "10.0.0.0/99"), "10.0.0.0/8"),
        (("remove", "User:alice", "read", "--topic", "t"), "acl list"),
    ],
)
def test_mistakes_are_explained(secured: Secured, arguments: tuple[str, ...], message: str) -> None:
    assert message in acl(secured, *arguments, fails=True)


def test_commands_need_permission_themselves(secured: Secured) -> None:
    assert "CLUSTER_AUTHORIZATION_FAILED" in acl(secured, "list", user="alice", fails=True)


@pytest.mark.slow
def test_kafka_acls_adds_lists_and_removes(secured: Secured, tmp_path: Path) -> None:
    properties = tmp_path / "admin.properties"
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={jaas} username="admin" password="admin-secret";\n'
    )
    tools = KafkaTools(tmp_path / "tools.log")
    try:
        common = ("--bootstrap-server", secured.address, "--command-config", str(properties))
        who = ("--allow-principal", "User:alice", "--producer", "--topic", "acls-tool")
        assert "Adding ACLs" in tools("kafka-acls", *common, "--add", *who)
        listed = tools("kafka-acls", *common, "--list", "--topic", "acls-tool")
        assert "principal=User:alice" in listed and "operation=WRITE" in listed
        tools("kafka-acls", *common, "--remove", "--force", *who)
        assert "User:alice" not in tools("kafka-acls", *common, "--list", "--topic", "acls-tool")
    finally:
        tools.close()
