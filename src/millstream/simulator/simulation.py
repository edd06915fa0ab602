"""Runs one seed: a cluster, clients, faults and invariants, in four phases.

    form    the nodes start, and the topics are created
    faults  faults are injected, while clients write, read and change things
    repair  the faults end; within a bounded time every partition accepts writes and every replica is in sync
    audit   everything is read to the end and compared with the acknowledgements

Scenarios: in `forming`, the faults start with the first start of the nodes, on empty disks. In `blackout`, all machines
lose power at once, and only the metadata is checked. `transactions` has more transactions. In `failover`, leaders are
unreachable until others take over, and producers have many batches in flight. In `busy`, machines are only overloaded,
and no broker may be fenced. In `disk`, disks of leaders fail one at a time, and writes must continue. In `power`, a
single node with `flush.before.ack` loses power again and again, within any write, and no acknowledged record may be
lost.

Two runs of one seed are equal, event for event; `Result.fingerprint` proves it.
"""

import gc
import logging
import random
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from millstream.formats.model.identifiers import BrokerId, TopicName
from millstream.node.metadata.image import MetadataImage, PartitionState
from millstream.node.runtime.node import Node
from millstream.simulator.clients.acknowledged_state import SCHEMAS, SHORT, Progress
from millstream.simulator.clients.brancher import Branches
from millstream.simulator.clients.conditional_writers import Expectations
from millstream.simulator.clients.consumers import Consumer, Historian
from millstream.simulator.clients.group_members import CHECKING_CLIENTS
from millstream.simulator.clients.permissions import SECURITY_CHANGES, missing_from, missing_from_some
from millstream.simulator.clients.pipelining_producer import PipeliningProducer
from millstream.simulator.clients.transactions import (
    LEDGER,
    LOOP_ID,
    LOOP_KEY,
    STATE,
    WRITER_ID,
    Applications,
    CommittedReader,
)
from millstream.simulator.clients.workload import Administrator, Committer, Producer, TopicPlan, Workload
from millstream.simulator.cluster import Cluster
from millstream.simulator.faults import FaultInjector
from millstream.simulator.history.checker import check
from millstream.simulator.history.operations import Recorder
from millstream.simulator.invariants.cluster import (
    CommittedMetadataIsStable,
    NoBrokerIsFenced,
    WritesContinue,
    all_invariants,
)
from millstream.simulator.invariants.compaction import CompactionKeepsLastRecord
from millstream.simulator.invariants.logs import OFFSETS_TOPIC, STATE_TOPIC, CommittedLogs
from millstream.simulator.invariants.observation import Observer
from millstream.simulator.invariants.transactions import TransactionInvariants
from millstream.simulator.loop import Scheduler
from millstream.simulator.machine import EPOCH_MS, Machine, Process
from millstream.simulator.object_store import SimulatedStore
from millstream.simulator.power_cuts import PowerCuts
from millstream.simulator.results import Event, LogCapture, Result, Trace, Violation
from millstream.simulator.scenarios import (
    EARLIER_LEVELS,
    TIER_SETTINGS,
    TIERED_TOPIC,
    Options,
    Scenario,
    choose_scenario,
    cluster_settings,
    earlier_version,
    flush_settings,
    make_plan,
)
from millstream.simulator.upgrade import Upgrade

_STEP_SECONDS = 0.05
_FORM_SECONDS = 30.0
_REPAIR_SECONDS = 40.0
_AWAY_SECONDS = 2.0
"""A topic that appears within this time after a machine was away may have been created without it."""
_AUDIT_SECONDS = 20.0
_BUSY_SECONDS = 20.0
"""An overloaded run needs more time than others, because timeouts are in seconds."""
_QUIET_BEFORE = 1.0
_QUIET_AFTER = 0.3
_WITH_TRANSACTIONS = 0.67
"""Share of the runs with transactions, if the scenario does not decide."""
_PASSING = "passing-"


def simulate(seed: int, options: Options | None = None, show: Callable[[Event], None] | None = None) -> Result:
    """Runs one seed."""
    begun = time.process_time()
    # A collection in the middle of a run would close abandoned coroutines there, and their code would run at a random
    # time. Objects from before the run are frozen, so that the collection after it does not have to visit them.
    collecting = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        result = Simulation(seed, options or Options(), show).run()
    finally:
        if collecting:
            gc.enable()
            gc.collect()
        gc.unfreeze()
    result.cpu_seconds = time.process_time() - begun
    return result


def _tiered(plan: TopicPlan) -> TopicPlan:
    return replace(plan, settings={**plan.settings, **TIERED_TOPIC})


class Simulation:
    def __init__(self, seed: int, options: Options, show: Callable[[Event], None] | None = None) -> None:
        self._seed = str(seed)
        self._options = options
        self._result = Result(seed)
        randomness = random.Random(f"{seed}/shape")
        self._scheduler = Scheduler()
        self._trace = Trace(lambda: self._scheduler.now, show)
        self._violation: Violation | None = None
        self._scenario = options.scenario or choose_scenario(self._seed, options)
        self._is_single_node = self._scenario is Scenario.POWER
        nodes = 1 if self._is_single_node else options.nodes
        separate = options.separate_roles
        if separate is None:
            separate = randomness.random() < 0.2
        processes = 1 if self._is_single_node else options.processes
        separate = separate and not self._is_single_node and processes == 1
        roles = ["controller"] * 3 + ["broker"] * nodes if separate else ["broker,controller"] * nodes
        self.store = SimulatedStore(self._scheduler, self._seed, EPOCH_MS) if options.tiered else None
        roles += ["broker"] * nodes * (processes - 1)
        hardware = [place % nodes + 1 for place in range(len(roles))] if processes > 1 else None
        self.cluster = Cluster(
            self._seed,
            roles,
            settings=cluster_settings(randomness, self._scenario)
            | flush_settings(self._seed, self._scenario)
            | (TIER_SETTINGS if options.tiered else {}),
            clock_rates=[randomness.uniform(0.98, 1.02) for _ in roles],
            trace=self._trace,
            report_error=self._report_error,
            scheduler=self._scheduler,
            tls=self._options.tls,
            secured=self._report if self._options.secured else None,
            store=self.store,
            hardware=hardware,
            disks=options.disks,
            earlier=earlier_version() if options.mixed_versions else None,
        )
        for machine in self.cluster.machines.values():
            machine.clock.offset_ms = randomness.choice((0, 0, 40, -700, 5_000))
        factor = min(3, nodes)
        topics = [
            TopicPlan("orders", 3, factor, {"min.insync.replicas": "2"}),
            TopicPlan("small", 1, factor, {"min.insync.replicas": "2", "segment.ms": "1500"}),
        ]
        self._has_transactions = randomness.random() < _WITH_TRANSACTIONS or self._scenario is Scenario.TRANSACTIONS
        self._has_transactions &= self._scenario is not Scenario.FAILOVER
        if self._has_transactions:
            topics += [replace(plan, replication_factor=factor) for plan in (LEDGER, STATE)]
        if options.tiered:
            topics = [each if each.is_compacted else _tiered(each) for each in topics]
        if self._is_single_node:
            topics += [SCHEMAS, SHORT]
        self._topics = tuple(topics)
        self._recorder = Recorder(lambda: self._scheduler.now)
        self.workload = Workload(self._topics, self._recorder, log_event=self._trace.log_event, report=self._report)
        self.expectations = Expectations(self.workload)
        self.branches = Branches(self.workload)
        self.workload.transaction_versions = randomness.choice(((1,), (2,), (1, 2)))
        if options.mixed_versions:
            # A level that the earlier version does not know ends the upgrade: no node can go back after that.
            self.workload.transaction_levels = tuple(range(EARLIER_LEVELS["transaction.version"] + 1))
        self.workload.has_quotas = self._options.quotas
        self.workload.security = SECURITY_CHANGES if options.secured else None
        if self._scenario is Scenario.BLACKOUT:
            self.workload.may_lose_records = True
            self.workload.admin_speed = 8.0
        if self._scenario is Scenario.TRANSACTIONS:
            self.workload.transaction_pause_s = 0.15
            self.workload.fenced_pause_s = 2.5
        if self._scenario is Scenario.FAILOVER:
            self.workload.response_timeouts_s = (8.0,)
            self.workload.has_stale_clients = True
        self._progress = Progress()
        self._make_invariants()
        self._writes_go_on = WritesContinue(self.cluster, lambda since: self._silent(since, plain=True))
        self._observer = Observer()
        self._leaders: dict[str, tuple[int, int]] = {}
        self._controller: tuple[int, int] | None = None
        self._machine_away_at = -_AWAY_SECONDS
        """When all brokers of a machine were fenced last."""
        self._may_share: set[str] = set()
        """Partitions that were created while a machine was away."""
        self._consumer: Machine

    def _make_invariants(self) -> None:
        lost = self.workload.may_lose_records
        logs = self._logs = CommittedLogs(cleaned=(STATE.name, SCHEMAS.name, OFFSETS_TOPIC, STATE_TOPIC))
        self._transactions = TransactionInvariants(self.workload.tracker, logs, LOOP_KEY)
        retention_s = int(STATE.settings["delete.retention.ms"]) / 1000
        self._cleaning = CompactionKeepsLastRecord(self._transactions.logs, logs, delete_retention_s=retention_s)
        self._transactions.reads.missed_its_end = self._cleaning.missed_its_end
        self._invariants = all_invariants(logs, (_PASSING,), records_may_be_lost=lost)
        if not lost:
            self._invariants += [*self._transactions.all, self._cleaning]
        if self._scenario is Scenario.BUSY:
            self._invariants.append(NoBrokerIsFenced())

    # Violations

    def _report(self, invariant: str, what: str) -> None:
        self._found(Violation(invariant, what))

    def _found(self, violation: Violation) -> None:
        """Keeps the first violation and ends the run."""
        if self._violation is None:
            self._violation = violation
        self._scheduler.interrupt()

    def _report_error(self, where: str, context: dict[str, Any]) -> None:
        error = context.get("exception")
        what = f"{where}: {context.get('message', '')}: {error!r}"
        self._trace.log_event(where, f"unhandled error: {what}")
        if error is not None:
            self._found(_violation_from("NoUnhandledErrors", what, error))
        else:
            self._report("NoUnhandledErrors", what)

    def _on_log_record(self, record: logging.LogRecord) -> None:
        where = self._running()
        self._trace.log_event(where, f"{record.levelname.lower()} {record.getMessage()}")
        if record.exc_info is not None and record.exc_info[1] is not None:
            what = f"{where} logged {record.getMessage()}: {record.exc_info[1]!r}"
            self._found(_violation_from("NoUnhandledErrors", what, record.exc_info[1]))

    def _running(self) -> str:
        for machine in self.cluster.machines.values():
            if machine.process is not None and machine.process.loop.is_running():
                return machine.name
        return "threads"

    # The run

    def run(self) -> Result:
        cluster, result = self.cluster, self._result
        self.cluster.out_of_sync = self._nodes_out_of_sync
        self.cluster.broker_epoch = self._broker_epoch
        self.cluster.before_kill = self._check_early
        for machine in cluster.machines.values():
            machine.disk.before_swap = self._check_early
        with LogCapture(self._on_log_record, self._options.log_level):
            try:
                self._phases()
            except Violation as violation:
                result.violation = violation
                self._trace.log_event("invariant", str(violation))
            finally:
                result.virtual_seconds = self._scheduler.now
                result.steps = self._scheduler.steps
                result.fingerprint = zlib.crc32(
                    repr([(event.at, event.where) for event in self._trace.events]).encode(), cluster.fabric.fingerprint
                )
                result.acked = self.workload.acked_count
                result.given_up = self.workload.given_up
                result.conditional, result.refused = self.expectations.won, self.expectations.refused
                result.branches = self.branches.created
                tracker = self.workload.tracker
                result.committed, result.aborted, result.fenced = tracker.committed, tracker.aborted, tracker.fenced
                result.cleanings = self._cleaning.cleanings
                result.read = sum(len(poll.records) for poll in self._recorder.history.polls)
                result.events = self._trace.events
                cluster.close()
        return result

    def _phases(self) -> None:
        cluster, workload = self.cluster, self.workload
        if self._scenario is Scenario.FORMING:
            self._start_with_faults()
        else:
            cluster.start()
        if self._options.processes > 1:
            # With one machine missing, topics would have two replicas on another one.
            self._run_until(_FORM_SECONDS, lambda: all(map(cluster.is_ready, cluster.machines)))
        administrators: list[Administrator] = []

        def administer(process: Any) -> Administrator:
            administrators.append(Administrator(process, cluster.bootstrap, workload, cluster.broker_groups))
            return administrators[-1]

        cluster.add_client("admin", administer)
        if not self._run_until(_FORM_SECONDS, lambda: administrators[0].ready if administrators else False):
            raise Violation("Liveness", f"the cluster and its topics are not ready after {_FORM_SECONDS:g} s")
        if workload.security and not self._run_until(_FORM_SECONDS, self._users_are_known):
            raise Violation("Liveness", f"not every node knows all users after {_FORM_SECONDS:g} s")
        for number in (1, 2):
            is_stale = number == 2 and workload.has_stale_clients
            cluster.add_client(
                f"producer{number}",
                partial(
                    Producer,
                    bootstrap=cluster.bootstrap,
                    workload=workload,
                    pause_s=0.9,
                    accepts_stale_metadata=is_stale,
                ),
            )
        if not workload.may_lose_records:
            cluster.add_client(
                "pipeliner", lambda process: PipeliningProducer(process, cluster.bootstrap, workload, 0.9)
            )
            cluster.add_client("committer", lambda process: Committer(process, cluster.bootstrap, workload))
            if self._options.tiered:
                cluster.add_client("historian", lambda process: Historian(process, cluster.bootstrap, workload))
            self._consumer = cluster.add_client(
                "consumer", lambda process: Consumer(process, cluster.bootstrap, workload)
            )
        if self._options.branches and not workload.may_lose_records:
            cluster.add_client("brancher", partial(self.branches.new_client, bootstrap=cluster.bootstrap))
        if self._options.conditional:
            for name in ("sourcer1", "sourcer2"):
                cluster.add_client(name, partial(self.expectations.new_writer, bootstrap=cluster.bootstrap))
        if self._has_transactions:
            self._begin_transactions()
        if self._is_single_node:
            for name, client in CHECKING_CLIENTS.items():
                cluster.add_client(
                    name, partial(client, bootstrap=cluster.bootstrap, workload=workload, progress=self._progress)
                )
        self._run_until(_QUIET_BEFORE, lambda: False)
        if self._scenario is not Scenario.FORMING:
            self._run_faults()
        self._repair()
        if self._options.mixed_versions:
            # Nodes are restarted now.
            self._invariants = [each for each in self._invariants if not isinstance(each, NoBrokerIsFenced)]
            Upgrade(cluster, self._image, self._run_until, self._repair).end(EARLIER_LEVELS, _REPAIR_SECONDS)
        self._audit()

    def _users_are_known(self) -> bool:
        nodes = map(self.cluster.node, self.cluster.broker_ids)
        return not missing_from_some(node.loader.image if node and node.loader else None for node in nodes)

    def _begin_transactions(self) -> None:
        """Starts two instances of each transactional id, which fence each other. If records may be lost, transactions
        are not checked, but must not cause errors."""
        cluster, workload = self.cluster, self.workload
        if workload.may_lose_records:
            cluster.add_client("app1", lambda process: Applications(process, cluster.bootstrap, workload, 1))
            return
        for number in (1, 2):
            cluster.add_client(
                f"app{number}", partial(Applications, bootstrap=cluster.bootstrap, workload=workload, number=number)
            )
        cluster.add_client("reader", self._new_reader)

    def _new_reader(self, process: Process) -> CommittedReader:
        return CommittedReader(process, self.cluster.bootstrap, self.workload, (LEDGER, STATE))

    def _start_with_faults(self) -> None:
        """Starts nodes at different times, with faults from the beginning. Clients start after the faults."""
        randomness = random.Random(f"{self._seed}/starts")
        lateness = randomness.choice((0.0, 0.2, 1.0, 4.0))
        self.cluster.start({node_id: randomness.uniform(0.0, lateness) for node_id in self.cluster.machines})
        self._run_faults()

    def _run_faults(self) -> None:
        begin, seconds = self._scheduler.now, self._options.fault_seconds
        if self._scenario is Scenario.BUSY:
            seconds = max(seconds, _BUSY_SECONDS)
        injector: FaultInjector | PowerCuts
        if self._is_single_node:
            injector = PowerCuts(self.cluster, self._seed)
        else:
            injector = self._fault_injector(begin, seconds)
        injector.begin()
        self._run_until(seconds, lambda: False)
        injector.end()
        if self.store is not None:
            self.store.heal()
        self._result.faults = injector.done

    def _fault_injector(self, begin: float, seconds: float) -> FaultInjector:
        plan = make_plan(self._seed, self._scenario, begin=begin, end=begin + seconds, disks=self._options.disks)
        return FaultInjector(self.cluster, self._seed, plan)

    def _repair(self) -> None:
        workload, since = self.workload, self._scheduler.now

        def is_well() -> bool:
            return (
                not self._silent(since)
                and not self._idle_ids(since)
                and not self._idle_checkers(since)
                and (workload.committed_at > since or workload.may_lose_records)
                and self._is_fully_in_sync()
                and all(map(self.cluster.is_ready, self.cluster.machines))
            )

        if not self._run_until(_REPAIR_SECONDS, is_well):
            raise Violation("Liveness", f"{_REPAIR_SECONDS:g} s after the last fault: {self._what_is_missing(since)}")
        self._trace.log_event("repair", f"the cluster is healthy after {self._scheduler.now - since:.1f} s")

    def _silent(self, since: float, *, plain: bool = False) -> list[str]:
        """Partitions without a write since then; `plain`: without those that only transactions write to."""
        return [
            f"{plan.name}-{number}"
            for plan, number in self._partitions()
            if self.workload.acked_at.get((plan.name, number), 0.0) <= since
            and (plan.plain or not (plain or self.workload.may_lose_records))
        ]

    def _idle_ids(self, since: float) -> list[str]:
        """Transactional ids without a commit since then."""
        if not self._has_transactions or self.workload.may_lose_records:
            return []
        committed_at = self.workload.tracker.committed_at
        return [each for each in (WRITER_ID, LOOP_ID) if committed_at.get(each, 0.0) <= since]

    def _idle_checkers(self, since: float) -> list[str]:
        """Checking clients without an acknowledgement since then."""
        return self._progress.idle(CHECKING_CLIENTS, since) if self._is_single_node else []

    def _audit(self) -> None:
        """Stops the writers, reads everything to the end, and runs the final checks."""
        workload = self.workload
        workload.writing = False
        self._run_until(_AUDIT_SECONDS, lambda: not workload.in_flight and not self._transactions.end.open_ones())
        if not self._run_until(_AUDIT_SECONDS, lambda: self._image() is not None) or (image := self._image()) is None:
            raise Violation("Liveness", "the quorum has no leader")
        if gone := sorted(workload.created - set(image.topics)):
            raise Violation("CommittedMetadataIsStable", f"topics {gone} were created, but are missing")
        self._check_machines(image)
        if workload.security and (lost := missing_from(image)):
            raise Violation("CommittedMetadataIsStable", f"users or ACLs are missing: {lost}")
        self._run_until(_QUIET_AFTER, lambda: False)
        if self._has_transactions and not workload.may_lose_records:
            self._transactions.check_end()
        if not workload.may_lose_records:
            self._read_to_the_end()
        observation = self._observer.look(self._scheduler.now, self.cluster.machines, workload.acked)
        for invariant in self._invariants:
            if isinstance(invariant, CommittedMetadataIsStable):
                invariant.check_images(observation)
        if workload.may_lose_records:
            return
        self._cleaning.check_end(observation)
        report = check(self._recorder.history)
        if not report.clean:
            raise Violation("History", str(report.anomalies[0]))

    def _check_machines(self, image: MetadataImage) -> None:
        """Replicas are on different machines, but for topics that are created while a machine is away."""
        for name, state in self._states(image):
            machines = {image.brokers[BrokerId(each)].machine for each in state.replicas}
            if len(machines) < len(state.replicas) and name not in self._may_share:
                what = f"{name}: replicas {state.replicas} are on machines {sorted(machines)}"
                raise Violation("ReplicasAreOnDifferentMachines", what)

    def _read_to_the_end(self) -> None:
        workload = self.workload
        consumer = self._consumer.process
        assert consumer is not None and isinstance(consumer.program, Consumer)
        readers: list[Consumer | CommittedReader] = [consumer.program]
        if self._options.tiered:
            readers.append(self._rereader())
        if self._has_transactions:
            readers.append(self._auditor())
        ends = dict(self._logs.ends)

        def behind() -> list[str]:
            late = [(at, read) for reader in readers for at, read in reader.positions.items() if read < ends.get(at, 0)]
            return [f"{topic}-{number}: {read} of {ends[topic, number]}" for (topic, number), read in late]

        if self._options.branches and not self._run_until(_REPAIR_SECONDS, lambda: self.branches.is_done):
            raise Violation("Liveness", "the branches were not read to the end")
        if not self._run_until(_AUDIT_SECONDS, lambda: not behind()):
            raise Violation("Liveness", f"committed records were not read to the end: {'; '.join(behind())}")
        workload.reading = False
        for reader in readers:
            if isinstance(reader, CommittedReader):
                self._transactions.check_read(
                    reader.seen, {STATE.name}, self._cleaning.is_back, self._cleaning.missed_its_end
                )

    def _rereader(self) -> Consumer:
        """Starts a consumer that reads all records from the beginning: most of them are only in the tier."""
        bootstrap, workload = self.cluster.bootstrap, self.workload
        machine = self.cluster.add_client("rereader", lambda process: Consumer(process, bootstrap, workload))
        self._run_until(_STEP_SECONDS, lambda: False)
        assert machine.process is not None and isinstance(machine.process.program, Consumer)
        return machine.process.program

    def _auditor(self) -> CommittedReader:
        """Starts a consumer that reads all transactions from the beginning."""
        machine = self.cluster.add_client("auditor", self._new_reader)
        self._run_until(_STEP_SECONDS, lambda: False)
        assert machine.process is not None and isinstance(machine.process.program, CommittedReader)
        return machine.process.program

    def _run_until(self, seconds: float, is_over: Callable[[], bool]) -> bool:
        scheduler = self._scheduler
        end = scheduler.now + seconds
        while scheduler.now < end:
            scheduler.run(until=min(scheduler.now + _STEP_SECONDS, end))
            self._check()
            if is_over():
                return True
        return False

    def _check_early(self) -> None:
        """Checks the invariants within a step, before state is lost."""
        try:
            self._check()
        except Violation as violation:
            self._found(violation)

    def _check(self) -> None:
        if self._violation is not None:
            raise self._violation
        if self.cluster.exits:
            node_id, error = self.cluster.exits[0]
            raise _violation_from("NoUnhandledErrors", f"node {node_id} exited: {error!r}", error)
        with self.cluster.observed():
            observation = self._observer.look(self._scheduler.now, self.cluster.machines, self.workload.acked)
            for invariant in self._invariants:
                invariant.check(observation)
        self._writes_go_on.check(self._scheduler.now)
        self.workload.tracker.changed.clear()
        for seen in observation.quorums:
            if seen.is_leader and (self._controller is None or seen.epoch > self._controller[1]):
                self._controller = (seen.node_id, seen.epoch)
                self._result.elections += 1
                self._trace.log_event("quorum", f"node {seen.node_id} leads epoch {seen.epoch}")
        for replica in observation.fresh:
            if replica.is_leader and replica.leader_epoch > self._leaders.get(replica.name, (0, -1))[1]:
                if replica.name not in self._leaders and self._is_machine_away():
                    self._may_share.add(replica.name)
                self._leaders[replica.name] = (replica.node_id, replica.leader_epoch)
                self._trace.log_event(replica.name, f"node {replica.node_id} leads epoch {replica.leader_epoch}")

    # State of the cluster

    def _is_machine_away(self) -> bool:
        """Whether all brokers of a machine are fenced, or were a moment ago."""
        now, image = self._scheduler.now, self._image()
        if image is not None:
            present = {broker.machine for broker in image.brokers.values() if not broker.fenced}
            if any(broker.machine not in present for broker in image.brokers.values()):
                self._machine_away_at = now
        return now - self._machine_away_at < _AWAY_SECONDS

    def _partitions(self) -> list[tuple[TopicPlan, int]]:
        return [(plan, number) for plan in self._topics for number in range(plan.partitions)]

    def _is_fully_in_sync(self) -> bool:
        return not self._out_of_sync()

    def _image(self) -> MetadataImage | None:
        """The metadata image of the active controller; None while there is none."""
        newest: Node | None = None
        for node_id in self.cluster.voter_ids:
            node = self.cluster.node(node_id)
            if node is None or node.quorum is None or node.controller is None or not node.controller.active.is_active:
                continue  # a controller that was just elected does not know yet what is committed
            if newest is None or newest.quorum is None or node.quorum.epoch > newest.quorum.epoch:
                newest = node
        if newest is None or newest.quorum is None or newest.quorum.epoch < self.cluster.newest_epoch():
            return None  # a paused controller does not know that it was deposed
        return newest.loader.image if newest.loader is not None else None

    def _states(self, image: MetadataImage) -> list[tuple[str, PartitionState]]:
        names = [*(plan.name for plan in self._topics), OFFSETS_TOPIC, STATE_TOPIC]
        topics = [image.topics[TopicName(name)] for name in names if name in image.topics]
        return [(f"{each.name}-{index}", state) for each in topics for index, state in enumerate(each.partitions)]

    def _broker_epoch(self, node_id: int) -> int:
        image = self._image()
        broker = image.brokers.get(BrokerId(node_id)) if image is not None else None
        return broker.epoch if broker is not None else -1

    def _nodes_out_of_sync(self) -> set[int]:
        image = self._image()
        if image is None or len(states := self._states(image)) < len(self._partitions()):
            return set(self.cluster.machines)
        missing = {replica for _, state in states for replica in state.replicas if replica not in state.isr}
        return missing | {broker_id for broker_id in self.cluster.broker_ids if not _is_active(image, broker_id)}

    def _out_of_sync(self) -> list[str]:
        """Partitions that are not fully in sync according to the active controller, with their state."""
        image = self._image()
        if image is None:
            return ["the quorum has no leader"]
        return [
            f"{name} has {state.isr} of {state.replicas}, leader {state.leader}, adding {state.adding_replicas}, "
            f"eligible {state.eligible_leader_replicas}, last known {state.last_known_elr}"
            for name, state in self._states(image)
            if set(state.isr) != set(state.replicas) or not state.has_leader or state.adding_replicas
        ]

    def _what_is_missing(self, since: float) -> str:
        silent = [f"{name} accepts no writes" for name in self._silent(since)]
        if self.workload.committed_at <= since and not self.workload.may_lose_records:
            silent.append("no group offset was committed")
        silent += [f"no transaction of {each} was committed" for each in self._idle_ids(since)]
        silent += [f"nothing was acknowledged to {each}" for each in self._idle_checkers(since)]
        starting = [f"node {each} is not ready" for each in self.cluster.machines if not self.cluster.is_ready(each)]
        return "; ".join([*silent, *self._out_of_sync(), *starting])


def _is_active(image: MetadataImage, broker_id: int) -> bool:
    broker = image.brokers.get(BrokerId(broker_id))
    return broker is not None and broker.active


def _violation_from(invariant: str, what: str, error: BaseException | None) -> Violation:
    violation = Violation(invariant, what)
    violation.__cause__ = error
    return violation
