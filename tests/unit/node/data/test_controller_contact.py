"""A leader that has lost the controller may have been deposed: it gives no response that a client takes as final."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.fetch import FetchPartition, FetchRequest
from millstream.formats.protocol.produce import PartitionData, ProduceRequest
from millstream.node.cluster.lifecycle import ControllerContact
from millstream.node.data.fetch_reading import FetchReader
from millstream.node.data.offsets import OffsetHandlers
from millstream.node.metadata.image import PartitionState
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.server.request import ProduceResults
from tests.integration.node.broker.test_refused_batches import LED_ELSEWHERE, Node, batch

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
LED_FIRST = PartitionState(replicas=(1, 2), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
LED_WITH_ANOTHER = PartitionState(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=0, partition_epoch=0)
LED_ALONE = PartitionState(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)


# The contact


class Contact:
    def __init__(self) -> None:
        self.now = 100.0
        self.metadata_as_of = 100.0
        self.contact = ControllerContact(lambda: self.now, lambda: 1.5, lambda: self.metadata_as_of)


def test_it_counts_from_when_the_broker_asked() -> None:
    """A process that was stopped finds a response that has waited for it: the heartbeat is as old as it is."""
    it = Contact()
    assert it.contact.is_lost, "nothing was heard yet"
    it.contact.heard(99.0, is_fenced=False)
    assert not it.contact.is_lost
    it.now = it.metadata_as_of = 100.6
    assert it.contact.is_lost
    it.contact.heard(99.0, is_fenced=False)
    assert it.contact.is_lost, "responded to now, but asked long ago"


def test_it_is_lost_when_the_controller_says_that_the_broker_is_fenced() -> None:
    it = Contact()
    it.contact.heard(100.0, is_fenced=True)
    assert it.contact.is_lost
    it.contact.heard(100.0, is_fenced=False)
    assert not it.contact.is_lost


def test_heartbeats_alone_are_not_enough() -> None:
    """A broker that was fenced is let in with its next heartbeat, perhaps before it has read that others lead."""
    it = Contact()
    it.metadata_as_of = 98.0
    it.contact.heard(100.0, is_fenced=False)
    assert it.contact.is_lost
    it.metadata_as_of = 99.0
    assert not it.contact.is_lost


# Its leaderships


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def test_a_gap_is_refused_for_a_reason_that_passes(node: Node) -> None:
    """The producer was acknowledged 1 to 4 by the new leader, and comes back to the old one with 5."""
    node.partition.become_leader(LED_FIRST)
    assert node.produce(batch(0)) == (0, 0)
    node.has_lost_controller = True
    assert node.produce(batch(5))[0] == NOT_LEADER, "and not OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert node.produce(batch(5, epoch=1))[0] == NOT_LEADER, "a new epoch began at the new leader"
    assert node.produce(batch(0)) == (0, 0), "a repetition of what is committed"
    node.has_lost_controller = False
    assert node.produce(batch(5))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_older_epoch_is_refused_for_a_reason_that_passes(node: Node) -> None:
    node.partition.become_leader(LED_FIRST)
    assert node.produce(batch(0, epoch=3)) == (0, 0)
    node.has_lost_controller = True
    assert node.produce(batch(0, epoch=2))[0] == NOT_LEADER
    node.has_lost_controller = False
    assert node.produce(batch(0, epoch=2))[0] == ErrorCode.INVALID_PRODUCER_EPOCH


def test_no_one_else_can_lead_what_has_one_replica(node: Node) -> None:
    node.partition.become_leader(LED_ALONE)
    node.has_lost_controller = True
    assert node.produce(batch(0)) == (0, 0)
    assert node.produce(batch(5))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def _fetch(node: Node, offset: int, *, last_epoch: int = -1) -> tuple[int, tuple[int, int] | None]:
    """The error, and where the logs part. A node in doubt names no leader."""
    table = PartitionTable()
    table.add(node.partition)
    cluster: Any = SimpleNamespace(selects_by_rack=lambda: False)
    wanted = FetchPartition(0, -1, offset, last_epoch, -1, 1 << 20)
    request = FetchRequest(-1, 0, 1, 1 << 20, 0, 0, -1, [], [], b"")
    repeated: Any = SimpleNamespace(note=lambda partition, records: None)
    reader = FetchReader(table, cluster, 1 << 20, repeated)
    ((_, row),) = reader.read([((b"t", 0), wanted)], request, 12, is_arrival=True).rows
    assert row.current_leader is None
    return row.error, row.diverging_epoch


def test_an_offset_beyond_its_end_is_not_out_of_range(node: Node) -> None:
    """A consumer that has read on at the new leader would begin again, at the start or at the end."""
    node.partition.become_leader(LED_FIRST)
    node.produce(batch(0))
    assert _fetch(node, 7) == (ErrorCode.OFFSET_OUT_OF_RANGE, None)
    node.has_lost_controller = True
    assert _fetch(node, 7) == (NOT_LEADER, None)
    assert _fetch(node, 1) == (0, None), "at the end"
    node.partition.log.delete_records_before(1)
    assert _fetch(node, 0) == (ErrorCode.OFFSET_OUT_OF_RANGE, None), "what is deleted stays so"


def test_a_consumer_is_not_sent_back(node: Node) -> None:
    node.partition.become_leader(LED_FIRST)
    node.produce(batch(0))
    assert _fetch(node, 7, last_epoch=0) == (0, (0, 1))
    node.has_lost_controller = True
    assert _fetch(node, 7, last_epoch=0) == (NOT_LEADER, None)
    assert _fetch(node, 7, last_epoch=1) == (NOT_LEADER, None), "an epoch that it has not heard of"


def test_where_an_epoch_ends_is_not_its_to_say(node: Node) -> None:
    node.partition.become_leader(LED_FIRST)
    node.produce(batch(0))
    table = PartitionTable()
    table.add(node.partition)
    nothing: Any = None
    handlers = OffsetHandlers(table, nothing, nothing, nothing, nothing)

    def ask(replica_id: int) -> int:
        row = SimpleNamespace(partition=0, current_leader_epoch=-1, leader_epoch=0)
        request: Any = SimpleNamespace(replica_id=replica_id, topics=[SimpleNamespace(topic="t", partitions=[row])])
        response: Any = handlers.offset_for_leader_epoch(request, nothing)
        return int(response["topics"][0]["partitions"][0].get("error_code", 0))

    assert (ask(-1), ask(2)) == (0, 0)
    node.has_lost_controller = True
    assert (ask(-1), ask(2)) == (NOT_LEADER, 0)


# Those who wait for its followers


class Produced:
    """A write that waits."""

    def __init__(self, node: Node, sequence: int, *, acks: int = -1, responded: list[int] | None = None) -> None:
        self.rows: list[int] = []
        self._sequence, self._all_responded = sequence, responded
        data = batch(sequence)
        request = ProduceRequest(None, acks, 30_000, [(b"t", [PartitionData(0, 0, len(data))])])
        results, wait = node.handler.append(request, 12, bytearray(data))
        if wait is None:
            self._responded(results)
        else:
            wait(self._responded)

    def _responded(self, results: ProduceResults) -> None:
        self.rows = [row.error for _, rows in results for row in rows]
        self.leaders = [row.current_leader for _, rows in results for row in rows]
        if self._all_responded is not None:
            self._all_responded.append(self._sequence)


def test_a_producer_does_not_wait_in_vain(node: Node) -> None:
    node.partition.become_leader(LED_WITH_ANOTHER)
    waiting = Produced(node, 0)
    node.let_pass(10.0)
    assert not waiting.rows, "the follower may only be slow"
    node.has_lost_controller = True
    later = Produced(node, 1)
    node.let_pass(1.0)
    assert waiting.rows == [NOT_LEADER] and not later.rows, "it may yet come"
    assert waiting.leaders == [None], "librdkafka would come back to the leader that is named, and ask nobody"
    node.let_pass(2.0)
    assert later.rows == [NOT_LEADER]
    assert not node.handler.waiting
    again = Produced(node, 0)
    assert node.partition.log.log_end_offset == 2, "it is in the log"
    node.partition.become_follower(LED_ELSEWHERE)
    assert again.rows == [NOT_LEADER]


def test_producers_that_wait_in_vain_get_responses_in_the_order_of_their_requests(node: Node) -> None:
    """In the order of a plain set of objects, a simulated run could not be repeated."""
    node.partition.become_leader(LED_WITH_ANOTHER)
    responded: list[int] = []
    for sequence in range(20):
        Produced(node, sequence, responded=responded)
    node.has_lost_controller = True
    node.let_pass(10.0)
    assert responded == list(range(20))


def test_who_waits_for_the_leader_alone_is_not_concerned(node: Node) -> None:
    node.partition.become_leader(LED_WITH_ANOTHER)
    node.has_lost_controller = True
    assert Produced(node, 0, acks=1).rows == [0]
