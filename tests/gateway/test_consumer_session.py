"""One consumer, its fetches made up: what happens while a poll waits."""

import asyncio
from typing import Any, cast

from anyio import CapacityLimiter

from millstream.gateway.consumer_flights import Part
from millstream.gateway.consumer_session import Session, Tools
from millstream.gateway.consumer_sessions import Sessions
from millstream.records.record import Record
from millstream.wire import Cluster, TopicPartition

PLACE = TopicPartition("t", 0)
NO_CLUSTER = cast(Cluster, None)


class MadeUpFlights:
    """Of a log without end; the first fetch brings what it was sent for, though the position moves meanwhile."""

    def __init__(self, session: Session, sought: int) -> None:
        self.session = session
        self.sought: int | None = sought

    async def next(self, positions: dict[TopicPartition, int], *_: Any) -> dict[TopicPartition, Part]:
        at = positions[PLACE]
        if self.sought is not None:
            self.session._progress[PLACE].seek(self.sought)
            self.sought = None
        return {PLACE: Part([Record(None, b"", (), 0, at + number) for number in range(3)], at + 3)}


def test_what_was_fetched_before_a_seek_is_void() -> None:
    async def poll() -> list[int]:
        limiter = CapacityLimiter(1)
        session = Session(Tools(NO_CLUSTER, limiter, limiter, limiter, lambda: 1), "g", "i", "earliest", 60)
        session._progress.begin(PLACE, 100, None)
        session._flights = cast(Any, MadeUpFlights(session, sought=7))
        batch = await session.next(10, 1000, 5.0)
        assert session.hand_out(batch)
        return [record.offset for _, record in batch.records]

    assert asyncio.run(poll()) == [7, 8, 9]


def test_two_who_subscribe_as_one(monkeypatch: Any) -> None:
    """The second may have its answer first, when the first has not yet set the time that is kept."""
    waits = [0.2, 0.0]

    async def subscribe(self: Session, topics: list[str]) -> None:
        await asyncio.sleep(waits.pop(0))

    async def both() -> None:
        sessions = Sessions(NO_CLUSTER, 10)
        monkeypatch.setattr(Session, "subscribe", subscribe)
        async with sessions.lifespan():
            found = await asyncio.gather(*(sessions.subscribe("g", "i", ["t"], None, 5.0) for _ in range(2)))
            assert found[0][0] is found[1][0] and [is_new for _, is_new in found] == [True, False]
            assert len(sessions._timers) == 1

    asyncio.run(both())
