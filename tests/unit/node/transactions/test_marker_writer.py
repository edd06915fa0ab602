"""Markers at a leader: the response comes when they are committed (and on disk, if required), or refused."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker, TopicName, TopicPartition
from millstream.node.transactions import markers as marker_writer
from millstream.node.transactions.markers import MarkerWriter

pytestmark = pytest.mark.plain  # `Partition` here is no LocalPartition

MARKER = Marker(producer_id=7, producer_epoch=1, coordinator_epoch=2, committed=True, transaction_version=2)


class Partition:
    """Commits and flushes when the test says so."""

    is_mirror = False

    def __init__(self, *, replicated: bool = True, flushed: bool = False, refusal: ErrorCode | None = None) -> None:
        config = SimpleNamespace(flush_before_ack=flushed)
        self.log = SimpleNamespace(config=config, flush_due=False, recovery_point=0)
        self.high_watermark = 0 if replicated else 10
        self.refusal = refusal
        self.markers: list[Marker] = []
        self.waiting: dict[tuple[str, int], Any] = {}

    def check_enough_in_sync(self) -> None:
        if self.refusal is not None:
            raise KafkaError(self.refusal, "refused")

    def append_marker(self, marker: Marker, now_ms: int) -> Any:
        self.markers.append(marker)
        return SimpleNamespace(last_offset=4)

    def when_committed(self, offset: int, callback: Any) -> None:
        self.waiting["committed", offset] = callback

    def when_flushed(self, offset: int, callback: Any) -> None:
        self.waiting["flushed", offset] = callback

    def tell(self, what: str, error: KafkaError | None = None) -> None:
        self.waiting.pop((what, 5))(error)


class Groups:
    def __init__(self, refusal: ErrorCode | None = None) -> None:
        self.ended: list[tuple[int, Marker]] = []
        self.refusal = refusal

    async def end_transaction(self, index: int, marker: Marker) -> None:
        self.ended.append((index, marker))
        if self.refusal is not None:
            raise KafkaError(self.refusal, "refused")


def at(number: int) -> TopicPartition:
    return TopicPartition(TopicName("t"), number)


def writer(groups: Groups, *partitions: Partition) -> MarkerWriter:
    def find_led(topic: str, index: int) -> Partition:
        if index >= len(partitions):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "led elsewhere")
        return partitions[index]

    table: Any = SimpleNamespace(find_led=find_led)
    loop = asyncio.get_running_loop()
    environment: Any = SimpleNamespace(loop=loop, clock=SimpleNamespace(now_ms=lambda: 1000))
    return MarkerWriter(table, groups, environment)


def test_all_are_appended_at_once_and_get_a_response_when_all_are_safe() -> None:
    async def story() -> None:
        alone, replicated, flushed = Partition(replicated=False), Partition(), Partition(flushed=True)
        response = asyncio.ensure_future(
            writer(Groups(), alone, replicated, flushed).write(MARKER, [at(0), at(1), at(2), at(3)])
        )
        assert [each.markers for each in (alone, replicated, flushed)] == [[MARKER]] * 3, "before anyone waits"
        await asyncio.sleep(0)
        replicated.tell("committed")
        flushed.tell("committed")
        await asyncio.sleep(0)
        assert not response.done()
        flushed.tell("flushed")
        assert await response == {
            at(0): ErrorCode.NONE,
            at(1): ErrorCode.NONE,
            at(2): ErrorCode.NONE,
            at(3): ErrorCode.NOT_LEADER_OR_FOLLOWER,
        }

    asyncio.run(story())


def test_what_goes_wrong_is_told_for_each_partition() -> None:
    async def story() -> None:
        few, lost = Partition(refusal=ErrorCode.NOT_ENOUGH_REPLICAS), Partition(flushed=True)
        response = asyncio.ensure_future(writer(Groups(), few, lost).write(MARKER, [at(0), at(1)]))
        await asyncio.sleep(0)
        lost.tell("committed", KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "gone"))
        assert await response == {at(0): ErrorCode.NOT_ENOUGH_REPLICAS, at(1): ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert few.markers == []
        lost.tell("flushed")  # no one minds

    asyncio.run(story())


def test_what_takes_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_writer, "MARKER_TIMEOUT_SECONDS", 0.01)

    async def story() -> None:
        assert await writer(Groups(), Partition()).write(MARKER, [at(0)]) == {at(0): ErrorCode.REQUEST_TIMED_OUT}

    asyncio.run(story())


@pytest.mark.parametrize("refusal", [None, ErrorCode.NOT_COORDINATOR])
def test_offsets_of_groups_are_their_coordinators(refusal: ErrorCode | None) -> None:
    async def story() -> None:
        groups = Groups(refusal)
        offsets = TopicPartition(TopicName("__consumer_offsets"), 3)
        response = await writer(groups, Partition(replicated=False)).write(MARKER, [offsets, at(0)])
        assert response == {offsets: refusal or ErrorCode.NONE, at(0): ErrorCode.NONE}
        assert groups.ended == [(3, MARKER)]

    asyncio.run(story())
