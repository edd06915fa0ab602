"""The exactly-once example on a Spark cluster and a Millstream cluster, a worker and a broker of which are killed."""

import importlib.util
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from types import ModuleType

import pytest

from millstream.raw_client import LATEST, Cluster, TopicPartition, WireError
from millstream.testing import EmbeddedCluster
from tests.repository import REPOSITORY
from tests.system.spark_cluster.pipeline_run import Feeder, Run
from tests.system.spark_cluster.standalone import StandaloneSpark
from tests.system.spark_exactly_once.committed import committed_values, hidden
from tests.topics import make_topic

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
        transfers: Iterator[tuple[str, bytes]] = _generator().transfers(1_000_000, seed=SEED)
        feeder = Feeder(brokers.bootstrap_servers, "transfers", transfers, per_second=100)
        feeder.start()
        run = Run(tmp_path, brokers.bootstrap_servers, EXAMPLE, ["--master", spark.url])

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
            run.kill()
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
