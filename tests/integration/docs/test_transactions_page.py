"""The programs of docs/transactions.md run as they are printed there, and the two-phase commit goes as it says."""

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from millstream.testing import EmbeddedBroker
from tests.repository import REPOSITORY
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, batch
from tools import apache_kafka

ROOT = REPOSITORY
PAGE = (ROOT / "docs" / "transactions.md").read_text()
ADDRESS = "localhost:9092"
TOPICS = ("orders", "stock", "bills", "copies", "invoices")


def programs(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    settings = {"group.initial.rebalance.delay.ms": 0, "transaction.two.phase.commit.enable": "true"}
    with EmbeddedBroker(settings) as running:
        with Wire(running.bootstrap_servers) as wire:
            for name in TOPICS:
                wire.create_topic(name, 1)
        writer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(5):
            writer.produce("orders", key="k", value=str(number))
        assert writer.flush(TIMEOUT_SECONDS) == 0
        yield running


def committed(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    """The values that are committed."""
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "test",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    reader = Consumer(settings)
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[bytes] = []
    while True:
        record = reader.poll(TIMEOUT_SECONDS)
        assert record is not None
        if record.error():
            reader.close()
            return found
        found.append(record.value() or b"")


def until_there(broker: EmbeddedBroker, topic: str, count: int) -> Callable[[], bool]:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    return lambda: len(committed(broker, topic)) < count and time.monotonic() < deadline


def run(broker: EmbeddedBroker, program: str, **names: Any) -> None:
    assert ADDRESS in program
    exec(compile(program.replace(ADDRESS, broker.bootstrap_servers), "docs/transactions.md", "exec"), names)


def test_the_python_programs_of_the_page_run(broker: EmbeddedBroker) -> None:
    write, transform = programs("python confluent")
    run(broker, write)
    orders = [b"0", b"1", b"2", b"3", b"4", b"one book"]
    assert committed(broker, "orders") == orders and committed(broker, "stock") == [b"-1"]
    run(broker, transform, running=until_there(broker, "bills", len(orders)))
    assert committed(broker, "bills") == [b"bill for " + order for order in orders]
    (copy,) = programs("python aiokafka")
    run(broker, copy, running=until_there(broker, "copies", len(orders)), __name__="copy")
    assert committed(broker, "copies") == orders


def test_the_java_program_of_the_page_runs(broker: EmbeddedBroker, tmp_path: Path) -> None:
    kafka = apache_kafka.installed()
    if kafka is None:
        pytest.skip("Apache Kafka's jars are not there: make test-all fetches them")
    (program,) = programs("java")
    assert "return true;" in program
    # Kafka's producer waits for its own time-outs; a few rounds are enough for all there is.
    program = program.replace("return true;", "return rounds++ < 6;").replace(
        "static boolean running", "static int rounds;\n    static boolean running"
    )
    source = tmp_path / "Billing.java"
    source.write_text(program.replace(ADDRESS, broker.bootstrap_servers))
    options = ["-Xmx256m", *apache_kafka.QUICK_START_OPTIONS]
    command = ["java", *options, "-cp", kafka.classpath, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert committed(broker, "invoices") == [b"invoice for " + order for order in committed(broker, "orders")]


def test_the_two_phase_commit(broker: EmbeddedBroker) -> None:
    name, commits = "two-phase", {}
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic("decided", 1)
        wire.call("find_coordinator", 4, key_type=1, coordinator_keys=[name])

        def begin(keep: bool) -> Any:
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while True:
                response = wire.call(
                    "init_producer_id",
                    6,
                    transactional_id=name,
                    transaction_timeout_ms=0,
                    enable2_pc=True,
                    keep_prepared_txn=keep,
                )
                if not response.error_code:
                    return response
                assert time.monotonic() < deadline, response.error_code

        for decision in (True, False):
            mine = begin(keep=False)
            assert mine.ongoing_txn_producer_id == -1
            identity = {"producer_id": mine.producer_id, "producer_epoch": mine.producer_epoch}
            data = batch(b"yes" if decision else b"no", base_sequence=0, transactional=True, **identity)
            rows = [{"name": "decided", "partition_data": [{"index": 0, "records": data}]}]
            fields = {"transactional_id": name, "acks": -1, "timeout_ms": 10_000, "topic_data": rows}
            produced = wire.call("produce", 12, **fields).responses[0].partition_responses[0]
            assert produced.error_code == 0, produced.error_message
            commits[decision] = (mine.producer_id, mine.producer_epoch)
            # It crashes, and comes back.
            again = begin(keep=True)
            assert (again.ongoing_txn_producer_id, again.ongoing_txn_producer_epoch) == commits[decision]
            ended = wire.call(
                "end_txn",
                5,
                transactional_id=name,
                producer_id=again.producer_id,
                producer_epoch=again.producer_epoch,
                committed=decision,
            )
            assert ended.error_code == 0
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while committed(broker, "decided") != [b"yes"]:
        assert time.monotonic() < deadline
