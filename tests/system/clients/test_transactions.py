"""Transactions of every client that has them, read by every client with either isolation level; fencing; offsets."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.system.clients.client_program import ClientFailedError, ClientProgram, eventually
from tests.system.clients.conftest import GetClient
from tests.system.clients.corpus import record
from tests.waiting import TIMEOUT_SECONDS
from tools import install_test_clients

Create = Callable[..., None]

READERS = list(install_test_clients.CLIENTS)
WRITERS = [name for name in READERS if name != "kcat"]
TOPIC = "transacted"

# By what names a user of each client knows that a successor has taken its place.
FENCED = {
    "confluent-kafka": {"_FENCED"},
    "kafka-python": {"ProducerFencedError", "InvalidProducerEpochError"},
    "aiokafka": {"ProducerFenced"},
    "kafkajs": {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"},
    "java": {"ProducerFencedException", "InvalidProducerEpochException"},
    "franz-go": {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"},
}


def texts(records: list[dict[str, str]]) -> list[str]:
    return [base64.b64decode(each["value"]).decode() for each in records]


def values(name: str, what: str, count: int = 3, partition: int = 0) -> list[dict[str, str]]:
    return [record(None, f"{name} {what} {number}".encode(), partition=partition) for number in range(count)]


class Log:
    """What is in the partition all clients wrote to: everything, and what of it is committed."""

    def __init__(self) -> None:
        self.everything: list[str] = []
        self.committed: list[str] = []

    def wrote(self, records: list[dict[str, str]], *, committed: bool) -> None:
        self.everything += texts(records)
        if committed:
            self.committed += texts(records)


@pytest.fixture(scope="module")
def log(bootstrap: str, get_client: GetClient) -> Log:
    """One partition to which every client wrote transactions that were committed, and one that was aborted."""
    maker = get_client("confluent-kafka")
    maker.ask("create_topic", bootstrap, topic=TOPIC, partitions=2, config={})
    log = Log()
    for name in WRITERS:
        try:
            writer = get_client(name)
        except pytest.skip.Exception:
            continue
        for what, end in (("first", "commit"), ("second", "abort"), ("third", "commit")):
            records = values(name, what)
            writer.transact(bootstrap, f"writer-{name}", TOPIC, [*records, *values(name, what, 1, 1)], end=end)
            log.wrote(records, committed=end == "commit")
    last = values("nobody", "in a transaction", 1)
    maker.produce(bootstrap, TOPIC, last)
    log.wrote(last, committed=True)
    return log


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_every_client_reads_transactions_of_every_client(
    isolation: str, reader: str, bootstrap: str, get_client: GetClient, log: Log
) -> None:
    expected = log.committed if isolation == "read_committed" else log.everything
    read = get_client(reader).consume(bootstrap, TOPIC, 0, len(expected), isolation=isolation)
    assert texts(read) == expected


@pytest.mark.parametrize("name", WRITERS)
def test_an_open_transaction_holds_back_what_is_after_it(
    name: str, bootstrap: str, topic: str, get_client: GetClient, create_topic: Create
) -> None:
    """For those who read committed; the others see everything at once."""
    writer, reader = get_client(name), get_client("confluent-kafka")
    create_topic(reader, topic)
    writer.transact(bootstrap, f"open-{name}", topic, values(name, "open", 2), end="none")
    reader.produce(bootstrap, topic, [record(None, b"after")])
    assert texts(reader.consume(bootstrap, topic, 0, 3)) == [f"{name} open 0", f"{name} open 1", "after"]
    held = reader.consume(bootstrap, topic, 0, 3, isolation="read_committed", timeout_ms=800)
    assert held == []
    writer.transact(bootstrap, f"open-{name}", topic, [], begin=False, end="commit")
    read = reader.consume(bootstrap, topic, 0, 3, isolation="read_committed")
    assert texts(read) == [f"{name} open 0", f"{name} open 1", "after"]


@pytest.mark.parametrize("name", WRITERS)
def test_a_successor_fences_a_zombie(
    name: str, bootstrap: str, topic: str, get_client: GetClient, create_topic: Create
) -> None:
    client: ClientProgram = get_client(name)
    create_topic(get_client("confluent-kafka"), topic)
    client.transact(
        bootstrap, f"zombie-{name}", topic, values(name, "zombie"), transactional_id=f"fenced-{name}", end="none"
    )
    successor = (bootstrap, f"successor-{name}", topic)
    client.transact(*successor, values(name, "successor"), transactional_id=f"fenced-{name}")
    # kafka-python tries to begin a new epoch when its records are refused, and so never gets to its commit.
    too_late = values(name, "too late") if name != "kafka-python" else []
    with pytest.raises(ClientFailedError) as failure:
        client.transact(bootstrap, f"zombie-{name}", topic, too_late, begin=False)
    assert failure.value.type in FENCED[name], failure.value
    client.transact(*successor, values(name, "successor goes on"))
    read = get_client("java").consume(bootstrap, topic, 0, 6, isolation="read_committed")
    assert texts(read) == texts([*values(name, "successor"), *values(name, "successor goes on")])


@pytest.mark.parametrize("name", WRITERS)
def test_offsets_are_committed_with_the_transaction(
    name: str, bootstrap: str, topic: str, get_client: GetClient, create_topic: Create
) -> None:
    client: ClientProgram = get_client(name)
    create_topic(get_client("confluent-kafka"), topic)
    group = f"group-of-{name}"
    look = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_committed"})

    def committed() -> int:
        (found,) = look.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_SECONDS)
        assert found.error is None
        return found.offset

    def transact(offset: int, end: str) -> None:
        records = values(name, f"{end} {offset}", 1)
        client.transact(bootstrap, f"offsets-{name}", topic, records, offsets=(group, topic, 0, offset), end=end)

    try:
        transact(3, "commit")
        assert eventually(lambda: committed() == 3)
        transact(7, "abort")
        transact(5, "commit")
        assert eventually(lambda: committed() == 5)
    finally:
        look.close()
    read = client.consume(bootstrap, topic, 0, 2, isolation="read_committed")
    assert texts(read) == [f"{name} commit 3 0", f"{name} commit 5 0"]
