"""What listeners hear: everything once, in order, in pieces where it is much."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from millstream.node.consensus.quorum import publication as publication_module
from millstream.node.consensus.quorum.metadata_log import CommittedBatch
from millstream.node.consensus.quorum.publication import Publication
from millstream.node.consensus.raft.log import LeaderChangeRecord
from millstream.node.metadata.records import MetadataRecord, TopicRecord
from tests.unit.node.consensus.quorum.conftest import NOW, DiskOfNode, append, flush, topic


class Listener:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def committed(self, records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        self.heard.append(([record.name for record in records if isinstance(record, TopicRecord)], offset, epoch))

    def reset(self, image_records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        self.heard.append(("reset", offset, epoch))

    def leader_changed(self, leader_id: int | None, epoch: int) -> None:
        self.heard.append(("leader", leader_id, epoch))

    def leading(self, epoch: int) -> None:
        self.heard.append(("leading", epoch))

    def no_longer_leading(self) -> None:
        self.heard.append("no longer leading")


def run_now(step: Callable[[], None]) -> None:
    step()


@pytest.fixture
def listener() -> Listener:
    return Listener()


def publish(node: DiskOfNode, loop: asyncio.AbstractEventLoop, listener: Listener) -> Publication:
    """A publication of a log with a control batch and five topics, in two epochs."""
    log = node.open()
    log.append_control(1, [LeaderChangeRecord(1, (1,), (1,))], NOW)
    for number in range(3):
        append(log, topic(number))
    log.append_control(2, [LeaderChangeRecord(1, (1,), (1,))], NOW)
    append(log, topic(3), topic(4), epoch=2)
    flush(log)
    publication = Publication(log, loop, run_now)
    publication.listeners.append(listener)
    return publication


async def turns() -> None:
    """More turns of the loop than anything here takes."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_batches_of_an_epoch_are_told_together(
    node: DiskOfNode, loop: asyncio.AbstractEventLoop, listener: Listener
) -> None:
    publication = publish(node, loop, listener)
    publication.advance(1)
    assert listener.heard == [], "control records are nobody's concern"
    publication.advance(7)
    publication.advance(7)
    assert listener.heard == [(["topic-0", "topic-1", "topic-2"], 3, 1), (["topic-3", "topic-4"], 6, 2)]


def test_leadership_is_told_when_everything_before_it_is(
    node: DiskOfNode, loop: asyncio.AbstractEventLoop, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication_module, "_BATCHES_PER_TURN", 2)
    publication = publish(node, loop, listener)
    publication.is_starting = False
    publication.leading(2, 7)
    assert listener.heard == [(["topic-0"], 1, 1)], "the rest comes with the next turns of the loop"
    loop.run_until_complete(turns())
    assert listener.heard[1:] == [(["topic-1", "topic-2"], 3, 1), (["topic-3", "topic-4"], 6, 2), ("leading", 2)]
    publication.no_longer_leading()
    publication.no_longer_leading()
    assert listener.heard[4:] == ["no longer leading"]


def test_leadership_that_is_over_before_it_was_told_is_never_told(
    node: DiskOfNode, loop: asyncio.AbstractEventLoop, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication_module, "_BATCHES_PER_TURN", 2)
    publication = publish(node, loop, listener)
    publication.is_starting = False
    publication.leading(2, 7)
    publication.no_longer_leading()
    loop.run_until_complete(turns())
    assert [heard for heard in listener.heard if "lead" in str(heard)] == []


def test_what_a_leader_appended_is_not_read_back(
    node: DiskOfNode, loop: asyncio.AbstractEventLoop, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication = publish(node, loop, listener)
    publication.advance(7)
    listener.heard.clear()
    log = publication._log
    for number in (5, 6):
        last = append(log, topic(number), epoch=2)
        publication.appended(CommittedBatch(last, 2, NOW, 50, [topic(number)]))
    monkeypatch.setattr(log, "batches", lambda offset, below: pytest.fail("it was read"))
    publication.advance(8)
    publication.advance(9)
    assert listener.heard == [(["topic-5"], 7, 2), (["topic-6"], 8, 2)]
