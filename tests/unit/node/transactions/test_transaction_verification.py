"""Asking transaction coordinators: here or elsewhere, together where that is possible, again while it may help."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from millstream.config.loading import load_broker_config
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.node.transactions.verification import TransactionVerification

HERE, THERE, NOBODY = 1, 2, -1


def at(*indexes: int) -> list[TopicPartition]:
    return [TopicPartition(TopicName("t"), index) for index in indexes]


class Coordinator:
    """The one on this node; ids are in the partition that their last letter says."""

    def __init__(self) -> None:
        self.responses: list[ErrorCode] = []
        self.asked = 0

    def partition_of(self, transactional_id: str) -> int:
        if not transactional_id:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "there is no such topic yet")
        return int(transactional_id[-1])

    async def verify(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[TopicPartition], *, adds: bool
    ) -> dict[TopicPartition, ErrorCode]:
        self.asked += 1
        return dict.fromkeys(partitions, self.responses.pop(0) if self.responses else ErrorCode.NONE)


class Peers:
    """Other brokers, which respond when the test says so."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, dict[str, Any], asyncio.Future[Any]]] = []

    async def request(self, broker_id: int, api: str, fields: Any, *, timeout_s: float, version: int) -> Any:
        assert (api, version) == ("add_partitions_to_txn", 5)
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.requests.append((broker_id, fields, response))
        return await response

    def names(self, number: int) -> list[str]:
        return [row["transactional_id"] for row in self.requests[number][1]["transactions"]]

    def respond(self, number: int, error: ErrorCode = ErrorCode.NONE, **errors: ErrorCode) -> None:
        """Says the same of all partitions of a transaction; nothing of those whose error is UNKNOWN_SERVER_ERROR."""
        rows = []
        for row in self.requests[number][1]["transactions"]:
            said = errors.get(row["transactional_id"], ErrorCode.NONE)
            results = [
                SimpleNamespace(partition_index=index, partition_error_code=said)
                for topic in row["topics"]
                for index in topic["partitions"]
            ]
            if said != ErrorCode.UNKNOWN_SERVER_ERROR:
                topics = [SimpleNamespace(name="t", results_by_partition=results)]
                rows.append(SimpleNamespace(transactional_id=row["transactional_id"], topic_results=topics))
        self.requests[number][2].set_result(SimpleNamespace(error_code=error, results_by_transaction=rows))


class World:
    def __init__(self, **settings: str) -> None:
        self.local, self.peers = Coordinator(), Peers()
        leaders = (HERE, THERE, NOBODY)
        image = SimpleNamespace(
            partition=lambda found: SimpleNamespace(leader=leaders[found.partition]) if found.partition < 3 else None
        )
        config = load_broker_config(overrides=[f"{name.replace('_', '.')}={value}" for name, value in settings.items()])
        view: Any = SimpleNamespace(image=image, node_id=HERE, config=config)
        environment: Any = SimpleNamespace(loop=asyncio.get_running_loop())
        peers: Any = self.peers
        self.verification = TransactionVerification(view, self.local, peers, environment)

    def ask(self, name: str, *indexes: int, adds: bool = True) -> "asyncio.Future[list[ErrorCode]]":
        async def ask() -> list[ErrorCode]:
            found = await self.verification.verify(name, 7, 0, at(*(indexes or (0,))), adds=adds)
            return [found[each] for each in at(*(indexes or (0,)))]

        return asyncio.ensure_future(ask())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_coordinator_here_and_none_at_all() -> None:
    async def story() -> None:
        world = World()
        assert await world.ask("x0", 0, 1) == [ErrorCode.NONE, ErrorCode.NONE]
        for nobody in ("x2", "x9", ""):
            assert await world.ask(nobody) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        world.local.responses = [ErrorCode.PRODUCER_FENCED]
        assert await world.ask("x0") == [ErrorCode.INVALID_PRODUCER_EPOCH], "which producers know"

    asyncio.run(story())


def test_the_end_of_the_transaction_before_is_waited_for_a_while() -> None:
    async def story() -> None:
        world = World(add_partitions_to_txn_retry_backoff_ms="1", add_partitions_to_txn_retry_backoff_max_ms="10000")
        world.local.responses = [ErrorCode.CONCURRENT_TRANSACTIONS] * 3
        assert await world.ask("x0") == [ErrorCode.NONE] and world.local.asked == 4
        world = World(add_partitions_to_txn_retry_backoff_max_ms="0")
        world.local.responses = [ErrorCode.CONCURRENT_TRANSACTIONS] * 3
        assert await world.ask("x0") == [ErrorCode.CONCURRENT_TRANSACTIONS] and world.local.asked == 1

    asyncio.run(story())


def test_another_broker_gets_together_what_has_gathered() -> None:
    async def story() -> None:
        world = World()
        first = world.ask("a1", 0, 1)
        await settle()
        others = [world.ask("b1", adds=False), world.ask("c1"), world.ask("b1", 3)]
        await settle()
        assert len(world.peers.requests) == 1, "one at a time"
        broker_id, fields, _ = world.peers.requests[0]
        assert broker_id == THERE and fields["transactions"] == [
            {
                "transactional_id": "a1",
                "producer_id": 7,
                "producer_epoch": 0,
                "verify_only": False,
                "topics": [{"name": "t", "partitions": [0, 1]}],
            }
        ]
        world.peers.respond(0)
        await settle()
        assert await first == [ErrorCode.NONE, ErrorCode.NONE]
        assert world.peers.names(1) == ["b1", "c1"], "each transaction once"
        assert world.peers.requests[1][1]["transactions"][0]["verify_only"] is True
        world.peers.respond(1, b1=ErrorCode.INVALID_TXN_STATE)
        await settle()
        assert world.peers.names(2) == ["b1"]
        world.peers.respond(2)
        assert [await each for each in others] == [[ErrorCode.INVALID_TXN_STATE], [ErrorCode.NONE], [ErrorCode.NONE]]

    asyncio.run(story())


def test_a_lost_or_unexpected_response_refuses_the_partition() -> None:
    async def story() -> None:
        world = World()
        lost = world.ask("a1")
        await settle()
        world.peers.requests[0][2].set_exception(ConnectionError("gone"))
        assert await lost == [ErrorCode.NETWORK_EXCEPTION]
        refused = world.ask("a1")
        await settle()
        world.peers.respond(1, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        assert await refused == [ErrorCode.INVALID_TXN_STATE], "which is no matter of the client's"
        silent = world.ask("a1")
        await settle()
        world.peers.respond(2, a1=ErrorCode.UNKNOWN_SERVER_ERROR)
        assert await silent == [ErrorCode.INVALID_TXN_STATE]

    asyncio.run(story())


def test_who_asks_when_the_broker_stops_is_told() -> None:
    async def story() -> None:
        world = World()
        asking = [world.ask("a1"), world.ask("b1")]
        await settle()
        world.verification.close()
        assert [await each for each in asking] == [[ErrorCode.NETWORK_EXCEPTION]] * 2

    asyncio.run(story())
