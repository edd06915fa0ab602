"""`millstream txn`, with real transactional producers, and with transactions that really hang."""

import io
import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from millstream.testing import EmbeddedBroker
from millstream.testing.embedded_cluster import EmbeddedCluster
from tests.integration.cli.conftest import Run
from tests.topics import await_topic
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, batch, now_ms

_numbers = itertools.count()
_producer_ids = itertools.count(900_000)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """Partitions believe what producers say of their transactions, so that one can be made to hang."""
    settings = {"transaction.partition.verification.enable": "false", "transaction.two.phase.commit.enable": "true"}
    with EmbeddedBroker(settings) as running:
        yield running


@pytest.fixture
def run(offline: Run, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", broker.bootstrap_servers)
    return offline


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap_servers) as connected:
        yield connected


@pytest.fixture
def topic(wire: Wire) -> str:
    name = f"t{next(_numbers)}"
    wire.create_topic(name, 2)
    return name


def producer(bootstrap: str, name: str) -> Producer:
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    made.init_transactions(TIMEOUT_SECONDS)
    return made


def in_transaction(bootstrap: str, name: str, topic: str) -> Producer:
    """A producer with one record in each of two partitions."""
    made = producer(bootstrap, name)
    made.begin_transaction()
    for partition in (0, 1):
        made.produce(topic, "x", partition=partition)
    assert made.flush(TIMEOUT_SECONDS) == 0
    return made


def hang(wire: Wire, topic: str, partition: int = 0, *, age_ms: int = 0) -> int:
    """A batch of a transaction that no coordinator heard of; its producer's id."""
    producer_id = next(_producer_ids)
    data = batch(
        b"x",
        timestamp=now_ms() - age_ms,
        producer_id=producer_id,
        producer_epoch=3,
        base_sequence=0,
        transactional=True,
    )
    rows = [{"name": topic, "partition_data": [{"index": partition, "records": data}]}]
    response = wire.call("produce", 11, transactional_id="nobody", acks=-1, timeout_ms=10_000, topic_data=rows)
    assert response.responses[0].partition_responses[0].error_code == 0
    return producer_id


def committed(bootstrap: str, topic: str) -> int:
    """How far someone who reads only what is committed could read partition 0."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "any", "isolation.level": "read_committed"})
    _, stable = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_SECONDS)
    reader.close()
    return int(stable)


def lines(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_an_open_transaction_is_listed_described_and_ends(run: Run, broker: EmbeddedBroker, topic: str) -> None:
    name = f"life-{topic}"
    writer = in_transaction(broker.bootstrap_servers, name, topic)
    (row,) = run("txn", "list", "--match", name, "--json").json()
    assert row == {"transactional_id": name, "coordinator": 1, "producer_id": row["producer_id"], "state": "Ongoing"}
    assert [name, "Ongoing", str(row["producer_id"]), "1"] in lines(run("txn", "list", "--state", "ongoing").out)
    assert run("txn", "list", "--match", name, "--state", "Empty", "--json").json() == []
    assert run("txn", "list", "--match", name, "--older-than", "1h", "--json").json() == []
    assert len(run("txn", "list", "--match", name, "--older-than", "0s", "--json").json()) == 1

    (document,) = run("txn", "describe", name, "--json").json()
    assert (document["state"], document["producer_id"]) == ("Ongoing", row["producer_id"])
    assert document["timeout_ms"] == 60_000 and 0 <= document["open_for_ms"] < 60_000
    assert [(each["topic"], each["partition"], each["start_offset"]) for each in document["partitions"]] == [
        (topic, 0, 0),
        (topic, 1, 0),
    ]
    text = run("txn", "describe", name).out
    assert "open since" in text and f"{name}  Ongoing" in text and "timeout 1 m" in text

    writer.commit_transaction(TIMEOUT_SECONDS)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (state := run("txn", "list", "--match", name, "--json").json()[0]["state"]) == "PrepareCommit":
        assert time.monotonic() < deadline
    assert state == "CompleteCommit"
    (document,) = run("txn", "describe", name, "--json").json()
    assert document["open_since_ms"] is None and document["partitions"] == []
    assert run("txn", "describe", name).code == 0


def test_abort_by_id_fences_the_producer(run: Run, broker: EmbeddedBroker, topic: str) -> None:
    name = f"abort-{topic}"
    writer = in_transaction(broker.bootstrap_servers, name, topic)
    assert committed(broker.bootstrap_servers, topic) == 0
    asked = run("txn", "abort", name)
    assert asked.code == 2 and "--yes" in asked.err and "2 partitions" in asked.err
    assert run("txn", "abort", name, "--yes").out == f"aborted {name}; its producer is fenced\n"
    with pytest.raises(KafkaException):
        writer.commit_transaction(TIMEOUT_SECONDS)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while committed(broker.bootstrap_servers, topic) == 0:
        assert time.monotonic() < deadline
    again = run("txn", "abort", name, "--yes")
    assert again.code == 4 and "has no open transaction" in again.err
    in_transaction(broker.bootstrap_servers, name, topic)
    assert run("txn", "abort", name, "--yes", "--json").json() == {"transactional_id": name, "aborted": True}


def test_what_hangs_is_found_and_ended(run: Run, broker: EmbeddedBroker, wire: Wire, topic: str) -> None:
    in_work = in_transaction(broker.bootstrap_servers, f"work-{topic}", topic)
    producer_id = hang(wire, topic)
    now = ("--topic", topic, "--max-transaction-timeout", "0s")
    (row,) = run("txn", "find-hanging", *now, "--json").json()
    assert row["silent_for_ms"] >= 0 and row["last_written_ms"] > 0
    expected = {"topic": topic, "partition": 0, "producer_id": producer_id, "producer_epoch": 3, "start_offset": 1}
    assert {name: row[name] for name in expected} == expected
    for limits in (("--partition", 1), ("--broker", 1, "--partition", 1)):
        assert run("txn", "find-hanging", *now, *limits, "--json").json() == []
    assert len(run("txn", "find-hanging", *now, "--broker", 1, "--json").json()) == 1
    assert run("txn", "find-hanging", "--topic", topic, "--json").json() == []  # it could be at work yet
    assert len(run("txn", "find-hanging", "--max-transaction-timeout", "0", "--json").json()) >= 1

    text = run("txn", "find-hanging", *now).out
    command = f"millstream txn abort --topic {topic} --partition 0 --start-offset 1"
    assert command in text
    in_work.commit_transaction(TIMEOUT_SECONDS)
    assert committed(broker.bootstrap_servers, topic) == 1  # held up by the one that hangs
    ended = run(*command.split()[1:], "--yes")
    assert ended.out == f"aborted the transaction from offset 1 of {topic}-0\n"
    assert committed(broker.bootstrap_servers, topic) > 1
    assert run("txn", "find-hanging", *now, "--json").json() == []
    assert run(*command.split()[1:], "--yes").code == 4


def test_a_hanging_transaction_among_offsets(run: Run, wire: Wire, topic: str) -> None:
    producer_id = next(_producer_ids)
    rows = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}]
    wire.call("find_coordinator", 4, key_type=0, coordinator_keys=["g"])
    fields = {"transactional_id": "nobody", "group_id": "g", "producer_id": producer_id, "producer_epoch": 0}
    response = wire.call("txn_offset_commit", 3, topics=[{"name": topic, "partitions": rows}], **fields)
    assert response.topics[0].partitions[0].error_code == 0
    (row,) = run(
        "txn", "find-hanging", "--topic", "__consumer_offsets", "--max-transaction-timeout", "0s", "--json"
    ).json()
    assert row["producer_id"] == producer_id
    place = ("--topic", row["topic"], "--partition", row["partition"], "--start-offset", row["start_offset"])
    assert run("txn", "abort", *place, "--yes", "--json").json()["aborted"] is True
    asked = {"group_id": "g", "topics": [{"name": topic, "partition_indexes": [0]}]}
    fetched = wire.call("offset_fetch", 7, require_stable=True, **asked).topics[0].partitions[0]
    assert (fetched.error_code, fetched.committed_offset) == (0, -1)


def test_what_does_not_hang_is_not_ended_in_one_partition(run: Run, broker: EmbeddedBroker, topic: str) -> None:
    name = f"works-{topic}"
    writer = in_transaction(broker.bootstrap_servers, name, topic)
    refused = run("txn", "abort", "--topic", topic, "--partition", 0, "--start-offset", 0, "--yes")
    assert refused.code == 1 and name in refused.err and "txn abort" in refused.err
    writer.commit_transaction(TIMEOUT_SECONDS)


def test_a_prepared_transaction_waits_for_ever_and_can_be_given_up(
    run: Run, broker: EmbeddedBroker, wire: Wire, topic: str
) -> None:
    name = f"prepared-{topic}"
    deadline = time.monotonic() + TIMEOUT_SECONDS
    wire.call("find_coordinator", 4, key_type=1, coordinator_keys=[name])
    fields = {"transactional_id": name, "transaction_timeout_ms": 0, "enable2_pc": True}
    while (mine := wire.call("init_producer_id", 6, **fields)).error_code:
        assert time.monotonic() < deadline, mine.error_code
    identity = {"producer_id": mine.producer_id, "producer_epoch": mine.producer_epoch}
    data = batch(b"x", base_sequence=0, transactional=True, **identity)
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": data}]}]
    produced = wire.call("produce", 12, transactional_id=name, acks=-1, timeout_ms=10_000, topic_data=rows)
    assert produced.responses[0].partition_responses[0].error_code == 0
    (document,) = run("txn", "describe", name, "--json").json()
    assert document["state"] == "Ongoing" and document["timeout_ms"] == 2**31 - 1
    assert "no timeout (two-phase commit)" in run("txn", "describe", name).out
    limits = ("--topic", topic, "--max-transaction-timeout", "0s")
    assert run("txn", "find-hanging", *limits, "--json").json() == []
    assert run("txn", "abort", name, "--yes").code == 0
    while committed(broker.bootstrap_servers, topic) < 2:
        assert time.monotonic() < deadline


@pytest.mark.parametrize(("typed", "code"), [("n\n", 1), ("y\n", 0)])
def test_a_person_is_asked(
    run: Run, broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    name = f"asked-{topic}"
    writer = in_transaction(broker.bootstrap_servers, name, topic)
    monkeypatch.setattr(io, "TextIOWrapper", Terminal)  # what the fixture makes stdin of
    outcome = run("txn", "abort", name, stdin=typed.encode())
    assert outcome.code == code and f"Abort {name}" in outcome.err
    assert sys.stdin.isatty()
    if code:
        writer.commit_transaction(TIMEOUT_SECONDS)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("describe", "nobody"), 4, "txn list"),
        (("abort", "nobody", "--yes"), 4, "txn list"),
        (("abort",), 2, "give a transactional id"),
        (("abort", "id", "--topic", "t"), 2, "give a transactional id"),
        (("abort", "--topic", "t"), 2, "given together"),
        (("abort", "--topic", "gone", "--partition", 0, "--start-offset", 1), 4, "there is no partition gone-0"),
        (("list", "--state", "Wild"), 2, "Ongoing"),
        (("list", "--match", "("), 2, "regular expression"),
        (("list", "--older-than", "soon"), 2, "--older-than soon"),
        (("find-hanging", "--partition", 0), 2, "--topic"),
        (("find-hanging", "--topic", "gone"), 4, "there is no topic gone"),
        (("find-hanging", "--broker", 9), 4, "there is no broker 9"),
        (("find-hanging", "--max-transaction-timeout", "x"), 2, "--max-transaction-timeout x"),
    ],
)
def test_what_is_wrong_is_said_with_the_next_step(run: Run, arguments: tuple[Any, ...], code: int, told: str) -> None:
    outcome = run("txn", *arguments)
    assert outcome.code == code and told in outcome.err and outcome.out == ""


def test_all_coordinators_are_asked(offline: Run) -> None:
    settings = {"transaction.partition.verification.enable": "false", "default.replication.factor": 2}
    with EmbeddedCluster(3, settings) as cluster:
        at = ("--bootstrap", cluster.address(1))
        with Wire(cluster.address(1)) as wire:
            wire.create_topic("t", 6)
        await_topic(cluster, "t", 6)
        names = [f"id-{number}" for number in range(6)]
        writers = [in_transaction(cluster.bootstrap_servers, name, "t") for name in names]
        listed = offline("txn", "list", "--json", *at).json()
        assert [row["transactional_id"] for row in listed] == names
        assert len({row["coordinator"] for row in listed}) > 1
        for number in range(1, 4):
            with Wire(cluster.address(number)) as wire:
                for partition in range(6):
                    try:
                        hang(wire, "t", partition)
                    except AssertionError:
                        continue  # another broker leads it
        found = offline("txn", "find-hanging", "--max-transaction-timeout", "0s", "--json", *at).json()
        assert [row["partition"] for row in found] == list(range(6))
        for row in found:
            place = ("--topic", "t", "--partition", row["partition"], "--start-offset", row["start_offset"])
            assert offline("txn", "abort", *place, "--yes", *at).code == 0
        assert offline("txn", "find-hanging", "--max-transaction-timeout", "0s", "--json", *at).json() == []
        assert offline("txn", "abort", names[0], "--yes", *at).code == 0
        for writer in writers[1:]:
            writer.commit_transaction(TIMEOUT_SECONDS)
