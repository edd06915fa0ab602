"""A consumer's offsets sent with a producer's transaction, by a real client: they appear with it, or not at all."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from millstream.model.errors import ErrorCode
from millstream.testing import EmbeddedBroker
from tests.wire import Wire

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def kept() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"group.initial.rebalance.delay.ms": 0, "num.partitions": 1}) as running:
        yield running
        log = running.log_file.read_text()
        assert "handler_failed" not in log and "Traceback" not in log, log[-3000:]


@pytest.fixture
def wire(kept: EmbeddedBroker) -> Iterator[Wire]:
    with Wire(kept.bootstrap_servers) as connected:
        yield connected


def producer(kept: EmbeddedBroker, name: str) -> Producer:
    made = Producer({"bootstrap.servers": kept.bootstrap_servers, "transactional.id": name})
    made.init_transactions(PATIENCE_S)
    return made


def consumer(kept: EmbeddedBroker, group: str, protocol: str = "classic") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": kept.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )


def filled(kept: EmbeddedBroker, wire: Wire, name: str, count: int) -> str:
    wire.create_topic(name, 1)
    plain = Producer({"bootstrap.servers": kept.bootstrap_servers})
    for number in range(count):
        plain.produce(name, str(number))
    assert plain.flush(PATIENCE_S) == 0
    return name


def next_record(reader: Consumer) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while (message := reader.poll(0.2)) is None or message.error():
        assert time.monotonic() < deadline
    return message


def committed(wire: Wire, group: str, topic: str, *, stable: bool = False) -> tuple[int, int]:
    """Error code and offset."""
    topics = [{"name": topic, "partition_indexes": [0]}]
    answer = wire.call("offset_fetch", 7, group_id=group, topics=topics, require_stable=stable)
    row = answer.topics[0].partitions[0]
    return row.error_code, row.committed_offset


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_offsets_appear_with_the_transaction(
    kept: EmbeddedBroker, wire: Wire, new_name: Callable[[], str], protocol: str
) -> None:
    name = filled(kept, wire, new_name(), 5)
    target = filled(kept, wire, new_name(), 0)
    group = f"group-{name}"
    reader, writer = consumer(kept, group, protocol), producer(kept, f"copy-{name}")
    reader.subscribe([name])
    for outcome in ("abort", "commit"):
        message = next_record(reader)
        writer.begin_transaction()
        writer.produce(target, message.value())
        position = TopicPartition(name, 0, message.offset() + 1)
        writer.send_offsets_to_transaction([position], reader.consumer_group_metadata(), PATIENCE_S)
        assert committed(wire, group, name)[1] == -1
        assert committed(wire, group, name, stable=True)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
        if outcome == "abort":
            writer.abort_transaction(PATIENCE_S)
            assert committed(wire, group, name, stable=True) == (0, -1)
            reader.seek(TopicPartition(name, 0, 0))
        else:
            writer.commit_transaction(PATIENCE_S)
            assert committed(wire, group, name, stable=True) == (0, message.offset() + 1)
    reader.close()


def test_a_member_that_was_replaced_cannot_commit(
    kept: EmbeddedBroker, wire: Wire, new_name: Callable[[], str]
) -> None:
    name = filled(kept, wire, new_name(), 5)
    group = f"group-{name}"
    reader, writer = consumer(kept, group), producer(kept, f"copy-{name}")
    reader.subscribe([name])
    message = next_record(reader)
    standing = reader.consumer_group_metadata()
    reader.close()
    other = consumer(kept, group)
    other.subscribe([name])
    next_record(other)
    writer.begin_transaction()
    with pytest.raises(KafkaException) as caught:
        position = TopicPartition(name, 0, message.offset() + 1)
        writer.send_offsets_to_transaction([position], standing, PATIENCE_S)
    assert caught.value.args[0].txn_requires_abort()
    writer.abort_transaction(PATIENCE_S)
    assert committed(wire, group, name, stable=True) == (0, -1)
    other.close()


def test_offsets_outlive_a_crash_in_the_middle(new_name: Callable[[], str]) -> None:
    with EmbeddedBroker({"group.initial.rebalance.delay.ms": 0}) as kept:
        name, group = new_name(), "g"
        with Wire(kept.bootstrap_servers) as wire:
            filled(kept, wire, name, 5)
        reader, writer = consumer(kept, group), producer(kept, "copy")
        reader.subscribe([name])
        message = next_record(reader)
        writer.begin_transaction()
        position = TopicPartition(name, 0, message.offset() + 1)
        writer.send_offsets_to_transaction([position], reader.consumer_group_metadata(), PATIENCE_S)
        kept.kill()
        kept.start()
        with Wire(kept.bootstrap_servers) as wire:
            assert committed(wire, group, name, stable=True)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
            writer.commit_transaction(PATIENCE_S)
            assert committed(wire, group, name, stable=True) == (0, message.offset() + 1)
        reader.close()
