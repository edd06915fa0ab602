"""A campaign: nodes, feeder, copiers and watchers; strike after strike; then drain, a last look, and the verdict."""

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from millstream.simulator.history import Fate, History, Recorder, Report, check
from millstream.simulator.history.operations import save
from tests.s3_server import faulty_store
from tests.system.chaos.cluster import Cluster
from tests.system.chaos.network import Disks, Loopback
from tests.system.exactly_once import strikes
from tests.system.exactly_once.feeder import Feeder
from tests.system.exactly_once.lanes import LIBRARIES, PARTITIONS, USUAL, Lane
from tests.system.exactly_once.strikes import Strike
from tests.system.exactly_once.watchers import Reader, Watcher, committed_offsets, read_everything
from tools import apache_kafka

_CALM_SECONDS = 1.0
_DRAIN_SECONDS = 90.0
_LEAVE_SECONDS = 60.0
_STALE_GRACE_SECONDS = 3.0
"""Requests that a deposed leader had under way have responses by then."""
_SETTINGS = {
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "group.initial.rebalance.delay.ms": "0",
    # The partitions of a copier that was killed are soon another's.
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # A dead node is found out while it is held down, so that others really take over.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "400",
}
_ALONE = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides what is done: the same plan strikes in the same order."""

    seed: int
    seconds: float
    node_count: int
    system: str
    directory: Path
    libraries: tuple[str, ...] = USUAL
    only: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    transaction_version: int | None = None
    """A level of the feature transaction.version other than the newest."""
    careless: bool = False
    """Copiers commit their offsets after their transactions, and must be found out."""
    tiered: bool = False
    """Only the last segments are on the disks of the nodes; the others are in an S3 server."""


@dataclass(slots=True)
class Summary:
    """What came of it."""

    title: str
    struck: list[str]
    lanes: list[str]
    report: Report
    problems: list[str]
    troubles: list[str]

    @property
    def clean(self) -> bool:
        return self.report.clean and not self.problems

    def __str__(self) -> str:
        lines = [self.title, *self.struck, *self.lanes, str(self.report)]
        return "\n".join([*lines, *(f"PROBLEM: {problem}" for problem in self.problems)])


def run(plan: Plan, say: Callable[[str], None]) -> Summary:
    recorder = Recorder()
    settings = {**_SETTINGS, **(_ALONE if plan.node_count == 1 else {}), **plan.settings}
    disks = Disks(plan.directory, small=False)
    problems: list[str] = []
    struck: list[str] = []
    network = Loopback(plan.node_count)
    with (
        faulty_store(plan.directory / "s3") if plan.tiered else nullcontext() as store,
        Cluster(plan.system, plan.node_count, network, disks, plan.directory, settings, store=store) as cluster,
    ):
        say(f"{plan.node_count} nodes are up")
        lanes = [
            Lane(
                LIBRARIES[name], cluster.bootstrap, recorder.history, plan.directory, plan.seed, careless=plan.careless
            )
            for name in _present(plan.libraries, say)
        ]
        if plan.transaction_version is not None:
            cluster.set_feature("transaction.version", plan.transaction_version)
        with _Crew(plan, cluster, lanes, recorder, problems) as crew:
            say("copiers are at work")
            try:
                for strike in _order(plan, cluster, lanes, crew.go_on):
                    begun = recorder.now()
                    done = strike.strike()
                    time.sleep(strike.hold_s)
                    strike.heal()
                    crew.wait_until_in_sync()
                    if strike.stale_reads_allowed:
                        recorder.stale_allowed(begun, recorder.now() + _STALE_GRACE_SECONDS, strike.name)
                    time.sleep(_CALM_SECONDS)
                    struck.append(f"  {strike.name}: {done}")
                    say(f"{strike.name} ({done}): {recorder.now() - begun:.1f} s")
                say("the feeder stops; the copiers finish")
                crew.drain()
            except Exception as problem:
                # The history up to here is still worth judging.
                problems.append(f"the campaign ended early: {problem!r}")
        if not problems:
            say("a last look")
            problems += read_everything(cluster.bootstrap, crew.partitions, recorder)
            for lane in lanes:
                if committed_offsets(cluster.bootstrap, lane.group, lane.inputs, recorder) is None:
                    problems.append(f"nobody tells the offsets of {lane.group}")
            if store is not None and not store.segments():
                problems.append("nothing is in the store")
    for node in cluster.nodes.values():
        if "Traceback" in node.log_file.read_text(errors="replace") and plan.system == "millstream":
            problems.append(f"node {node.number} has a traceback in its log {node.log_file}")
    history = recorder.history
    save(history, plan.directory / "history.jsonl")
    title = f"{plan.system}, {plan.node_count} nodes, seed {plan.seed}, {plan.seconds:.0f} s"
    troubles = [*crew.feeder.troubles, *(text for lane in lanes for text in lane.troubles)]
    (plan.directory / "troubles.txt").write_text("\n".join(troubles))
    report = check(history, read_to_end=not problems)
    return Summary(title, struck, [_describe(lane, history) for lane in lanes], report, problems, troubles)


def _present(names: tuple[str, ...], say: Callable[[str], None]) -> list[str]:
    """Those whose programs can be had on this machine."""
    found = []
    for name in names:
        try:
            LIBRARIES[name].command()
            found.append(name)
        except (apache_kafka.ToolchainMissingError, OSError, subprocess.CalledProcessError) as reason:
            say(f"left out, not to be had on this machine: {name}: {reason}")
    return found


class _Crew:
    """The clients of a campaign. Use it with `with`: none is left afterwards."""

    def __init__(
        self, plan: Plan, cluster: Cluster, lanes: list[Lane], recorder: Recorder, problems: list[str]
    ) -> None:
        self._until = 0.0
        self._plan = plan
        self._cluster = cluster
        self._lanes = lanes
        self._recorder = recorder
        self._problems = problems
        self.partitions = [name for lane in lanes for name in (*lane.inputs, *lane.outputs)]
        self.feeder = Feeder(cluster.bootstrap, [lane.input for lane in lanes], plan.seed, recorder)
        self._watchers = [
            Watcher(Reader(name, cluster.bootstrap, self.partitions, recorder, committed_only=level), plan.seed)
            for name, level in (("committed", True), ("uncommitted", False))
        ]
        self._over = threading.Event()
        self._tender = threading.Thread(target=self._tend, name="tender", daemon=True)

    def __enter__(self) -> "_Crew":
        for lane in self._lanes:
            for topic in (lane.input, lane.output):
                self._cluster.create_topic(topic, PARTITIONS)
        self.feeder.start()
        try:
            for lane in self._lanes:
                lane.start()
            for watcher in self._watchers:
                watcher.start()
            self._tender.start()
            self._wait(lambda: all(lane.committed for lane in self._lanes), "no copier has committed anything")
        except BaseException:
            self.__exit__()
            raise
        self._until = time.monotonic() + self._plan.seconds
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.feeder.ending.set()
        deadline = time.monotonic() + (_LEAVE_SECONDS if not self._problems else 5.0)
        for lane in self._lanes:
            lane.leave()
        for lane in self._lanes:
            self._problems += lane.close(deadline)
        clients: list[Feeder | Watcher] = [self.feeder, *self._watchers]
        for each in clients:
            each.ending.set()
            if each.ident is not None:
                each.join(60)
            self._problems += each.problems

    def go_on(self) -> bool:
        return time.monotonic() < self._until

    def wait_until_in_sync(self) -> None:
        for lane in self._lanes:
            self._cluster.wait_until_in_sync(lane.output)

    def drain(self) -> None:
        """Until every group has committed the last input that there is for it."""
        self.feeder.ending.set()
        self.feeder.join(60)
        self._wait(self._is_drained, "the copiers have not finished")

    def _is_drained(self) -> bool:
        history = self._recorder.history
        committed = {each.name for each in history.transactions if each.fate is Fate.COMMITTED}
        last: dict[str, int] = {}
        for send in list(history.sends):
            if send.source is None and send.transaction in committed and send.offset is not None:
                last[send.partition] = max(last.get(send.partition, -1), send.offset)
        for lane in self._lanes:
            told = committed_offsets(self._cluster.bootstrap, lane.group, lane.inputs, self._recorder)
            if told is None or any((told[name] or 0) <= last.get(name, -1) for name in lane.inputs):
                return False
        return True

    def _wait(self, condition: Callable[[], bool], reproach: str) -> None:
        deadline = time.monotonic() + _DRAIN_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                self._problems.append(f"{reproach} within {_DRAIN_SECONDS:.0f} s")
                return
            time.sleep(0.3)

    def _tend(self) -> None:
        while not self._over.wait(0.2):
            for lane in self._lanes:
                try:
                    lane.tend()
                except RuntimeError as problem:
                    self._problems.append(str(problem))
                    return


def _order(plan: Plan, cluster: Cluster, lanes: list[Lane], go_on: Callable[[], bool]) -> Iterator[Strike]:
    """All strikes in shuffled order, round after round, while there is time."""
    chance = random.Random(plan.seed)
    chosen = [each for each in strikes.ALL if not plan.only or each.__name__ in plan.only]
    while go_on():
        for each in chance.sample(chosen, len(chosen)):
            if go_on():
                yield each(cluster, lanes, chance)


def _describe(lane: Lane, history: History) -> str:
    own = [each for each in history.transactions if each.name.startswith(f"{lane.library.name}-")]
    fates = ", ".join(f"{sum(each.fate is fate for each in own):,} {fate}" for fate in Fate)
    ends = ", ".join(f"{count} {how}" for how, count in sorted(lane.ends.items()))
    return f"{lane.library.name}: {len(own):,} transactions ({fates}); {lane.started} processes ({ends})"
