"""Events of tiered storage while their topic cannot be written."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from millstream.config.loading import load_broker_config
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.record import read_batches
from millstream.node.tier import event_topic
from millstream.node.tier.core.manifest import Manifest, TieredSegment
from millstream.node.tier.core.segment_events import SegmentState
from millstream.node.tier.event_topic import TierEvents


class Topic:
    """The topic and its producer. `is_down`: nothing can be written."""

    def __init__(self) -> None:
        self.is_down = True
        self.refused = asyncio.Event()
        self.batches: list[tuple[int, bytes]] = []

    async def ensure(self, *_: object) -> None:
        pass

    async def append(self, topic: str, index: int, batch: bytes | bytearray) -> None:
        if self.is_down:
            self.refused.set()
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "no leader")
        self.batches.append((index, bytes(batch)))


def _manifest(partition: int) -> Manifest:
    return Manifest("orders", UUID(int=1), partition, 3, {}, 0, 0)


def _segment(number: int) -> TieredSegment:
    return TieredSegment(f"object-{number}", number, number + 1, 100, 200, 0, 0, ((0, number),), False)


def _events(topic: Topic, *settings: str) -> TierEvents:
    config = load_broker_config(overrides=settings)
    environment = SimpleNamespace(
        loop=asyncio.get_running_loop(),
        clock=SimpleNamespace(now_ms=lambda: 1_700_000_000_000),
        randomness=SimpleNamespace(random=lambda: 0.0),
    )
    return TierEvents(lambda: config, cast(Any, topic), topic, cast(Any, environment))


def test_events_wait_and_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_topic, "_MOST_WAITING", 100)

    async def run() -> None:
        topic = Topic()
        events = _events(topic, "millstream.tier.events.enable=true")
        for number in range(60):  # none of these calls waits
            events.segments(
                _manifest(number % 3),
                [_segment(number)],
                SegmentState.COPY_SEGMENT_STARTED,
                SegmentState.COPY_SEGMENT_FINISHED,
            )
        assert events.dropped == 20
        await topic.refused.wait()
        topic.is_down = False
        assert events._task is not None
        await events._task
        written = [
            (index, record.value)
            for index, batch in topic.batches
            for _, records in read_batches(batch)
            for record in records
        ]
        assert len(written) == events.written == 100
        assert len({index for index, _ in written}) <= 3, "events of a partition are in one partition"
        for index in {index for index, _ in written}:
            kinds = [value[1] for place, value in written if place == index and value is not None]
            assert kinds[:4] == [0, 1, 0, 1], "in their order"

    asyncio.run(run())


def test_nothing_is_reported_unless_it_is_enabled() -> None:
    async def run() -> None:
        events = _events(Topic())
        events.segments(_manifest(0), [_segment(0)], SegmentState.COPY_SEGMENT_STARTED)
        assert events._task is None

    asyncio.run(run())
