"""A cluster made by `millstream security init`: three nodes start as they are made, the client file works, others are
refused with one clear line, everything is audited, and no secret is shown anywhere."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.security.weaknesses import weaknesses
from millstream.config.loading import load_broker_config
from millstream.formats.model.access_control import AclOperation, AclPatternType, AclPermission, AclResourceType
from millstream.node.security.core.scram import SCRAM_MECHANISMS, salted_password
from millstream.node.security.first_users import new_salt
from millstream.raw_client import Cluster, ErrorCode, RefusedError, TopicPartition, WireError
from millstream.raw_client.client_properties import as_user, read_bootstrap, read_client_properties
from millstream.testing.node_process import NodeProcess, free_ports
from tests.waiting import until
from tests.wire import values

PASSWORD = "alice-has-a-password-9"
GUESS = "guessed-by-bob"


@dataclass
class Secured:
    directory: Path
    nodes: list[NodeProcess]

    @property
    def properties(self) -> Path:
        return self.directory / "client" / "client.properties"

    @property
    def admin_password(self) -> str:
        found = re.search(r'password="([^"]+)"', self.properties.read_text())
        assert found is not None
        return found[1]

    def cluster(self, **credentials: str) -> Cluster:
        settings = read_client_properties(str(self.properties))
        if credentials:
            settings = as_user(settings, **credentials)
        bootstrap = read_bootstrap(str(self.properties))
        assert bootstrap is not None
        return Cluster(bootstrap, settings)

    def file_of(self, user: str, password: str) -> Path:
        """Client properties of another user."""
        path = self.directory / f"{user}.properties"
        text = self.properties.read_text().replace('"admin"', f'"{user}"').replace(self.admin_password, password)
        path.write_text(text)
        return path

    def run(self, *words: str, file: Path | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "millstream", *words, "--command-config", str(file or self.properties)]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=90)

    def events(self) -> list[dict[str, Any]]:
        with self.cluster() as cluster:
            if "__millstream_audit" not in cluster.topics():
                return []
            place = TopicPartition("__millstream_audit", 0)
            data = cluster.fetch(place, 0, max_bytes=8 << 20, max_wait_ms=100).data
        return [json.loads(value) for value in values(data)]

    def logs(self) -> str:
        return "".join(path.read_text() for path in self.directory.glob("*.log"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured") / "made"
    # Ports for clients, controllers and nodes follow each other.
    first = free_ports(40)[0]
    made = subprocess.run(
        [sys.executable, "-m", "millstream", "security", "init", str(directory), "--port", str(first)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert made.returncode == 0, made.stderr
    nodes = []
    for number in (1, 2, 3):
        file = directory / f"node-{number}" / "server.properties"
        arguments = ["--no-http", "--config", str(file)]
        nodes.append(NodeProcess(f"node {number}", arguments, directory / f"node-{number}.log", stop_timeout=20))
    secured = Secured(directory, nodes)
    assert secured.admin_password not in made.stdout + made.stderr
    try:
        for node in nodes:
            node.spawn()
        for node in nodes:
            node.wait_until_ready(60)
        yield secured
    finally:
        for node in nodes:
            node.reap(signal.SIGKILL)


def add_user(cluster: Cluster, name: str, password: str) -> None:
    mechanism, salt = SCRAM_MECHANISMS["SCRAM-SHA-512"], new_salt()
    salted = salted_password(mechanism, password, salt, 4096)
    row = {"name": name, "mechanism": mechanism.number, "iterations": 4096, "salt": salt, "salted_password": salted}
    response = cluster.call("alter_user_scram_credentials", deletions=[], upsertions=[row])
    assert [each.error_code for each in response.results] == [0]


def let(cluster: Cluster, user: str, operation: AclOperation, topic: str) -> None:
    acl = {
        "resource_type": AclResourceType.TOPIC,
        "resource_name": topic,
        "resource_pattern_type": AclPatternType.LITERAL,
        "principal": f"User:{user}",
        "host": "*",
        "operation": operation,
        "permission_type": AclPermission.ALLOW,
    }
    assert [each.error_code for each in cluster.call("create_acls", creations=[acl]).results] == [0]


@pytest.fixture(scope="module")
def orders(secured: Secured) -> str:
    """A topic with two records."""
    with secured.cluster() as cluster:
        cluster.create_topic("orders", 3, 3)
    written = secured.run("produce", "orders", stdin="one\ntwo\n")
    assert written.returncode == 0, written.stderr
    return "orders"


def test_the_files_are_private_and_not_weak(secured: Secured) -> None:
    for path in secured.directory.rglob("*"):
        if path.is_file() and path.parent.name in ("ca", "client", "node-1") and path.suffix != ".lock":
            assert path.stat().st_mode & 0o077 == 0, path
    file = str(secured.directory / "node-1" / "server.properties")
    assert weaknesses(file, load_broker_config(file=file)) == []


def test_the_administrator_does_everything(secured: Secured) -> None:
    created = secured.run("topic", "create", "of-admin", "--partitions", "3")
    assert created.returncode == 0, created.stderr
    assert secured.run("produce", "of-admin", stdin="one\ntwo\n").returncode == 0
    read = secured.run("consume", "of-admin", "--count", "2")
    assert sorted(read.stdout.split()) == ["one", "two"], read.stderr
    for words in (["cluster", "status"], ["broker", "list"], ["group", "list"], ["txn", "list"]):
        done = secured.run(*words)
        assert done.returncode == 0, (words, done.stderr)
    short = ["--records", "100", "--seconds", "0.2", "--rate", "50"]
    assert secured.run("bench", *short).returncode == 0


def test_others_are_refused_with_one_line(secured: Secured, orders: str) -> None:
    with secured.cluster() as cluster:
        add_user(cluster, "alice", PASSWORD)
    alice = secured.file_of("alice", PASSWORD)
    for words, said in (
        (["topic", "create", "mine"], "not allowed"),
        (["produce", orders], "not allowed"),
        (["consume", orders, "--count", "1"], orders),
    ):
        refused = secured.run(*words, file=alice, stdin="x\n")
        assert (refused.returncode, refused.stderr.count("\n")) in ((9, 1), (4, 1)), (words, refused.stderr)
        assert said in refused.stderr
    wrong = secured.run("topic", "list", file=secured.file_of("bob", GUESS))
    assert wrong.returncode == 9
    assert "check user and password" in wrong.stderr
    assert GUESS not in wrong.stderr
    with secured.cluster() as cluster:
        let(cluster, "alice", AclOperation.READ, orders)
    read = secured.run("consume", orders, "--count", "1", file=alice)
    assert read.returncode == 0, read.stderr


def test_everything_is_audited(secured: Secured) -> None:
    with secured.cluster() as cluster:
        add_user(cluster, "carol", PASSWORD)
        cluster.create_topic("of-carol", 1, 3)
        let(cluster, "carol", AclOperation.DESCRIBE, "of-carol")

    def refused_by_acl() -> bool:
        """A broker may not know the new user yet."""
        try:
            with secured.cluster(username="carol", password=PASSWORD) as cluster:
                cluster.create_topic("not-of-carol", 1, 1)
        except RefusedError as error:
            return error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        except WireError:
            return False
        raise AssertionError("carol may create topics")

    until(refused_by_acl, "the new user cannot log in")
    with pytest.raises(WireError), secured.cluster(username="carol", password=GUESS) as cluster:
        cluster.topics()

    def recorded(**fields: str) -> bool:
        return any(fields.items() <= each.items() for each in secured.events())

    denial = {"kind": "authorization", "result": "denied", "principal": "User:carol"}
    until(lambda: recorded(**denial), "the refusal is not recorded")
    until(lambda: recorded(kind="authentication", result="failure"), "the wrong password is not recorded")
    for api in ("CreateTopics", "AlterUserScramCredentials", "CreateAcls"):
        until(lambda api=api: recorded(api=api, principal="User:admin"), f"{api} is not recorded")  # type: ignore[misc]
    assert secured.run("produce", "__millstream_audit", stdin="forged\n").returncode != 0


def test_no_secret_is_shown(secured: Secured) -> None:
    """Logs, the audit log, settings and the process list."""
    with secured.cluster() as cluster:
        add_user(cluster, "dora", PASSWORD)
    assert secured.run("topic", "list", file=secured.file_of("dora", GUESS)).returncode == 9
    secrets = [secured.admin_password, PASSWORD, GUESS]
    key = (secured.directory / "node-1" / "keystore.pem").read_text().splitlines()[1]
    secrets.append(key)
    with secured.cluster() as cluster:
        resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        response = cluster.call("describe_configs", resources=[resource], include_synonyms=True)
        (described,) = response.results
        assert described.error_code == 0
        passwords = [each for each in described.configs if each.config_type == 9]
        assert passwords
        assert all(each.is_sensitive and each.value is None for each in passwords)
        assert all(synonym.value is None for each in passwords for synonym in each.synonyms)
        shown = "".join(f"{each.name}={each.value}\n" for each in described.configs)
    processes = ""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            processes += Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        except OSError:
            continue
    audit = json.dumps(secured.events())
    for secret in secrets:
        for where, text in (("logs", secured.logs()), ("settings", shown), ("processes", processes), ("audit", audit)):
            assert secret not in text, where
