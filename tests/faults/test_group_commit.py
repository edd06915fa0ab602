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
from millstream.model.errors import ErrorCode
from millstream.runtime.disk import RealDisk, RealFile
from millstream.runtime.node import Node
from millstream.runtime.world import real_environment
from tests.wire import Wire, batch


class HeldDisk:
    """Counts the fsyncs of the topic's segments, and lets them through when it may."""

    def __init__(self) -> None:
        self.count = 0
        self.open = threading.Event()
        self.open.set()
        self.fails = False
        self.entered = threading.Semaphore(0)

    def sync(self, file: RealFile) -> None:
        if "/data-" in file.path and file.path.endswith(".log"):
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
def address(tmp_path: Path, disk: HeldDisk) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    config = load_broker_config(file=None, overrides=[], listen="127.0.0.1:0", data_dir=str(tmp_path / "data"))
    node = Node(config, real_environment(loop), RealDisk())

    try:
        yield str(asyncio.run_coroutine_threadsafe(node.start(), loop).result(30))
    finally:
        disk.open.set()
        asyncio.run_coroutine_threadsafe(node.stop(), loop).result(30)
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
        wire.socket.settimeout(30)
    return False


def test_an_ack_waits_for_the_fsync_and_one_fsync_serves_all_who_wait(address: str, disk: HeldDisk) -> None:
    wires = [Wire(address) for _ in range(30)]
    try:
        wires[0].create_topic("data", 1, flush_before_ack="true")
        disk.open.clear()
        before = disk.count
        send(wires[0])
        assert disk.entered.acquire(timeout=30)
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


def test_without_it_an_ack_waits_for_no_fsync(address: str, disk: HeldDisk) -> None:
    with Wire(address) as wire:
        wire.create_topic("data")
        disk.open.clear()
        for _ in range(10):
            send(wire)
            assert code(wire) == 0


def test_flush_messages(address: str, disk: HeldDisk) -> None:
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
