"""The measurements of `millstream bench`: produce, consume and latency.

They use librdkafka in this process, so the numbers include the client. Comparisons of brokers are in `benchmarks/`.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.cli.terminal import CommandFailedError
from millstream.client.connection import Connection
from millstream.common.lazy_dataclass import dataclass

Progress = Callable[[int], None]
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
SAMPLE_EVERY = 10
"""Every n-th delivery is timed. Timing all of them would reduce the throughput."""
REPORT_EVERY = 5000
STALL_SECONDS = 30.0


@dataclass(slots=True)
class Measured:
    """The result of one measurement. Latencies are in milliseconds."""

    load: str
    records: int
    bytes: int
    seconds: float
    latencies_ms: list[float] = field(default_factory=list, repr=False)

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def megabytes_per_second(self) -> float:
        return self.bytes / self.seconds / 1e6 if self.seconds else 0.0

    def percentiles(self) -> dict[str, float]:
        """p50 to p99.9 and the maximum; empty if no record was timed."""
        if not self.latencies_ms:
            return {}
        ordered = sorted(self.latencies_ms)
        named = {f"p{percent:g}": percentile(ordered, percent) for percent in PERCENTILES}
        return {**named, "max": ordered[-1]}

    def document(self) -> dict[str, Any]:
        return {
            "load": self.load,
            "records": self.records,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 4),
            "records_per_second": round(self.records_per_second, 1),
            "megabytes_per_second": round(self.megabytes_per_second, 3),
            "latency_ms": {name: round(value, 4) for name, value in self.percentiles().items()},
        }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that is not exceeded by `percent` of all (nearest rank)."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def produce_load(
    connection: Connection, topic: str, *, records: int, size: int, acks: str, compression: str, progress: Progress
) -> Measured:
    """Sends as fast as librdkafka accepts records. Latency is from the call until the delivery report."""
    producer = Producer(
        connection.librdkafka(
            acks=acks,
            compression_type=compression,
            linger_ms=5,
            batch_size=1_000_000,
            queue_buffering_max_messages=500_000,
            queue_buffering_max_kbytes=65_536,
        )
    )
    value = os.urandom(size)
    latencies: list[float] = []
    failures: list[Any] = []

    def report(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(error)

    def timed_report(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(error)
        else:
            latencies.append(message.latency() * 1000)

    produce, poll = producer.produce, producer.poll
    started = time.perf_counter()
    for number in range(records):
        callback = report if number % SAMPLE_EVERY else timed_report
        while True:
            try:
                produce(topic, value, on_delivery=callback)
                break
            except BufferError:
                poll(0.1)
        if number % REPORT_EVERY == 0:
            poll(0)
            progress(number - len(producer))
            if failures:
                break
    while (left := producer.flush(0.2)) and not failures:
        progress(records - left)
    seconds = time.perf_counter() - started
    if failures:
        raise connection.error(failures[0], topic)
    progress(records)
    return Measured("produce", records, records * size, seconds, latencies)


def consume_load(
    connection: Connection, topic: str, *, partitions: Sequence[int], records: int, progress: Progress
) -> Measured:
    """Reads a topic from its first offset until `records` have arrived."""
    consumer = _consumer(connection, [TopicPartition(topic, partition, 0) for partition in partitions])
    seen = size = 0
    started = moved = time.perf_counter()
    try:
        while seen < records:
            messages = consumer.consume(10_000, 0.1)
            for message in messages:
                if message.error() is not None:
                    raise connection.error(message.error(), topic)
                size += len(message)
            seen += len(messages)
            now = time.perf_counter()
            if messages:
                moved = now
                progress(seen)
            elif now - moved > STALL_SECONDS:
                raise CommandFailedError(f"only {seen} of {records} records were read; none for {STALL_SECONDS:g} s")
        # Up to the last records: the wait of consume() after them does not count.
        return Measured("consume", seen, size, moved - started)
    finally:
        consumer.close()


def latency_load(
    connection: Connection,
    topic: str,
    *,
    partitions: Sequence[int],
    size: int,
    acks: str,
    rate: int,
    seconds: float,
    progress: Progress,
) -> Measured:
    """Sends at a constant rate and measures each record from its due time until a consumer receives it.

    From the due time, not from the send: a delay of the sender counts too (no coordinated omission).
    """
    total = max(1, int(rate * seconds))
    latencies: list[float] = []
    arrived = threading.Event()
    failures: list[Exception] = []
    ends = _ends(connection, topic, partitions)
    consumer = _consumer(
        connection, [TopicPartition(topic, partition, ends[partition]) for partition in partitions], wait_ms=100
    )

    def receive() -> None:
        try:
            while len(latencies) < total and not arrived.is_set():
                message = consumer.poll(0.1)
                if message is None:
                    continue
                if message.error() is not None:
                    raise connection.error(message.error(), topic)
                due = int.from_bytes((message.value() or b"")[:8], "big")
                latencies.append((time.perf_counter_ns() - due) / 1e6)
        except Exception as error:
            failures.append(error)
        finally:
            arrived.set()

    producer = Producer(connection.librdkafka(acks=acks, linger_ms=0))
    padding = bytes(max(0, size - 8))
    # The first record opens connections and finds leaders. It is not measured.
    producer.produce(topic, (0).to_bytes(8, "big") + padding, partition=partitions[0])
    if producer.flush(STALL_SECONDS):
        raise CommandFailedError(f"the first record was not acknowledged within {STALL_SECONDS:g} s")
    while consumer.poll(STALL_SECONDS) is None:
        raise CommandFailedError(f"the first record was not received within {STALL_SECONDS:g} s")
    receiver = threading.Thread(target=receive, name="bench-receiver")
    receiver.start()
    try:
        begin = time.perf_counter_ns() + 10_000_000
        interval = 1_000_000_000 / rate
        for number in range(total):
            due = begin + int(number * interval)
            while (ahead := due - time.perf_counter_ns()) > 0:
                producer.poll(0)
                time.sleep(min(ahead / 1e9, 0.01))
            producer.produce(topic, due.to_bytes(8, "big") + padding)
            if number % max(1, rate // 5) == 0:
                progress(number)
            if failures:
                break
        producer.flush(STALL_SECONDS)
        arrived.wait(STALL_SECONDS)
        elapsed = (time.perf_counter_ns() - begin) / 1e9
    finally:
        arrived.set()
        receiver.join()
        consumer.close()
    if failures:
        raise failures[0]
    if len(latencies) < total:
        raise CommandFailedError(f"only {len(latencies)} of {total} records were received within {STALL_SECONDS:g} s")
    progress(total)
    return Measured("latency", total, total * size, elapsed, latencies)


def _consumer(connection: Connection, start: list[TopicPartition], *, wait_ms: int = 500) -> Consumer:
    consumer = Consumer(
        connection.librdkafka(
            group_id="millstream-bench",
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            auto_offset_reset="earliest",
            fetch_wait_max_ms=wait_ms,
            queued_min_messages=500_000,
        )
    )
    consumer.assign(start)
    return consumer


def _ends(connection: Connection, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    from millstream.client.topics import LATEST, Topics

    return Topics(connection).offsets(topic, dict.fromkeys(partitions, LATEST))
