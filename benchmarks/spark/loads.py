"""What is measured: each load gives one number per connector and round; larger or smaller is better, as it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

from confluent_kafka import Consumer, Producer
from pyspark.sql import DataFrame

from benchmarks.spark.result import Result, alternated, rates, size_name
from benchmarks.spark.stage import FORMATS, OURS, SPARKS, Stage
from benchmarks.spark.steps import TableAppend, TypedDecode, Window
from millstream.formats.records.compression import Codec

EXACTLY_ONCE = "millstream, exactly once"


SIZES = {100: 3_000_000, 1024: 600_000}
_LEAST = 2_000
"""Rows of a load at the smallest scale: enough that there are some for every batch."""
CODECS = {"plain": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


class Source:
    """A batch query that reads a whole topic, every column, into a sink that takes all and keeps nothing."""

    def __init__(self, size: int, codec: str, scale: float) -> None:
        self.name = f"source {size_name(size)} {codec}"
        self._size, self._codec, self._rows = size, CODECS[codec], max(_LEAST, int(SIZES[size] * scale))
        self._topic = ""

    def prepare(self, stage: Stage) -> None:
        self._topic = stage.new_topic("read")
        stage.fill(self._topic, self._rows, self._size, self._codec)

    def run(self, stage: Stage, round_: int) -> Iterator[Result]:
        for connector in alternated(FORMATS, round_):
            frame = stage.read(connector, self._topic)
            with stage.timed() as took:
                frame.write.format("noop").mode("overwrite").save()
            yield from rates(self.name, connector, self._rows, took)


class Sink:
    """A batch query that makes rows and writes them."""

    def __init__(self, size: int, scale: float) -> None:
        self.name = f"sink {size_name(size)}"
        self._size, self._rows = size, max(_LEAST, int({100: 1_500_000, 1024: 300_000}[size] * scale))

    def prepare(self, stage: Stage) -> None:
        pass

    def run(self, stage: Stage, round_: int) -> Iterator[Result]:
        rows = stage.spark.range(0, self._rows, numPartitions=2).selectExpr(
            "cast(cast(id as string) as binary) as key", f"cast(repeat('x', {self._size}) as binary) as value"
        )
        for connector in alternated(FORMATS, round_):
            topic = stage.new_topic("written")
            writer = rows.write.format(connector).option("kafka.bootstrap.servers", stage.bootstrap)
            with stage.timed() as took:
                writer.option("topic", topic).mode("append").save()
            yield from rates(self.name, connector, self._rows, took)


class Copy:
    """A streaming query from topic to topic in ten micro-batches; the first, which starts processes, is not counted."""

    def __init__(self, scale: float) -> None:
        self.name = "stream from topic to topic, 100 B"
        self._rows = max(_LEAST, int(2_000_000 * scale))
        self._topic = ""

    def prepare(self, stage: Stage) -> None:
        self._topic = stage.new_topic("copied")
        stage.fill(self._topic, self._rows, 100, Codec.NONE)

    def run(self, stage: Stage, round_: int) -> Iterator[Result]:
        for connector in alternated((OURS, EXACTLY_ONCE, SPARKS), round_):
            at_once = str(self._rows // 10)
            frame = stage.stream(format_of(connector), self._topic, maxOffsetsPerTrigger=at_once)
            durations_ms = drain(stage, frame, connector)
            counted = self._rows * (len(durations_ms) - 1) / len(durations_ms)
            yield Result(self.name, "rows/s", connector, counted / sum(durations_ms[1:]) * 1000)


class Overhead:
    """What a micro-batch costs that has next to nothing to do: one record each."""

    def __init__(self, scale: float) -> None:
        self.name = "micro-batch of one record"
        self._batches = max(3, int(40 * scale))
        self._topic = ""

    def prepare(self, stage: Stage) -> None:
        self._topic = stage.new_topic("trickle", 1)
        stage.fill(self._topic, self._batches, 100, Codec.NONE)

    def run(self, stage: Stage, round_: int) -> Iterator[Result]:
        for connector in alternated((OURS, EXACTLY_ONCE, SPARKS), round_):
            frame = stage.stream(format_of(connector), self._topic, maxOffsetsPerTrigger="1")
            durations = drain(stage, frame, connector)
            yield Result(self.name, "ms", connector, sorted(durations)[len(durations) // 2], more_is_better=False)


_LONGEST_WAIT_SECONDS = 120.0


class Latency:
    """A passthrough query: from the producer's clock to the consumer's, records at a steady pace."""

    def __init__(self, scale: float) -> None:
        self.name = "end to end, passthrough"
        self._seconds = max(0.5, 9.0 * scale)
        self._warm_up_s = min(3.0, 40.0 * scale)
        """The first batches pay for what later ones find ready."""

    def prepare(self, stage: Stage) -> None:
        pass

    def run(self, stage: Stage, round_: int) -> Iterator[Result]:
        for connector in alternated((OURS, EXACTLY_ONCE, SPARKS), round_):
            found = self._measure(stage, connector)
            cuts = quantiles(found, n=100)
            yield Result(f"{self.name}, median", "ms", connector, cuts[49], more_is_better=False)
            yield Result(f"{self.name}, p99", "ms", connector, cuts[98], more_is_better=False)

    def _measure(self, stage: Stage, connector: str) -> list[float]:
        source, target = stage.new_topic("ping", 1), stage.new_topic("pong", 1)
        frame = stage.stream(format_of(connector), source)
        query = start(stage, frame, connector, target, trigger={"processingTime": "0 seconds"})
        ended = threading.Event()
        sender = threading.Thread(target=self._send, args=(stage, source, ended))
        reader = Consumer(
            {
                "bootstrap.servers": stage.bootstrap,
                "group.id": "latency",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
                "enable.auto.commit": False,
            }
        )
        found: list[float] = []
        try:
            reader.subscribe([target])
            sender.start()
            warm_until = time.time() + self._warm_up_s
            begun, deadline = time.monotonic(), self._warm_up_s + self._seconds
            while (spent := time.monotonic() - begun) < deadline or (len(found) < 10 and spent < _LONGEST_WAIT_SECONDS):
                message = reader.poll(0.1)
                if message is None or message.error():
                    continue
                sent = float(message.value() or b"0")
                if sent > warm_until:
                    found.append((time.time() - sent) * 1000)
        finally:
            ended.set()
            sender.join()
            reader.close()
            query.stop()
        return found

    def _send(self, stage: Stage, topic: str, ended: threading.Event) -> None:
        producer = Producer({"bootstrap.servers": stage.bootstrap, "linger.ms": 0})
        while not ended.wait(0.01):
            producer.produce(topic, repr(time.time()).encode())
            producer.poll(0)
        producer.flush(5)


class StartUp:
    """`millstream pipeline run --once` on a pipeline that copies a topic: seconds from the command to its end."""

    def __init__(self, scale: float) -> None:
        self.name = "start to end of `millstream pipeline run --once`"

    def prepare(self, stage: Stage) -> None:
        self._command(stage)  # makes the archive of classes, if there is none yet

    def run(self, stage: Stage, round_: int) -> Iterator[Result]:
        with stage.timed() as took:
            self._command(stage)
        yield Result(self.name, "s", OURS, took.seconds, more_is_better=False)

    def _command(self, stage: Stage) -> None:
        source, target = stage.new_topic("once", 1), stage.new_topic("done", 1)
        stage.fill(source, 1000, 100, Codec.NONE)
        directory = Path(stage.checkpoint())
        directory.mkdir()
        document = {
            "name": f"bench-{os.getpid()}-{source}",
            "bootstrap": stage.bootstrap,
            "sources": {"input": {"topic": source, "format": "raw", "starting_offsets": "earliest"}},
            "sinks": {"output": {"from": "input", "topic": target}},
        }
        file = directory / "pipeline.yaml"
        file.write_text(json.dumps(document))
        subprocess.run(
            [sys.executable, "-m", "millstream", "pipeline", "run", str(file), "--once", "--json"],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=180,
        )


def format_of(connector: str) -> str:
    return OURS if connector == EXACTLY_ONCE else connector


def start(stage: Stage, frame: DataFrame, connector: str, topic: str, trigger: dict[str, object]):  # type: ignore[no-untyped-def]
    writer = frame.select("key", "value").writeStream.format(format_of(connector))
    writer = writer.option("kafka.bootstrap.servers", stage.bootstrap).option("topic", topic)
    if format_of(connector) == OURS:
        writer = writer.option("delivery", "exactly-once" if connector == EXACTLY_ONCE else "at-least-once")
    return writer.option("checkpointLocation", stage.checkpoint()).trigger(**trigger).start()  # type: ignore[call-overload]


def drain(stage: Stage, frame: DataFrame, connector: str) -> list[float]:
    """Runs a query until it has read all; how long each of its batches took, in ms."""
    query = start(stage, frame, connector, stage.new_topic("copy"), {"availableNow": True})
    query.awaitTermination()
    return [float(each["batchDuration"]) for each in query.recentProgress if each["numInputRows"]]


Load = Source | Sink | TypedDecode | Window | TableAppend | Copy | Overhead | Latency | StartUp


def build(scale: float) -> list[Load]:
    return [
        *(Source(size, codec, scale) for size in SIZES for codec in CODECS),
        Sink(100, scale),
        Sink(1024, scale),
        *(step(size, scale) for step in (TypedDecode, Window, TableAppend) for size in SIZES),
        Copy(scale),
        Overhead(scale),
        Latency(scale),
        StartUp(scale),
    ]
