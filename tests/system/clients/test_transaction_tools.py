"""Kafka's own tools on transactions: kafka-transactions (with one that hangs), and kafka-dump-log on all they leave."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.clients import brokers
from tests.system.clients.client_program import ClientProgram, eventually
from tests.system.clients.conftest import GetClient
from tests.system.clients.corpus import record
from tests.system.clients.test_dump_log import Dump
from tests.system.cluster.kafka_tools import KafkaTools
from tests.wire import Wire, batch, now_ms

TRANSACTIONS_COMMAND = "org.apache.kafka.tools.TransactionsCommand"
TOPIC = "with-transactions"
HANGING_PRODUCER = 987_654
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Transactions:
    """`kafka-transactions.sh`; each output is a table."""

    tools: KafkaTools
    bootstrap: str

    def __call__(self, *arguments: str) -> list[dict[str, str]]:
        said = self.tools(TRANSACTIONS_COMMAND, "--bootstrap-server", self.bootstrap, *arguments)
        rows = [line.split() for line in said.splitlines() if line.strip()]
        return [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]


@pytest.fixture(scope="module")
def dump(kafka_tools: KafkaTools) -> Dump:
    return Dump(kafka_tools)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, get_client: GetClient) -> Iterator[brokers.BrokerProcess]:
    """A broker that does not ask the coordinator about transactions, so that one can be made to hang."""
    data_dir = tmp_path_factory.mktemp("transactions") / "data"
    settings = {"transaction.partition.verification.enable": "false", "transaction.state.log.num.partitions": "3"}
    broker = brokers.start_broker(data_dir, settings)
    writer = get_client("confluent-kafka")
    try:
        writer.ask("create_topic", broker.bootstrap_servers, topic=TOPIC, partitions=2, config={})
        for end in ("commit", "abort", "commit"):
            write(writer, broker.bootstrap_servers, "ended", end)
        write(writer, broker.bootstrap_servers, "open", "none")
        yield broker
    finally:
        broker.stop()


def write(writer: ClientProgram, bootstrap: str, producer: str, end: str) -> None:
    records = [record(None, f"{producer} {end} {number}".encode()) for number in range(3)]
    writer.transact(bootstrap, f"{producer}-{bootstrap}", TOPIC, records, transactional_id=producer, end=end)


@pytest.fixture
def transactions(kafka_tools: KafkaTools, started: brokers.BrokerProcess) -> Transactions:
    return Transactions(kafka_tools, started.bootstrap_servers)


def test_kafka_transactions_lists_and_describes(transactions: Transactions) -> None:
    listed = {row["TransactionalId"]: row for row in transactions("list")}
    assert listed["ended"]["TransactionState"] == "CompleteCommit"
    assert listed["open"]["TransactionState"] == "Ongoing"
    (row,) = transactions("describe", "--transactional-id", "open")
    assert row["TransactionState"] == "Ongoing" and row["TopicPartitions"] == f"{TOPIC}-0"
    assert row["ProducerId"] == listed["open"]["ProducerId"] and int(row["TransactionDurationMs"]) >= 0
    assert row["TransactionTimeoutMs"] == "60000"


def test_kafka_transactions_describes_producers(transactions: Transactions) -> None:
    rows = transactions("describe-producers", "--topic", TOPIC, "--partition", "0")
    # Three records and a marker for each that has ended.
    starts = {row["CurrentTransactionStartOffset"] for row in rows}
    assert starts == {"None", "12"}
    (open_one,) = (row for row in rows if row["CurrentTransactionStartOffset"] == "12")
    assert open_one["LastSequence"] == "2" and open_one["LatestCoordinatorEpoch"] == "-1"


def test_a_hanging_transaction_is_found_and_aborted(transactions: Transactions, get_client: GetClient) -> None:
    reader = get_client("java")
    with Wire(transactions.bootstrap) as wire:
        data = batch(
            b"hanging",
            timestamp=now_ms() - HOUR_MS,
            producer_id=HANGING_PRODUCER,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        # The last version of which the leader adds nothing to a transaction by itself.
        rows = [{"name": TOPIC, "partition_data": [{"index": 1, "records": data}]}]
        response = wire.call("produce", 11, transactional_id="lost", acks=-1, timeout_ms=10_000, topic_data=rows)
        assert response.responses[0].partition_responses[0].error_code == 0
    held = reader.consume(transactions.bootstrap, TOPIC, 1, 1, isolation="read_committed", timeout_ms=1500)
    assert held == []
    (row,) = transactions("find-hanging", "--topic", TOPIC)
    assert (row["Partition"], row["ProducerId"], row["StartOffset"]) == ("1", str(HANGING_PRODUCER), "0")
    transactions("abort", "--topic", TOPIC, "--partition", "1", "--start-offset", "0")
    assert transactions("find-hanging", "--topic", TOPIC) == []
    writer = get_client("confluent-kafka")
    writer.produce(transactions.bootstrap, TOPIC, [record(None, b"free", partition=1)])
    (read,) = reader.consume(transactions.bootstrap, TOPIC, 1, 1, isolation="read_committed")
    assert read["offset"] == 2


def test_dump_log_decodes_transactions_and_their_state(
    started: brokers.BrokerProcess, dump: Dump, get_client: GetClient
) -> None:
    """Last in this file: it ends the open transaction and stops the broker."""
    bootstrap = started.bootstrap_servers
    writer = get_client("confluent-kafka")
    producer = f"open-{bootstrap}"
    writer.transact(bootstrap, producer, TOPIC, [], transactional_id="open", begin=False, end="commit")
    read = get_client("java")
    assert eventually(lambda: len(read.consume(bootstrap, TOPIC, 0, 9, isolation="read_committed")) == 9)
    started.stop()
    check_log(started.data_dir / f"{TOPIC}-0", dump)
    check_state(started.data_dir, dump)


def check_log(partition: Path, dump: Dump) -> None:
    said = dump([partition / f"{0:020d}.log"], "--deep-iteration")
    markers = re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", said)
    assert [kind for kind, _ in markers] == ["COMMIT", "ABORT", "COMMIT", "COMMIT"]
    assert len(re.findall(r"isTransactional: true isControl: true", said)) == 4
    (index,) = partition.glob("*.txnindex")
    said = dump([index])
    (entry,) = re.findall(r"firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", said)
    assert entry == ("4", "7", "8")
    snapshot = max(partition.glob("*.snapshot"))
    said = dump([snapshot])
    assert said.count("producerId: ") == said.count("currentTxnFirstOffset: OptionalLong.empty") == 2, said
    assert re.findall(r"lastSequence: (\d+) lastOffset: (\d+)", said) == [("8", "10"), ("2", "14")], said


def check_state(data_dir: Path, dump: Dump) -> None:
    """`__transaction_state`, with the decoder that Kafka has for it."""
    logs = [path for path in data_dir.glob("__transaction_state-*/*.log") if path.stat().st_size]
    assert logs
    said = dump(logs, "--transaction-log-decoder")
    empty, ongoing, prepare_commit, prepare_abort, complete_commit, complete_abort = range(6)
    committed = [ongoing, prepare_commit, complete_commit]
    expected = {
        "ended": [empty, *committed, ongoing, prepare_abort, complete_abort, *committed],
        "open": [empty, *committed],
    }
    for transactional_id, statuses in expected.items():
        key = f'{{"type":"0","data":{{"transactionalId":"{transactional_id}"}}}}'
        lines = "\n".join(line for line in said.splitlines() if key in line)
        assert [int(each) for each in re.findall(r'"transactionStatus":(\d)', lines)] == statuses, lines
        assert f'"transactionPartitions":[{{"topic":"{TOPIC}","partitionIds":[0]}}]' in lines
