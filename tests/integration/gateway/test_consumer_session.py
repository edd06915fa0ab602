"""One consumer, its fetches made up: what happens while a poll waits."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from anyio import CapacityLimiter

from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.opening import WIDEST
from millstream.formats.records.record import Record
from millstream.gateway.consumers.fetches import FetchedPartition
from millstream.gateway.consumers.member import GroupMember, Owner
from millstream.gateway.consumers.session import Session, SessionResources
from millstream.gateway.consumers.sessions import Sessions
from millstream.gateway.identity.caller import Caller, Connection, set_caller
from millstream.raw_client import Cluster, TopicPartition
from tests.waiting import TIMEOUT_SECONDS

PLACE = TopicPartition("t", 0)
NO_CLUSTER = cast(Cluster, None)


class MadeUpFlights:
    """Of a log without end; the first fetch brings what it was sent for, though the position moves meanwhile."""

    def __init__(self, session: Session, sought: int) -> None:
        self.session = session
        self.sought: int | None = sought

    async def next(self, positions: dict[TopicPartition, int], *_: Any) -> dict[TopicPartition, FetchedPartition]:
        at = positions[PLACE]
        if self.sought is not None:
            self.session._progress[PLACE].seek(self.sought)
            self.sought = None
        return {PLACE: FetchedPartition([Record(None, b"", (), 0, at + number) for number in range(3)], at + 3)}


def test_what_was_fetched_before_a_seek_is_void() -> None:
    async def poll() -> list[int]:
        limiter = CapacityLimiter(1)
        session = Session(
            SessionResources(limiter, limiter, limiter, lambda: 1, WIDEST), NO_CLUSTER, "", "g", "i", "earliest", 60
        )
        session._progress.begin(PLACE, 100, None)
        session._fetches = cast(Any, MadeUpFlights(session, sought=7))
        batch = await session.next(10, 1000, 5.0)
        assert session.hand_out(batch)
        return [record.offset for _, record in batch.records]

    assert asyncio.run(poll()) == [7, 8, 9]


class SlowCoordinator:
    """Forgets its member at once, and takes its time to have it join again."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.is_asked, self.may_respond = threading.Event(), threading.Event()

    def call_coordinator(self, *_: Any, member_epoch: int, **__: Any) -> Any:
        code, epoch = ErrorCode.NONE, 1
        if member_epoch > 0:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        elif member_epoch == 0 and self.epochs:
            self.is_asked.set()
            assert self.may_respond.wait(TIMEOUT_SECONDS)
        self.epochs.append(member_epoch)
        return SimpleNamespace(error_code=code, member_epoch=epoch, heartbeat_interval_ms=100, assignment=None)


@pytest.mark.timeout(300)
def test_who_leaves_while_joining_again_leaves_last() -> None:
    """Or else a member that no one knows of would keep its partitions."""
    coordinator = SlowCoordinator()

    async def leave() -> None:
        owner = cast(Owner, SimpleNamespace())
        member = GroupMember(cast(Cluster, coordinator), CapacityLimiter(4), "g", owner)
        await member.join(["t"])
        await asyncio.to_thread(coordinator.is_asked.wait, TIMEOUT_SECONDS)
        leaving = asyncio.create_task(member.leave())
        for _ in range(20):
            await asyncio.sleep(0)  # it has begun, and waits for the other request
        coordinator.may_respond.set()
        await leaving

    asyncio.run(leave())
    assert coordinator.epochs == [0, 1, 0, -1]


def test_two_subscriptions_of_one_member_share_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second may have its response first, when the first has not yet set the time that is kept."""
    asked: list[Session] = []

    async def both() -> None:
        second_is_done = asyncio.Event()

        async def subscribe(self: Session, topics: list[str]) -> None:
            asked.append(self)
            if len(asked) == 1:
                await second_is_done.wait()
            else:
                asyncio.get_running_loop().call_soon(second_is_done.set)

        set_caller(Caller("", Connection(NO_CLUSTER)))
        sessions = Sessions(10, WIDEST, 10)
        monkeypatch.setattr(Session, "subscribe", subscribe)
        async with sessions.lifespan():
            found = await asyncio.gather(*(sessions.subscribe("g", "i", ["t"], None, 5.0) for _ in range(2)))
            assert found[0][0] is found[1][0] and [is_new for _, is_new in found] == [True, False]
            assert len(sessions._timers) == 1

    asyncio.run(both())
