"""Markers on their way: gathered for each broker, tried again for ever, following the leaders."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import Marker, TopicPartition
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataDelta
from millstream.node.server.network import SocketNetwork
from millstream.node.transactions.markers import TransactionMarkers
from tests.unit.node.controller.bench import LeapingLoop
from tests.unit.node.coordination.transaction_run import partition
from tests.waiting import TIMEOUT_SECONDS

A, B, C = partition("a"), partition("b"), partition("c")
HERE = 1


def marker(producer_id: int) -> Marker:
    return Marker(producer_id, 4, 7, True, 2)


class Leaders:
    """The brokers: who leads what, what they were asked, and what they say."""

    def __init__(self) -> None:
        self.led: dict[TopicPartition, int] = {}
        self.errors: dict[TopicPartition, list[ErrorCode]] = {}
        self.hanging: set[int] = set()
        self.unreachable: set[int] = set()
        self.requests: list[tuple[int, list[tuple[int, list[str]]]]] = []
        self.node_id = HERE

    @property
    def image(self) -> "Leaders":
        return self

    def partition(self, at: TopicPartition) -> SimpleNamespace | None:
        return SimpleNamespace(leader=self.led[at]) if at in self.led else None

    def _error(self, at: TopicPartition) -> ErrorCode:
        errors = self.errors.get(at)
        return errors.pop(0) if errors else ErrorCode.NONE

    async def write(self, sent: Marker, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
        self.requests.append((HERE, [(sent.producer_id, [at.topic for at in partitions])]))
        return {at: self._error(at) for at in partitions}

    async def request(
        self, broker_id: int, api: str, fields: Mapping[str, Any], *, timeout_s: float
    ) -> SimpleNamespace:
        assert api == "write_txn_markers"
        rows = fields["markers"]
        self.requests.append((broker_id, [(row["producer_id"], [t["name"] for t in row["topics"]]) for row in rows]))
        if broker_id in self.hanging:
            await asyncio.Event().wait()
        if broker_id in self.unreachable:
            raise ConnectionError("nobody is there")
        await asyncio.sleep(0)
        return SimpleNamespace(
            markers=[
                SimpleNamespace(
                    producer_id=row["producer_id"],
                    topics=[
                        SimpleNamespace(
                            name=topic["name"],
                            partitions=[
                                SimpleNamespace(partition_index=each, error_code=self._error(partition(topic["name"])))
                                for each in topic["partition_indexes"]
                            ],
                        )
                        for topic in row["topics"]
                    ],
                )
                for row in rows
            ]
        )


def run(work: Callable[[Leaders, TransactionMarkers], Coroutine[Any, Any, None]]) -> None:
    """In virtual time: what a test waits for takes no time, and no busy machine makes it longer."""
    loop = LeapingLoop()

    async def main() -> None:
        leaders = Leaders()
        environment = Environment(None, loop, None, random.Random(1), SocketNetwork(loop))  # type: ignore[arg-type]
        markers = TransactionMarkers(leaders, leaders, leaders, environment)  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(work(leaders, markers), TIMEOUT_SECONDS)
        finally:
            markers.close()

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def changed() -> MetadataDelta:
    return MetadataDelta(changed={"a": None})  # type: ignore[dict-item]


def sent(markers: TransactionMarkers, producer_id: int, *partitions: TopicPartition) -> "asyncio.Future[None]":
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    markers.send(marker(producer_id), partitions, lambda: True, lambda: done.set_result(None))
    return done


def test_markers_go_to_local_and_remote_leaders() -> None:
    async def work(leaders: Leaders, markers: TransactionMarkers) -> None:
        leaders.led = {A: HERE, B: 2, C: 3}
        await sent(markers, 5, A, B, C)
        assert sorted(leaders.requests) == [(1, [(5, ["a"])]), (2, [(5, ["b"])]), (3, [(5, ["c"])])]
        await sent(markers, 6)

    run(work)


def test_markers_that_wait_are_sent_in_one_request() -> None:
    async def work(leaders: Leaders, markers: TransactionMarkers) -> None:
        leaders.led = {A: 2, B: 2}
        first = sent(markers, 5, A)
        await asyncio.sleep(0)
        await asyncio.gather(first, *(sent(markers, number, A, B) for number in (6, 7, 6)))
        assert leaders.requests == [
            (2, [(5, ["a"])]),
            (2, [(6, ["a", "b"]), (7, ["a", "b"])]),
            (2, [(6, ["a", "b"])]),
        ]

    run(work)


@pytest.mark.parametrize("broker", [HERE, 2])
def test_markers_that_fail_are_sent_again(broker: int) -> None:
    async def work(leaders: Leaders, markers: TransactionMarkers) -> None:
        leaders.led = {A: broker, B: broker}
        leaders.errors = {
            A: [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.TRANSACTION_COORDINATOR_FENCED],
            B: [ErrorCode.INVALID_PRODUCER_EPOCH],
        }
        await sent(markers, 5, A, B)
        assert leaders.requests == [(broker, [(5, ["a", "b"])]), (broker, [(5, ["a"])]), (broker, [(5, ["a"])])]

    run(work)


def test_a_broker_that_cannot_be_reached_is_tried_again() -> None:
    async def work(leaders: Leaders, markers: TransactionMarkers) -> None:
        leaders.led, leaders.unreachable = {A: 2}, {2}
        done = sent(markers, 5, A)
        await asyncio.sleep(0.3)
        assert len(leaders.requests) > 1
        leaders.unreachable.clear()
        await done

    run(work)


def test_no_one_waits_for_one_that_leads_no_longer() -> None:
    async def work(leaders: Leaders, markers: TransactionMarkers) -> None:
        leaders.led, leaders.hanging = {A: 2, B: 2}, {2}
        first, second = sent(markers, 5, A), sent(markers, 6, B)
        await asyncio.sleep(0.01)
        third = sent(markers, 7, A)
        leaders.led = {A: 3, B: HERE}
        markers.follow(changed())
        await asyncio.gather(first, second, third)
        assert {broker for broker, _ in leaders.requests} == {1, 2, 3}

    run(work)


def test_without_a_leader_it_waits_and_without_a_topic_it_does_not() -> None:
    async def work(leaders: Leaders, markers: TransactionMarkers) -> None:
        leaders.led = {A: -1}
        done = sent(markers, 5, A, B)
        await asyncio.sleep(0.25)
        assert not done.done() and not leaders.requests
        del leaders.led[A]
        markers.follow(changed())
        await done

    run(work)


def test_what_is_not_wanted_any_more_is_dropped() -> None:
    async def work(leaders: Leaders, markers: TransactionMarkers) -> None:
        leaders.led, leaders.unreachable = {A: 2}, {2}
        wanted = [True]
        markers.send(marker(5), [A], lambda: wanted[0], lambda: pytest.fail("it is done"))
        await asyncio.sleep(0.05)
        wanted[0] = False
        leaders.unreachable.clear()
        await asyncio.sleep(0.3)
        assert len(leaders.requests) == 1

    run(work)
