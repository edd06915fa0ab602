"""The sink's protocol without Spark, at the points where it could go wrong: each failure planted exactly there.

Tasks and drivers are called as Spark would; "another driver" is a settler that knows only what is in the cluster.
"""

import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from millstream.columnar import ArrowEncoder, stamp
from millstream.formats.records.compression import Codec
from millstream.raw_client import Cluster, RefusedError, TopicPartition
from millstream.raw_client.producing import Producer
from millstream.raw_client.transactions import EndResult, Identity, Transactions
from millstream.spark.connections import cluster_of
from millstream.spark.errors import SinkError
from millstream.spark.sink.batch_input import BatchInput
from millstream.spark.sink.decisions import Decider, Decision, FencedError, task_prefix
from millstream.spark.sink.options import WriteOptions, parse_write_options
from millstream.spark.sink.sink import BatchCommitter
from millstream.spark.sink.task import TaskIdentity, TaskWrite, write_open
from millstream.testing import EmbeddedBroker
from tests.system.spark_exactly_once.committed import committed_values, hidden
from tests.waiting import TIMEOUT_SECONDS
from tools.apache_kafka import ApacheKafkaBroker, resolve


class CrashError(Exception):
    """The process is gone."""


SYSTEMS = [
    "two-phase",
    "plain",
    "version-1",
    pytest.param("apache-kafka", marks=pytest.mark.slow),
    pytest.param("apache-kafka-version-1", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=SYSTEMS)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker: ours, that allows two-phase commits or does not, or Kafka's; also with transactions as
    they were before KIP-890."""
    kind: str = request.param
    system: Any = EmbeddedBroker({"transaction.two.phase.commit.enable": kind == "two-phase"})
    if kind.startswith("apache-kafka"):
        system = ApacheKafkaBroker(resolve(), tmp_path_factory.mktemp("kafka"))
    with system as running:
        if kind.endswith("version-1"):
            _set_transaction_version(running.bootstrap_servers, 1)
        yield running.bootstrap_servers


def _set_transaction_version(bootstrap: str, level: int) -> None:
    with Cluster(bootstrap) as cluster:
        update = {
            "feature": "transaction.version",
            "max_version_level": level,
            "allow_downgrade": True,
            "upgrade_type": 2,
        }
        response = cluster.call("update_features", timeout_ms=30_000, feature_updates=[update], validate_only=False)
        assert not response.error_code, response.error_message
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while Transactions(Cluster(bootstrap)).version != level:
            assert time.monotonic() < deadline
            time.sleep(0.05)


class Query:
    """A query that writes to a topic of its own."""

    def __init__(self, broker: str, **more: str) -> None:
        self.topic, self.sink = f"out-{uuid4().hex[:8]}", str(uuid4())
        given = {"kafka.bootstrap.servers": broker, "topic": self.topic}
        self.options: WriteOptions = parse_write_options(given | more, streaming=True)
        self.cluster: Cluster = cluster_of(self.options.connection)
        self.cluster.create_topic(self.topic, 3)
        self.transactions = Transactions(self.cluster, timeout_ms=self.options.transaction_timeout_ms)

    def task(self, batch: int, attempt: str, number: int, values: Collection[str], retry: int = 0) -> TaskWrite:
        here = TaskIdentity(self.sink, "run", batch, f"{task_prefix(self.sink)}{number}.{retry}")
        rows = pa.record_batch({"key": [f"k{each}" for each in values], "value": list(values)})
        return write_open(
            self.options, self.transactions, here, attempt, lambda each: each, iter([rows]), two_phase=True
        )

    def split(self, batch: int, attempt: str, tasks: int) -> list[TaskWrite]:
        """The same twelve rows of a batch, over any number of tasks."""
        values = [f"{batch}/{each}" for each in range(12)]
        return [self.task(batch, attempt, number, values[number::tasks]) for number in range(tasks)]

    def driver(self) -> BatchCommitter:
        return BatchCommitter(self.cluster, self.sink, self.options)

    def settled(self) -> list[str]:
        """What is committed once all markers are written."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while hidden(self.cluster, self.topic) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert hidden(self.cluster, self.topic) == 0, "a transaction was left open"
        return sorted(committed_values(self.cluster, self.topic))


def expected(*batches: int) -> list[str]:
    return sorted(f"{batch}/{each}" for batch in batches for each in range(12))


def test_batches_are_committed_whole_and_ids_do_not_pile_up(broker: str) -> None:
    query = Query(broker)
    driver = query.driver()
    for batch in range(4):
        writes = query.split(batch, f"a{batch}", 3)
        assert all(int(each.split("/")[0]) < batch for each in committed_values(query.cluster, query.topic))
        driver.commit(batch, writes)
    assert query.settled() == expected(0, 1, 2, 3)
    response = query.cluster.call(
        "list_transactions", state_filters=[], producer_id_filters=[], duration_filter=-1, transactional_id_pattern=None
    )
    ids = [row.transactional_id for row in response.transaction_states if query.sink in row.transactional_id]
    assert len(ids) == 4  # three tasks and the decider, after four batches


def test_a_driver_dies_before_the_decision(broker: str) -> None:
    query = Query(broker)
    query.split(0, "first", 3)  # and no one says anything
    query.driver().commit(0, query.split(0, "second", 2))
    assert query.settled() == expected(0)


class DyingTransactions(Transactions):
    """Ends so many transactions, then the process is gone."""

    ends = 0

    def end_all(self, identities: Collection[Identity], *, commit: bool) -> list[EndResult]:
        for identity in list(identities)[: self.ends]:
            self.end(identity, commit=commit)
        raise CrashError


@pytest.mark.parametrize("ended", [0, 1, 2])
@pytest.mark.parametrize("replay_sees_it", [True, False])
def test_a_driver_dies_after_the_decision(broker: str, ended: int, replay_sees_it: bool) -> None:
    query = Query(broker)
    dying = query.driver()
    dying._transactions = DyingTransactions(query.cluster)
    dying._transactions.ends = ended
    with pytest.raises(CrashError):
        dying.commit(0, query.split(0, "first", 3))
    if replay_sees_it:  # tasks write nothing then
        replayed = [TaskWrite(query.sink, 0, "second", 0, None)]
    else:  # tasks of another split write it all again: under the same ids, which aborts what was decided
        replayed = query.split(0, "second", 2)
    query.driver().commit(0, replayed)
    assert query.settled() == expected(0)
    query.driver().commit(1, query.split(1, "third", 3))
    assert query.settled() == expected(0, 1)


@pytest.mark.parametrize("batch", [1, 0])
def test_a_batch_with_other_input_is_refused_and_what_was_decided_is_finished(broker: str, batch: int) -> None:
    """The driver died right after its decision, and comes back with an older checkpoint. What it had decided would
    hold up readers: no driver with that checkpoint would ever end it."""
    query = Query(broker)
    query.driver().commit(0, query.split(0, "zeroth", 3), BatchInput.of_rows(12, 0))
    dying = query.driver()
    dying._transactions = DyingTransactions(query.cluster)
    with pytest.raises(CrashError):
        dying.commit(1, query.split(1, "first", 3), BatchInput.of_rows(12, 1))
    given = BatchInput.of_rows(20, 2)
    writes = [TaskWrite(query.sink, batch, "second", 0, None), query.task(batch, "second", 9, ["other"])]
    driver = query.driver()
    with pytest.raises(SinkError, match="with other input" if batch else "is older than batch 1"):
        driver.commit(batch, writes, given)
    driver.abort(batch, writes)  # as Spark does then
    assert query.settled() == expected(0, 1)
    query.driver().commit(1, [TaskWrite(query.sink, 1, "third", 0, None)], BatchInput.of_rows(12, 1))  # the same
    query.driver().commit(1, [TaskWrite(query.sink, 1, "fourth", 0, None)])  # not compared
    query.driver().commit(2, query.split(2, "fifth", 3), BatchInput.of_rows(12, 2))
    assert query.settled() == expected(0, 1, 2)


def test_abort_after_a_commit_that_failed_halfway_keeps_what_was_decided(broker: str) -> None:
    """Spark calls abort with the same messages when commit raises."""
    query = Query(broker)
    writes = query.split(0, "first", 3)
    dying = query.driver()
    dying._transactions = DyingTransactions(query.cluster)
    dying._transactions.ends = 1
    with pytest.raises(CrashError):
        dying.commit(0, writes)
    query.driver().abort(0, writes)
    query.driver().commit(0, [TaskWrite(query.sink, 0, "second", 0, None)])
    assert query.settled() == expected(0)


def test_abort_before_the_decision_leaves_nothing(broker: str) -> None:
    query = Query(broker)
    writes = query.split(0, "first", 3)
    query.task(0, "first", 7, ["left behind by a task that died"])
    query.driver().abort(0, writes[:1])
    assert query.settled() == []
    query.driver().commit(0, query.split(0, "second", 3))
    assert query.settled() == expected(0)


def test_an_executor_thought_dead_takes_an_id_whose_transaction_is_decided(broker: str) -> None:
    """It begins its own transaction under the id, which aborts the decided one: the rows come back from the log."""
    query = Query(broker)
    zombie: list[TaskWrite] = []

    class Late(Transactions):
        def end_all(self, identities: Collection[Identity], *, commit: bool) -> list[EndResult]:
            if commit and not zombie:
                zombie.append(query.task(0, "zombie", 1, ["from a zombie"]))
            return super().end_all(identities, commit=commit)

    driver = query.driver()
    driver._transactions = Late(query.cluster)
    driver.commit(0, query.split(0, "first", 3))
    assert query.settled() == expected(0)  # and what the zombie has begun is aborted
    driver.commit(1, query.split(1, "second", 3))
    assert query.settled() == expected(0, 1)
    with pytest.raises(RefusedError):
        query.transactions.end(zombie[0].transaction.identity, commit=True)  # type: ignore[union-attr]
    assert query.settled() == expected(0, 1)


def test_a_late_row_of_an_old_attempt_is_refused(broker: str) -> None:
    query = Query(broker)
    (old,) = query.split(0, "first", 1)
    query.driver().commit(0, query.split(0, "second", 1))
    assert old.transaction is not None
    (late,) = ArrowEncoder(Codec.NONE).encode(pa.record_batch({"value": ["late"]}))
    for partition in range(3):
        written = old.transaction.written.get(TopicPartition(query.topic, partition))
        sequence = written.records if written else 0
        stamp(late, old.transaction.identity.producer_id, old.transaction.identity.epoch, sequence, True)
        producer = Producer(query.cluster, transactional_id=old.transaction.identity.transactional_id)
        with pytest.raises(RefusedError):
            producer.send(TopicPartition(query.topic, partition), late.data, 1)
            producer.flush()
        producer.close()
    assert query.settled() == expected(0)


def test_an_old_driver_cannot_decide_once_a_new_one_has_taken_over(broker: str) -> None:
    query = Query(broker)
    old, new = query.driver(), query.driver()
    old.commit(0, query.split(0, "a", 2))
    new.commit(1, query.split(1, "b", 3))
    old.commit(1, query.split(1, "c", 2))  # the same batch, decided already
    assert query.settled() == expected(0, 1)
    new.commit(2, query.split(2, "d", 2))
    with pytest.raises(SinkError, match="older than batch 2"):
        old.commit(1, query.split(1, "e", 2))
    new.commit(3, query.split(3, "f", 2))
    assert query.settled() == expected(0, 1, 2, 3)


def test_two_deciders_at_the_same_moment(broker: str) -> None:
    """One has read that nothing is decided; before it writes, the other takes over and decides."""
    query = Query(broker)
    slow, quick = Decider(query.cluster, query.sink), Decider(query.cluster, query.sink)
    slow.take_over()
    quick.take_over()
    quick.record(Decision(0, "quick", ()))
    with pytest.raises(FencedError):
        slow.record(Decision(0, "slow", ()))
    assert not slow.in_charge
    slow.take_over()
    assert slow.log.decision == Decision(0, "quick", ())


def test_transactions_that_time_out_after_the_decision_are_written_again() -> None:
    """Without two-phase commits a coordinator aborts what takes too long, decided or not."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
    with EmbeddedBroker(settings) as running:
        # Long enough for a busy machine to come as far as the decision.
        query = Query(running.bootstrap_servers, **{"kafka.transaction.timeout.ms": "5000"})
        dying = query.driver()
        dying._transactions = DyingTransactions(query.cluster)
        dying._transactions.ends = 1
        with pytest.raises(CrashError):
            dying.commit(0, query.split(0, "first", 3))
        assert dying._decider.log.decision is not None
        settled = time.monotonic() + TIMEOUT_SECONDS
        while hidden(query.cluster, query.topic) and time.monotonic() < settled:
            time.sleep(0.1)
        assert len(committed_values(query.cluster, query.topic)) == 4  # the rest is aborted
        query.driver().commit(0, [TaskWrite(query.sink, 0, "second", 0, None)])
        assert query.settled() == expected(0)


class Careless(BatchCommitter):
    """Ends the transactions of a batch without recording the decision first: the mistake these tests must find."""

    def _decide(self, wanted: Decision) -> Decision:
        return wanted


def test_a_sink_that_does_not_record_its_decision_is_found_out(broker: str) -> None:
    query = Query(broker)
    careless = Careless(query.cluster, query.sink, query.options)
    careless._transactions = DyingTransactions(query.cluster)
    careless._transactions.ends = 1
    with pytest.raises(CrashError):
        careless.commit(0, query.split(0, "first", 3))
    query.driver().commit(0, query.split(0, "second", 3))
    found = query.settled()
    assert found != expected(0)
    assert len(found) == 12 + 4  # what was ended before the crash is there twice


def test_rows_that_are_gone_cannot_be_restored_and_that_is_said(broker: str) -> None:
    query = Query(broker)
    (write,) = query.split(0, "first", 1)
    assert write.transaction is not None
    place, written = next(iter(write.transaction.written.items()))
    wrong = replace(write.transaction, written={place: replace(written, records=written.records + 1)})
    query.transactions.end(write.transaction.identity, commit=False)
    broken = TaskWrite(query.sink, 0, "first", 12, wrong)
    with pytest.raises(SinkError, match="are left in the log"):
        query.driver().commit(0, [broken])


def test_what_retention_took_is_not_missed_and_the_rest_is_restored(broker: str) -> None:
    query = Query(broker)
    (write,) = query.split(0, "first", 1)
    assert write.transaction is not None
    (place, gone), *rest = write.transaction.written.items()
    query.transactions.end(write.transaction.identity, commit=False)
    row = {"partition_index": place.partition, "offset": gone.last_offset + 1}
    query.cluster.call("delete_records", topics=[{"name": place.topic, "partitions": [row]}], timeout_ms=10_000)
    query.driver().commit(0, [write])
    assert len(query.settled()) == sum(each.records for _, each in rest) > 0


def test_partitions_that_are_added_do_not_move_decisions(broker: str) -> None:
    query = Query(broker)
    query.driver().commit(0, query.split(0, "first", 1))
    place = Decider(query.cluster, query.sink).log.topic_partition(create=False)
    row = {"name": "__millstream_sink_decisions", "count": 16, "assignments": None}
    query.cluster.call("create_partitions", topics=[row], timeout_ms=10_000, validate_only=False)
    assert Decider(query.cluster, query.sink).log.topic_partition(create=False) == place
