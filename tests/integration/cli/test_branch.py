"""`millstream topic branch` on a real broker: read and written by librdkafka, deleted, killed, with transactions,
groups and objects in the tier; and the commands of docs/branches.md as they are printed there."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from millstream.admin import Admin, RefusedError
from millstream.testing import EmbeddedBroker
from tests.integration.cli.conftest import Run
from tests.integration.node.tier.tiered_topic import SETTINGS, consume, make_tiered, objects, until_tiered, value_of
from tests.integration.node.tier.tiered_topic import produce as produce_tiered
from tests.repository import REPOSITORY
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire, now_ms

BASE_MS = now_ms() - 100_000
PAGE = (REPOSITORY / "docs" / "branches.md").read_text()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tier")


@pytest.fixture(scope="module")
def broker(store: Path) -> Iterator[EmbeddedBroker]:
    settings = {**SETTINGS, "group.initial.rebalance.delay.ms": 0, "millstream.tier.url": f"file://{store}"}
    with EmbeddedBroker(settings) as running:
        yield running


@pytest.fixture
def command(offline: Run, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", broker.bootstrap_servers)
    return offline


def create(broker: EmbeddedBroker, name: str) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(name, 1)


def produce(broker: EmbeddedBroker, topic: str, *values: str) -> None:
    writer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0})
    for number, value in enumerate(values):
        writer.produce(topic, key=f"k{number}", value=value, headers={"n": str(number)}, timestamp=BASE_MS + number)
        assert writer.flush(TIMEOUT_SECONDS) == 0  # a batch for each


def read(broker: EmbeddedBroker, topic: str) -> list[tuple[int, bytes, bytes, int]]:
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "readers",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    reader = Consumer(settings)
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[tuple[int, bytes, bytes, int]] = []
    while True:
        record = reader.poll(TIMEOUT_SECONDS)
        assert record is not None
        if record.error():
            reader.close()
            return found
        found.append((record.offset() or 0, record.key() or b"", record.value() or b"", record.timestamp()[1]))


def inodes(broker: EmbeddedBroker, topic: str) -> dict[str, int]:
    return {path.name: os.stat(path).st_ino for path in (broker.data_dir / f"{topic}-0").glob("*.log")}


def test_a_branch_shares_files_and_goes_on_by_itself(broker: EmbeddedBroker, command: Run) -> None:
    create(broker, "orders")
    produce(broker, "orders", *map(str, range(10)))
    done = command("topic", "branch", "orders", "orders-test", "--config", "retention.ms=-1", "--json")
    assert done.code == 0, done.err
    assert done.json()["partitions"] == [{"partition": 0, "start": 0, "offset": 10, "note": None}]
    shared = f"{0:020d}.log"
    assert inodes(broker, "orders")[shared] == inodes(broker, "orders-test")[shared]
    before = read(broker, "orders")
    assert read(broker, "orders-test") == before and len(before) == 10
    produce(broker, "orders", "parent")
    produce(broker, "orders-test", "branch")
    assert [row[2] for row in read(broker, "orders")[10:]] == [b"parent"]
    assert [row[2] for row in read(broker, "orders-test")[10:]] == [b"branch"]
    assert "branch of orders" in command("topic", "describe", "orders-test").out
    assert command("topic", "branch", "orders", "orders-test").code == 5
    assert command("topic", "branch", "missing", "x").code == 4
    assert "internal" in command("topic", "branch", "__consumer_offsets", "x").err
    with Admin(broker.bootstrap_servers) as admin:
        admin.topics.delete("orders")
    until(lambda: not (broker.data_dir / "orders-0").exists(), "the parent was not deleted")
    broker.kill()
    broker.start()
    assert [row[:3] for row in read(broker, "orders-test")[:10]] == [row[:3] for row in before]
    assert [row[2] for row in read(broker, "orders-test")[10:]] == [b"branch"]


def test_points_by_time_and_by_offsets(broker: EmbeddedBroker, command: Run, tmp_path: Path) -> None:
    create(broker, "points")
    produce(broker, "points", *map(str, range(10)))
    assert command("topic", "branch", "points", "by-time", "--at", f"@{BASE_MS + 4}").code == 0
    assert [row[0] for row in read(broker, "by-time")] == [0, 1, 2, 3]
    (tmp_path / "points.csv").write_text("points,0,7\n")
    assert command("topic", "branch", "points", "by-offset", "--offsets", tmp_path / "points.csv").code == 0
    assert [row[0] for row in read(broker, "by-offset")] == list(range(7))
    produce(broker, "by-offset", "next")
    assert read(broker, "by-offset")[-1][0] == 7
    (tmp_path / "points.csv").write_text("points,0,70\n")
    far = command("topic", "branch", "points", "far", "--offsets", tmp_path / "points.csv")
    assert "70 is after the last stable offset" in far.out
    (tmp_path / "points.csv").write_text("points,3,70\n")
    assert command("topic", "branch", "points", "wrong", "--offsets", tmp_path / "points.csv").code == 2


def test_transactions_batches_and_groups(broker: EmbeddedBroker) -> None:
    create(broker, "mixed")
    writer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "branching", "linger.ms": 1000}
    )
    writer.init_transactions(TIMEOUT_SECONDS)
    for number, commits in enumerate((False, True)):
        writer.begin_transaction()
        for _ in range(3):
            writer.produce("mixed", value=f"transaction-{number}")
        assert writer.flush(TIMEOUT_SECONDS) == 0  # an abort would drop what was not sent
        writer.commit_transaction(TIMEOUT_SECONDS) if commits else writer.abort_transaction(TIMEOUT_SECONDS)
    writer.begin_transaction()
    writer.produce("mixed", value="open")
    assert writer.flush(TIMEOUT_SECONDS) == 0
    with Admin(broker.bootstrap_servers) as admin:
        made = admin.topics.branch("mixed", "stable")
        assert [row[2] for row in read(broker, "stable")] == [b"transaction-1"] * 3
        end = made.points[0].offset
        cut = admin.topics.branch("mixed", "cut", offsets={("mixed", 0): end - 2})  # type: ignore[dict-item]
        assert cut.points[0].offset < end - 2 and "within a batch" in cut.points[0].note
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "billing"})
        consumer.commit(offsets=[TopicPartition("mixed", 0, 5)], asynchronous=False)
        consumer.close()
        copied = admin.topics.branch("mixed", "with-groups", groups={"billing": "billing-test"})
        assert copied.groups == {"billing-test": {0: 5}}
        writer.commit_transaction(TIMEOUT_SECONDS)
        assert [row[2] for row in read(broker, "mixed")][-1] == b"open"
        assert len(read(broker, "stable")) == 3
        with pytest.raises(RefusedError):
            admin.topics.branch("mixed", "bad name")


def test_a_branch_refers_to_the_objects_of_its_parent(broker: EmbeddedBroker, store: Path, offline: Run) -> None:
    servers = broker.bootstrap_servers
    make_tiered(servers, "history")
    produce_tiered(servers, "history", range(1000))
    start = until_tiered(broker.data_dir, "history")
    uploaded = {path.name for path in objects(store)}
    with Admin(servers) as admin:
        with pytest.raises(RefusedError, match=r"'history' is tiered, so its branch needs "):
            admin.topics.branch("history", "history-off", configs={"remote.storage.enable": "false"})
        made = admin.topics.branch("history", "history-test", offsets={("history", 0): start // 2})  # type: ignore[dict-item]
        point = made.points[0].offset
        assert 0 < point <= start // 2
        found = consume(servers, "history-test", point)
        assert [(each.offset(), each.value()) for each in found] == [(n, value_of(n)) for n in range(point)]
        produce_tiered(servers, "history-test", range(point, point + 10))
        assert [each.offset() for each in consume(servers, "history-test", point + 10)] == list(range(point + 10))
        admin.topics.delete("history")
        # Objects that only the parent had are deleted, those of the branch stay.
        until(lambda: {path.name for path in objects(store)} < uploaded, "no object was deleted")
        until(lambda: offline("tier", "status", "history", "--url", f"file://{store}").code == 4)
        found = consume(servers, "history-test", point + 10)
        assert [(each.offset(), each.value()) for each in found] == [(n, value_of(n)) for n in range(point + 10)]
        swept = offline("tier", "sweep", "--url", f"file://{store}", "--older-than", "0s", "--json", "-b", servers)
        assert swept.json()["objects"] == []
        admin.topics.delete("history-test")
        until(lambda: not {path.name for path in objects(store)} & uploaded, "the shared objects were not deleted")


def test_the_commands_of_the_page(broker: EmbeddedBroker, tmp_path: Path) -> None:
    shell, points = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with Admin(broker.bootstrap_servers) as admin:
        for name in ("orders", "orders-test"):
            if name in {each.name for each in admin.topics.topics()}:
                admin.topics.delete(name)
    (tmp_path / "points.csv").write_text("orders,0,100\norders,1,100\n")
    environment = {
        **os.environ,
        "PATH": f"{REPOSITORY / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "MILLSTREAM_BOOTSTRAP": broker.bootstrap_servers,
    }
    script = f"set -e\n{shell}\n{points}"
    done = subprocess.run(["sh", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "branch of orders" in done.stdout
    exec(compile(program.replace("localhost:9092", broker.bootstrap_servers), "docs/branches.md", "exec"), {})
