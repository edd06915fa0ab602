"""When a write may be acknowledged: by the in-sync replicas, by the disk, by both; and what ends the wait."""

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.replicas.acknowledgement import may_acknowledge, when_acknowledged

pytestmark = pytest.mark.plain  # `Partition` here is no LocalPartition

GONE = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "gone")
END = 5


class Waiter:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Partition:
    """Commits and flushes when the test says so."""

    def __init__(self, *, committed: int = END, flushed: int = 0, before_ack: bool = False, due: bool = False) -> None:
        config = SimpleNamespace(flush_before_ack=before_ack)
        self.log = SimpleNamespace(config=config, flush_due=due, recovery_point=flushed)
        self.high_watermark = committed
        self.on_committed: Any = None
        self.on_flushed: Any = None
        self.waiter = Waiter()

    def when_committed(self, offset: int, callback: Any) -> Waiter | None:
        if offset <= self.high_watermark:
            callback(None)
            return None
        self.on_committed = callback
        return self.waiter

    def when_flushed(self, offset: int, callback: Any) -> None:
        self.on_flushed = callback


def wait_for(partition: Any, *, acks_all: bool = True) -> tuple[Any, list[KafkaError | None]]:
    heard: list[KafkaError | None] = []
    return when_acknowledged(partition, END, heard.append, acks_all=acks_all), heard


@pytest.mark.parametrize(
    ("partition", "acks_all", "may"),
    [
        (Partition(), True, True),
        (Partition(committed=4), True, False),
        (Partition(committed=4), False, True),
        (Partition(before_ack=True), True, False),
        (Partition(before_ack=True), False, False),
        (Partition(before_ack=True, flushed=END), True, True),
        (Partition(due=True), True, False),
        (Partition(due=True, flushed=END), True, True),
    ],
)
def test_a_write_waits_for_commit_and_flush(partition: Any, acks_all: bool, may: bool) -> None:
    assert may_acknowledge(partition, END, acks_all=acks_all) is may
    waiting, heard = wait_for(partition, acks_all=acks_all)
    assert heard == ([None] if may else [])
    assert waiting.is_waiting is not may


@pytest.mark.parametrize("flushed_first", [True, False])
def test_both_are_waited_for_in_any_order(flushed_first: bool) -> None:
    partition = Partition(committed=0, before_ack=True)
    _, heard = wait_for(partition)
    first, second = partition.on_flushed, partition.on_committed
    if not flushed_first:
        first, second = second, first
    first(None)
    assert heard == []
    second(None)
    assert heard == [None]


def test_the_first_error_is_told_and_nothing_after_it() -> None:
    partition = Partition(committed=0, before_ack=True)
    _, heard = wait_for(partition)
    partition.on_committed(GONE)
    partition.on_flushed(None)
    assert heard == [GONE]


def test_a_disk_that_fails_ends_the_wait_for_the_replicas() -> None:
    partition = Partition(committed=0, before_ack=True)
    _, heard = wait_for(partition)
    partition.on_flushed(GONE)
    assert heard == [GONE]
    assert partition.waiter.cancelled


def test_a_cancelled_wait_is_not_called() -> None:
    partition = Partition(committed=0, before_ack=True)
    waiting, heard = wait_for(partition)
    waiting.cancel()
    partition.on_flushed(None)
    partition.on_committed(None)
    assert heard == []
    assert partition.waiter.cancelled
