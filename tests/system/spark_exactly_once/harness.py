"""A cluster of real processes, a feeder, and the copier as a driver that is started again whenever it is gone."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path

import psutil

from millstream.raw_client import LATEST, Cluster, TopicPartition, WireError
from millstream.testing import EmbeddedCluster
from tests.repository import REPOSITORY
from tests.system.spark_cluster.pipeline_run import Feeder
from tests.system.spark_cluster.processes import command_of, name_of
from tests.system.spark_exactly_once.committed import committed_values, hidden
from tests.system.spark_exactly_once.dying import FOREACH_BATCH

PARTITIONS = 3
SETTINGS = {"transaction.two.phase.commit.enable": "true", "offsets.topic.num.partitions": 4}
_TOPIC_CONFIGS = {"min.insync.replicas": "2"}


def numbers() -> Iterator[tuple[str, bytes]]:
    for number in count():
        yield str(number), str(number).encode()


class Driver:
    """One process of the copier, and what Spark starts below it."""

    def __init__(self, bootstrap: str, directory: Path, master: str, point: str | None) -> None:
        self._log = (directory / "driver.log").open("ab")
        environment = os.environ | {
            "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "DYING_DIRECTORY": str(directory),
            "DYING_POINT": (point or "").removeprefix(FOREACH_BATCH),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONWARNINGS": "ignore",
        }
        command = [sys.executable, "-m", "tests.system.spark_exactly_once.copier", bootstrap, str(directory), master]
        self.process = subprocess.Popen(
            [*command, *([point] if point else [])],
            cwd=REPOSITORY,
            env=environment,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def below(self) -> list[psutil.Process]:
        try:
            children: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
            return children
        except psutil.NoSuchProcess:
            return []

    def java(self) -> list[psutil.Process]:
        """The driver's JVM, and those of executors."""
        return [each for each in self.below() if name_of(each) == "java"]

    def workers(self) -> list[psutil.Process]:
        """Python processes that run tasks and commits: forks of Spark's daemons."""
        return [each for each in self.below() if "pyspark.daemon" in command_of(each)]

    def executors(self) -> list[psutil.Process]:
        return [each for each in self.java() if "CoarseGrainedExecutorBackend" in command_of(each)]

    def kill(self) -> None:
        """kill -9 of the driver: the JVM and the program. Workers notice by themselves, some time later."""
        for each in [*(each for each in self.java() if each not in self.executors()), psutil.Process(self.process.pid)]:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                pass
        self.process.wait()

    def clear_away(self) -> None:
        below = self.below()
        if self.running:
            self.kill()
        for each in below:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                pass
        self._log.close()


class Campaign:
    """Strikes on a running copy; in the end each input must be in the output exactly once."""

    def __init__(
        self,
        directory: Path,
        cluster: EmbeddedCluster,
        seed: int,
        *,
        master: str,
        per_second: int,
        first_dies_at: str | None = None,
    ) -> None:
        self.directory = directory
        self.cluster = cluster
        self.random = random.Random(seed)
        self.told: list[str] = []
        self.wire = Cluster(cluster.bootstrap_servers, timeout_s=60)
        for topic in ("in", "out"):
            self.wire.create_topic(topic, PARTITIONS, 3, _TOPIC_CONFIGS)
        self.feeder = Feeder(cluster.bootstrap_servers, "in", numbers(), per_second)
        self._master = master
        self._first_dies_at = first_dies_at
        self._drivers: list[Driver] = []

    @property
    def driver(self) -> Driver:
        return self._drivers[-1]

    def __enter__(self) -> "Campaign":
        self.feeder.start()
        self.start_driver(self._first_dies_at)
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self._drivers:
            driver.clear_away()
        self.wire.close()

    def tell(self, what: str) -> None:
        self.told.append(f"{time.strftime('%H:%M:%S')} {what}")

    def start_driver(self, point: str | None = None) -> None:
        if point is None and (self._first_dies_at or "").startswith(FOREACH_BATCH):
            point = FOREACH_BATCH  # the same way of writing, without dying
        self._drivers.append(Driver(self.cluster.bootstrap_servers, self.directory, self._master, point))
        self.tell(f"driver {self.driver.process.pid} started")

    def tend(self) -> None:
        """A driver that is gone is started again, as an operator or a supervisor would."""
        if not self.driver.running:
            self.tell(f"driver {self.driver.process.pid} ended with {self.driver.process.returncode}")
            self.start_driver()

    def written(self) -> int:
        """Offsets in the output that are settled."""
        places = [TopicPartition("out", each) for each in range(PARTITIONS)]
        return sum(each.offset for each in self.wire.offsets(dict.fromkeys(places, LATEST)).values())

    def wait_for_progress(self, timeout_s: float = 400.0) -> None:
        """Until something more is committed."""
        before = self.written()
        self.wait_until(lambda: self.written() > before, timeout_s, "nothing is committed any more")

    def wait_until(self, what: Callable[[], bool], timeout_s: float, why: str) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.tend()
            try:
                if what():
                    return
            except WireError:
                pass  # a broker is on its way back
            time.sleep(0.1)
        raise AssertionError(f"{why}\n{self.report()}")

    def report(self) -> str:
        log = (self.directory / "driver.log").read_text(errors="replace")[-6000:]
        return "\n".join([*self.told, "", "the driver's log ends:", log])

    def finish(self) -> None:
        """Everything is up; the copy is brought to its end and compared with the input."""
        for node in self.cluster.nodes:
            if not self.cluster.running(node):
                self.cluster.start(node)
        self.feeder.finish()
        (self.directory / "stop").touch()
        deadline = time.monotonic() + 400
        while (code := self.driver.process.poll()) != 0:
            assert time.monotonic() < deadline, f"the copy does not end\n{self.report()}"
            if code is not None:
                self.tend()
            time.sleep(0.2)
        self.wait_until(lambda: hidden(self.wire, "out") == 0, 30, "a transaction was left open")
        self.check()

    def check(self) -> None:
        found = sorted(int(each.removesuffix("!")) for each in committed_values(self.wire, "out"))
        wanted = list(range(len(self.feeder.sent)))
        missing = sorted(set(wanted) - set(found))
        twice = sorted({each for each, after in pairwise(found) if each == after})
        assert not missing, f"{len(missing)} of {len(wanted)} are missing: {missing[:10]}…\n{self.report()}"
        assert not twice, f"{len(twice)} are there twice: {twice[:10]}…\n{self.report()}"
        assert found == wanted

    # Strikes

    def strike(self) -> str:
        """One at random, at a moment at random."""
        time.sleep(self.random.uniform(0.0, 1.5))
        kinds = [self.kill_driver, self.kill_worker, self.kill_worker, self.kill_broker, self.zombie_driver]
        if self.driver.executors():
            kinds += [self.kill_executor, self.kill_executor]
        what = self.random.choice(kinds)()
        self.tell(what)
        return what

    def kill_driver(self) -> str:
        pid = self.driver.process.pid
        if self.driver.running:
            self.driver.kill()
        return f"kill -9 of driver {pid}"

    def kill_worker(self) -> str:
        """Of a Python process that runs a task or a commit; if it is a daemon, all its forks go with it."""
        workers = self.driver.workers()
        if not workers:
            return "no worker to kill"
        victim = self.random.choice(workers)
        return f"kill -9 of Python worker {_kill(victim)}"

    def kill_executor(self) -> str:
        executors = self.driver.executors()
        return f"kill -9 of executor {_kill(self.random.choice(executors))}" if executors else "no executor to kill"

    def kill_broker(self) -> str:
        node = self.random.choice(self.cluster.nodes)
        self.cluster.kill(node)
        time.sleep(self.random.uniform(0.0, 2.0))
        self.cluster.start(node)
        return f"kill -9 of broker {node}, started again"

    def zombie_driver(self) -> str:
        """The driver stops with all its workers, another one begins; then the old one goes on."""
        old, pid = self.driver, self.driver.process.pid
        tree = [*old.below(), psutil.Process(pid)] if old.running else []
        for each in tree:
            _signal(each, signal.SIGSTOP)
        self.start_driver()
        time.sleep(self.random.uniform(5.0, 15.0))
        for each in tree:
            _signal(each, signal.SIGCONT)
        time.sleep(self.random.uniform(1.0, 4.0))
        if old.running:
            old.kill()
        return f"driver {pid} stopped, another started, the old one went on and was killed"


def _kill(process: psutil.Process) -> int:
    _signal(process, signal.SIGKILL)
    return int(process.pid)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass
