"""Writes to replicated partitions: who takes them, when they are acknowledged, and when they are shown."""

from functools import partial

from millstream.formats.model.errors import ErrorCode
from tests.unit.node.replicas.conftest import Replicated, eventually
from tests.wire import batch, values


def test_a_write_is_on_every_replica_when_it_is_acknowledged(replicated: Replicated) -> None:
    topic = replicated.create([1, 2, 3])
    row = replicated.wire(1).produce(topic, batch(b"one", b"two"))
    assert (row.error_code, row.base_offset) == (0, 0)
    for number in (2, 3):
        # Acknowledged is more than shown: a follower hears a moment later that it may show what it has.
        found = eventually(partial(_read, replicated, number, topic, 2))
        assert found == [b"one", b"two"]


def _read(replicated: Replicated, number: int, topic: str, count: int) -> list[bytes]:
    row = replicated.fetch(number, topic, 0)
    assert row.error_code == 0
    found = values(row.records)
    assert len(found) == count
    return found


def test_a_node_that_does_not_lead_says_who_does(replicated: Replicated) -> None:
    topic = replicated.create([1, 2])
    host, _, port = replicated.cluster.address(1).rpartition(":")
    for number in (2, 3):
        response = replicated.wire(number).call(
            "produce",
            12,
            acks=-1,
            timeout_ms=1000,
            topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": batch(b"x")}]}],
        )
        row = response.responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert row.current_leader.leader_id == 1
        assert [(node.node_id, node.host, node.port) for node in response.node_endpoints] == [(1, host, int(port))]
        epoch = replicated.partition(topic, asked=number).leader_epoch
        assert row.current_leader.leader_epoch == epoch
        assert replicated.end(number, topic).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_too_few_replicas_in_sync(replicated: Replicated) -> None:
    topic = replicated.create([1, 2], min_insync_replicas="2")
    assert replicated.wire(1).produce(topic, batch(b"all")).error_code == 0
    replicated.forget(2)
    replicated.cluster.kill(2)
    replicated.wait_for(topic, isr={1}, asked=1, leader=1)
    assert replicated.wire(1).produce(topic, batch(b"refused")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert replicated.wire(1).produce(topic, batch(b"risked"), acks=1).error_code == 0
    # What fewer than the wanted replicas have is not shown.
    assert values(replicated.fetch(1, topic, 0).records) == [b"all"]
    replicated.cluster.start(2)
    replicated.wait_for(topic, isr={1, 2}, asked=1, leader=1)
    assert replicated.wire(1).produce(topic, batch(b"all again")).error_code == 0
    assert values(replicated.fetch(1, topic, 0).records) == [b"all", b"risked", b"all again"]


def test_what_a_follower_has_not_got_is_not_shown_and_not_acknowledged(replicated: Replicated) -> None:
    topic = replicated.create([1, 2], min_insync_replicas="2")
    replicated.wire(1).produce(topic, batch(b"before"))
    replicated.cluster.pause(2)
    assert replicated.wire(1).produce(topic, batch(b"after"), acks=1).error_code == 0
    assert values(replicated.fetch(1, topic, 0).records) == [b"before"]
    assert replicated.end(1, topic).offset == 1
    assert replicated.end(1, topic, replica_id=2).offset == 2
    # The follower is silent for longer than replica.lag.time.max.ms: a producer that waits for it gets an error.
    row = replicated.wire(1).produce(topic, batch(b"waits"))
    assert row.error_code in (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NOT_ENOUGH_REPLICAS)
    replicated.wait_for(topic, isr={1}, asked=1)
    replicated.cluster.resume(2)
    replicated.wait_for(topic, isr={1, 2}, asked=1)
    assert eventually(lambda: _read(replicated, 1, topic, 3))[:2] == [b"before", b"after"]


def test_a_producer_that_does_not_wait_long_is_told(replicated: Replicated) -> None:
    topic = replicated.create([1, 2])
    replicated.cluster.pause(2)
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"x")}]}]
    response = replicated.wire(1).call("produce", 12, acks=-1, timeout_ms=200, topic_data=rows)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    replicated.cluster.resume(2)


def test_deleted_records_are_gone_on_all_replicas(replicated: Replicated) -> None:
    topic = replicated.create([1, 2, 3])
    for number in range(5):
        replicated.wire(1).produce(topic, batch(b"%d" % number))
    rows = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 3}]}]
    response = replicated.wire(1).call("delete_records", 2, topics=rows, timeout_ms=10_000)
    row = response.topics[0].partitions[0]
    assert (row.error_code, row.low_watermark) == (0, 3)
    for number in (2, 3):
        assert replicated.fetch(number, topic, 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert values(replicated.fetch(number, topic, 3).records) == [b"3", b"4"]
