"""A pipeline that is struck while it writes: an executor is killed, then the driver; each number arrives once.

The cluster, and how its driver is killed and started, is the caller's.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from millstream.client import connect
from millstream.raw_client import LATEST, Cluster, TopicPartition, WireError
from millstream.testing import EmbeddedBroker
from tests.system.spark_cluster.pipeline_run import Feeder, Run
from tests.system.spark_exactly_once.committed import committed_values, hidden
from tests.waiting import LONG_TIMEOUT_SECONDS

INPUT, OUTPUT = "numbers", "doubled"
# Without limit and `smallBatchBytes` the driver would read small batches itself, and one task would write them.
PIPELINE = f"""
name: doubling
bootstrap: ${{MILLSTREAM_BOOTSTRAP}}
sources:
  numbers:
    topic: {INPUT}
    format: json
    schema: number LONG
    max_records_per_trigger: 500
    options: {{smallBatchBytes: 0}}
steps:
  doubled: {{sql: "SELECT number, number * 2 AS twice FROM numbers"}}
sinks:
  out: {{from: doubled, topic: {OUTPUT}, key: CAST(number AS STRING)}}
"""


def pipeline_file(directory: Path) -> Path:
    file = directory / "doubling.yaml"
    file.write_text(PIPELINE)
    return file


class Numbers:
    """A broker, numbers that arrive in a topic of it, and what has been written of them. Use it with `with`.

    They wait for a slow machine: at most `ahead` of them are not written."""

    def __init__(self, *, per_second: int = 100, ahead: int = 2000) -> None:
        self._per_second, self._ahead = per_second, ahead
        self._last_written = 0

    def __enter__(self) -> "Numbers":
        self._broker = EmbeddedBroker({"transaction.two.phase.commit.enable": "true"})
        self._broker.start()
        try:
            self.bootstrap = self._broker.bootstrap_servers
            with connect(self.bootstrap) as client:
                for topic in (INPUT, OUTPUT):
                    client.create_topic(topic, partitions=4)
            self._wire = Cluster(self.bootstrap, timeout_s=60)
            self.feeder = Feeder(self.bootstrap, INPUT, _numbers(), self._per_second, self._is_ahead)
            self.feeder.start()
        except BaseException:
            self._broker.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.feeder.finish()
            self._wire.close()
        finally:
            self._broker.stop()

    def written(self) -> int:
        """Offsets in the output that are settled."""
        places = [TopicPartition(OUTPUT, each) for each in range(self._wire.partitions_of(OUTPUT))]
        ends = self._wire.offsets(dict.fromkeys(places, LATEST))
        self._last_written = sum(each.offset for each in ends.values())
        return self._last_written

    def _is_ahead(self) -> bool:
        return len(self.feeder.sent) >= self._last_written + self._ahead

    def open_records(self) -> int:
        """Offsets of transactions that are not settled: tasks have written, and not all is committed."""
        return hidden(self._wire, OUTPUT)

    def committed(self) -> Counter[int]:
        rows = [json.loads(each) for each in committed_values(self._wire, OUTPUT)]
        assert all(row["twice"] == 2 * row["number"] for row in rows)
        return Counter(row["number"] for row in rows)

    def expected(self) -> Counter[int]:
        return Counter(json.loads(each)["number"] for each in self.feeder.sent)


@dataclass
class Watch:
    """Waits while something must keep running; `told` is for the message when it does not."""

    numbers: Numbers
    is_running: Callable[[], bool]
    told: Callable[[], str]

    def until(self, holds: Callable[[], object], why: str) -> None:
        deadline = time.monotonic() + LONG_TIMEOUT_SECONDS
        while True:
            assert self.is_running(), f"it ended by itself\n{self.told()}"
            try:
                self.numbers.written()
                if holds():
                    return
            except WireError:
                pass
            assert time.monotonic() < deadline, f"{why}\n{self.told()}"
            time.sleep(0.02)

    def more_is_written(self) -> None:
        before = self.numbers.written()
        self.until(lambda: self.numbers.written() > before + 100, "nothing more is committed")

    def amid_a_batch(self) -> None:
        self.until(lambda: self.numbers.open_records() > 0, "no transaction is open at any time")


def strike(
    numbers: Numbers,
    watch: Watch,
    executors: Callable[[], list[psutil.Process]],
    kill_and_restart_driver: Callable[[], None],
) -> None:
    """Kills an executor, then the driver, each while a transaction is open; then waits for all numbers."""
    watch.until(numbers.written, "nothing is committed")
    watch.until(executors, "there is no executor")
    watch.amid_a_batch()
    killed = executors()[0]
    killed.kill()
    watch.more_is_written()
    watch.until(lambda: any(each.pid != killed.pid for each in executors()), "there is no other executor")
    watch.amid_a_batch()
    kill_and_restart_driver()
    watch.more_is_written()
    numbers.feeder.finish()
    watch.until(
        lambda: numbers.committed().total() >= len(numbers.feeder.sent) and numbers.open_records() == 0,
        "not all of it arrives",
    )
    assert numbers.committed() == numbers.expected()
    assert numbers.committed().total() > 500


def strike_pipeline(
    numbers: Numbers, run: Run, executors: Callable[[], list[psutil.Process]], logs: Callable[[], str]
) -> None:
    """`strike` where the command is the driver."""

    def kill_and_restart() -> None:
        run.kill()
        run.start()

    watch = Watch(numbers, lambda: run.process.poll() is None, lambda: f"{run.told()}\n{logs()}")
    try:
        strike(numbers, watch, executors, kill_and_restart)
        assert run.stop() == 0, run.told()
    finally:
        run.kill()
    assert numbers.committed() == numbers.expected()  # nothing comes after it


def _numbers() -> Iterator[tuple[str, bytes]]:
    number = 0
    while True:
        yield str(number), json.dumps({"number": number}).encode()
        number += 1
