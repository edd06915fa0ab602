"""A backup of three nodes under load, restored on three others: the history of the clients is clean up to its point,
and a transaction is in all partitions or in none. A backup that is killed leaves the last one whole. The same with
topics in the tier, to whose objects the backups refer."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from millstream.backup.creating import Options, create_backup
from millstream.backup.repository import Repository
from millstream.backup.restoring import restore_backup, verify_backup
from millstream.backup.tier_objects import TierObjects
from millstream.raw_client import Cluster
from millstream.simulator.history.checker import check
from millstream.simulator.history.operations import Fate, History, Outcome, Recorder, Seen
from millstream.testing import EmbeddedCluster
from tests.integration.node.tier.tiered_topic import SETTINGS as TIER_SETTINGS
from tests.integration.node.tier.tiered_topic import SMALL
from tests.topics import make_topic
from tests.waiting import TIMEOUT_SECONDS, until

SETTINGS = {
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}
LEDGER, PLAIN, INPUT = "ledger", "plain", "input"
PARTITIONS = 3


class Load:
    """Writers in transactions over all partitions, with an offset of a group in each; and writers without them."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self.recorder = Recorder()
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self.transactions = 0
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (lambda: self._ledger("ledger-1"), lambda: self._ledger("ledger-2"), self._plain)
        ]

    @contextmanager
    def running(self) -> Iterator["Load"]:
        for each in self._threads:
            each.start()
        try:
            yield self
        finally:
            self._stop.set()
            for each in self._threads:
                each.join(TIMEOUT_SECONDS)
        assert not self._errors, self._errors

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._errors.append(error)

    def _ledger(self, name: str) -> None:
        recorder = self.recorder
        producer = Producer({"bootstrap.servers": self._servers, "transactional.id": name, "linger.ms": 0})
        reader = Consumer({"bootstrap.servers": self._servers, "group.id": f"group-of-{name}"})
        producer.init_transactions(TIMEOUT_SECONDS)
        number = 0
        while not self._stop.is_set():
            transaction = recorder.begin(name, f"{name}/{number}")
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                at = f"{LEDGER}-{partition}"
                sent = recorder.send(name, at, f"{name}:{number}:{partition}", transaction=transaction)
                producer.produce(LEDGER, str(sent.value), partition=partition, on_delivery=self._delivered(sent))
            position = TopicPartition(INPUT, 0, number + 1)
            commit = recorder.commit(name, f"group-of-{name}", {f"{INPUT}-0": number + 1}, transaction=transaction)
            producer.send_offsets_to_transaction([position], reader.consumer_group_metadata(), TIMEOUT_SECONDS)
            recorder.committed(commit)
            assert producer.flush(TIMEOUT_SECONDS) == 0
            recorder.committing(transaction)
            producer.commit_transaction(TIMEOUT_SECONDS)
            recorder.ended(transaction, committed=True)
            number += 1
            self.transactions += 1
        reader.close()

    def _plain(self) -> None:
        producer = Producer({"bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 1})
        number = 0
        while not self._stop.is_set():
            sent = self.recorder.send("plain", f"{PLAIN}-{number % 2}", f"plain:{number}")
            producer.produce(PLAIN, str(sent.value), partition=number % 2, on_delivery=self._delivered(sent))
            number += 1
            producer.poll(0.002)
        assert producer.flush(TIMEOUT_SECONDS) == 0

    def _delivered(self, sent: object) -> Callable[[object, object], None]:
        def done(error: object, record: object) -> None:
            if error is not None:
                raise KafkaException(error)
            self.recorder.acked(sent, record.offset())  # type: ignore[arg-type,attr-defined]

        return done


def up_to(history: History, began: float) -> History:
    """What the clients know when the backup begins: whatever ended later may be in it or not."""
    for send in history.sends:
        if send.finished_at is None or send.finished_at > began:
            send.outcome, send.offset, send.finished_at = Outcome.UNKNOWN, None, None
    for commit in history.commits:
        if commit.finished_at is None or commit.finished_at > began:
            commit.outcome, commit.finished_at = Outcome.UNKNOWN, None
    for transaction in history.transactions:
        if transaction.ended_at is None or transaction.ended_at > began:
            transaction.fate, transaction.ended_at = Fate.UNKNOWN, None
            transaction.commit_invoked_at = transaction.commit_invoked_at or began
    return history


def read_all(servers: str, recorder: Recorder) -> dict[str, list[str]]:
    """The committed records of all partitions, noted in the history."""
    places = [TopicPartition(LEDGER, number, 0) for number in range(PARTITIONS)]
    places += [TopicPartition(PLAIN, number, 0) for number in range(2)]
    wait_for_decided(servers, places)
    reader = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "last-reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    reader.assign(places)
    recorder.assigned("last", {f"{at.topic}-{at.partition}": 0 for at in places}, committed_only=True)
    found: dict[str, list[str]] = {f"{at.topic}-{at.partition}": [] for at in places}
    finished: set[str] = set()
    while len(finished) < len(places):
        invoked = recorder.now()
        record = reader.poll(TIMEOUT_SECONDS)
        assert record is not None
        at = f"{record.topic()}-{record.partition()}"
        if record.error():
            finished.add(at)
            continue
        value = (record.value() or b"").decode()
        found[at].append(value)
        recorder.poll("last", invoked, [Seen(at, record.offset() or 0, value)])
    reader.close()
    return found


def wait_for_decided(servers: str, places: list[TopicPartition]) -> None:
    """A transaction may have been decided in the backup, with some of its markers. The coordinator writes the others
    after the start; until then a reader of committed records sees a part of it."""
    admin = AdminClient({"bootstrap.servers": servers})

    def ends(level: IsolationLevel) -> list[int]:
        found = admin.list_offsets(dict.fromkeys(places, OffsetSpec.latest()), isolation_level=level)
        return [each.result(TIMEOUT_SECONDS).offset for each in found.values()]

    until(lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED), "markers are written")


@contextmanager
def opened_tier(url: str | None) -> Iterator[TierObjects | None]:
    if url is None:
        yield None
        return
    with TierObjects(url) as tier:
        yield tier


@pytest.mark.slow
@pytest.mark.parametrize("tiered", [False, True], ids=["disks", "tier"])
def test_a_backup_under_load_is_a_consistent_cut_and_a_killed_one_leaves_the_last_whole(
    tmp_path: Path, tiered: bool
) -> None:
    place = tmp_path / "backups"
    url = f"file://{tmp_path}/objects" if tiered else None
    settings = {**SETTINGS, **TIER_SETTINGS, "millstream.tier.url": url} if tiered else SETTINGS
    (tmp_path / "objects").mkdir()
    with opened_tier(url) as tier, EmbeddedCluster(3, settings, data_dir=tmp_path / "old") as old:
        servers = old.bootstrap_servers
        options = Options(tier=tier)
        for topic, count in ((LEDGER, PARTITIONS), (PLAIN, 2), (INPUT, 1)):
            make_topic(old, topic, count, config=SMALL if tiered else None)
        load = Load(servers)
        with load.running(), Cluster(servers) as cluster, Repository(str(place)) as repository:
            until(lambda: load.transactions >= 10)
            if tiered:
                until(lambda: len(list(tmp_path.glob("objects/**/*.segment"))) >= 20, "closed segments are in the tier")
            create_backup(cluster, repository, options)
            done = load.transactions
            until(lambda: load.transactions >= done + 5)
            began = load.recorder.now()
            manifest = create_backup(cluster, repository, options)
            assert manifest.new_size < manifest.size and (manifest.tier is not None) == tiered
            done = load.transactions
            until(lambda: load.transactions >= done + 5, "transactions go on after the hold")
            kill_backups(servers, place)
            for each in repository.ids():
                verify_backup(repository, repository.manifest(each), tier=tier)
            assert manifest.id in repository.ids()
    history = up_to(load.recorder.history, began)
    nodes = {number: str(tmp_path / "new" / f"node-{number}" / "data") for number in (4, 5, 6)}
    with opened_tier(url) as tier, Repository(str(place)) as repository:
        restore_backup(repository, manifest, nodes, tier=tier)
    with EmbeddedCluster(3, settings, data_dir=tmp_path / "new", first_node=4) as new:
        found = read_all(new.bootstrap_servers, load.recorder)
        report = check(history)
        assert report.clean, str(report)
        # A transaction is in all partitions or in none, and the offset of its group with it.
        ledgers = [[value.rsplit(":", 1)[0] for value in found[f"{LEDGER}-{number}"]] for number in range(PARTITIONS)]
        assert {*ledgers[0]} == {*ledgers[1]} == {*ledgers[2]}
        for name in ("ledger-1", "ledger-2"):
            numbers = [int(value.split(":")[1]) for value in ledgers[0] if value.startswith(f"{name}:")]
            assert numbers == list(range(len(numbers))) and numbers
            group = Consumer({"bootstrap.servers": new.bootstrap_servers, "group.id": f"group-of-{name}"})
            assert group.committed([TopicPartition(INPUT, 0)], TIMEOUT_SECONDS)[0].offset == len(numbers)
            group.close()
            # The producers go on in the restored cluster.
            producer = Producer({"bootstrap.servers": new.bootstrap_servers, "transactional.id": name})
            producer.init_transactions(TIMEOUT_SECONDS)
            producer.begin_transaction()
            producer.produce(LEDGER, b"later", partition=0)
            producer.commit_transaction(TIMEOUT_SECONDS)


def kill_backups(servers: str, place: Path) -> None:
    """Kills backups of the command line: when the first segment is there, and when only the manifest is missing."""
    command = [sys.executable, "-m", "millstream", "backup", "create", str(place), "--full"]
    for pattern in ("segments/*/*/*.log", "backups/*/metadata.checkpoint"):
        before = set(place.glob(pattern))
        environment = {**os.environ, "MILLSTREAM_BOOTSTRAP": servers}
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
            until(partial(ended, process, place, pattern, before))
            process.send_signal(signal.SIGKILL)


def ended(process: "subprocess.Popen[bytes]", place: Path, pattern: str, before: set[Path]) -> bool:
    return process.poll() is not None or bool(set(place.glob(pattern)) - before)
