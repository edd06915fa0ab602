"""Group commit (`flush.before.ack`): no ack before the fsync, one fsync for all that wait, and what a failed one does.

The node runs in this process, so that its fsync can be held up and counted.
"""

import asyncio
import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.config.loading import load_broker_config
from millstream.formats.model.errors import ErrorCode
from millstream.node.runtime.disk import RealDisk, RealFile
from millstream.node.runtime.node import Node
from millstream.node.runtime.real_environment import real_environment
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, batch, values


class HeldDisk:
    """Counts the fsyncs of the topic's segments, and lets them through when it may."""

    def __init__(self) -> None:
        self.topic = "data"
        self.count = 0
        self.open = threading.Event()
        self.open.set()
        self.fails = False
        self.entered = threading.Semaphore(0)

    def sync(self, file: RealFile) -> None:
        if f"/{self.topic}-" in file.path and file.path.endswith(".log"):
            self.count += 1
            self.entered.release()
            self.open.wait(60)
            if self.fails:
                raise OSError(errno.EIO, "the disk is gone")
        _real_sync(file)


_real_sync = RealFile.sync


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> HeldDisk:
    held = HeldDisk()
    monkeypatch.setattr(RealFile, "sync", lambda file: held.sync(file))
    return held


@pytest.fixture
def settings() -> list[str]:
    return []


@pytest.fixture
def address(tmp_path: Path, disk: HeldDisk, settings: list[str]) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    config = load_broker_config(file=None, overrides=settings, listen="127.0.0.1:0", data_dir=str(tmp_path / "data"))
    node = Node(config, real_environment(loop), RealDisk())

    try:
        yield str(asyncio.run_coroutine_threadsafe(node.start(), loop).result(TIMEOUT_SECONDS))
    finally:
        disk.open.set()
        asyncio.run_coroutine_threadsafe(node.stop(), loop).result(TIMEOUT_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def send(wire: Wire, topic: str = "data", acks: int = -1, timeout_ms: int = 60_000) -> None:
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"value")}]}]
    wire.send("produce", 9, acks=acks, timeout_ms=timeout_ms, topic_data=rows)


def code(wire: Wire) -> int:
    return int(wire.receive("produce", 9)[1].responses[0].partition_responses[0].error_code)


def is_silent(wire: Wire) -> bool:
    wire.socket.settimeout(0.3)
    try:
        wire.socket.recv(1)
    except TimeoutError:
        return True
    finally:
        wire.socket.settimeout(TIMEOUT_SECONDS)
    return False


def test_an_ack_waits_for_the_fsync_and_one_fsync_serves_all_who_wait(address: str, disk: HeldDisk) -> None:
    wires = [Wire(address) for _ in range(30)]
    try:
        wires[0].create_topic("data", 1, flush_before_ack="true")
        disk.open.clear()
        before = disk.count
        send(wires[0])
        assert disk.entered.acquire(timeout=TIMEOUT_SECONDS)
        assert is_silent(wires[0])
        for wire in wires[1:]:
            send(wire, acks=1)
        assert is_silent(wires[-1])
        assert disk.count == before + 1  # the others wait for the next one, together
        disk.open.set()
        assert [code(wire) for wire in wires] == [0] * 30
        assert disk.count <= before + 3
    finally:
        for wire in wires:
            wire.close()


def test_no_reader_gets_what_is_not_on_disk(address: str, disk: HeldDisk) -> None:
    """A power cut could take it, and what is written later in its place would be passed over."""
    with Wire(address) as wire, Wire(address) as reader:
        wire.create_topic("data", 1, flush_before_ack="true")
        send(wire)
        assert code(wire) == 0
        disk.open.clear()
        send(wire)
        send(wire, acks=0)
        assert is_silent(wire)
        assert reader.fetch("data", 0).high_watermark == 1
        assert values(reader.fetch("data", 0).records) == [b"value"]
        disk.open.set()
        assert code(wire) == 0
        while reader.fetch("data", 0).high_watermark < 3:
            pass
        assert values(reader.fetch("data", 0).records) == [b"value"] * 3


@pytest.mark.parametrize("wanted", ["true", "false"])
def test_the_setting_may_change_while_there_are_writes(address: str, disk: HeldDisk, wanted: str) -> None:
    with Wire(address) as wire, Wire(address) as other:
        wire.create_topic("data", 1, flush_before_ack="true" if wanted == "false" else "false")
        disk.open.clear()
        if wanted == "false":
            send(wire)
            assert is_silent(wire)
        configs = [{"name": "flush.before.ack", "config_operation": 0, "value": wanted}]
        resources = [{"resource_type": 2, "resource_name": "data", "configs": configs}]
        changed = other.call("incremental_alter_configs", 1, resources=resources, validate_only=False)
        assert changed.responses[0].error_code == 0
        if wanted == "true":
            send(wire)
            assert is_silent(wire)
            assert other.fetch("data", 0).high_watermark == 0
        else:
            while other.fetch("data", 0).high_watermark < 1:  # nothing asks for the disk any more
                pass
        disk.open.set()
        assert code(wire) == 0
        assert other.fetch("data", 0).high_watermark == 1


def test_without_it_an_ack_waits_for_no_fsync(address: str, disk: HeldDisk) -> None:
    with Wire(address) as wire:
        wire.create_topic("data")
        disk.open.clear()
        for _ in range(10):
            send(wire)
            assert code(wire) == 0


def test_flush_messages_bounds_records_between_syncs(address: str, disk: HeldDisk) -> None:
    with Wire(address) as wire:
        wire.create_topic("data", 1, flush_messages="5")
        before = disk.count
        for _ in range(20):
            send(wire)
            assert code(wire) == 0
        assert disk.count - before == 4


def test_who_does_not_want_to_wait_that_long_is_told_so(address: str, disk: HeldDisk) -> None:
    with Wire(address) as wire:
        wire.create_topic("data", 1, flush_before_ack="true")
        disk.open.clear()
        send(wire, timeout_ms=200)
        assert code(wire) == ErrorCode.REQUEST_TIMED_OUT


def test_a_failed_fsync_acknowledges_nothing_and_the_partition_takes_no_more(address: str, disk: HeldDisk) -> None:
    with Wire(address) as wire:
        wire.create_topic("data", 1, flush_before_ack="true")
        wire.create_topic("other", 1, flush_before_ack="true")
        send(wire)
        assert code(wire) == 0
        disk.fails = True
        for _ in range(3):
            send(wire)
            assert code(wire) == ErrorCode.KAFKA_STORAGE_ERROR
        disk.fails = False
        send(wire)
        assert code(wire) == ErrorCode.KAFKA_STORAGE_ERROR  # the kernel may have dropped the pages: a restart must look
        send(wire, "other")
        assert code(wire) == 0
        assert wire.fetch("data").error_code == 0


FOR_ALL_TOPICS = [
    "log.flush.before.ack=true",
    "offsets.topic.num.partitions=1",
    "transaction.state.log.num.partitions=1",
]


def commit_offset(wire: Wire, offset: int) -> None:
    partition = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    wire.send(
        "offset_commit",
        8,
        group_id="group",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": "data", "partitions": [partition]}],
    )


def find_coordinator(wire: Wire, kind: int, key: str) -> None:
    """Waits until there is one."""
    while wire.call("find_coordinator", 4, key_type=kind, coordinator_keys=[key]).coordinators[0].error_code:
        pass


@pytest.mark.parametrize("settings", [FOR_ALL_TOPICS])
def test_a_committed_offset_is_acknowledged_when_it_is_on_disk(address: str, disk: HeldDisk) -> None:
    disk.topic = "__consumer_offsets"
    wires = [Wire(address) for _ in range(10)]
    try:
        wires[0].create_topic("data")
        find_coordinator(wires[0], 0, "group")
        commit_offset(wires[0], 1)
        assert wires[0].receive("offset_commit", 8)[1].topics[0].partitions[0].error_code == 0
        while disk.entered.acquire(blocking=False):
            pass
        disk.open.clear()
        before = disk.count
        for number, wire in enumerate(wires):
            commit_offset(wire, number)
        assert disk.entered.acquire(timeout=TIMEOUT_SECONDS)
        assert all(map(is_silent, wires))
        group = {"group_id": "group", "topics": [{"name": "data", "partition_indexes": [0]}]}
        with Wire(address) as reader:
            reader.send("offset_fetch", 8, groups=[group], require_stable=True)
            assert is_silent(reader)  # what it would be told might be lost
            disk.open.set()
            row = reader.receive("offset_fetch", 8)[1].groups[0].topics[0].partitions[0]
            assert (row.error_code, row.committed_offset) == (0, 9)
        rows = [wire.receive("offset_commit", 8)[1].topics[0].partitions[0].error_code for wire in wires]
        assert rows == [0] * 10
        assert disk.count <= before + 3  # one fsync serves all that wait
    finally:
        for wire in wires:
            wire.close()


@pytest.mark.parametrize("settings", [FOR_ALL_TOPICS])
def test_a_committed_transaction_is_acknowledged_when_that_is_on_disk(address: str, disk: HeldDisk) -> None:
    disk.topic = "__transaction_state"
    with Wire(address) as wire:
        wire.create_topic("data")
        find_coordinator(wire, 1, "writer")
        begun = wire.call("init_producer_id", 4, transactional_id="writer", transaction_timeout_ms=60_000)
        assert begun.error_code == 0
        of_producer = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
        topics = [{"name": "data", "partitions": [0]}]
        added = wire.call(
            "add_partitions_to_txn", 3, v3_and_below_transactional_id="writer", v3_and_below_topics=topics,
            v3_and_below_producer_id=begun.producer_id, v3_and_below_producer_epoch=begun.producer_epoch,
        )  # fmt: skip
        assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
        while disk.entered.acquire(blocking=False):
            pass
        disk.open.clear()
        wire.send("end_txn", 3, transactional_id="writer", committed=True, **of_producer)
        assert disk.entered.acquire(timeout=TIMEOUT_SECONDS)
        assert is_silent(wire)
        disk.open.set()
        assert wire.receive("end_txn", 3)[1].error_code == 0


@pytest.mark.parametrize("settings", [FOR_ALL_TOPICS])
def test_a_coordinator_whose_fsync_fails_acknowledges_nothing(address: str, disk: HeldDisk) -> None:
    disk.topic = "__consumer_offsets"
    with Wire(address) as wire:
        wire.create_topic("data")
        find_coordinator(wire, 0, "group")
        commit_offset(wire, 1)
        assert wire.receive("offset_commit", 8)[1].topics[0].partitions[0].error_code == 0
        disk.fails = True
        for offset in (2, 3):
            commit_offset(wire, offset)
            assert wire.receive("offset_commit", 8)[1].topics[0].partitions[0].error_code != 0
