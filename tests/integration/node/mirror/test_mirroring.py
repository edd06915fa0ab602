"""Mirroring between clusters: equal offsets and bytes, groups that move over, and the end of mirroring."""

import json
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Place
from typer.testing import CliRunner

from millstream.admin.errors import InvalidArgumentError, NotFoundError
from millstream.admin.mirror_verification import verify_topic
from millstream.admin.mirrors import MirrorAdmin, MirrorError, MirrorTopic
from millstream.admin.topics import ConfigResource, TopicAdmin
from millstream.cli.app import app
from millstream.formats.records.record import Record, build_batch
from millstream.raw_client import Cluster, TopicPartition
from millstream.raw_client.offsets import LATEST
from millstream.testing import EmbeddedBroker, EmbeddedCluster
from tests.mirrors import (
    Mirror,
    cluster_of,
    delete_records,
    delete_topic,
    fresh,
    make_source_topic,
    produce,
    read_all,
    transaction,
)
from tests.waiting import TIMEOUT_SECONDS, eventually, until

pytestmark = pytest.mark.timeout(300)
IDEMPOTENT: dict[str, Any] = {"enable.idempotence": True, "compression.type": "zstd"}


@pytest.fixture(scope="module")
def source() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


@pytest.fixture(scope="module")
def here() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, {"group.initial.rebalance.delay.ms": 0, "default.replication.factor": 3}) as running:
        yield running


@pytest.fixture
def mirror(source: EmbeddedBroker, here: EmbeddedCluster) -> Mirror:
    return Mirror(fresh("link"), source.bootstrap_servers, here.bootstrap_servers)


def some(count: int, word: str = "v") -> list[str]:
    return [f"{word}{number}" for number in range(count)]


def test_records_transactions_and_settings_are_as_at_the_source(mirror: Mirror) -> None:
    topic = make_source_topic(
        mirror.source,
        fresh("orders"),
        2,
        {"retention.ms": "7654321", "max.message.bytes": "9999", "message.timestamp.type": "LogAppendTime"},
    )
    produce(mirror.source, topic, some(50), partition=1)
    transaction(mirror.source, topic, some(5, "committed"), "commit", transactional_id=fresh("tx"))
    transaction(mirror.source, topic, some(5, "aborted"), "abort", transactional_id=fresh("tx"))
    produce(mirror.source, topic, some(50, "idempotent"), **IDEMPOTENT)
    mirror.create(f"{topic}|nothing-else")
    mirror.await_topic(topic)
    mirror.await_equal(topic)
    for partition in (0, 1):
        for isolation in ("read_committed", "read_uncommitted"):
            there = read_all(mirror.source, topic, partition, isolation)
            assert read_all(mirror.here, topic, partition, isolation) == there
    entries = TopicAdmin(mirror.admin.cluster).settings(ConfigResource.TOPIC, topic)
    values = {entry.name: entry.value for entry in entries}
    assert (values["retention.ms"], values["max.message.bytes"]) == ("7654321", "9999")
    # More records, more partitions, another setting: they follow.
    TopicAdmin(mirror.source_admin.cluster).add_partitions(topic, 4)
    eventually(lambda: _equals(mirror.admin.cluster.partitions_of(topic), 4))
    produce(mirror.source, topic, some(10, "later"), partition=3)
    mirror.await_equal(topic)
    status = mirror.admin.status(mirror.name)
    assert status.problem == ""
    until(lambda: {row.lag_records for row in mirror.partitions(topic)} == {0})
    assert sum(_metric(address, "millstream_mirror_partitions", mirror.name) for address in mirror.here.split(",")) == 4
    assert sum(_metric(address, "millstream_mirror_bytes_total", mirror.name) for address in mirror.here.split(",")) > 0


def test_a_mirror_topic_refuses_writes_and_says_why(mirror: Mirror) -> None:
    topic = make_source_topic(mirror.source, fresh("closed"))
    mirror.create(topic)
    mirror.await_topic(topic)
    with pytest.raises(KafkaException) as refused:
        produce(mirror.here, topic, ["x"])
    assert refused.value.args[0].name() == "POLICY_VIOLATION"
    data = {"index": 0, "records": build_batch([Record(b"k", b"v")])}
    rows = [{"name": topic, "partition_data": [data]}]
    leader = mirror.admin.cluster.leader_of(TopicPartition(topic, 0)).node_id
    response = mirror.admin.cluster.call(
        "produce", node=leader, at_most=12, acks=-1, timeout_ms=30_000, topic_data=rows
    )
    (row,) = response.responses[0].partition_responses
    assert "is a mirror of a topic of another cluster" in row.error_message and "mirror promote" in row.error_message
    with pytest.raises(KafkaException):
        transaction(mirror.here, topic, ["x"], "commit", transactional_id=fresh("tx"))
    with pytest.raises(KafkaException) as refused:
        delete_records(mirror.here, topic, 0)
    assert refused.value.args[0].name() == "POLICY_VIOLATION"
    with pytest.raises(MirrorError, match="still mirrors"):
        mirror.admin.delete(mirror.name)


def test_a_branch_of_a_mirror_topic_can_be_written_to(mirror: Mirror) -> None:
    topic = make_source_topic(mirror.source, fresh("branched"))
    produce(mirror.source, topic, some(20))
    mirror.create(topic)
    mirror.await_topic(topic)
    mirror.await_equal(topic)
    before = read_all(mirror.here, topic, 0, "read_committed")
    made = TopicAdmin(mirror.admin.cluster).branch(topic, f"{topic}-test")
    assert [point.offset for point in made.points] == [20]
    produce(mirror.here, f"{topic}-test", ["own"])
    produce(mirror.source, topic, ["later"])
    mirror.await_equal(topic)  # the link goes on, and does not know the branch
    own = read_all(mirror.here, f"{topic}-test", 0, "read_committed")
    assert own[:20] == before and len(own) == 21
    assert len(read_all(mirror.here, topic, 0, "read_committed")) == 21
    delete_topic(mirror.here, f"{topic}-test")


def test_a_consumer_moves_over_with_its_group(mirror: Mirror) -> None:
    topic, group = make_source_topic(mirror.source, fresh("moving")), fresh("group")
    produce(mirror.source, topic, some(40))
    assert _read_some(mirror.source, topic, group, 25) == list(range(25))
    mirror.create(topic, groups=f"{group}.*")
    mirror.await_equal(topic)
    cluster = mirror.admin.cluster
    at = TopicPartition(topic, 0)
    until(lambda: cluster.committed_offsets(group, [at]) == {at: 25}, "the group's offset did not come over")
    # The same consumer at the destination goes on where it was, and while it is there the source changes nothing.
    assert _read_some(mirror.here, topic, group, 15) == list(range(25, 40))
    assert cluster.committed_offsets(group, [at]) == {at: 40}


def test_promotion_opens_the_topic_and_never_repeats_epochs_or_producer_ids(mirror: Mirror) -> None:
    topic = make_source_topic(mirror.source, fresh("promoted"))
    produce(mirror.source, topic, some(20), **IDEMPOTENT)
    mirror.create(topic)
    mirror.await_equal(topic)
    (promoted,) = mirror.admin.promote(mirror.name, timeout_s=60)
    assert promoted.state == "promoted"
    assert produce(mirror.here, topic, some(5, "own"), **IDEMPOTENT) == list(range(20, 25))
    transaction(mirror.here, topic, some(2, "own-tx"), "commit", transactional_id=fresh("tx"))
    assert [row[2] for row in read_all(mirror.here, topic)][-2:] == [b"own-tx0", b"own-tx1"]
    here, there = _latest_epoch(mirror, topic), _latest_epoch(mirror, topic, at_source=True)
    assert here >= 1 << 20 > there
    ids = _producer_ids(mirror.here, topic)
    assert min(ids) >= 1 << 40  # those of the source are forgotten, those of this cluster are far above
    mirror.admin.delete(mirror.name)
    until(lambda: _is_gone(mirror), "the link is still there")  # the broker that is asked may be behind


def _is_gone(mirror: Mirror) -> bool:
    try:
        mirror.admin.link(mirror.name)
    except NotFoundError:
        return True
    return False


def test_failover_aborts_open_transactions_and_tells_what_is_missing(mirror: Mirror) -> None:
    topic = make_source_topic(mirror.source, fresh("failed-over"))
    produce(mirror.source, topic, some(10))
    transaction(mirror.source, topic, some(3, "open"), "open", transactional_id=fresh("tx"))
    produce(mirror.source, topic, some(2, "behind"))
    mirror.create(topic)
    eventually(lambda: _equals(mirror.ends(topic), [15]))
    until(lambda: mirror.partitions(topic)[0].source_end == 15)
    assert len(read_all(mirror.here, topic)) == 10  # the transaction is open: read_committed stops before it
    (missing,) = mirror.admin.failover(mirror.name)
    assert (missing.topic, missing.source_end, missing.records) == (topic, 15, 0)
    eventually(lambda: _equals([row[2] for row in read_all(mirror.here, topic)][-2:], [b"behind0", b"behind1"]))
    assert not any(value and value.startswith(b"open") for _, _, value, _, _ in read_all(mirror.here, topic))


def test_pause_and_a_source_that_retains_less_than_the_lag(mirror: Mirror) -> None:
    topic = make_source_topic(mirror.source, fresh("short"))
    produce(mirror.source, topic, some(10))
    mirror.create(topic)
    mirror.await_equal(topic)
    mirror.admin.pause(mirror.name)
    produce(mirror.source, topic, some(20, "unseen"))
    assert mirror.ends(topic) == [10]
    delete_records(mirror.source, topic, 25)
    mirror.admin.resume(mirror.name)
    mirror.await_equal(topic)
    eventually(lambda: _equals([row[0] for row in read_all(mirror.here, topic)], list(range(25, 30))))
    until(lambda: mirror.partitions(topic)[0].records_skipped == 15)


def test_verify_reports_a_partition_that_only_one_side_has(source: EmbeddedBroker) -> None:
    small = make_source_topic(source.bootstrap_servers, fresh("small"), 1)
    large = make_source_topic(source.bootstrap_servers, fresh("large"), 3)
    produce(source.bootstrap_servers, large, some(4), partition=1)
    with cluster_of(source.bootstrap_servers) as cluster:
        for name, source_name, one, other in ((small, large, "source", "mirror"), (large, small, "mirror", "source")):
            topic = MirrorTopic(name, "west", "mirroring", source_name, "")
            rows = list(verify_topic(cluster, cluster, topic, is_compacted=False))
            assert [(row.topic, row.partition, row.end, row.difference) for row in rows] == [
                (name, 0, 0, ""),
                (name, 1, 4, f"only the {one} has this partition, with offsets 0 to 4; the {other} has 1 partition"),
                (name, 2, 0, f"only the {one} has this partition, with offsets 0 to 0; the {other} has 1 partition"),
            ]


@pytest.mark.parametrize("end", ["lifted", "failover"])
def test_a_throttled_link_tells_its_lag(mirror: Mirror, end: str) -> None:
    topic = make_source_topic(mirror.source, fresh("slow"))
    produce(mirror.source, topic, [f"{number:01000d}" for number in range(300)], **{"batch.size": 16384})
    mirror.create(topic, throttle_bytes_per_second="1024")
    mirror.await_topic(topic)

    def is_behind() -> bool:
        # A fetch has up to 64 KiB. Then a link with 1 KiB per second rests for a minute.
        row = mirror.partitions(topic)[0]
        return row.end > 0 and row.lag_records > 100 and row.lag_bytes > 100_000 and row.lag_seconds > 0

    until(is_behind, "no lag in records, bytes and seconds is reported")
    if end == "lifted":
        mirror.admin.change(mirror.name, {"throttle.bytes.per.second": None})
        mirror.await_equal(topic)
    else:
        (missing,) = mirror.admin.failover(mirror.name)
        assert missing.source_end == 300 and missing.records == 300 - missing.end > 0


def test_the_log_start_follows_the_source(mirror: Mirror) -> None:
    topic = make_source_topic(mirror.source, fresh("start"))
    produce(mirror.source, topic, some(10))
    mirror.create(topic)
    mirror.await_equal(topic)
    delete_records(mirror.source, topic, 4)
    eventually(lambda: _equals(len(read_all(mirror.here, topic)), 6))


def test_a_topic_that_was_created_again_fails_with_the_reason(mirror: Mirror) -> None:
    topic = make_source_topic(mirror.source, fresh("again"))
    produce(mirror.source, topic, some(3))
    mirror.create(topic)
    mirror.await_equal(topic)
    delete_topic(mirror.source, topic)

    def is_made_again() -> None:
        try:
            make_source_topic(mirror.source, topic)
        except KafkaException as error:
            raise AssertionError from error

    eventually(is_made_again)
    eventually(lambda: _equals(mirror.state(topic), "failed"))
    (failed,) = mirror.admin.mirror_topics(mirror.name)
    assert "again" in failed.reason or "any more" in failed.reason
    assert len(read_all(mirror.here, topic)) == 3  # its records stay readable
    produce(mirror.source, topic, some(2, "new"))
    delete_topic(mirror.here, topic)
    mirror.await_topic(topic)
    mirror.await_equal(topic)
    eventually(lambda: _equals([row[2] for row in read_all(mirror.here, topic)], [b"new0", b"new1"]))


def test_reverse_cuts_what_the_new_side_does_not_have(mirror: Mirror) -> None:
    topic = make_source_topic(mirror.source, fresh("back"))
    produce(mirror.source, topic, some(10))
    mirror.create(topic)
    mirror.await_equal(topic)
    mirror.admin.pause(mirror.name)
    produce(mirror.source, topic, some(7, "lost"))  # the source is cut off, and goes on
    (missing,) = _command("failover", mirror)
    assert (missing["topic"], missing["end"]) == (topic, 10)
    produce(mirror.here, topic, some(4, "new"))
    (planned,) = _command("reverse", mirror, "--dry-run")
    assert (planned["end"], planned["records"]) == (10, 7)
    assert _command("reverse", mirror) == [planned]
    reversed_mirror = Mirror(mirror.name, mirror.here, mirror.source)
    reversed_mirror.await_equal(topic)
    values = [row[2] for row in read_all(mirror.source, topic)]
    assert values == [value.encode() for value in some(10) + some(4, "new")]
    with pytest.raises(KafkaException):
        produce(mirror.source, topic, ["x"])
    # And forth again: the first cluster is promoted and goes on behind the records of the second.
    reversed_mirror.admin.promote(mirror.name, timeout_s=60)
    assert produce(mirror.source, topic, ["home"]) == [14]
    # And once more: a partition with three replicas is cut, on the leader and on its followers.
    produce(mirror.here, topic, some(5, "lost-here"))
    forth = {"bootstrap.servers": mirror.source, "interval.ms": "200"}
    (removed,) = reversed_mirror.admin.reverse(mirror.name, mirror.admin, forth)
    assert (removed.end, removed.records) == (14, 5)
    mirror.await_equal(topic)
    produce(mirror.source, topic, some(3, "more"))
    mirror.await_equal(topic)
    assert read_all(mirror.here, topic) == read_all(mirror.source, topic)
    eventually(lambda: _equals(len(mirror.admin.cluster.topics([topic])[topic].partitions[0].isr), 3))


def test_prefixed_names_and_no_loops(mirror: Mirror) -> None:
    """Active and active: both sides have a topic of one name with records of their own, and a mirror of the other's."""
    topic = make_source_topic(mirror.source, fresh("both"))
    make_source_topic(mirror.here, topic)
    produce(mirror.source, topic, some(3))
    produce(mirror.here, topic, [f"east {value}" for value in some(5)])
    mirror.create(rf".*{topic}", prefix="west.")
    eventually(lambda: _equals(mirror.state(f"west.{topic}"), "mirroring"))
    mirror.await_equal(f"west.{topic}", topic)
    back = Mirror(fresh("link"), mirror.here, mirror.source)
    back.create(rf".*{topic}", prefix="east.")

    def is_told() -> None:
        assert f"west.{topic}" in back.admin.status(back.name).conflicts

    eventually(is_told)
    back.await_equal(f"east.{topic}", topic)
    eventually(lambda: _contains(mirror.admin.status(mirror.name).conflicts, f"east.{topic}"))
    assert [len(read_all(mirror.source, name)) for name in (topic, f"east.{topic}")] == [3, 5]
    assert [len(read_all(mirror.here, name)) for name in (topic, f"west.{topic}")] == [5, 3]
    for cluster in (mirror.admin.cluster, back.admin.cluster):
        names = [name for name in cluster.topics() if topic in name]
        assert len(names) == 2, names


def _contains(found: Mapping[str, str], name: str) -> None:
    assert name in found, found


def test_every_broker_knows_a_link_that_was_just_created_or_deleted(mirror: Mirror, here: EmbeddedCluster) -> None:
    cluster = cluster_of(here.bootstrap_servers)
    each_broker = [MirrorAdmin(cluster.only(here.address(number))) for number in here.brokers]
    assert len(each_broker) == 3
    for _ in range(5):
        mirror.create("nothing-.*")
        assert all(mirror.name in [link.name for link in admin.links()] for admin in each_broker)
        mirror.admin.delete(mirror.name)
        assert not any(mirror.name in [link.name for link in admin.links()] for admin in each_broker)


def test_mistakes_are_told(mirror: Mirror, here: EmbeddedCluster) -> None:
    with pytest.raises(InvalidArgumentError, match="name of a link"):
        mirror.admin.create("a.b", {"bootstrap.servers": mirror.source, "topics": "x"})
    with pytest.raises(InvalidArgumentError, match="regular expression"):
        mirror.admin.create("bad", {"bootstrap.servers": mirror.source, "topics": "("})
    with pytest.raises(InvalidArgumentError, match="not a setting of a mirror link"):
        mirror.admin.create("bad", {"bootstrap.servers": mirror.source, "topics": "x", "colour": "red"})
    itself = Mirror(fresh("link"), mirror.here, mirror.here).create("itself")
    until(lambda: "this cluster itself" in itself.admin.status(itself.name).problem)
    taken = make_source_topic(mirror.here, fresh("taken"))
    make_source_topic(mirror.source, taken)
    mirror.create(taken)
    until(lambda: "not a mirror" in mirror.admin.status(mirror.name).conflicts.get(taken, ""))
    nowhere = Mirror(fresh("link"), mirror.source, mirror.here)
    nowhere.admin.create(nowhere.name, {"bootstrap.servers": "127.0.0.1:1", "topics": "x"})
    until(lambda: nowhere.admin.status(nowhere.name).problem.startswith("127.0.0.1:1: connection refused; check that"))
    for link in (itself, nowhere):
        link.admin.delete(link.name)


def _command(word: str, mirror: Mirror, *options: str) -> Any:
    result = CliRunner().invoke(app, ["mirror", word, mirror.name, *options, "--json", "-b", mirror.here])
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def _metric(address: str, name: str, link: str) -> float:
    with urllib.request.urlopen(f"http://{address}/metrics?collect[]=mirroring", timeout=TIMEOUT_SECONDS) as response:
        for line in response.read().decode().splitlines():
            if line.startswith(f'{name}{{link="{link}"}} '):
                return float(line.split()[-1])
    return 0.0


def _equals(found: object, expected: object) -> None:
    assert found == expected


def _read_some(bootstrap: str, topic: str, group: str, count: int) -> list[int]:
    """Reads as a member of a group, commits, leaves; the offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
        | ({"auto.offset.reset": "earliest"} if count == 25 else {})
    )
    offsets: list[int] = []
    try:
        consumer.subscribe([topic])
        while len(offsets) < count:
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None
            assert message.error() is None, message.error()
            offsets.append(message.offset() or 0)
        consumer.commit(offsets=[Place(topic, 0, offsets[-1] + 1)], asynchronous=False)
    finally:
        consumer.close()
    return offsets


def _latest_epoch(mirror: Mirror, topic: str, *, at_source: bool = False) -> int:
    cluster = (mirror.source_admin if at_source else mirror.admin).cluster
    at = TopicPartition(topic, 0)
    return cluster.offsets({at: LATEST}, read_committed=False)[at].leader_epoch


def _producer_ids(bootstrap: str, topic: str) -> set[int]:
    with Cluster(bootstrap, {}, client_id="mirror-test", timeout_s=30) as cluster:
        leader = cluster.leader_of(TopicPartition(topic, 0)).node_id
        response = cluster.call("describe_producers", node=leader, topics=[{"name": topic, "partition_indexes": [0]}])
        return {row.producer_id for row in response.topics[0].partitions[0].active_producers}
