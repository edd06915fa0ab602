"""A consumer's offsets sent with a producer's transaction, by a real client: they appear with it, or not at all."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from millstream.formats.model.errors import ErrorCode
from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire

PASSING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


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
    made.init_transactions(TIMEOUT_SECONDS)
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
    assert plain.flush(TIMEOUT_SECONDS) == 0
    return name


def next_record(reader: Consumer) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (message := reader.poll(0.2)) is None or message.error():
        assert time.monotonic() < deadline
    return message


def committed(wire: Wire, group: str, topic: str, *, stable: bool = False) -> tuple[int, int]:
    """Error code and offset."""
    topics = [{"name": topic, "partition_indexes": [0]}]
    response = wire.call("offset_fetch", 7, group_id=group, topics=topics, require_stable=stable)
    row = response.topics[0].partitions[0]
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
        writer.send_offsets_to_transaction([position], reader.consumer_group_metadata(), TIMEOUT_SECONDS)
        assert committed(wire, group, name)[1] == -1
        assert committed(wire, group, name, stable=True)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
        if outcome == "abort":
            writer.abort_transaction(TIMEOUT_SECONDS)
            assert eventually_stable(wire, group, name) == -1
            reader.seek(TopicPartition(name, 0, 0))
        else:
            writer.commit_transaction(TIMEOUT_SECONDS)
            assert eventually_stable(wire, group, name) == message.offset() + 1
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
        writer.send_offsets_to_transaction([position], standing, TIMEOUT_SECONDS)
    assert caught.value.args[0].txn_requires_abort()
    writer.abort_transaction(TIMEOUT_SECONDS)
    assert eventually_stable(wire, group, name) == -1
    other.close()


class Raw:
    """A transactional producer of any transaction version, request by request."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire, self.name = wire, name
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while wire.call("find_coordinator", 4, key_type=1, coordinator_keys=[name]).coordinators[0].error_code:
            assert time.monotonic() < deadline
        response = self._with_retries("init_producer_id", 4, transactional_id=name, transaction_timeout_ms=60_000)
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch

    def _with_retries(self, api: str, version: int, **fields: Any) -> Any:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            response = self.wire.call(api, version, **fields)
            if response.error_code not in PASSING:
                assert response.error_code == 0, ErrorCode(response.error_code)
                return response
            assert time.monotonic() < deadline

    @property
    def _identity(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    def add_offsets(self, group: str) -> None:
        self._with_retries("add_offsets_to_txn", 3, group_id=group, **self._identity)

    def commit(self, group: str, topic: str, offset: int, version: int, metadata: str = "") -> int:
        rows = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": metadata}]
        topics = [{"name": topic, "partitions": rows}]
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            response = self.wire.call("txn_offset_commit", version, group_id=group, topics=topics, **self._identity)
            code = int(response.topics[0].partitions[0].error_code)
            if code not in PASSING:
                return code
            assert time.monotonic() < deadline

    def end(self, committed: bool, version: int) -> None:
        response = self._with_retries("end_txn", version, committed=committed, **self._identity)
        if version >= 5:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch


def eventually_stable(wire: Wire, group: str, topic: str) -> int:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (found := committed(wire, group, topic, stable=True))[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT:
        assert time.monotonic() < deadline
    assert found[0] == 0
    return found[1]


def test_the_second_transaction_version_adds_the_group_by_itself(
    kept: EmbeddedBroker, wire: Wire, new_name: Callable[[], str]
) -> None:
    name = filled(kept, wire, new_name(), 0)
    raw = Raw(wire, f"raw-{name}")
    epochs = []
    for round_, outcome in enumerate((True, False, True)):
        group = f"group-{name}-{round_ % 2}"
        assert raw.commit(group, name, 10 + round_, 5) == 0
        assert raw.commit(group, name, 20 + round_, 5) == 0  # no question any more
        epochs.append(raw.epoch)
        raw.end(outcome, 5)
    assert eventually_stable(wire, f"group-{name}-0", name) == 22
    assert eventually_stable(wire, f"group-{name}-1", name) == -1
    assert epochs == [epochs[0], epochs[0] + 1, epochs[0] + 2]
    raw.epoch -= 1
    assert raw.commit(f"group-{name}-0", name, 99, 5) == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("version", [0, 2, 3, 4])
def test_the_first_transaction_version_is_asked_whether_the_group_was_added(
    kept: EmbeddedBroker, wire: Wire, new_name: Callable[[], str], version: int
) -> None:
    name = filled(kept, wire, new_name(), 0)
    group = f"group-{name}"
    raw = Raw(wire, f"raw-{name}-{version}")
    refused = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
    assert raw.commit(group, name, 1, version) == refused
    raw.add_offsets(group)
    assert raw.commit(group, name, 2, version) == 0
    raw.end(True, 3)
    assert eventually_stable(wire, group, name) == 2
    # The transaction is over: what comes late opens no new one.
    assert raw.commit(group, name, 3, version) == refused
    assert committed(wire, group, name, stable=True) == (0, 2)


def test_a_producer_that_no_one_knows_is_refused(kept: EmbeddedBroker, wire: Wire, new_name: Callable[[], str]) -> None:
    name = filled(kept, wire, new_name(), 0)
    raw = Raw(wire, f"raw-{name}")
    raw.producer_id += 1000
    assert raw.commit("g", name, 1, 5) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    raw.name = f"unknown-{name}"
    assert raw.commit("g", name, 1, 5) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


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
        writer.send_offsets_to_transaction([position], reader.consumer_group_metadata(), TIMEOUT_SECONDS)
        kept.kill()
        kept.start()
        with Wire(kept.bootstrap_servers) as wire:
            assert committed(wire, group, name, stable=True)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
            writer.commit_transaction(TIMEOUT_SECONDS)
            assert eventually_stable(wire, group, name) == message.offset() + 1
        reader.close()


def test_offsets_outlive_the_cleaner(new_name: Callable[[], str]) -> None:
    settings = {
        "offsets.topic.num.partitions": 1,
        "offsets.topic.segment.bytes": 1 << 20,
        "log.cleaner.backoff.ms": 100,
        "log.cleaner.min.cleanable.ratio": 0.01,
        "log.cleaner.delete.retention.ms": 0,
        "log.retention.check.interval.ms": 200,
    }
    with EmbeddedBroker(settings) as kept:
        name = new_name()
        with Wire(kept.bootstrap_servers) as wire:
            filled(kept, wire, name, 0)
            workers = [Raw(wire, f"raw-{number}") for number in range(3)]
            for round_ in range(100):
                for number, worker in enumerate(workers):
                    assert worker.commit(f"g{number}", name, round_, 5, metadata="x" * 4000) == 0
                    worker.end(round_ % 3 != 2, 5)
            # The last of each: committed, aborted, open.
            for number, outcome in enumerate((True, False, None)):
                assert workers[number].commit(f"g{number}", name, 1000 + number, 5) == 0
                if outcome is not None:
                    workers[number].end(outcome, 5)
            assert eventually_stable(wire, "g0", name) == 1000 and eventually_stable(wire, "g1", name) == 99
            partition = kept.data_dir / "__consumer_offsets-0"
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while (partition / f"{0:020}.log").stat().st_size > 100_000:
                assert time.monotonic() < deadline, "it is not cleaned"
                time.sleep(0.1)
        kept.kill()
        kept.start()
        with Wire(kept.bootstrap_servers) as wire:
            assert committed(wire, "g0", name, stable=True) == (0, 1000)
            assert committed(wire, "g1", name, stable=True) == (0, 99)
            assert committed(wire, "g2", name, stable=True)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
            assert committed(wire, "g2", name) == (0, 99)
            workers[2].wire = wire
            workers[2].end(True, 5)
            assert eventually_stable(wire, "g2", name) == 1002
