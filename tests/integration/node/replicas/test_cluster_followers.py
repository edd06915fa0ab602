"""Followers: how they are let in, what they serve, and how they come back to their leader's log."""

from functools import partial
from uuid import UUID

from millstream.formats.model.errors import ErrorCode
from tests.unit.node.replicas.conftest import Replicated, eventually
from tests.wire import batch, values


def test_a_consumer_is_sent_to_the_replica_in_its_rack(replicated: Replicated) -> None:
    topic = replicated.create([1, 2])
    replicated.wire(1).produce(topic, batch(b"x"))

    def preferred(rack: str) -> int:
        row = replicated.fetch(1, topic, 0, rack_id=rack)
        assert row.error_code == 0
        if row.preferred_read_replica < 0:
            assert values(row.records) == [b"x"]
        return int(row.preferred_read_replica)

    assert preferred("") == -1
    assert preferred("rack-1") == -1
    assert preferred("rack-3") == -1, "no replica there"

    def check() -> None:
        assert preferred("rack-2") == 2

    eventually(check)

    def read_there() -> None:
        # The follower has the record; that it is committed comes with the response to its next fetch.
        assert values(replicated.fetch(2, topic, 0, rack_id="rack-2").records) == [b"x"]

    eventually(read_there)
    # Consumers that cannot know of this are sent to the leader.
    assert replicated.fetch(2, topic, 0, version=10).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_who_is_no_replica_gets_nothing_of_what_is_not_committed(replicated: Replicated) -> None:
    topic = replicated.create([1, 2])
    epoch = replicated.partition(topic, asked=1).leader_epoch
    replicated.wire(1).produce(topic, batch(b"x"))

    def fetched_by(replica: int, replica_epoch: int, leader_epoch: int = epoch) -> int:
        row = replicated.fetch(
            1,
            topic,
            0,
            version=17,
            replica_state={"replica_id": replica, "replica_epoch": replica_epoch},
            partition={"current_leader_epoch": leader_epoch},
        )
        return int(row.error_code)

    assert fetched_by(3, -1) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert fetched_by(2, 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER, "an incarnation that is over"
    assert fetched_by(2, -1, epoch - 1 if epoch else 7) in (
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    )


def test_a_fetch_of_another_cluster_is_refused(replicated: Replicated) -> None:
    topic = replicated.create([1, 2])
    rows = [{"topic": topic, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]}]
    response = replicated.wire(1).call("fetch", 12, cluster_id="another", max_wait_ms=0, min_bytes=1, topics=rows)
    assert response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


def test_a_deposed_leader_gives_up_what_no_one_else_had(replicated: Replicated) -> None:
    topic = replicated.create([1, 2])
    wire = replicated.wire(1)
    for number in range(20):
        assert wire.produce(topic, batch(b"kept %d" % number)).error_code == 0
    replicated.cluster.pause(2)
    # The follower's last fetch is at the leader, and may get this as its response: it reads it when it goes on.
    assert wire.produce(topic, batch(b"perhaps"), acks=1).error_code == 0
    for number in range(10):
        assert wire.produce(topic, batch(b"lost %d" % number), acks=1).error_code == 0
    replicated.forget(1)
    replicated.cluster.kill(1)
    replicated.cluster.resume(2)
    replicated.forget(2)
    replicated.wait_for(topic, isr={2}, asked=2, leader=2)
    for number in range(3):
        assert replicated.wire(2).produce(topic, batch(b"new %d" % number)).error_code == 0
    replicated.cluster.start(1)
    replicated.wait_for(topic, isr={1, 2}, asked=2, leader=2)
    assert replicated.wire(2).produce(topic, batch(b"last")).error_code == 0
    wanted = [b"kept %d" % n for n in range(20)] + [b"new %d" % n for n in range(3)] + [b"last"]

    def check() -> None:
        first, second = (replicated.read_all(number, topic) for number in (1, 2))
        assert first == second
        assert [value for value in first if value != b"perhaps"] == wanted

    eventually(check)


def test_a_follower_that_was_away_for_long_starts_where_its_leader_does(replicated: Replicated) -> None:
    topic = replicated.create([1, 2])
    for number in range(5):
        replicated.wire(1).produce(topic, batch(b"%d" % number))
    replicated.forget(2)
    replicated.cluster.kill(2)
    replicated.wait_for(topic, isr={1}, asked=1)
    for number in range(5, 10):
        replicated.wire(1).produce(topic, batch(b"%d" % number))
    rows = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 8}]}]
    replicated.wire(1).call("delete_records", 2, topics=rows, timeout_ms=10_000)
    replicated.cluster.start(2)
    replicated.wait_for(topic, isr={1, 2}, asked=1)

    def check() -> None:
        assert values(replicated.fetch(2, topic, 8).records) == [b"8", b"9"]
        assert replicated.fetch(2, topic, 7).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    eventually(check)


def test_a_topic_that_was_made_again_while_a_follower_was_away(replicated: Replicated) -> None:
    """Also where its log no longer says of which topic it is: what it holds must not be taken for the new one's."""
    topics = [replicated.create([1, 2]) for _ in range(2)]
    for topic in topics:
        assert replicated.wire(1).produce(topic, batch(b"old 0", b"old 1", b"old 2")).error_code == 0
    replicated.forget(2)
    replicated.cluster.kill(2)
    for topic in topics:
        replicated.wait_for(topic, isr={1}, asked=1)
    deleted = [{"name": topic, "topic_id": UUID(int=0)} for topic in topics]
    response = replicated.wire(1).call("delete_topics", 6, topics=deleted, timeout_ms=20_000)
    assert all(row.error_code == 0 for row in response.responses), response
    made = [
        {
            "name": topic,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": [1, 2]}],
            "configs": [],
        }
        for topic in topics
    ]
    response = replicated.wire(1).call("create_topics", 7, topics=made, timeout_ms=20_000)
    assert all(row.error_code == 0 for row in response.topics), response
    data = replicated.cluster.data_dir(2)
    (data / f"{topics[1]}-0" / "partition.metadata").write_text("damaged")
    for topic in topics:
        eventually(partial(_produced, replicated, topic, [b"new 0", b"new 1", b"new 2", b"new 3"]))
    replicated.cluster.start(2)
    for topic in topics:
        replicated.wait_for(topic, isr={1, 2}, asked=1)
        eventually(partial(_holds, replicated, topic, [b"new 0", b"new 1", b"new 2", b"new 3"]))
    assert len([each for each in data.iterdir() if each.name.endswith("-stray")]) >= 2


def _produced(replicated: Replicated, topic: str, wanted: list[bytes]) -> None:
    assert replicated.wire(1).produce(topic, batch(*wanted), acks=1).error_code == 0


def _holds(replicated: Replicated, topic: str, wanted: list[bytes]) -> None:
    row = replicated.fetch(2, topic, 0)
    assert row.error_code == 0 and values(row.records) == wanted
