"""Where the loads run: one broker, one Spark session that has both connectors, and the topics they read."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millstream.columnar import ArrowEncoder, stamp
from millstream.formats.records.compression import Codec
from millstream.raw_client import Cluster, TopicPartition
from millstream.raw_client.producing import Producer
from millstream.spark.session.session import start_session
from millstream.testing import EmbeddedBroker
from tools import spark_kafka_connector

OURS, SPARKS = "millstream", "kafka"
FORMATS = (OURS, SPARKS)
PARTITIONS = 2
CORES = 2


@dataclass
class Took:
    """How long something took, by the clock and in work of Spark's processes."""

    seconds: float = 0.0
    processor_s: float = 0.0


@dataclass
class Stage:
    spark: SparkSession
    bootstrap: str
    directory: Path
    _number: int = 0

    def read(self, connector: str, topic: str, **options: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic, **options}
        return self.spark.read.format(connector).options(**given).load()

    def stream(self, connector: str, topic: str, **options: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        return self.spark.readStream.format(connector).options(**given, **options).load()

    def new_topic(self, purpose: str, partitions: int = PARTITIONS) -> str:
        """An empty topic: what one round wrote is not in the way of the next."""
        self._number += 1
        name = f"{purpose}-{self._number}"
        with Cluster(self.bootstrap) as cluster:
            cluster.create_topic(name, partitions, 1, {})
        return name

    @contextmanager
    def timed(self) -> Iterator[Took]:
        took = Took()
        worked, begun = _worked_s(), time.perf_counter()
        yield took
        took.seconds = time.perf_counter() - begun
        took.processor_s = _worked_s() - worked

    def checkpoint(self) -> str:
        self._number += 1
        return str(self.directory / f"checkpoint-{self._number}")

    def fill(self, topic: str, rows: int, value_bytes: int, codec: Codec, partitions: int = PARTITIONS) -> None:
        """Writes `rows` records with keys of 16 bytes; values of text-like bytes that compress to about a third."""
        chance = np.random.default_rng(7)
        words = [chance.bytes(6).hex().encode() for _ in range(400)]
        values = [b" ".join(words[at] for at in chance.integers(0, 400, value_bytes // 12 + 1))[:value_bytes]
                  for _ in range(1000)]  # fmt: skip
        self.fill_with(
            topic,
            rows,
            codec,
            lambda first, count: pa.array([values[(first + at) % 1000] for at in range(count)], pa.binary()),
            partitions,
        )

    def fill_with(
        self,
        topic: str,
        rows: int,
        codec: Codec,
        values: Callable[[int, int], pa.Array],
        partitions: int = PARTITIONS,
    ) -> None:
        """The same with values that a function makes: of the number of the first record, and how many."""
        chunk = 10_000
        encoder = ArrowEncoder(codec, max_batch_bytes=64 << 10)
        with Cluster(self.bootstrap) as cluster:
            producer = Producer(cluster)
            for first in range(0, rows, chunk):
                count = min(chunk, rows - first)
                keys = pa.array([b"key-%012d" % (first + at) for at in range(count)], pa.binary())
                batch = pa.record_batch({"key": keys, "value": values(first, count)})
                place = TopicPartition(topic, first // chunk % partitions)
                for encoded in encoder.encode(batch):
                    stamp(encoded, -1, -1, -1, False)
                    producer.send(place, encoded.data, encoded.record_count)
            producer.flush()
            producer.close()


@contextmanager
def stage(cores: int = CORES) -> Iterator[Stage]:
    directory = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    jars = ",".join(map(str, spark_kafka_connector.jars()))
    try:
        with EmbeddedBroker(data_dir=directory / "data") as broker:
            spark = start_session(
                "bench-spark",
                master=f"local[{cores}]",
                checkpoints=str(directory),
                log_file=directory / "spark.log",
                settings={
                    "spark.jars": jars,
                    "spark.driver.memory": "2g",
                    "spark.sql.shuffle.partitions": str(cores),
                    "spark.sql.streaming.metricsEnabled": "false",
                },
            )
            try:
                yield Stage(spark, broker.bootstrap_servers, directory)
            finally:
                spark.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _worked_s() -> float:
    """Processor time so far of the JVM below this process and of all below that, the ended ones included."""
    total = 0.0
    for java in psutil.Process().children():
        if java.name() != "java":
            continue
        for each in (java, *java.children(recursive=True)):
            try:
                total += sum(each.cpu_times()[:4])
            except psutil.NoSuchProcess:
                pass
    return total
