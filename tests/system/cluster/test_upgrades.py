"""Nodes of the previous landed version and of this one in one cluster: rolling upgrade, rollback, upgrade again and its
end, under load, with a clean history. The previous version is taken from git, and runs with the same libraries."""

import json
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.admin.features import FeatureAdmin
from millstream.raw_client import Cluster, RefusedError
from millstream.simulator.history.checker import check
from millstream.simulator.history.operations import Recorder, Seen, Send
from millstream.testing import EmbeddedCluster
from tests.repository import REPOSITORY
from tests.topics import make_topic
from tests.waiting import PATIENCE_S, until

PREVIOUS = "08bffd32"
"""The last landed version before this one."""
SETTINGS = {
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}
TOPIC, PARTITIONS = "orders", 3


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the previous version."""
    done = subprocess.run(["git", "archive", PREVIOUS, "src"], cwd=REPOSITORY, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"git has no commit {PREVIOUS} here: {done.stderr.decode().strip()}")
    directory = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory / "src"


class Load:
    """A producer and a transactional producer, until the end of the test; each send is in the history."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self.recorder = Recorder()
        self._stop = threading.Event()
        self.acked = 0
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(name,), daemon=True) for name in ("plain", "txn")]

    def __enter__(self) -> "Load":
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join(PATIENCE_S)

    def goes_on(self) -> None:
        before = self.acked
        until(lambda: self.errors or self.acked > before + 20, "records are acknowledged")
        assert not self.errors, self.errors

    def _run(self, name: str) -> None:
        try:
            self._write(name)
        except BaseException as error:
            self.errors.append(error)

    def _write(self, name: str) -> None:
        settings: dict[str, object] = {"bootstrap.servers": self._servers, "linger.ms": 0, "log_level": 0}
        settings |= {"transactional.id": "txn"} if name == "txn" else {"enable.idempotence": True}
        producer = Producer(settings)
        if name == "txn":
            producer.init_transactions(PATIENCE_S)
        number = 0
        while not self._stop.is_set():
            transaction = self.recorder.begin(name, f"txn/{number}") if name == "txn" else None
            if transaction is not None:
                producer.begin_transaction()
            for partition in range(PARTITIONS):
                value = f"{name}:{number}:{partition}"
                sent = self.recorder.send(name, f"{TOPIC}-{partition}", value, transaction=transaction)
                producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered(sent))
            assert producer.flush(PATIENCE_S) == 0
            if transaction is not None:
                self.recorder.committing(transaction)
                producer.commit_transaction(PATIENCE_S)
                self.recorder.ended(transaction, committed=True)
            number += 1
            self._stop.wait(0.01)

    def _delivered(self, sent: Send):  # type: ignore[no-untyped-def]
        def done(error: object, record: object) -> None:
            assert error is None, error
            self.recorder.acked(sent, record.offset())  # type: ignore[attr-defined]
            self.acked += 1

        return done


def read_all(servers: str, recorder: Recorder) -> None:
    places = [TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)]
    settings = {"bootstrap.servers": servers, "group.id": "last", "isolation.level": "read_committed"}
    reader = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
    reader.assign(places)
    recorder.assigned("last", {f"{TOPIC}-{at.partition}": 0 for at in places}, committed_only=True)
    finished: set[int | None] = set()
    while len(finished) < PARTITIONS:
        invoked = recorder.now()
        record = reader.poll(PATIENCE_S)
        assert record is not None
        if record.error():
            finished.add(record.partition())
            continue
        at = f"{TOPIC}-{record.partition()}"
        recorder.poll("last", invoked, [Seen(at, record.offset() or 0, (record.value() or b"").decode())])
    reader.close()


def in_sync(servers: str) -> Iterator[bool]:
    with Cluster(servers) as cluster:
        for topic in cluster.topics().values():
            for partition in topic.partitions:
                yield set(partition.isr) == set(partition.replicas)


def roll(cluster: EmbeddedCluster, source: Path | None, load: Load) -> None:
    """Restarts the nodes one by one with a version; the next one when all replicas are in sync."""
    for number in cluster.nodes:
        cluster.stop(number)
        cluster.use_source(number, source)
        cluster.start(number)
        until(lambda: all(in_sync(cluster.bootstrap_servers)), "all replicas are in sync")
        load.goes_on()


def command(servers: str, *words: str) -> str:
    arguments = [sys.executable, "-m", "millstream", "cluster", *words, "-b", servers]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_rolling_upgrade_a_rollback_and_the_end_of_the_upgrade_under_load(previous: Path, tmp_path: Path) -> None:
    with EmbeddedCluster(3, SETTINGS, data_dir=tmp_path) as cluster:
        for number in cluster.nodes:
            cluster.use_source(number, previous)
        cluster.start()
        servers = cluster.bootstrap_servers
        make_topic(cluster, TOPIC, PARTITIONS)
        with Cluster(servers) as client:
            # As if these features were new in this version: they stay off until the upgrade is ended.
            FeatureAdmin(client).downgrade({"share.version": 0, "streams.version": 0})
            levels = {each.name: each.level for each in FeatureAdmin(client).features()}
            with Load(servers) as load:
                load.goes_on()
                for source in (None, previous, None):  # up, back, and up again
                    roll(cluster, source, load)
                    assert {each.name: each.level for each in FeatureAdmin(client).features()} == levels
                plan = json.loads(command(servers, "upgrade", "--dry-run", "--json"))
                assert {each["name"] for each in plan["changes"]} == {"share.version", "streams.version"}
                assert {each.name: each.level for each in FeatureAdmin(client).features()} == levels
                assert "cluster upgrade --dry-run" in command(servers, "status")
                assert "share.version" in command(servers, "upgrade")
                load.goes_on()
            assert not load.errors, load.errors
            after = {each.name: each.level for each in FeatureAdmin(client).features()}
            assert after == levels | {"share.version": 1, "streams.version": 1}
            with pytest.raises(RefusedError, match="not safe"):
                FeatureAdmin(client).downgrade({"metadata.version": 29})
        read_all(servers, load.recorder)
        report = check(load.recorder.history)
        assert report.clean, str(report)
