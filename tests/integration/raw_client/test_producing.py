"""Produce of ready batches: each written once and in order, through restarts and changes of leaders."""

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from millstream.columnar import ArrowEncoder, stamp
from millstream.formats.records.compression import Codec
from millstream.raw_client import Cluster, ErrorCode, RefusedError, TopicPartition, UnreachableError, WireError
from millstream.raw_client.deadline import Deadline
from millstream.raw_client.producing import SENT_BY_FLUSH_BYTES, Producer, _Batch, _PartitionQueue
from millstream.raw_client.routing import Leader
from millstream.raw_client.transactions import idempotent_producer
from millstream.testing import EmbeddedBroker, EmbeddedCluster
from tests.system.spark_exactly_once.committed import committed_values
from tests.topics import make_topic
from tests.waiting import until

ROWS = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def cluster(broker: EmbeddedBroker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap_servers) as made:
        yield made


class Numbers:
    """An idempotent producer's batches: numbers that go up, in each partition."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int) -> None:
        self._identity = idempotent_producer(cluster)
        self._places = [TopicPartition(topic, each) for each in range(partitions)]
        self._encoder = ArrowEncoder(Codec.NONE)
        self.sent = 0

    def send(self, producer: Producer) -> None:
        """One batch to each partition."""
        values = [str(self.sent + each) for each in range(ROWS)]
        for place in self._places:
            (batch,) = self._encoder.encode(pa.record_batch({"value": values}))
            stamp(batch, *self._identity, self.sent, False)
            producer.send(place, batch.data, batch.record_count)
        self.sent += ROWS


def test_many_partitions_and_where_things_are(cluster: Cluster) -> None:
    cluster.create_topic("many", 5, 1)
    producer, numbers = Producer(cluster), Numbers(cluster, "many", 5)
    for _ in range(40):
        numbers.send(producer)
    producer.flush()
    producer.close()
    assert committed_values(cluster, "many") == [str(each) for each in range(numbers.sent)] * 5
    assert set(producer.written) == {TopicPartition("many", each) for each in range(5)}
    for written in producer.written.values():
        assert (written.first_offset, written.last_offset, written.records) == (0, numbers.sent - 1, numbers.sent)


def test_little_is_sent_without_a_thread(cluster: Cluster) -> None:
    cluster.create_topic("little", 3, 1)
    producer, numbers = Producer(cluster), Numbers(cluster, "little", 3)
    for _ in range(4):
        numbers.send(producer)
        numbers.send(producer)
        producer.flush()
    assert not producer._senders
    while not producer._senders:
        numbers.send(producer)
    assert producer._buffered <= SENT_BY_FLUSH_BYTES + 2000
    producer.flush()
    producer.close()
    assert committed_values(cluster, "little") == [str(each) for each in range(numbers.sent)] * 3


def test_a_flush_that_loses_its_connection(broker: EmbeddedBroker, cluster: Cluster) -> None:
    """Others that flush meanwhile wait for the same batches."""
    cluster.create_topic("taken-over", 2, 1)
    producer, numbers = Producer(cluster), Numbers(cluster, "taken-over", 2)
    numbers.send(producer)
    producer.flush()
    broker.kill()
    numbers.send(producer)
    flushes = [threading.Thread(target=producer.flush) for _ in range(3)]
    for each in flushes:
        each.start()
    until(lambda: producer._flushing is not None)
    broker.restart()
    for each in flushes:
        each.join()
    assert producer._flushing is None
    producer.close()
    assert committed_values(cluster, "taken-over") == [str(each) for each in range(numbers.sent)] * 2


def test_an_interrupted_write_is_a_failed_one(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The responses are not read: a later flush must not wait for them."""
    cluster.create_topic("interrupted", 1, 1)
    producer, numbers = Producer(cluster), Numbers(cluster, "interrupted", 1)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(producer, "_handle_response", interrupted)
    numbers.send(producer)
    with pytest.raises(KeyboardInterrupt):
        producer.flush()
    with pytest.raises(UnreachableError, match="interrupted"):
        producer.flush()
    producer.close()


def test_a_broker_that_restarts_again_and_again(broker: EmbeddedBroker, cluster: Cluster) -> None:
    cluster.create_topic("restarted", 2, 1)
    producer, numbers = Producer(cluster), Numbers(cluster, "restarted", 2)
    done = threading.Event()

    def restart() -> None:
        for _ in range(3):
            time.sleep(0.3)
            broker.kill()
            broker.restart()
        done.set()

    thread = threading.Thread(target=restart)
    thread.start()
    while not done.is_set():
        numbers.send(producer)
        time.sleep(0.005)
    producer.flush()
    producer.close()
    thread.join()
    assert committed_values(cluster, "restarted") == [str(each) for each in range(numbers.sent)] * 2


@pytest.mark.timeout(300)
def test_leaders_that_are_killed() -> None:
    with EmbeddedCluster(3) as nodes, Cluster(nodes.bootstrap_servers, timeout_s=60) as cluster:
        make_topic(nodes, "led", 3, 3, {"min.insync.replicas": "2"})
        producer, numbers = Producer(cluster), Numbers(cluster, "led", 3)
        done = threading.Event()

        def kill_leaders() -> None:
            for _ in range(2):
                time.sleep(0.3)
                leader = cluster.leader_of(TopicPartition("led", 0)).node_id
                nodes.kill(leader)
                time.sleep(1.0)
                nodes.start(leader)
            done.set()

        thread = threading.Thread(target=kill_leaders)
        thread.start()
        while not done.is_set():
            numbers.send(producer)
            time.sleep(0.01)
        producer.flush()
        producer.close()
        thread.join()
        assert committed_values(cluster, "led") == [str(each) for each in range(numbers.sent)] * 3


def test_what_no_repetition_heals_is_raised(cluster: Cluster) -> None:
    cluster.create_topic("small", 1, 1, {"max.message.bytes": "1000"})
    (large,) = ArrowEncoder(Codec.NONE).encode(pa.record_batch({"value": ["x" * 2000]}))
    producer = Producer(cluster)
    producer.send(TopicPartition("small", 0), large.data, 1)
    with pytest.raises(RefusedError, match=r"max\.message\.bytes") as raised:
        producer.flush()
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(RefusedError):
        producer.send(TopicPartition("small", 0), large.data, 1)
    producer.close()


def test_a_leader_that_left_the_cluster_is_looked_up_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.create_topic("left", 1, 1)
    real, asked = cluster.leader_of, 0

    def leader_of(place: TopicPartition, deadline: Deadline | None = None) -> Leader:
        nonlocal asked
        asked += 1
        found = real(place, deadline)
        return found._replace(node_id=99) if asked == 1 else found

    monkeypatch.setattr(cluster, "leader_of", leader_of)
    producer, numbers = Producer(cluster), Numbers(cluster, "left", 1)
    numbers.send(producer)
    producer.flush()
    producer.close()
    assert asked == 2
    assert committed_values(cluster, "left") == [str(each) for each in range(ROWS)]


def test_a_transaction_must_know_where_its_batches_are(cluster: Cluster) -> None:
    queue = _PartitionQueue(TopicPartition("somewhere", 0))
    for transactional_id in (None, "an id"):
        producer = Producer(cluster, transactional_id=transactional_id)
        queue.waiting.append(_Batch(bytearray(b"x"), 1))
        producer._note_written(queue, -1)
        if transactional_id is None:
            producer.flush()
        else:
            with pytest.raises(WireError, match="does not have the offset"):
                producer.flush()


def test_a_flush_gives_up_after_its_delivery_timeout() -> None:
    """The broker does not come back; the error names it."""
    (batch,) = ArrowEncoder(Codec.NONE).encode(pa.record_batch({"value": ["x"]}))
    with EmbeddedBroker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        cluster.create_topic("gone", 1, 1)
        producer = Producer(cluster, delivery_timeout_s=5.0)
        producer.send(TopicPartition("gone", 0), batch.data, 1)
        producer.flush()
        broker.kill()
        producer.send(TopicPartition("gone", 0), batch.data, 1)
        with pytest.raises(UnreachableError, match=broker.bootstrap_servers):
            producer.flush()
        producer.close()
