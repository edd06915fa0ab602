"""What transactions of 100 ms cost: the same records plain and in transactions, by librdkafka and Java; reading them.

Plain means acks=all, idempotent, which is what transactions build on (and the Java producer's default). librdkafka may
hold 32 MB unsent in both, as Java's producer does: with its own default of 1 GB a transaction would last as long as it
takes to flush that. (With 32 MB it is 100 ms and the time for these, as with Java's tool.) Plain and transactional runs
alternate, and the cost is that of their sums.

Reading: every fifth transaction of what is read was aborted. MB/s count what is in the log, aborted or not, so that
both isolation levels move the same bytes.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

from benchmarks.compare import librdkafka
from benchmarks.compare.cluster_target import ClusterTarget
from benchmarks.compare.cluster_topic import replicated_topic
from benchmarks.compare.loads.produce_java import run_producer_performance
from benchmarks.compare.measure import CLUSTER_GOAL, Load, Measure, Scale
from benchmarks.compare.target import Target
from benchmarks.compare.topic import THROUGHPUT_PARTITIONS, temporary_topic

TRANSACTION_SECONDS = 0.1
_SIZE_BYTES = 1024
_PAIRS = 2
_SETTINGS = {"enable.idempotence": "true", "queue.buffering.max.kbytes": "32768"}
_LARGEST_COST_PERCENT = 8.0
_MARKERS_SECONDS = 1.0
"""By then the last transaction's markers are written, which a commit does not wait for."""


def _measures(prefix: str = "", idempotent: float | None = None, transactional: float = 1.0) -> list[Measure]:
    def throughput(key: str, title: str, goal: float | None = None) -> Measure:
        return Measure(key, f"{prefix}{title}", "MB/s", "higher", goal)

    def cost(key: str, title: str) -> Measure:
        return Measure(key, f"{prefix}{title}", "%", "lower", at_most=_LARGEST_COST_PERCENT, comparable=False)

    return [
        throughput("plain", "produce 1 KB, idempotent, librdkafka", idempotent),
        throughput("transactional", "produce 1 KB in transactions of 100 ms, librdkafka", transactional),
        cost("cost", "cost of the transactions, librdkafka"),
        throughput("java_plain", "produce 1 KB, acks=all, ProducerPerformance"),
        throughput("java_transactional", "produce 1 KB in transactions of 100 ms, ProducerPerformance", transactional),
        cost("java_cost", "cost of the transactions, ProducerPerformance"),
        Measure("single", f"{prefix}a transaction of one record, begin to committed, median", "ms", "lower"),
        throughput("uncommitted", "consume transactions, read_uncommitted, librdkafka"),
        throughput("committed", "consume transactions, read_committed, librdkafka"),
    ]


class Transactions(Load):
    name: ClassVar[str] = "transactions"
    title: ClassVar[str] = "Transactions of 100 ms"
    measures: Sequence[Measure] = _measures()
    _records = 400_000
    _java_records = 350_000
    _read_records = 500_000
    _single = 200

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        values = self._librdkafka(target, scale.records(self._records))
        values |= self._java(target, scale.records(self._java_records))
        values["single"] = self._one_record(target, scale.records(self._single, least=5))
        return values | self._read(target, scale.records(self._read_records))

    def _topic(self, target: Target, records: int) -> AbstractContextManager[str]:
        return temporary_topic(target, THROUGHPUT_PARTITIONS, records * _SIZE_BYTES)

    def _librdkafka(self, target: Target, count: int) -> dict[str, float]:
        seconds = {"plain": 0.0, "transactional": 0.0}
        for _ in range(_PAIRS):
            with self._topic(target, count) as topic:
                plain = librdkafka.Producer(target.bootstrap, topic, acks="all", settings=_SETTINGS)
                plain.send(THROUGHPUT_PARTITIONS * 10, _SIZE_BYTES)  # connections and ids are not what is measured
                seconds["plain"] += plain.send(count, _SIZE_BYTES)
                plain.close()
            with self._topic(target, count) as topic:
                producer = _transactional(target, topic)
                producer.send(THROUGHPUT_PARTITIONS * 10, _SIZE_BYTES, TRANSACTION_SECONDS)
                seconds["transactional"] += producer.send(count, _SIZE_BYTES, TRANSACTION_SECONDS)
                producer.close()
                arrived = sum(librdkafka.end_offsets(target.bootstrap, topic, THROUGHPUT_PARTITIONS))
                if arrived <= count:  # there are markers, too
                    raise RuntimeError(f"{target.name}: {arrived} records in the log after producing {count}")
        values = {key: _PAIRS * count * _SIZE_BYTES / took / 1e6 for key, took in seconds.items()}
        return values | {"cost": _cost(values["plain"], values["transactional"])}

    def _java(self, target: Target, count: int) -> dict[str, float]:
        values = {}
        duration = ("--transaction-duration-ms", str(round(TRANSACTION_SECONDS * 1000)))
        for key, more in (("java_plain", ()), ("java_transactional", (*duration, *_named("--transactional-id")))):
            with self._topic(target, count) as topic:
                values[key] = run_producer_performance(target, topic, _SIZE_BYTES, count, ("acks=all",), more)
        return values | {"java_cost": _cost(values["java_plain"], values["java_transactional"])}

    def _one_record(self, target: Target, count: int) -> float:
        with self._topic(target, count) as topic:
            producer = _transactional(target, topic, {"linger.ms": "0"})
            producer.send(20, _SIZE_BYTES, 0.0, per_call=1)
            times = [producer.send(1, _SIZE_BYTES, 0.0, per_call=1) for _ in range(count)]
            producer.close()
        return statistics.median(times) * 1000

    def _read(self, target: Target, count: int) -> dict[str, float]:
        with self._topic(target, count) as topic:
            producer = _transactional(target, topic)
            committed = count - producer.send_aborting(count, _SIZE_BYTES, TRANSACTION_SECONDS, every=5)
            producer.close()
            time.sleep(_MARKERS_SECONDS)
            expected = {"uncommitted": count, "committed": committed}
            seconds = dict.fromkeys(expected, 0.0)
            for key in (
                "uncommitted",
                "committed",
                "committed",
                "uncommitted",
            ):  # fair to both
                _, took = librdkafka.consume_all(
                    target.bootstrap,
                    topic,
                    THROUGHPUT_PARTITIONS,
                    expected=expected[key],
                    settings={"isolation.level": f"read_{key}"},
                )
                seconds[key] += took
        return {key: 2 * count * _SIZE_BYTES / took / 1e6 for key, took in seconds.items()}


class ClusterTransactions(Transactions):
    """The same on three nodes: three replicas of everything, `__transaction_state` too."""

    name: ClassVar[str] = "cluster-transactions"
    title: ClassVar[str] = "Transactions of 100 ms on three replicas"
    measures: Sequence[Measure] = _measures("3 replicas: ", CLUSTER_GOAL, CLUSTER_GOAL)
    _records = 200_000
    _java_records = 60_000
    _read_records = 100_000
    _single = 100

    def _topic(self, target: Target, records: int) -> AbstractContextManager[str]:
        assert isinstance(target, ClusterTarget)
        return replicated_topic(target, THROUGHPUT_PARTITIONS, expected_bytes=records * _SIZE_BYTES)


def _transactional(
    target: Target, topic: str, settings: dict[str, str] | None = None
) -> librdkafka.TransactionalProducer:
    transactional_id = f"compare-{uuid.uuid4().hex[:12]}"
    return librdkafka.TransactionalProducer(
        target.bootstrap, topic, transactional_id, settings={**_SETTINGS, **(settings or {})}
    )


def _named(option: str) -> tuple[str, str]:
    return option, f"compare-{uuid.uuid4().hex[:12]}"


def _cost(plain: float, transactional: float) -> float:
    """Percent of the throughput that transactions take away; below zero where they happened to be faster."""
    return 100 * (1 - transactional / plain)
