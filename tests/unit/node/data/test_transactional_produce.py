"""Produce in a transaction while its coordinator takes its time: order, fencing, what changes meanwhile, responses."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import Marker, TopicName, TopicPartition
from millstream.formats.protocol.produce import PartitionData, ProduceRequest
from millstream.formats.records.opening import OpeningLimits
from millstream.node.data.batch_opening import BatchOpening
from millstream.node.data.produce import ProduceHandler
from millstream.node.data.schema_validation import SchemaGuard
from millstream.node.environment import Environment
from millstream.node.groups.handlers import for_offset_commit
from millstream.node.metadata.image import MetadataImage, PartitionState
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.runtime.disk import RealDisk
from millstream.node.server.network import SocketNetwork
from millstream.node.server.request import ProduceResults
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.transactions import produce as transactional_produce
from millstream.node.transactions.produce import TransactionalProduce
from millstream.node.transactions.verification import for_producer
from tests import wire as wires

PRODUCER = 7
TOPIC_ID = UUID(int=9)
LED_HERE = PartitionState(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
Asked = tuple[str, int, int, tuple[int, ...], bool]


class Clock:
    def now_ms(self) -> int:
        return wires.now_ms()


class Coordinator:
    """Responds when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._responses: list[asyncio.Future[dict[TopicPartition, ErrorCode]]] = []

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        indexes = tuple(at.partition for at in partitions)
        self.asked.append((transactional_id, producer_id, producer_epoch, indexes, adds))
        response: asyncio.Future[dict[TopicPartition, ErrorCode]] = asyncio.get_running_loop().create_future()
        self._responses.append(response)
        given = await response
        return {at: given.get(at, ErrorCode.NONE) for at in partitions}

    async def respond(self, **errors: ErrorCode) -> None:
        """Responds to the oldest request; errors by partition, as p0=..."""
        await settle()
        at = {TopicPartition(TopicName("t"), int(name[1:])): error for name, error in errors.items()}
        self._responses.pop(0).set_result(at)
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class World:
    def __init__(self, root: Path) -> None:
        self.logs = LogDirectory(RealDisk(), str(root))
        self.logs.start(0)
        self.is_enabled = True

    def begin(self) -> None:
        loop = asyncio.get_running_loop()

        def offload(function: Callable[[], Any]) -> "asyncio.Future[Any]":
            return loop.run_in_executor(None, function)

        environment = Environment(Clock(), loop, offload, random.Random(1), SocketNetwork(loop))
        table = PartitionTable()
        replicas: Any = SimpleNamespace(node_id=1)
        for index in range(3):
            partition = Partition(
                TopicPartition(TopicName("t"), index), TOPIC_ID, self._opener(index), environment, replicas
            )
            partition.become_leader(LED_HERE)
            table.add(partition)
        self.coordinator = Coordinator()
        nowhere: Any = SimpleNamespace(state_in_metadata=lambda *at: None)
        self.transactional = TransactionalProduce(table, self.coordinator, environment, lambda: self.is_enabled)
        opening = BatchOpening(table, SchemaGuard(MetadataImage(), nowhere), nowhere, environment, OpeningLimits)
        self.handler = ProduceHandler(table, environment, nowhere, self.transactional, opening)
        self.partitions = [table.find("t", index) for index in range(3)]

    def _opener(self, index: int) -> Callable[[], Any]:
        return lambda: self.logs.create(TopicPartition(TopicName("t"), index), TOPIC_ID, LogConfig(), 0)

    def produce(self, *batches: tuple[int, bytes], version: int = 12, acks: int = -1, name: bytes | None = b"x") -> Any:
        """Sends (partition, batch)s; what comes back is filled in with the response."""
        buffer = bytearray(b"before")
        datas = []
        for index, data in batches:
            datas.append(PartitionData(index, len(buffer), len(buffer) + len(data)))
            buffer += data
        request = ProduceRequest(name, acks, 1000, [(b"t", datas)])
        results, wait = self.handler.append(request, version, buffer)
        response: Any = SimpleNamespace(errors=None, offsets=None)

        def told(final: ProduceResults) -> None:
            response.errors = [row.error for row in final[0][1]]
            response.offsets = [row.base_offset for row in final[0][1]]

        if wait is None:
            told(results)
        else:
            wait(told)
        buffer[:] = b"\xff" * len(buffer)  # as the connection does with its own
        return response

    def end(self, index: int, *, epoch: int = 0, committed: bool = True) -> None:
        self.partitions[index].append_marker(Marker(PRODUCER, epoch, 0, committed, 1), wires.now_ms())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.logs.close(0)


def batch(sequence: int, *values: bytes, epoch: int = 0, producer: int = PRODUCER, transactional: bool = True) -> bytes:
    return wires.batch(
        *(values or (b"v",)),
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_a_first_batch_waits_for_the_coordinator_and_the_next_ones_do_not(world: World) -> None:
    async def story() -> None:
        world.begin()
        first = world.produce((0, batch(0)))
        assert not first.offsets and world.partitions[0].log.log_end_offset == 0
        await world.coordinator.respond()
        assert (first.errors, first.offsets) == ([0], [0])
        assert world.coordinator.asked == [("x", PRODUCER, 0, (0,), True)]
        assert world.produce((0, batch(1))).offsets == [1], "at once"
        assert len(world.coordinator.asked) == 1
        world.end(0)
        again = world.produce((0, batch(2)))
        assert again.errors is None, "another transaction"
        await world.coordinator.respond()
        assert again.offsets == [3]

    run(story())


def test_pipelined_requests_stay_in_order_and_are_asked_about_together(world: World) -> None:
    async def story() -> None:
        world.begin()
        responses = [world.produce((0, batch(0)))]
        await settle()
        responses += [world.produce((0, batch(sequence))) for sequence in range(1, 4)]
        responses.append(world.produce((1, batch(0)), (2, batch(0))))
        await world.coordinator.respond()
        assert [each.offsets for each in responses[:4]] == [[0], None, None, None], "nobody overtakes"
        await world.coordinator.respond()
        assert [each.offsets for each in responses] == [[0], [1], [2], [3], [0, 0]]
        assert [asked[3] for asked in world.coordinator.asked] == [(0,), (1, 2)], "one question for what had gathered"

    run(story())


def test_a_partition_that_needs_no_question_waits_with_its_request(world: World) -> None:
    async def story() -> None:
        world.begin()
        opened = world.produce((0, batch(0)))
        await world.coordinator.respond()
        mixed = world.produce((0, batch(1)), (1, batch(0)))
        behind = world.produce((0, batch(2)))
        assert mixed.errors is None and behind.errors is None
        await world.coordinator.respond()
        assert (opened.offsets, mixed.offsets, behind.offsets) == ([0], [1, 0], [2])

    run(story())


def test_other_producers_do_not_wait(world: World) -> None:
    async def story() -> None:
        world.begin()
        waiting = world.produce((0, batch(0)))
        other = world.produce((0, batch(0, producer=8)), name=b"y")
        plain = world.produce((0, wires.batch(b"plain")), name=None)
        assert plain.offsets == [0]
        await world.coordinator.respond(p0=ErrorCode.INVALID_TXN_STATE)
        assert waiting.errors == [ErrorCode.INVALID_TXN_STATE] and other.errors is None
        await world.coordinator.respond()
        assert other.offsets == [1]

    run(story())


@pytest.mark.parametrize(
    ("said", "version", "told"),
    [
        (ErrorCode.NETWORK_EXCEPTION, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 12, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_errors_of_verification_become_errors_of_the_produce_version(
    world: World, said: ErrorCode, version: int, told: ErrorCode
) -> None:
    async def story() -> None:
        world.begin()
        refused = world.produce((0, batch(0)), (1, batch(0)), version=version)
        await world.coordinator.respond(p0=said)
        assert (refused.errors, refused.offsets) == ([told, 0], [-1, 0])
        assert world.coordinator.asked[0][4] is (version >= 12)

    run(story())


def test_what_those_are_told_who_commit_offsets() -> None:
    assert for_offset_commit(ErrorCode.NETWORK_EXCEPTION, 5) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert for_offset_commit(ErrorCode.TRANSACTION_ABORTABLE, 3) == ErrorCode.INVALID_TXN_STATE
    assert for_offset_commit(ErrorCode.TRANSACTION_ABORTABLE, 4) == ErrorCode.TRANSACTION_ABORTABLE
    assert for_offset_commit(ErrorCode.INVALID_PRODUCER_EPOCH, 4) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert for_producer(ErrorCode.INVALID_TXN_STATE, 12) == ErrorCode.INVALID_TXN_STATE


def test_a_refusal_does_not_stop_those_behind_it(world: World) -> None:
    async def story() -> None:
        world.begin()
        responses = [world.produce((0, batch(0))), world.produce((1, batch(0)))]
        await world.coordinator.respond(p0=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert responses[0].errors == [ErrorCode.NOT_ENOUGH_REPLICAS] and responses[1].errors == [0]
        again = world.produce((0, batch(0)))
        await world.coordinator.respond()
        assert again.offsets == [0]

    run(story())


def test_a_response_that_comes_after_a_marker_is_not_used(world: World) -> None:
    async def story() -> None:
        world.begin()
        late = world.produce((0, batch(0)), version=11)
        await settle()
        world.end(0, committed=False)
        await world.coordinator.respond()
        assert late.errors == [ErrorCode.INVALID_TXN_STATE]
        assert world.partitions[0].log.first_unstable_offset is None

    run(story())


def test_leadership_that_goes_and_one_that_comes_back(world: World) -> None:
    async def story() -> None:
        world.begin()
        partition = world.partitions[0]
        waiting = world.produce((0, batch(0)))
        await settle()
        partition.become_follower(replace(LED_HERE, leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2)))
        await world.coordinator.respond()
        assert waiting.errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        partition.become_leader(replace(LED_HERE, leader_epoch=2))
        waiting = world.produce((0, batch(0)))
        await settle()
        partition.become_leader(replace(LED_HERE, leader_epoch=3))
        await world.coordinator.respond()
        assert waiting.errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER], "asked about in another epoch"

    run(story())


def test_an_outdated_epoch_is_refused_without_a_question(world: World) -> None:
    async def story() -> None:
        world.begin()
        opened = world.produce((0, batch(0, epoch=3)))
        await world.coordinator.respond()
        assert opened.errors == [0]
        assert world.produce((0, batch(1, epoch=2))).errors == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert len(world.coordinator.asked) == 1

    run(story())


def test_requests_that_are_no_proper_ones(world: World) -> None:
    async def story() -> None:
        world.begin()
        refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert world.produce((0, batch(0)), name=None).errors == [refused]
        assert world.produce((0, batch(0)), acks=1).errors == [ErrorCode.INVALID_REQUIRED_ACKS]
        two = world.produce((0, batch(0)), (1, batch(0, producer=8)))
        assert two.errors == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
        two = world.produce((0, batch(0)), (1, batch(0, epoch=1)))
        assert two.errors == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
        assert world.produce((0, b"short")).errors == [ErrorCode.CORRUPT_MESSAGE]
        plain = world.produce((0, wires.batch(b"of no transaction")))
        assert plain.offsets == [0], "as in Kafka: the id alone makes no transaction"
        unknown = world.produce((9, batch(0)), (0, batch(0)))
        await world.coordinator.respond()
        assert unknown.errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
        assert [asked[3] for asked in world.coordinator.asked] == [(0,)]

    run(story())


def test_without_verification_old_clients_are_not_asked_about_and_new_ones_are_added(world: World) -> None:
    async def story() -> None:
        world.is_enabled = False
        world.begin()
        assert world.produce((0, batch(0)), version=11).offsets == [0]
        new = world.produce((1, batch(0)), version=12)
        assert new.errors is None
        await world.coordinator.respond()
        assert new.offsets == [0]

    run(story())


def test_waiting_batches_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_produce, "MAX_WAITING_BYTES", 1000)

    async def story() -> None:
        world.begin()
        first = world.produce((0, batch(0, b"x" * 500)))
        assert world.produce((0, batch(1, b"x" * 500))).errors == [ErrorCode.NOT_ENOUGH_REPLICAS]
        await world.coordinator.respond()
        assert first.errors == [0]
        assert world.produce((0, batch(2))).errors == [ErrorCode.NOT_ENOUGH_REPLICAS], "the one before it comes first"
        assert world.produce((0, batch(1, b"x" * 500))).errors == [0]

    run(story())


def test_those_who_wait_when_the_broker_stops_are_told(world: World) -> None:
    async def story() -> None:
        world.begin()
        responses = [world.produce((0, batch(0))), world.produce((0, batch(1)))]
        await settle()
        world.transactional.close()
        await settle()
        assert [each.errors for each in responses] == [[ErrorCode.NOT_ENOUGH_REPLICAS]] * 2

    run(story())
