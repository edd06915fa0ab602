"""The exactly-once example on a Spark cluster and a Millstream cluster, a worker and a broker of which are killed."""

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from confluent_kafka import Producer

from millstream.raw_client import LATEST, Cluster, TopicPartition, WireError
from millstream.testing import EmbeddedCluster
from tests.repository import REPOSITORY
from tests.system.spark_cluster.standalone import StandaloneSpark
from tests.system.spark_exactly_once.committed import committed_values, hidden
from tests.topics import make_topic
from tests.waiting import PATIENCE_S

EXAMPLE = REPOSITORY / "examples" / "pipelines" / "exactly-once-copy"
GOOD, REJECTED = "transfers-in-euro", "transfers-rejected"
RATES = {"EUR": Decimal("1.00"), "USD": Decimal("0.90"), "CHF": Decimal("1.05")}
SEED = int(os.environ.get("SPARK_SEED", "1"))
BROKERS = {
    "transaction.two.phase.commit.enable": "true",
    "offsets.topic.num.partitions": 4,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "num.partitions": 3,
}
SMALL = {
    "spark.driver.memory": "700m",
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.cores.max": "4",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


class Feeder(threading.Thread):
    """Transfers as the example makes them, a few at a time, until it is told to stop."""

    def __init__(self, bootstrap: str, per_second: int) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
        self._per_second = per_second
        self._ending = threading.Event()
        self.sent: list[bytes] = []
        self.failures: list[str] = []

    def run(self) -> None:
        rows: Iterator[tuple[str, bytes]] = _generator().transfers(1_000_000, seed=SEED)
        while not self._ending.wait(0.1):
            for _ in range(self._per_second // 10):
                key, value = next(rows)
                self._producer.produce("transfers", key=key, value=value, on_delivery=self._delivered)
                self.sent.append(value)
            self._producer.poll(0)

    def finish(self) -> None:
        self._ending.set()
        self.join()
        assert self._producer.flush(PATIENCE_S) == 0
        assert not self.failures

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self.failures.append(str(error))


class Run:
    """`millstream pipeline run` of the example on a cluster, in a process of its own."""

    def __init__(self, directory: Path, bootstrap: str, master: str) -> None:
        self._directory = directory
        kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        more = {
            "MILLSTREAM_BOOTSTRAP": bootstrap,
            "MILLSTREAM_STATE_HOME": str(directory / "state"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(directory / "driver-local"),
            "PYTHONWARNINGS": "ignore",
        }
        command = [sys.executable, "-m", "millstream", "pipeline", "run", str(EXAMPLE), "--json", "--master", master]
        command += ["--checkpoint-dir", str(directory / "checkpoints")]
        for name, value in SMALL.items():
            command += ["--conf", f"{name}={value}"]
        with (directory / "run.out").open("wb") as out, (directory / "run.err").open("wb") as err:
            self.process = subprocess.Popen(
                command, env=kept | more, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )

    def stop(self) -> int:
        """After the batch, as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(180)

    def clear_away(self) -> None:
        if self.process.poll() is None:
            below = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            self.process.wait()
            for each in below:
                try:
                    each.kill()
                except psutil.NoSuchProcess:
                    pass

    def told(self) -> str:
        files = [self._directory / "run.out", self._directory / "run.err", *self._directory.rglob("spark.log")]
        return "\n".join(f"{path.name}: …{path.read_text(errors='replace')[-3000:]}" for path in files)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_worker_and_a_broker_die(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with (
        EmbeddedCluster(3, BROKERS) as brokers,
        Cluster(brokers.bootstrap_servers, timeout_s=60) as wire,
        StandaloneSpark(tmp_path / "spark", workers=2) as spark,
    ):
        make_topic(brokers, "transfers", 4)
        feeder = Feeder(brokers.bootstrap_servers, per_second=100)
        feeder.start()
        run = Run(tmp_path, brokers.bootstrap_servers, spark.url)

        def until(what: Callable[[], bool], why: str, timeout_s: float = 240.0) -> None:
            deadline = time.monotonic() + timeout_s
            while True:
                assert run.process.poll() is None, f"the pipeline ended by itself\n{run.told()}"
                try:
                    if what():
                        return
                except WireError:
                    pass  # a broker is gone, and what it led has no new leader yet
                assert time.monotonic() < deadline, f"{why}\n{run.told()}\n{spark.logs()}"
                time.sleep(0.05)

        def more_is_written() -> None:
            before = _written(wire)
            until(lambda: _written(wire) > before + 100, "nothing more is committed")

        def amid_a_batch() -> None:
            """Tasks have written, and the driver has not yet decided, or not yet committed all of it."""
            until(lambda: _hidden(wire) > 0, "no transaction is open at any time")

        try:
            until(lambda: _written(wire) > 0, "nothing is committed")
            until(lambda: all(spark.executors_of(each) for each in spark.workers), "a worker has nothing to do")
            more_is_written()
            amid_a_batch()
            spark.kill_worker(chance.choice(spark.workers))
            more_is_written()
            assert spark.alive_workers() == 1
            amid_a_batch()
            victim = chance.choice(brokers.nodes)
            brokers.kill(victim)
            more_is_written()  # two brokers and one worker go on
            brokers.start(victim)
            more_is_written()
            feeder.finish()
            good, rejected = _expected(feeder.sent)
            wanted = len(good) + rejected.total()
            until(lambda: _count(wire) >= wanted and _hidden(wire) == 0, "not all of it arrives")
            assert run.stop() == 0, run.told()
        finally:
            run.clear_away()
        assert _hidden(wire) == 0
        rows = [json.loads(each) for each in committed_values(wire, GOOD)]
        assert Counter(each["transfer_id"] for each in rows) == Counter(good.keys())
        assert {each["transfer_id"]: Decimal(str(each["euro"])) for each in rows} == good
        assert Counter(map(_told_of, committed_values(wire, REJECTED))) == rejected
        assert len(good) > 500 and rejected.total() > 10


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_transfers", EXAMPLE / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _expected(sent: list[bytes]) -> tuple[dict[str, Decimal], Counter[str]]:
    """The amounts by transfer, and what is rejected: the transfer, or the bytes if they are no JSON."""
    good: dict[str, Decimal] = {}
    rejected: Counter[str] = Counter()
    for value in sent:
        try:
            row = json.loads(value)
        except ValueError:
            rejected[value.decode()] += 1
            continue
        if row["amount"] > 0 and row["sender"] != row["receiver"] and row["currency"] in RATES:
            euro = Decimal(str(row["amount"])) * RATES[row["currency"]]
            good[row["transfer_id"]] = euro.quantize(Decimal("0.01"), ROUND_HALF_UP)
        else:
            rejected[row["transfer_id"]] += 1
    return good, rejected


def _told_of(letter: str) -> str:
    try:
        return str(json.loads(letter)["transfer_id"])
    except ValueError:
        return letter


def _written(wire: Cluster) -> int:
    """Offsets in the output that are settled."""
    places = [TopicPartition(GOOD, each) for each in range(wire.partitions_of(GOOD))]
    return sum(each.offset for each in wire.offsets(dict.fromkeys(places, LATEST)).values())


def _count(wire: Cluster) -> int:
    return sum(len(committed_values(wire, topic)) for topic in (GOOD, REJECTED))


def _hidden(wire: Cluster) -> int:
    return sum(hidden(wire, topic) for topic in (GOOD, REJECTED))
