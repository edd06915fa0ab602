"""TxnOffsetCommit and markers over the wire, without a coordinator: nothing is verified, the test writes markers."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.node.coordination.runtime import java_hash
from millstream.testing import EmbeddedBroker
from tests.wire import Wire

PARTITIONS = 3
OFFSETS = "__consumer_offsets"
_producers = itertools.count(1000)


@pytest.fixture(scope="module")
def unverified() -> Iterator[EmbeddedBroker]:
    settings = {"transaction.partition.verification.enable": "false", "offsets.topic.num.partitions": PARTITIONS}
    with EmbeddedBroker(settings) as running:
        yield running
        log = running.log_file.read_text()
        assert "handler_failed" not in log and "Traceback" not in log, log[-3000:]


@pytest.fixture
def wire(unverified: EmbeddedBroker) -> Iterator[Wire]:
    with Wire(unverified.bootstrap_servers) as connected:
        yield connected


@pytest.fixture
def topic(wire: Wire, new_name: Callable[[], str]) -> str:
    name = new_name()
    wire.create_topic(name, 2)
    wire.call("find_coordinator", 4, key_type=0, coordinator_keys=["g"])
    return name


@pytest.fixture
def producer() -> int:
    return next(_producers)


def commit(
    wire: Wire, topic: str, offset: int, producer: int, *, group: str = "g", epoch: int = 0, version: int = 3
) -> int:
    """The error code."""
    rows = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}]
    response = wire.call(
        "txn_offset_commit",
        version,
        transactional_id="t",
        group_id=group,
        producer_id=producer,
        producer_epoch=epoch,
        topics=[{"name": topic, "partitions": rows}],
    )
    return int(response.topics[0].partitions[0].error_code)


def end(wire: Wire, producer: int, committed: bool, *, group: str = "g", epoch: int = 0, coordinator: int = 0) -> int:
    index = java_hash(group) % PARTITIONS
    marker = {
        "producer_id": producer,
        "producer_epoch": epoch,
        "transaction_result": committed,
        "topics": [{"name": OFFSETS, "partition_indexes": [index]}],
        "coordinator_epoch": coordinator,
    }
    response = wire.call("write_txn_markers", 1, markers=[marker])
    return int(response.markers[0].topics[0].partitions[0].error_code)


def fetched(wire: Wire, topic: str, group: str = "g", *, stable: bool = False, version: int = 7) -> tuple[int, int]:
    """Error code and offset."""
    topics = [{"name": topic, "partition_indexes": [0]}]
    if version >= 8:
        fields: dict[str, Any] = {"groups": [{"group_id": group, "topics": topics}]}
        row = wire.call("offset_fetch", version, require_stable=stable, **fields).groups[0].topics[0].partitions[0]
    else:
        response = wire.call("offset_fetch", version, group_id=group, topics=topics, require_stable=stable)
        row = response.topics[0].partitions[0]
    return row.error_code, row.committed_offset


@pytest.mark.parametrize("version", range(5))
def test_every_version_commits_offsets_with_the_transaction(
    wire: Wire, topic: str, producer: int, version: int
) -> None:
    assert commit(wire, topic, 5, producer, version=version) == 0
    assert fetched(wire, topic) == (0, -1)
    for fetch_version in (7, 8, 9):
        unstable = fetched(wire, topic, stable=True, version=fetch_version)
        assert unstable == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert end(wire, producer, True) == 0
    assert fetched(wire, topic, stable=True) == (0, 5)


def test_an_abort_leaves_what_was_there(wire: Wire, topic: str, producer: int) -> None:
    assert commit(wire, topic, 5, producer) == 0 and end(wire, producer, True) == 0
    assert commit(wire, topic, 9, producer) == 0 and end(wire, producer, False) == 0
    assert fetched(wire, topic, stable=True) == (0, 5)


def test_an_epoch_that_is_over_is_fenced(wire: Wire, topic: str, producer: int) -> None:
    assert commit(wire, topic, 5, producer, epoch=4) == 0
    assert commit(wire, topic, 6, producer, epoch=3) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(wire, producer, True, epoch=3) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(wire, producer, True, epoch=4, coordinator=0) == 0
    assert end(wire, producer, True, epoch=4, coordinator=-1) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert fetched(wire, topic) == (0, 5)


def test_wrong_transactional_commits_are_refused(wire: Wire, topic: str, producer: int) -> None:
    assert commit(wire, topic, 5, producer, group="") == ErrorCode.INVALID_GROUP_ID
    assert commit(wire, "gone", 5, producer) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(wire, topic, 5, -1) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert commit(wire, topic, 5, producer, epoch=-1) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(wire, producer, True) == 0


@pytest.mark.parametrize("crash", [False, True])
def test_open_transactions_survive_a_restart(new_name: Callable[[], str], crash: bool) -> None:
    settings = {"transaction.partition.verification.enable": "false", "offsets.topic.num.partitions": PARTITIONS}
    name = new_name()
    with EmbeddedBroker(settings) as running:
        with Wire(running.bootstrap_servers) as wire:
            wire.create_topic(name, 1)
            wire.call("find_coordinator", 4, key_type=0, coordinator_keys=["g"])
            for producer in (1, 2, 3):
                assert commit(wire, name, producer, producer) == 0
            assert end(wire, 2, True) == 0 and end(wire, 3, False) == 0
            assert fetched(wire, name) == (0, 2) and fetched(wire, name, stable=True)[0] != 0
        if crash:
            running.kill()
            running.start()
        else:
            running.restart()
        with Wire(running.bootstrap_servers) as wire:
            assert fetched(wire, name) == (0, 2)
            assert fetched(wire, name, stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
            assert end(wire, 1, True) == 0
            assert fetched(wire, name, stable=True) == (0, 2)  # its record is before the other's
