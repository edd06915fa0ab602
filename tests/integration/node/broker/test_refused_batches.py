"""A batch that was refused for a reason that passes is not overtaken by those that were sent behind it."""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

import millstream.node.replicas.retry_order as refused_batches
from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.protocol.produce import PartitionData, ProduceRequest
from millstream.formats.records.batch import MAX_SEQUENCE, is_behind
from millstream.formats.records.opening import OpeningLimits
from millstream.node.data.batch_opening import BatchOpening
from millstream.node.data.produce import ProduceHandler
from millstream.node.data.schema_validation import SchemaGuard
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataImage, PartitionState
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.replicas.retry_order import (
    GAP_TIMEOUT_SECONDS,
    NEW_LEADER_SECONDS,
    REMEMBERED_SECONDS,
    RetryOrderGuard,
)
from millstream.node.runtime.disk import RealDisk
from millstream.node.server.network import SocketNetwork
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.producer_state import ProducerState
from tests import wire as wires
from tests.wire import Wire

PRODUCER = 7
AT = TopicPartition(TopicName("t"), 0)
LED_HERE = PartitionState(replicas=(1,), isr=(1,), leader=1, leader_epoch=1, partition_epoch=1)
LED_ELSEWHERE = PartitionState(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=0, partition_epoch=0)
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


def batch(sequence: int, *, count: int = 1, epoch: int = 0, producer: int = PRODUCER) -> bytes:
    values = [b"%d" % (sequence + at) for at in range(count)]
    return wires.batch(*values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


# The handler, when a node begins to lead


class Node:
    """One partition, with the handler in front of it."""

    def __init__(self, root: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._passed = 0.0
        self.has_lost_controller = False
        time = self.loop.time
        self.loop.time = lambda: time() + self._passed  # type: ignore[method-assign]
        self.logs = LogDirectory(RealDisk(), str(root))
        self.logs.start(0)
        clock: Any = SimpleNamespace(now_ms=wires.now_ms)
        offload: Any = None
        environment = Environment(clock, self.loop, offload, random.Random(1), SocketNetwork(self.loop))
        replicas: Any = SimpleNamespace(
            node_id=1,
            lag_max_ms=lambda: 0,
            is_alive=lambda broker_id: False,
            is_eligible=lambda broker_id, epoch, state: False,
            broker_epoch=lambda: 1,
            has_lost_controller=lambda: self.has_lost_controller,
        )
        self.partition = Partition(AT, UUID(int=9), self._open, environment, replicas)
        table = PartitionTable()
        table.add(self.partition)
        nothing: Any = SimpleNamespace(state_in_metadata=lambda *at: None)
        opening = BatchOpening(table, SchemaGuard(MetadataImage(), nothing), nothing, environment, OpeningLimits)
        self.handler = ProduceHandler(table, environment, nothing, nothing, opening)

    def _open(self) -> Any:
        return self.logs.create(AT, UUID(int=9), LogConfig(), 0)

    def close(self) -> None:
        self.logs.close(0)
        self.loop.close()

    def pass_time(self, seconds: float) -> None:
        self._passed += seconds

    def let_pass(self, seconds: float) -> None:
        """As `pass_time`, with all that is due on the way."""
        for _ in range(int(seconds * 10)):
            self.pass_time(0.1)
            self.loop.run_until_complete(asyncio.sleep(0))

    def produce(self, data: bytes) -> tuple[int, int]:
        request = ProduceRequest(None, -1, 1000, [(b"t", [PartitionData(0, 0, len(data))])])
        results, wait = self.handler.append(request, 12, bytearray(data))
        assert wait is None
        row = results[0][1][0]
        return row.error, row.base_offset


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def test_what_was_sent_behind_a_refused_first_batch_waits_for_it(node: Node) -> None:
    """Five under way, the first of them at a node that does not know yet that it leads: none of them may be lost."""
    node.partition.become_follower(LED_ELSEWHERE)
    assert node.produce(batch(0, count=26)) == (NOT_LEADER, -1)
    node.partition.become_leader(LED_HERE)
    for sequence in (26, 27, 28, 29):
        assert node.produce(batch(sequence)) == (NOT_LEADER, -1), "taken, it would stand for those before it"
    assert node.partition.log.log_end_offset == 0
    again = [node.produce(batch(sequence, count=count)) for sequence, count in ((0, 26), (26, 1), (27, 1))]
    assert again == [(0, 0), (0, 26), (0, 27)]


def test_a_known_producer_need_not_begin_a_new_epoch(node: Node) -> None:
    node.partition.become_leader(LED_HERE)
    assert node.produce(batch(0)) == (0, 0)
    node.partition.become_follower(LED_ELSEWHERE)
    assert node.produce(batch(1)) == (NOT_LEADER, -1)
    node.partition.become_leader(LED_HERE)
    assert node.produce(batch(2)) == (NOT_LEADER, -1), "and not OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert [node.produce(batch(sequence)) for sequence in (1, 2)] == [(0, 1), (0, 2)]


def test_others_are_not_concerned(node: Node) -> None:
    node.partition.become_follower(LED_ELSEWHERE)
    assert node.produce(batch(0))[0] == NOT_LEADER
    node.partition.become_leader(LED_HERE)
    assert node.produce(batch(5, producer=8)) == (0, 0), "its records may have been deleted: any sequence may be first"
    assert node.produce(wires.batch(b"plain")) == (0, 1)


# A new leader, while earlier batches are on their way to the old one

LED_HERE_NOW = PartitionState(replicas=(1, 2), isr=(1,), leader=1, leader_epoch=1, partition_epoch=1)


def test_a_new_leader_takes_no_batch_of_an_unknown_producer_before_its_first(node: Node) -> None:
    """The first waits for a response of the old leader, who is cut off; taken, the second would stand for it."""
    node.partition.become_follower(LED_ELSEWHERE)
    node.partition.become_leader(LED_HERE_NOW)
    assert node.produce(batch(13, count=60)) == (NOT_LEADER, -1)
    assert node.produce(batch(73)) == (NOT_LEADER, -1)
    again = [node.produce(batch(sequence, count=count)) for sequence, count in ((0, 13), (13, 60), (73, 1))]
    assert again == [(0, 0), (0, 13), (0, 73)]


def test_a_new_leader_does_not_make_a_known_producer_begin_a_new_epoch(node: Node) -> None:
    node.partition.become_leader(LED_HERE)
    assert node.produce(batch(0)) == (0, 0)
    node.partition.become_follower(LED_ELSEWHERE)
    node.partition.become_leader(LED_HERE_NOW)
    assert node.produce(batch(2)) == (NOT_LEADER, -1), "and not OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert node.produce(batch(0)) == (0, 0), "a repetition"
    assert [node.produce(batch(sequence)) for sequence in (1, 2)] == [(0, 1), (0, 2)]
    assert node.produce(batch(5, epoch=1)) == (NOT_LEADER, -1), "a new epoch begins with 0"
    assert node.produce(batch(0, epoch=1)) == (0, 3)


def test_a_gap_that_no_one_fills_gets_the_response_of_kafka(node: Node) -> None:
    node.partition.become_leader(LED_HERE)
    assert node.produce(batch(0)) == (0, 0)
    node.partition.become_follower(LED_ELSEWHERE)
    node.partition.become_leader(LED_HERE_NOW)
    assert node.produce(batch(2))[0] == NOT_LEADER
    assert node.produce(batch(40, producer=8))[0] == NOT_LEADER
    node.pass_time(GAP_TIMEOUT_SECONDS + 1)
    assert node.produce(batch(2))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert node.produce(batch(40, producer=8)) == (0, 1), "its records may have been deleted: any sequence may be first"


def test_the_first_leader_and_a_long_one_respond_as_kafka_does(node: Node) -> None:
    node.partition.become_leader(LED_HERE_NOW)
    node.pass_time(NEW_LEADER_SECONDS)
    assert node.produce(batch(5)) == (0, 0)
    assert node.produce(batch(7))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    first = PartitionState(replicas=(1, 2), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
    node.partition.become_follower(LED_ELSEWHERE)
    node.partition.become_leader(first)
    assert node.produce(batch(9))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_topic_that_comes_into_being_between_two_batches(wire: Wire, new_name: Callable[[], str]) -> None:
    """The same over the wire, as with a topic that its leader has not heard of yet."""
    name, unknown = new_name(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.produce(name, batch(0, producer=4100)).error_code == unknown
    wire.create_topic(name)
    assert wire.produce(name, batch(1, producer=4100)).error_code == unknown
    rows = [wire.produce(name, batch(sequence, producer=4100)) for sequence in (0, 1, 2)]
    assert [(row.error_code, row.base_offset) for row in rows] == [(0, 0), (0, 1), (0, 2)]


# The memory itself


class Memory:
    def __init__(self) -> None:
        self.now = 100.0
        self.refused = RetryOrderGuard(lambda: self.now)
        self.producers = ProducerState()

    def note(self, data: bytes, code: ErrorCode = NOT_LEADER, index: int = 0) -> None:
        self.refused.note(b"t", index, data, code)

    def passes(self, data: bytes, index: int = 0) -> bool:
        try:
            self.refused.check(b"t", index, data, self.producers)
        except KafkaError as error:
            assert error.code == NOT_LEADER
            return False
        return True


@pytest.fixture
def memory() -> Memory:
    return Memory()


def test_only_what_is_behind_waits_and_only_in_that_partition_and_epoch(memory: Memory) -> None:
    memory.note(batch(10))
    assert not memory.passes(batch(11)) and not memory.passes(batch(500))
    assert memory.passes(batch(11), index=1) and memory.passes(batch(11, producer=8)) and memory.refused
    assert memory.passes(batch(0, epoch=1)) and not memory.refused, "who has begun a new epoch has given the old one up"


def test_the_refused_batch_ends_it_and_an_earlier_one_does_not(memory: Memory) -> None:
    memory.note(batch(10))
    assert memory.passes(batch(9)) and not memory.passes(batch(11))
    assert memory.passes(batch(10)) and not memory.refused


def test_an_earlier_epoch_changes_nothing(memory: Memory) -> None:
    memory.note(batch(10, epoch=3))
    memory.note(batch(2, epoch=2))
    assert memory.passes(batch(11, epoch=2)) and not memory.passes(batch(11, epoch=3))


def test_the_first_of_several_counts(memory: Memory) -> None:
    for sequence in (12, 10, 11, 13):
        memory.note(batch(sequence))
    assert not memory.passes(batch(11)) and memory.passes(batch(10))


def test_what_has_come_with_the_log_need_not_come_again(memory: Memory) -> None:
    """Refused here, taken by another leader, and then this node leads."""
    memory.note(batch(10))
    memory.producers.append(PRODUCER, 0, 10, 0, 40, 0, False)
    assert memory.passes(batch(11)) and not memory.refused
    memory.note(batch(10))
    memory.producers.append(PRODUCER, 0, 11, 0, 41, 0, False)
    assert memory.passes(batch(11)), "a repetition"
    memory.note(batch(10))
    assert not memory.passes(batch(13)), "a gap"


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER])
def test_what_no_one_sends_again_is_not_waited_for(memory: Memory, code: ErrorCode) -> None:
    memory.note(batch(10), code)
    memory.note(wires.batch(b"of no producer"))
    memory.note(b"no batch")
    assert not memory.refused and memory.passes(b"no batch")


def test_it_is_forgotten_in_time_and_there_is_a_bound(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_batches, "MAX_REMEMBERED_BATCHES", 3)
    for producer in range(5):
        memory.note(batch(0, producer=producer))
    assert [memory.passes(batch(1, producer=producer)) for producer in range(5)] == [True, True, False, False, False]
    memory.now += REMEMBERED_SECONDS - 1
    memory.note(batch(0, producer=9))
    memory.now += 1
    assert memory.passes(batch(1, producer=4)) and not memory.passes(batch(1, producer=9))
    memory.now += REMEMBERED_SECONDS
    assert memory.passes(batch(1, producer=9)) and not memory.refused


def test_sequences_begin_again_after_the_greatest() -> None:
    assert is_behind(1, 0) and not is_behind(0, 1) and not is_behind(5, 5)
    assert is_behind(0, MAX_SEQUENCE) and is_behind(3, MAX_SEQUENCE - 1) and not is_behind(MAX_SEQUENCE, 0)
