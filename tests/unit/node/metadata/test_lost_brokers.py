"""What clients are told of a broker that died a moment ago: no leader there, and yet its address."""

import asyncio
import inspect
from typing import Any, NoReturn
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import BrokerId
from millstream.formats.protocol.primitives import Cursor
from millstream.formats.protocol.schema import Message, request_schema, response_schema
from millstream.node.broker.cluster_apis import ClusterHandlers
from millstream.node.cluster.cluster_view import LostBrokers
from millstream.node.metadata.brokers import fence_broker
from millstream.node.metadata.topics import NewTopic
from millstream.node.server.authorization import NO_AUTHORIZER
from millstream.node.server.request import Context
from millstream.node.server.service import Peer
from tests.unit.node.metadata.cluster import Cluster

SESSION_SECONDS = 9.0
VERSION = 12


class World:
    """Three brokers of which the first led the only partition; we are the second."""

    def __init__(self) -> None:
        self.cluster = Cluster(3)
        self.cluster.create(NewTopic(name="a", assignments=[(0, [1, 2, 3])]))
        self.now_s = 100.0
        self.lost = LostBrokers(lambda: self.cluster.image, lambda: SESSION_SECONDS, lambda: self.now_s)
        known: dict[str, Any] = {
            "node_id": 2,
            "image": lambda: self.cluster.image,
            "lost_brokers": self.lost,
            "may_create_topics": lambda: False,
            "described_partitions_limit": 100,
            "authorizer": NO_AUTHORIZER,
        }
        others = [name for name in inspect.signature(ClusterHandlers).parameters if name not in known]
        self.handlers = ClusterHandlers(**dict.fromkeys(others, _not_needed) | known)

    def fence(self, number: int) -> None:
        decision = fence_broker(self.cluster.image, BrokerId(number), self.cluster.config)
        self.lost.follow(self.cluster.take(decision))

    def ask(self, *, all_topics: bool = False) -> tuple[list[int], int, int, list[int]]:
        """The brokers of a Metadata response; leader, error and offline replicas of the partition."""
        topics = None if all_topics else [{"name": "a", "topic_id": UUID(int=0)}]
        encoded = request_schema("metadata").encode({"topics": topics}, VERSION)
        request: Any = request_schema("metadata").read(Cursor(encoded), VERSION)
        response = self.handlers.metadata(request, Context(VERSION, "test", Peer("127.0.0.1", 1, "PLAINTEXT")))
        if inspect.isawaitable(response):
            response = asyncio.run(_value(response))
        assert isinstance(response, bytes)
        told: Message = response_schema("metadata").read(Cursor(response), VERSION)
        partition = told.topics[0].partitions[0]
        brokers = [broker.node_id for broker in told.brokers]
        return brokers, partition.leader_id, partition.error_code, list(partition.offline_replicas)


async def _value(response: Any) -> Any:
    return await response


def _not_needed() -> NoReturn:
    raise AssertionError


@pytest.fixture
def world() -> World:
    return World()


def test_no_one_is_sent_to_a_leader_whose_connection_broke(world: World) -> None:
    assert world.ask() == ([1, 2, 3], 1, 0, [])
    world.lost.connection_lost(1)
    assert world.ask() == ([1, 2, 3], -1, ErrorCode.LEADER_NOT_AVAILABLE, [])
    world.lost.connection_made(1)
    assert world.ask() == ([1, 2, 3], 1, 0, [])


def test_the_doubt_ends_by_itself(world: World) -> None:
    world.lost.connection_lost(1)
    world.now_s += 1.9
    assert world.lost.missing() == {1}
    world.now_s += 0.2
    assert world.lost.missing() == frozenset()
    assert world.ask() == ([1, 2, 3], 1, 0, [])


def test_a_broker_that_registered_again_is_not_missing(world: World) -> None:
    world.lost.connection_lost(1)
    world.cluster.restart(1, clean=False)
    assert world.lost.missing() == frozenset()


def test_a_fenced_broker_is_listed_for_the_time_of_a_session(world: World) -> None:
    world.lost.connection_lost(1)
    world.fence(1)
    assert world.ask() == ([1, 2, 3], 2, 0, [1])
    assert world.ask(all_topics=True) == ([2, 3], 2, 0, [1]), "who asks for everything wants it as it is"
    assert world.lost.missing() == frozenset(), "the metadata knows better now"
    world.now_s += SESSION_SECONDS - 0.1
    assert world.ask() == ([1, 2, 3], 2, 0, [1])
    world.now_s += 0.2
    assert world.ask() == ([2, 3], 2, 0, [1])


def test_a_broker_that_begins_again_is_listed_when_it_serves(world: World) -> None:
    world.fence(1)
    world.cluster.restart(1, clean=False, unfence=False)
    assert world.lost.departed() == frozenset()
    assert world.ask()[0] == [2, 3]
    world.cluster.unfence(1)
    assert world.ask()[0] == [1, 2, 3]


def test_those_who_were_fenced_long_ago_are_not_listed(world: World) -> None:
    world.cluster.fence(3)
    lost = LostBrokers(lambda: world.cluster.image, lambda: SESSION_SECONDS, lambda: world.now_s)
    assert lost.departed() == frozenset()
