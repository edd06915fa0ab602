"""What tiered storage costs: `python -m benchmarks.tier [--megabytes N] [--seconds S] [--elsewhere] [--tiny]
[--save FILE]`.

One broker and a real S3 server (`tests/s3_server.py`) on this machine. Measured:

- history read through the broker from the tier, beside the same topic read from its own disk, and beside the same
  ranges read from the S3 server by `obstore` alone. Once by bare Fetch requests of 4 MiB, one after the other, so that
  no client library takes the cores, and once by librdkafka. Files of broker and store are dropped from the page cache
  before each read. Target: at least 0.8 of `obstore`;
- the time to acknowledge of a steady producer: at rest, while segments go up (with and without a limit of the rate),
  and while two consumers, each a process, read history from the tier, and from the disk to compare. Target: p99 at most
  1.2 times that at rest;
- CPU time of the broker for each GB that goes up, with nothing else to do.

A store and consumers of history are on other machines than the broker. With `--elsewhere` they get only the CPU time
that the broker and the producer do not want (Linux's idle scheduling): what is left of the effect on the producer is
the broker's own.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from benchmarks.compare import wire
from benchmarks.compare.loads import raw_transfer
from benchmarks.compare.process_stat import cpu_seconds
from millstream.cli.bench.load import percentile
from millstream.testing import EmbeddedBroker
from tests.s3_server import BUCKET, S3Server
from tests.waiting import until

_RANGE_BYTES = 4 << 20
_RECORD_BYTES = 1024
_RATE = 500
_COPY_BYTES_PER_SECOND = 20_000_000
_WARM_SECONDS = 1.0


class Bench:
    def __init__(self, megabytes: float, seconds: float, directory: Path, *, elsewhere: bool = False) -> None:
        self._elsewhere = elsewhere
        self._records = int(megabytes * 1e6 / _RECORD_BYTES)
        self._segment_bytes = str(max(1 << 20, min(64 << 20, int(megabytes * 1e6 / 8))))
        self._seconds = seconds
        self._directory = directory
        self.results: dict[str, float] = {}

    def run(self) -> None:
        server = S3Server(self._directory / "s3", command_prefix=("chrt", "-i", "0") if self._elsewhere else ())
        server.start()
        os.environ.update(server.environment())
        settings = {
            "remote.log.storage.system.enable": "true",
            "remote.log.manager.task.interval.ms": "100",
            "log.retention.check.interval.ms": "200",
            "log.segment.delete.delay.ms": "0",
            "millstream.tier.url": f"s3://{BUCKET}/bench",
        }
        try:
            with EmbeddedBroker(settings, data_dir=self._directory / "data") as broker:
                self._measure(broker, server)
        finally:
            server.kill()

    def _measure(self, broker: EmbeddedBroker, server: S3Server) -> None:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        waiting = {"remote.storage.enable": "true", "remote.log.copy.disable": "true"}
        for name, config in (("local", {}), ("quiet", waiting), ("busy", waiting), ("slow", waiting), ("steady", {})):
            topic = NewTopic(name, 1, 1, config={"internal.segment.bytes": self._segment_bytes, **config})
            admin.create_topics([topic])[name].result(60)
            if name != "steady":
                _fill(servers, name, self._records)
        # The cost of copies: nothing else runs.
        before, started = cpu_seconds(broker.pid), time.perf_counter()
        copied = self._copy(admin, broker, "quiet")
        self.results["upload_mb_per_second"] = copied / 1e6 / (time.perf_counter() - started)
        self.results["upload_cpu_seconds_per_gb"] = (cpu_seconds(broker.pid) - before) / (copied / 1e9)
        # The producer, at rest and beside work.
        self.results["p99_ms_rest"] = self._p99(servers, lambda: None)
        self.results["p99_ms_uploading"] = self._p99(servers, lambda: self._copy(admin, broker, "busy"))
        _limit_copies(admin, _COPY_BYTES_PER_SECOND)
        self.results["p99_ms_uploading_20_mb_per_second"] = self._p99(
            servers, lambda: self._copy(admin, broker, "slow")
        )
        with _readers(servers, "local", 2, self._elsewhere):
            self.results["p99_ms_two_readers_of_the_disk"] = self._p99(servers, lambda: None)
        broker.restart()  # the cache of the tier is empty again
        with _readers(servers, "quiet", 2, self._elsewhere):
            self.results["p99_ms_two_readers_of_history"] = self._p99(servers, lambda: None)
        self.results["p99_ms_rest_again"] = self._p99(servers, lambda: None)
        # Reading: each cold, with an empty cache of the tier.
        for name, topic_name in (("history", "quiet"), ("local_cold", "local")):
            broker.restart()
            _drop_pages(self._directory)
            self.results[f"{name}_librdkafka_mb_per_second"] = _read(servers, topic_name, self._records)
        for name, topic_name in (("history", "quiet"), ("local_cold", "local")):
            broker.restart()
            _drop_pages(self._directory)
            with wire.connect(servers) as connection:
                size, seconds = raw_transfer.fetch(
                    connection, topic_name, self._records, allow_empty=True, partition_bytes=_RANGE_BYTES
                )
            self.results[f"{name}_mb_per_second"] = size / 1e6 / seconds
        for in_flight in (1, 2):
            _drop_pages(self._directory)
            self.results[f"obstore_{in_flight}_in_flight_mb_per_second"] = _read_objects(server, in_flight)
        rest = max(self.results["p99_ms_rest"], self.results["p99_ms_rest_again"])
        best = max(value for name, value in self.results.items() if name.startswith("obstore_"))
        self.results["history_of_obstore"] = self.results["history_mb_per_second"] / best
        self.results["history_of_local"] = (
            self.results["history_mb_per_second"] / self.results["local_cold_mb_per_second"]
        )
        self.results["p99_uploading_of_rest"] = self.results["p99_ms_uploading"] / rest
        self.results["p99_uploading_20_mb_per_second_of_rest"] = (
            self.results["p99_ms_uploading_20_mb_per_second"] / rest
        )
        self.results["p99_readers_of_the_disk_of_rest"] = self.results["p99_ms_two_readers_of_the_disk"] / rest
        self.results["p99_readers_of_rest"] = self.results["p99_ms_two_readers_of_history"] / rest

    def _copy(self, admin: AdminClient, broker: EmbeddedBroker, topic: str) -> int:
        """Lets a topic that waits go to the tier; returns how many bytes went up."""
        logs = self._directory / "data" / f"{topic}-0"
        copied = sum(path.stat().st_size for path in sorted(logs.glob("*.log"))[:-1])
        changes = {"remote.log.copy.disable": "false", "local.retention.bytes": "1"}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(60)
        until(lambda: len(list(logs.glob("*.log"))) == 1, f"{topic} is in the tier")
        return copied

    def _p99(self, servers: str, work: Callable[[], object]) -> float:
        """Of acknowledgements of a producer at a steady rate, for as long as the work takes, and for the seconds at
        least."""
        is_over = threading.Event()
        latencies: list[float] = []

        def produce() -> None:
            producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "acks": "all", "log_level": 0})
            value, due = bytes(_RECORD_BYTES), time.perf_counter()
            began = due
            while not is_over.is_set() or time.perf_counter() - began < self._seconds + _WARM_SECONDS:
                sent_at = due

                def delivered(error: Any, _: Any, sent_at: float = sent_at) -> None:
                    if error is None and sent_at - began > _WARM_SECONDS:
                        latencies.append((time.perf_counter() - sent_at) * 1000)

                producer.produce("steady", value, on_delivery=delivered)
                due += 1 / _RATE
                while (ahead := due - time.perf_counter()) > 0:  # a poll ends when a record is acknowledged
                    producer.poll(ahead)
            producer.flush(60)

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            work()
        finally:
            is_over.set()
            thread.join()
        return percentile(sorted(latencies), 99)


def _fill(servers: str, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "batch.size": 1_000_000, "log_level": 0})
    value = os.urandom(_RECORD_BYTES)
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(300):
        raise RuntimeError(f"{topic} was not filled")


def _consumer(servers: str, topic: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 65_536,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def _read(servers: str, topic: str, records: int) -> float:
    """MB/s of all records of a topic."""
    consumer = _consumer(servers, topic)
    seen = size = 0
    began = time.perf_counter()
    try:
        while seen < records:
            for message in consumer.consume(10_000, 0.2):
                if (error := message.error()) is not None:
                    raise RuntimeError(f"{topic}: {error.str()}")
                size += len(message)
                seen += 1
        return size / 1e6 / (time.perf_counter() - began)
    finally:
        consumer.close()


@contextmanager
def _readers(servers: str, topic: str, count: int, elsewhere: bool) -> Any:
    """Processes that read a topic from its beginning, again and again."""
    context = multiprocessing.get_context("spawn")
    arguments = (servers, topic, elsewhere)
    processes = [context.Process(target=_read_forever, args=arguments, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _read_forever(servers: str, topic: str, elsewhere: bool) -> None:
    if elsewhere:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # threads that begin later have it too
    while True:
        consumer = _consumer(servers, topic)
        idle = 0
        while idle < 5:
            idle = 0 if consumer.consume(10_000, 0.2) else idle + 1
        consumer.close()


def _limit_copies(admin: AdminClient, rate: int) -> None:
    entry = ConfigEntry(
        "remote.log.manager.copy.max.bytes.per.second", str(rate), incremental_operation=AlterConfigOpType.SET
    )
    broker = str(next(iter(admin.list_topics(timeout=60).brokers)))
    resource = ConfigResource(ResourceType.BROKER, broker, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)


def _read_objects(server: S3Server, in_flight: int) -> float:
    """MB/s of the segments of the tier, in ranges as the broker reads them, without it."""
    import obstore
    from obstore.store import from_url

    store = from_url(f"s3://{BUCKET}/bench", client_options={"allow_http": True})
    found = [
        (item["path"], item["size"])
        for rows in obstore.list(store)
        for item in rows
        if item["path"].endswith(".segment")
    ]
    ranges = [
        (name, position, min(_RANGE_BYTES, size - position))
        for name, size in sorted(found)
        for position in range(0, size, _RANGE_BYTES)
    ]
    began = time.perf_counter()
    with ThreadPoolExecutor(in_flight) as threads:
        read = sum(
            threads.map(lambda each: len(obstore.get_range(store, each[0], start=each[1], length=each[2])), ranges)
        )
    return read / 1e6 / (time.perf_counter() - began)


def _drop_pages(directory: Path) -> None:
    """The files are not in the page cache any more."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tier", description=__doc__)
    parser.add_argument("--megabytes", type=float, default=1000.0, help="of each topic")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement of the producer")
    parser.add_argument("--elsewhere", action="store_true", help="the store and the readers give way to the broker")
    parser.add_argument("--tiny", action="store_true", help="a try in seconds; its figures mean nothing")
    parser.add_argument("--save", type=Path, help="write the figures to this file, as JSON")
    chosen = parser.parse_args(arguments)
    megabytes, seconds = (4.0, 0.2) if chosen.tiny else (chosen.megabytes, chosen.seconds)
    with tempfile.TemporaryDirectory(prefix="bench-tier-") as directory:
        bench = Bench(megabytes, seconds, Path(directory), elsewhere=chosen.elsewhere)
        bench.run()
    for name, value in bench.results.items():
        print(f"{name:40} {value:10.2f}")
    if chosen.save is not None:
        chosen.save.write_text(json.dumps(bench.results, indent=2) + "\n")
    return bench.results


if __name__ == "__main__":
    main()
