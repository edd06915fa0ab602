"""`millstream backup` on a real broker: everything comes back in a new one; only new segments are stored; links; an S3
server; what is wrong is said. And the commands of docs/backups.md as they are printed there."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from millstream.testing import EmbeddedBroker, EmbeddedCluster
from tests.integration.cli.conftest import Outcome, Run
from tests.repository import REPOSITORY
from tests.s3_server import FaultyStore, s3
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire

PAGE = (REPOSITORY / "docs" / "backups.md").read_text()
SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "log.message.timestamp.before.max.ms": 2**62,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ORDERS = 40
__all__ = ["s3"]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1, SETTINGS) as running:
        with Wire(running.bootstrap_servers) as wire:
            wire.create_topic("orders", 1, **{"segment.bytes": "1048576", "retention.ms": "-1"})
            wire.create_topic("accounts", 1, **{"cleanup.policy": "compact"})
        fill(running.bootstrap_servers, 0, ORDERS)
        yield running


@pytest.fixture
def command(offline: Run, broker: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", broker.bootstrap_servers)
    return offline


def fill(servers: str, first: int, after: int) -> None:
    """Records of 100 KB, each a batch: ten fill a segment."""
    writer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "enable.idempotence": True})
    for number in range(first, after):
        value = f"order {number} ".encode().ljust(100_000, b".")
        writer.produce("orders", value, key=f"k{number}", headers={"n": str(number)}, timestamp=1_000_000 + number)
        assert writer.flush(TIMEOUT_SECONDS) == 0


def records(servers: str, topic: str, partition: int = 0) -> list[Message]:
    reader = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "readers",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found: list[Message] = []
    while True:
        record = reader.poll(TIMEOUT_SECONDS)
        assert record is not None
        if record.error():
            reader.close()
            return found
        found.append(record)


def essence(record: Message) -> tuple[object, ...]:
    value = record.value() or b""
    return record.offset(), record.timestamp(), record.key(), value[:20], len(value), record.headers()


def segments(repository: Path) -> set[Path]:
    return set(repository.glob("segments/*/*/*.log"))


def created(outcome: Outcome) -> dict[str, int]:
    assert outcome.code == 0, outcome.err
    made: dict[str, int] = outcome.json()
    return made


def test_everything_comes_back_in_a_new_broker(
    broker: EmbeddedCluster, command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, repository = broker.bootstrap_servers, tmp_path / "backups"
    monkeypatch.setenv("MILLSTREAM_USER_PASSWORD", "password-of-ann")
    assert command("user", "add", "ann").code == 0
    assert command("acl", "add", "User:ann", "read", "--topic", "orders").code == 0
    assert command("quota", "set", "producer_byte_rate=1000000", "--user", "ann").code == 0
    group = Consumer({"bootstrap.servers": servers, "group.id": "billing"})
    group.commit(offsets=[TopicPartition("orders", 0, 17)], asynchronous=False)
    group.close()
    writer = Producer({"bootstrap.servers": servers, "transactional.id": "books", "linger.ms": 0})
    writer.init_transactions(TIMEOUT_SECONDS)
    for outcome in ("commit", "abort", "open"):
        writer.begin_transaction()
        writer.produce("accounts", outcome, key=outcome)
        assert writer.flush(TIMEOUT_SECONDS) == 0
        if outcome == "commit":
            writer.commit_transaction(TIMEOUT_SECONDS)
        elif outcome == "abort":
            writer.abort_transaction(TIMEOUT_SECONDS)
    made = created(command("backup", "create", repository, "--json"))
    assert made["new_bytes"] == made["bytes"] > ORDERS * 100_000
    assert oct((repository / "segments").stat().st_mode)[-3:] == "700"
    before = [essence(each) for each in records(servers, "orders")]
    (described,) = command("topic", "describe", "orders", "--json").json()
    acls = command("acl", "list", "--json").json()
    quotas = command("quota", "list", "--json").json()
    writer.abort_transaction(TIMEOUT_SECONDS)  # it was open at the point
    restored = command("backup", "restore", repository, "--node", f"7={tmp_path / 'new'}", "--json").json()
    assert restored["cluster"] != made["cluster"]
    with EmbeddedBroker({**SETTINGS, "node.id": 7}, data_dir=tmp_path / "new") as new:
        monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", new.bootstrap_servers)
        assert [essence(each) for each in records(new.bootstrap_servers, "orders")] == before
        (again,) = command("topic", "describe", "orders", "--json").json()
        assert again["id"] == described["id"] and again["config"] == described["config"]
        assert command("acl", "list", "--json").json() == acls
        assert command("quota", "list", "--json").json() == quotas
        assert "ann" in command("user", "list").out
        group = Consumer({"bootstrap.servers": new.bootstrap_servers, "group.id": "billing"})
        assert group.committed([TopicPartition("orders", 0)], TIMEOUT_SECONDS)[0].offset == 17
        group.close()
        # The producer of the open transaction starts again: it is aborted, and new ones are committed.
        writer = Producer({"bootstrap.servers": new.bootstrap_servers, "transactional.id": "books", "linger.ms": 0})
        writer.init_transactions(TIMEOUT_SECONDS)
        writer.begin_transaction()
        writer.produce("accounts", "later", key="later")
        writer.commit_transaction(TIMEOUT_SECONDS)
        assert [each.value() for each in records(new.bootstrap_servers, "accounts")] == [b"commit", b"later"]


def test_only_new_segments_are_stored_and_segments_that_no_one_needs_are_deleted(
    broker: EmbeddedCluster, command: Run, tmp_path: Path
) -> None:
    first = created(command("backup", "create", tmp_path, "--json"))
    stored = {path: path.stat().st_ino for path in segments(tmp_path)}
    fill(broker.bootstrap_servers, 1000, 1003)
    second = created(command("backup", "create", tmp_path, "--json"))
    assert second["bytes"] > first["bytes"] and 300_000 < second["new_bytes"] < 600_000
    assert {path: path.stat().st_ino for path in segments(tmp_path) if path in stored} == stored
    # Closed segments of a node on the same file system are linked.
    linked = created(command("backup", "create", tmp_path, "--full", "--data-dir", broker.data_dir(1), "--json"))
    files = {path.stat().st_ino for path in broker.data_dir(1).glob("orders-0/*.log")}
    assert len(files & {path.stat().st_ino for path in segments(tmp_path)}) >= 3
    assert linked["new_bytes"] < linked["bytes"] // 2
    listed = command("backup", "list", tmp_path, "--json").json()
    assert [each["id"] for each in listed] == [first["id"], second["id"], linked["id"]]
    for each in listed:
        assert command("backup", "verify", tmp_path, "--id", each["id"]).code == 0
    assert command("backup", "delete", tmp_path, first["id"]).code == 0
    assert set(stored) <= segments(tmp_path)  # the second one needs them
    assert command("backup", "delete", tmp_path, "--keep", 1).code == 0
    assert not set(stored) & segments(tmp_path)
    assert command("backup", "verify", tmp_path).code == 0


def test_a_backup_in_s3_is_created_listed_and_verified(command: Run, tmp_path: Path, s3: FaultyStore) -> None:
    url = f"{s3.url}/backups"
    made = created(command("backup", "create", url, "--json"))
    assert command("backup", "create", url).code == 0
    assert len(command("backup", "list", url, "--json").json()) == 2
    assert command("backup", "verify", url, "--id", made["id"]).code == 0
    assert command("backup", "restore", url, "--node", f"1={tmp_path / 'new'}").code == 0
    assert (tmp_path / "new" / "orders-0").is_dir()


def test_wrong_backup_commands_have_an_error_and_exit_code(command: Run, tmp_path: Path) -> None:
    repository = tmp_path / "backups"
    nothing = command("backup", "list", tmp_path / "nothing")
    assert nothing.code == 4 and "does not exist" in nothing.err
    made = created(command("backup", "create", repository, "--json"))
    node = ("--node", f"1={tmp_path / 'new'}")
    manifest = repository / "backups" / str(made["id"]) / "manifest.json"
    text = manifest.read_text()

    other = json.loads(text) | {"cluster_id": "AnotherClusterXXXXXXXX"}
    manifest.write_text(json.dumps(other))
    refused = command("backup", "create", repository)
    assert refused.code == 1 and "has backups of cluster AnotherCluster" in refused.err
    manifest.write_text(text[:-20])
    damaged = command("backup", "verify", repository)
    assert damaged.code == 7 and "manifest" in damaged.err
    manifest.rename(tmp_path / "aside")
    missing = command("backup", "restore", repository, *node)
    assert missing.code == 4 and "no complete backup" in missing.err
    missing = command("backup", "restore", repository, *node, "--id", made["id"])
    assert missing.code == 4 and "was not finished" in missing.err
    assert command("backup", "restore", repository, *node, "--id", "../../etc").code == 4
    manifest.write_text(text)

    largest = max(segments(repository), key=lambda path: path.stat().st_size)
    whole = largest.read_bytes()
    largest.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    for words in (("verify",), ("restore", *node)):
        damaged = command("backup", words[0], repository, *words[1:])
        assert damaged.code == 7 and largest.name in damaged.err
    largest.unlink()
    damaged = command("backup", "verify", repository)
    assert damaged.code == 7 and "is missing" in damaged.err
    largest.write_bytes(whole)

    # The restore that failed left a folder; the node does not start on it, and the next restore begins again.
    assert os.listdir(tmp_path / "new") == [".restoring"]
    started = command("serve", "--data-dir", tmp_path / "new", "--listen", "127.0.0.1:0", "--no-http")
    assert started.code != 0 and "backup restore" in started.err
    several = command("backup", "restore", repository, *node, "--nodes", "1,2")
    assert several.code == 1 and "--cluster-id" in several.err
    assert command("backup", "restore", repository, *node).code == 0
    full = command("backup", "restore", repository, *node)
    assert full.code == 1 and "is not empty" in full.err
    assert command("backup", "restore", repository, "--node", "x=/tmp/x").code == 2
    assert command("backup", "restore", repository).code == 2
    assert command("backup", "create", repository, "--rate", "fast").code == 2
    assert command("backup", "create", "nowhere://x").code == 1


def test_the_commands_of_the_page(offline: Run, tmp_path: Path) -> None:
    (shell,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    with EmbeddedBroker(SETTINGS, data_dir=tmp_path / "millstream-data") as running:
        refused = offline("backup", "create", tmp_path / "other", "-b", running.bootstrap_servers)
        assert refused.code == 1 and "--data-dir" in refused.err
        environment = {
            **os.environ,
            "PATH": f"{REPOSITORY / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "MILLSTREAM_BOOTSTRAP": running.bootstrap_servers,
        }
        done = subprocess.run(
            ["sh", "-ec", shell], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "are whole" in done.stdout and "restored " in done.stdout
    with EmbeddedBroker({**SETTINGS, "node.id": 1}, data_dir=tmp_path / "restored") as new:
        assert sum(len(records(new.bootstrap_servers, "orders", partition=number)) for number in range(2)) == 1100
