"""The transaction coordinator on the wire: who may do what, codes by version, time-outs, prepared transactions."""

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.testing import EmbeddedBroker
from tests.integration.node.broker.transactions_on_the_wire import PASSING, TransactionalProducer, committed_values
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire

T = TypeVar("T")
OFFSETS = "__consumer_offsets"


@pytest.fixture(scope="module")
def two_phase() -> Iterator[EmbeddedBroker]:
    """A broker that takes part in two-phase commits, and aborts what is late soon."""
    settings = {
        "transaction.two.phase.commit.enable": "true",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
        "transaction.state.log.num.partitions": 3,
    }
    with EmbeddedBroker(settings) as running:
        yield running
        log = running.log_file.read_text()
        assert "handler_failed" not in log and "Traceback" not in log, log[-3000:]


def eventually(attempt: Callable[[], "T | None"], what: str, seconds: float = TIMEOUT_SECONDS) -> T:
    deadline = time.monotonic() + seconds
    while True:
        found = attempt()
        if found is not None:
            return found
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def start(wire: Wire, name: str | None, version: int = 6, **options: Any) -> Message:
    fields: dict[str, Any] = {"transactional_id": name, "transaction_timeout_ms": 60_000}
    if name:
        wire.call("find_coordinator", 6, key_type=1, coordinator_keys=[name])

    def ask() -> Message | None:
        response = wire.call("init_producer_id", version, **(fields | options))
        return None if response.error_code in PASSING else response

    return eventually(ask, "no response to InitProducerId")


def begun(wire: Wire, name: str, **options: Any) -> dict[str, Any]:
    response = start(wire, name, **options)
    assert response.error_code == 0, ErrorCode(response.error_code)
    return {"transactional_id": name, "producer_id": response.producer_id, "producer_epoch": response.producer_epoch}


def resumed(wire: Wire, name: str, producer_id: int, epoch: int) -> TransactionalProducer:
    """A producer that is who it is told to be."""
    producer = TransactionalProducer.__new__(TransactionalProducer)
    producer.coordinator = producer.leader = wire
    producer.name, producer.adds, producer.sequences = name, True, {}
    producer.producer_id, producer.epoch = producer_id, epoch
    return producer


def add(wire: Wire, who: dict[str, Any], topics: dict[str, list[int]], version: int = 3) -> dict[tuple[str, int], int]:
    rows = [{"name": name, "partitions": indexes} for name, indexes in topics.items()]
    old = {f"v3_and_below_{key}": value for key, value in who.items()}
    response = wire.call("add_partitions_to_txn", version, v3_and_below_topics=rows, **old)
    return _results(response.results_by_topic_v3_and_below)


def ask_as_broker(
    wire: Wire, *rows: tuple[dict[str, Any], bool, dict[str, list[int]]], version: int = 5
) -> dict[str, dict[tuple[str, int], int]]:
    transactions = [
        who | {"verify_only": only, "topics": [{"name": name, "partitions": each} for name, each in topics.items()]}
        for who, only, topics in rows
    ]
    response = wire.call("add_partitions_to_txn", version, transactions=transactions)
    assert response.error_code == 0
    return {row.transactional_id: _results(row.topic_results) for row in response.results_by_transaction}


def _results(topics: list[Message]) -> dict[tuple[str, int], int]:
    return {
        (topic.name, row.partition_index): row.partition_error_code
        for topic in topics
        for row in topic.results_by_partition
    }


def end(wire: Wire, who: dict[str, Any], committed: bool = True, version: int = 5) -> Message:
    return wire.call("end_txn", version, committed=committed, **who)


def described(wire: Wire, name: str) -> Message:
    row: Message = wire.call("describe_transactions", 0, transactional_ids=[name]).transaction_states[0]
    return row


def until_state(wire: Wire, name: str, state: str) -> Message:
    def look() -> Message | None:
        row = described(wire, name)
        return row if row.transaction_state == state else None

    return eventually(look, f"{name} is not {state}")


def listed(wire: Wire, version: int = 2, **filters: Any) -> Message:
    fields: dict[str, Any] = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
    return wire.call("list_transactions", version, **(fields | filters))


# Finding it, and beginning


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_is_found(wire: Wire, broker: EmbeddedBroker, version: int) -> None:
    if version >= 4:
        (row,) = wire.call("find_coordinator", version, key_type=1, coordinator_keys=["tx"]).coordinators
        assert row.key == "tx"
    elif version >= 1:
        row = wire.call("find_coordinator", version, key="tx", key_type=1)
    else:
        return  # which knows groups only
    assert (row.error_code, f"{row.host}:{row.port}") == (0, broker.bootstrap_servers)


@pytest.mark.parametrize("version", range(7))
def test_init_producer_id_grows_the_epoch_in_all_versions(
    wire: Wire, new_name: Callable[[], str], version: int
) -> None:
    name = new_name()
    first, second = start(wire, name, version), start(wire, name, version)
    assert (first.error_code, first.producer_epoch, second.error_code, second.producer_epoch) == (0, 0, 0, 1)
    assert first.producer_id == second.producer_id >= 0
    if version >= 3:
        again = {"producer_id": first.producer_id, "producer_epoch": 0}
        fenced = ErrorCode.INVALID_PRODUCER_EPOCH if version < 4 else ErrorCode.PRODUCER_FENCED
        assert start(wire, name, version, **again).error_code == fenced
        again["producer_epoch"] = 1
        assert start(wire, name, version, **again).producer_epoch == 2
    if version >= 6:
        assert (second.ongoing_txn_producer_id, second.ongoing_txn_producer_epoch) == (-1, -1)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
        ({"enable2_pc": True}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_wrong_init_producer_id_requests_are_refused(wire: Wire, options: dict[str, Any], code: ErrorCode) -> None:
    response = start(wire, "refused", **options)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (code, -1, -1)


# Partitions


@pytest.mark.parametrize("version", range(4))
def test_clients_add_partitions_to_a_transaction(
    wire: Wire, topic: str, new_name: Callable[[], str], version: int
) -> None:
    who = begun(wire, new_name())
    assert add(wire, who, {topic: [0, 1]}, version) == {(topic, 0): 0, (topic, 1): 0}
    assert add(wire, who, {topic: [1]}, version) == {(topic, 1): 0}
    row = described(wire, who["transactional_id"])
    assert [(each.topic, each.partitions) for each in row.topics] == [(topic, [0, 1])]
    assert row.transaction_state == "Ongoing" and row.transaction_start_time_ms > 0
    assert add(wire, who, {topic: [0, 7]}, version) == {
        (topic, 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        (topic, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    stale = who | {"producer_epoch": 9}
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else ErrorCode.PRODUCER_FENCED
    assert add(wire, stale, {topic: [0]}, version) == {(topic, 0): fenced}
    wrong = who | {"producer_id": 77_777}
    assert add(wire, wrong, {topic: [0]}, version) == {(topic, 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    unnamed = who | {"transactional_id": ""}
    assert add(wire, unnamed, {topic: [0]}, version) == {(topic, 0): ErrorCode.INVALID_REQUEST}


def test_brokers_ask_for_several_transactions(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    one, two, three = (begun(wire, new_name()) for _ in range(3))
    first, second, third = (each["transactional_id"] for each in (one, two, three))
    add(wire, one, {topic: [0]})
    responses = ask_as_broker(
        wire, (one, True, {topic: [0, 1]}), (two, False, {topic: [1]}), (three, True, {"no": [0]})
    )
    assert responses == {
        first: {(topic, 0): 0, (topic, 1): ErrorCode.TRANSACTION_ABORTABLE},
        second: {(topic, 1): 0},
        third: {("no", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    }
    assert ask_as_broker(wire, (one, True, {topic: [1]}), version=4) == {
        first: {(topic, 1): ErrorCode.TRANSACTION_ABORTABLE}
    }
    assert ask_as_broker(wire, (two, True, {topic: [1]})) == {second: {(topic, 1): 0}}
    stale = two | {"producer_epoch": 4}
    for only in (True, False):
        assert ask_as_broker(wire, (stale, only, {topic: [1]})) == {second: {(topic, 1): ErrorCode.PRODUCER_FENCED}}


@pytest.mark.parametrize("version", range(5))
def test_offsets_are_added(wire: Wire, new_name: Callable[[], str], version: int) -> None:
    who = begun(wire, new_name())
    assert wire.call("add_offsets_to_txn", version, group_id="g", **who).error_code == 0
    (row,) = described(wire, who["transactional_id"]).topics
    assert row.topic == OFFSETS and len(row.partitions) == 1
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else ErrorCode.PRODUCER_FENCED
    stale = who | {"producer_epoch": 3}
    assert wire.call("add_offsets_to_txn", version, group_id="g", **stale).error_code == fenced


# The end


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("committed", [True, False])
def test_end_txn_ends_the_transaction_in_all_versions(
    wire: Wire, topic: str, new_name: Callable[[], str], version: int, committed: bool
) -> None:
    who = begun(wire, new_name())
    name = who["transactional_id"]
    add(wire, who, {topic: [0]})
    response = end(wire, who, committed, version)
    assert response.error_code == 0
    until_state(wire, name, "CompleteCommit" if committed else "CompleteAbort")
    again = end(wire, who, committed, version)
    assert again.error_code == 0
    if version >= 5:
        told = (who["producer_id"], who["producer_epoch"] + 1)
        assert (response.producer_id, response.producer_epoch) == (again.producer_id, again.producer_epoch) == told
    assert end(wire, who, not committed, version).error_code == ErrorCode.INVALID_TXN_STATE
    stale = who | {"producer_epoch": who["producer_epoch"] + 5}
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else ErrorCode.PRODUCER_FENCED
    assert end(wire, stale, committed, version).error_code == fenced
    nobody = who | {"transactional_id": new_name()}
    assert end(wire, nobody, committed, version).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_partitions_of_a_topic_that_is_gone_need_no_marker(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    gone = new_name()
    wire.create_topic(gone)
    who = begun(wire, new_name())
    add(wire, who, {topic: [0], gone: [0]})
    assert wire.call("delete_topics", 5, topic_names=[gone], timeout_ms=10_000).responses[0].error_code == 0
    assert end(wire, who).error_code == 0
    until_state(wire, who["transactional_id"], "CompleteCommit")


def test_a_later_instance_aborts_what_is_open(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    name = new_name()
    old = TransactionalProducer(wire, name)
    old.put(topic, b"lost")
    new = TransactionalProducer(wire, name)
    assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 2)
    who = {"transactional_id": name, "producer_id": old.producer_id, "producer_epoch": old.epoch}
    assert end(wire, who).error_code == ErrorCode.PRODUCER_FENCED
    new.put(topic, b"kept")
    new.commit()
    eventually(lambda: committed_values(wire, topic) == [b"kept"] or None, "not decided")


# Time


def test_what_takes_too_long_is_aborted(two_phase: EmbeddedBroker) -> None:
    with Wire(two_phase.bootstrap_servers) as wire:
        wire.create_topic("late")
        who = begun(wire, "late", transaction_timeout_ms=200)
        producer = resumed(wire, "late", who["producer_id"], who["producer_epoch"])
        producer.put("late", b"never seen")
        until_state(wire, "late", "CompleteAbort")
        assert producer.send("late", b"more").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert end(wire, who, True).error_code == ErrorCode.INVALID_TXN_STATE
        assert committed_values(wire, "late") == []
        producer.abort()
        assert producer.epoch == who["producer_epoch"] + 1
        producer.put("late", b"goes on")
        producer.commit()
        eventually(lambda: committed_values(wire, "late") == [b"goes on"] or None, "not decided")


def test_ids_that_are_not_used_are_forgotten() -> None:
    settings = {
        "transactional.id.expiration.ms": 500,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 100,
        "transaction.state.log.num.partitions": 1,
    }
    with EmbeddedBroker(settings) as running, Wire(running.bootstrap_servers) as wire:
        who = begun(wire, "seldom")

        def forgotten() -> bool | None:
            return described(wire, "seldom").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND or None

        eventually(forgotten, "it is still known")
        assert end(wire, who).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# Lists


def test_transactions_are_listed(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    one, two = begun(wire, new_name() + "-one"), begun(wire, new_name() + "-two")
    add(wire, one, {topic: [0]})
    first, second = one["transactional_id"], two["transactional_id"]

    def found(**filters: Any) -> dict[str, str]:
        rows = listed(wire, **filters).transaction_states
        return {row.transactional_id: row.transaction_state for row in rows if row.transactional_id in (first, second)}

    assert found() == {first: "Ongoing", second: "Empty"}
    assert found(state_filters=["Ongoing"]) == {first: "Ongoing"}
    assert found(producer_id_filters=[two["producer_id"]]) == {second: "Empty"}
    assert found(transactional_id_pattern=".*-one") == {first: "Ongoing"}
    assert found(transactional_id_pattern="one") == {}
    assert found(state_filters=["Ongoing"], duration_filter=3_600_000) == {}
    assert found(state_filters=["Ongoing"], duration_filter=0) == {first: "Ongoing"}
    response = listed(wire, state_filters=["Sleeping"])
    assert (response.unknown_state_filters, response.transaction_states) == (["Sleeping"], [])
    response = listed(wire, transactional_id_pattern="(")
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    for version in (0, 1):
        assert first in [row.transactional_id for row in listed(wire, version).transaction_states]


def test_what_is_not_known_is_not_described(wire: Wire) -> None:
    assert described(wire, "nobody").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert described(wire, "").error_code == ErrorCode.INVALID_REQUEST


# Prepared transactions (KIP-939)


@pytest.mark.parametrize("committed", [True, False])
def test_a_prepared_transaction_is_ended_by_whoever_recovers(two_phase: EmbeddedBroker, committed: bool) -> None:
    """The writer prepares and dies, the broker is killed, and another client ends what was prepared."""
    name = f"prepared-{committed}"
    with Wire(two_phase.bootstrap_servers) as wire:
        wire.create_topic(name)
        response = start(wire, name, enable2_pc=True, transaction_timeout_ms=0)
        assert response.error_code == 0
        writer = resumed(wire, name, response.producer_id, response.producer_epoch)
        writer.put(name, b"prepared")
    two_phase.kill()
    two_phase.start()
    with Wire(two_phase.bootstrap_servers) as wire:
        kept = start(wire, name, enable2_pc=True, keep_prepared_txn=True)
        assert kept.error_code == 0
        assert (kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch) == (writer.producer_id, writer.epoch)
        assert (kept.producer_id, kept.producer_epoch) == (writer.producer_id, writer.epoch + 1)
        assert committed_values(wire, name) == []
        row = described(wire, name)
        assert (row.transaction_state, row.transaction_timeout_ms) == ("Ongoing", (1 << 31) - 1)
        old = {"transactional_id": name, "producer_id": writer.producer_id, "producer_epoch": writer.epoch}
        assert end(wire, old).error_code == ErrorCode.PRODUCER_FENCED
        now = old | {"producer_epoch": kept.producer_epoch}
        assert add(wire, now, {name: [0]}) == {(name, 0): ErrorCode.INVALID_TXN_STATE}
        response = end(wire, now, committed)
        assert (response.error_code, response.producer_epoch) == (0, writer.epoch + 2)
        until_state(wire, name, "CompleteCommit" if committed else "CompleteAbort")
        assert committed_values(wire, name) == ([b"prepared"] if committed else [])
        successor = resumed(wire, name, response.producer_id, response.producer_epoch)
        successor.put(name, b"next")
        successor.commit()
        until_state(wire, name, "CompleteCommit")
        assert committed_values(wire, name)[-1] == b"next"


# The feature


def test_the_level_of_the_feature_is_told_and_can_change(two_phase: EmbeddedBroker) -> None:
    with Wire(two_phase.bootstrap_servers) as wire:
        for level, kind in ((1, 2), (0, 2), (2, 1)):
            update = {"feature": "transaction.version", "max_version_level": level, "upgrade_type": kind}
            response = wire.call("update_features", 1, timeout_ms=10_000, feature_updates=[update], validate_only=False)
            assert response.error_code == 0, response.error_message
            told = wire.call("api_versions", 4, client_software_name="t", client_software_version="1")
            supported = {row.name: (row.min_version, row.max_version) for row in told.supported_features}
            finalized = {row.name: row.max_version_level for row in told.finalized_features}
            assert supported["transaction.version"] == (0, 2)
            assert finalized.get("transaction.version", 0) == level
            name = f"level-{level}"
            wire.create_topic(name)
            producer = TransactionalProducer(wire, name, adds=level == 2)
            if level < 2:
                assert producer.add(name, 0) == [0]
                kept = start(wire, name, keep_prepared_txn=True)
                assert kept.error_code == ErrorCode.UNSUPPORTED_VERSION
            producer.put(name, b"x")
            producer.commit()
            until_state(wire, name, "CompleteCommit")
            assert committed_values(wire, name) == [b"x"]
