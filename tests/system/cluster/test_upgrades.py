"""Nodes of the previous landed version and of this one in one cluster: rolling upgrade, rollback, upgrade again and its
end, under load, with a clean history. The previous version is taken from git (`tests.previous_version`), and runs with
the same libraries.

Formats differ between the two, and the test sees in the logs that the old ones are written until the upgrade is ended.
With faults between the steps: `tests.system.chaos`, `--upgrades`."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.admin.features import FeatureAdmin
from millstream.formats.records.record import read_batches
from millstream.node.metadata.records import MetadataRecord, RegisterControllerRecord, decode_record
from millstream.raw_client import Cluster, RefusedError
from millstream.raw_client import TopicPartition as KafkaPartition
from millstream.simulator.history.checker import check
from millstream.simulator.history.operations import Recorder, Seen, Send
from millstream.testing import EmbeddedCluster
from tests import previous_version
from tests.previous_version import NoSourceError, previous_source
from tests.topics import make_topic
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import values

SETTINGS = {
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}
TOPIC, PARTITIONS, STATE = "orders", 3, "__transaction_state"


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return previous_source(tmp_path_factory.mktemp("previous"))
    except NoSourceError as reason:
        pytest.skip(str(reason))


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
            each.join(TIMEOUT_SECONDS)

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
            producer.init_transactions(TIMEOUT_SECONDS)
        number = 0
        while not self._stop.is_set():
            transaction = self.recorder.begin(name, f"txn/{number}") if name == "txn" else None
            if transaction is not None:
                producer.begin_transaction()
            for partition in range(PARTITIONS):
                value = f"{name}:{number}:{partition}"
                sent = self.recorder.send(name, f"{TOPIC}-{partition}", value, transaction=transaction)
                producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered(sent))
            assert producer.flush(TIMEOUT_SECONDS) == 0
            if transaction is not None:
                self.recorder.committing(transaction)
                producer.commit_transaction(TIMEOUT_SECONDS)
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
        record = reader.poll(TIMEOUT_SECONDS)
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
        cluster.use_source(number, source, {} if source is None else previous_version.SETTINGS)
        cluster.start(number)
        until(lambda: all(in_sync(cluster.bootstrap_servers)), "all replicas are in sync")
        load.goes_on()


def command(servers: str, *words: str) -> str:
    arguments = [sys.executable, "-m", "millstream", "cluster", *words, "-b", servers]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def transaction_formats(servers: str) -> set[int]:
    """The versions of the records in the topic of transactions."""
    found = set()
    with Cluster(servers) as client:
        for number in range(client.partitions_of(STATE)):
            at = KafkaPartition(STATE, number)
            data = client.fetch(at, 0, max_bytes=32 << 20, max_wait_ms=0, read_committed=False).data
            found |= {int.from_bytes(each[:2], "big") for each in values(data)}
    return found


def metadata_records(cluster: EmbeddedCluster) -> set[type[MetadataRecord]]:
    """The kinds of records in the metadata log of a node, which is not compacted into a snapshot here."""
    found = set()
    for path in sorted((cluster.data_dir(1) / "__cluster_metadata-0").glob("*.log")):
        for header, rows in read_batches(path.read_bytes()):
            found |= set() if header.is_control else {type(decode_record(each.value or b"")) for each in rows}
    return found


@pytest.mark.slow
def test_a_rolling_upgrade_a_rollback_and_the_end_of_the_upgrade_under_load(previous: Path, tmp_path: Path) -> None:
    with closing(EmbeddedCluster(3, SETTINGS, data_dir=tmp_path)) as cluster:
        for number in cluster.nodes:
            cluster.use_source(number, previous, previous_version.SETTINGS)
        cluster.start()
        servers = cluster.bootstrap_servers
        make_topic(cluster, TOPIC, PARTITIONS)
        with Cluster(servers) as client:
            levels = {each.name: each.level for each in FeatureAdmin(client).features()}
            assert levels == previous_version.LEVELS | {"kraft.version": levels["kraft.version"]}
            with Load(servers) as load:
                load.goes_on()
                for source in (None, previous, None):  # up, back, and up again
                    roll(cluster, source, load)
                    assert {each.name: each.level for each in FeatureAdmin(client).features()} == levels
                    assert transaction_formats(servers) == {0}
                    assert RegisterControllerRecord not in metadata_records(cluster)
                plan = json.loads(command(servers, "upgrade", "--dry-run", "--json"))
                assert {each["name"] for each in plan["changes"]} == set(previous_version.LEVELS)
                assert {each.name: each.level for each in FeatureAdmin(client).features()} == levels
                assert "cluster upgrade --dry-run" in command(servers, "status")
                assert "share.version" in command(servers, "upgrade")
                load.goes_on()
                until(lambda: transaction_formats(servers) == {0, 1}, "the new format of transactions is written")
                until(lambda: RegisterControllerRecord in metadata_records(cluster), "controllers are registered")
                # A node of the previous version cannot read that any more, and says why it does not start.
                cluster.stop(3)
                cluster.use_source(3, previous, previous_version.SETTINGS)
                cluster.spawn(3)
                until(lambda: not cluster.running(3), "the node of the previous version has ended")
                assert re.search(r"(metadata|transaction)\.version", cluster.log_tail(3)), cluster.log_tail(3)
                cluster.stop(3)
                cluster.use_source(3, None, {})
                cluster.start(3)
                load.goes_on()
            assert not load.errors, load.errors
            with pytest.raises(RefusedError, match="not safe"):
                FeatureAdmin(client).downgrade({"metadata.version": 29})
        read_all(servers, load.recorder)
        report = check(load.recorder.history)
        assert report.clean, str(report)
