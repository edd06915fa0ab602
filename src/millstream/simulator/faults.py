"""Injects the planned faults into a cluster: kills, power losses, partitions, delays, disk errors, clock jumps.

A machine that loses power loses unsynced data. With acks=all and without fsync, a record is safe only in several page
caches. So power is cut only while all partitions are in sync, and then no other process is killed until they are in
sync again: before the controller notices the failure, it considers the data of that machine complete. Killed processes
keep their page cache, so any minority may be killed. All other faults may hit every node at any time.

A blackout cuts the power of all machines at once. Records of clients may be lost then. Metadata must not be lost,
because it is synced before it is committed.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.node.storage.file_formats import MOVED, TEMPORARY_SUFFIX
from millstream.simulator.cluster import MORE_DISKS
from millstream.simulator.scenarios import Fault, PlannedFault

if TYPE_CHECKING:
    from millstream.simulator.cluster import Cluster

_DISK_FAILURES = (("writes_fail",), ("writes_tear",), ("reads_fail",), ("writes_fail", "syncs_fail"))
_SLOW_DISK_BEFORE_BLACKOUT = 30.0
_WRONG_CLOCK_MS = 60_000
_DECISION_SECONDS = 1.5
_EXIT_SECONDS = 15.0
"""A node whose log failed while it was the only one exits after another node has returned."""
_CLEANED = ".log.cleaned"
"""Suffix of the segments that the cleaner writes."""
_MOVE_BEGINS = f"{MOVED}{TEMPORARY_SUFFIX}"
"""The first file that a move of a log writes."""


class FaultInjector:
    """Injects the faults of a plan into a cluster."""

    def __init__(self, cluster: "Cluster", seed: str, plan: list[PlannedFault]) -> None:
        self._cluster = cluster
        self._randomness = random.Random(f"{seed}/saboteur")
        self._plan = plan
        self._is_over = False
        self._failed_disks: set[int] = set()
        self._cut_off_until = 0.0
        self.done: dict[str, int] = {}
        """How often each fault was injected."""

    def begin(self) -> None:
        for planned in self._plan:
            self._cluster.scheduler.at(planned.at, self._carry_out, planned)

    def end(self) -> None:
        """Ends all faults, repairs disks and links, and starts nodes that are down."""
        self._is_over = True
        cluster = self._cluster
        cluster.log_event("faults", "all faults end")
        for link in cluster.fabric.links():
            link.slowness = 1.0
            link.heal()
        for node_id, machine in cluster.machines.items():
            machine.disk.heal()
            machine.slowness = 1.0
            if abs(machine.clock.offset_ms) > _WRONG_CLOCK_MS:
                # Nodes reject records whose timestamp is more than an hour in the future.
                machine.clock.offset_ms = 0
            machine.resume()
            if not machine.is_up:
                cluster.start_node(node_id)
        cluster.failing_disk = None
        for node_id in self._failed_disks:
            cluster.expect_exit(node_id, _EXIT_SECONDS)  # it may exit once another node can take over

    def _carry_out(self, planned: PlannedFault) -> None:
        if self._is_over:
            return
        act: dict[Fault, Callable[[float], str | None]] = {
            Fault.KILL: self._kill,
            Fault.KILL_IN_WRITE: self._kill_in_write,
            Fault.KILL_IN_ELECTION: self._kill_in_election,
            Fault.KILL_IN_CLEANING: self._kill_in_cleaning,
            Fault.KILL_IN_DECISION: self._kill_in_decision,
            Fault.POWER_LOSS: self._lose_power,
            Fault.BLACKOUT: self._blackout,
            Fault.RESTART: self._restart,
            Fault.PAUSE: self._pause,
            Fault.SLOW_PROCESSOR: self._slow_processor,
            Fault.BUSY: self._overload,
            Fault.HICCUP: self._hiccup,
            Fault.ISOLATE: self._isolate,
            Fault.CUT_OFF: self._cut_off,
            Fault.PARTITION: self._partition,
            Fault.ONE_WAY_PARTITION: self._block_one_way,
            Fault.DELAYS: self._delay,
            Fault.RESETS: self._reset,
            Fault.DISK_FULL: self._fill_disk,
            Fault.SLOW_DISK: self._slow_disk,
            Fault.WRITE_ERRORS: self._fail_writes,
            Fault.TORN_WRITES: self._tear_writes,
            Fault.READ_ERRORS: self._fail_reads,
            Fault.DISK_FAILURE: self._fail_disk,
            Fault.SYNC_FAILURE: self._fail_syncs,
            Fault.CLOCK_JUMP: self._jump_clock,
            Fault.MOVE_LOG: self._move_log,
            Fault.KILL_IN_MOVE: self._kill_in_move,
            Fault.DIRECTORY_FAILURE: self._fail_directory,
        }
        what = act[planned.fault](planned.seconds)
        if what is not None:
            self.done[planned.fault] = self.done.get(planned.fault, 0) + 1
            self._cluster.log_event("faults", f"{planned.fault}: {what}")

    def _later(self, seconds: float, undo: Callable[[], None], what: str) -> None:
        def over() -> None:
            if not self._is_over:
                undo()
                self._cluster.log_event("faults", what)

        self._cluster.scheduler.after(seconds, over)

    # Processes

    def _stoppable_node(self) -> int | None:
        """A running node that can stop without losing the majority."""
        cluster = self._cluster
        up = cluster.stoppable()
        if not up or cluster.is_recovering_from_power_loss():
            return None
        return self._choose(up)

    def _choose(self, nodes: list[int]) -> int:
        """Prefers the leader of the quorum: most can go wrong there."""
        controller = self._cluster.controller()
        if controller in nodes and self._randomness.random() < 0.35:
            return controller
        return self._randomness.choice(nodes)

    def _start_again(self, node_id: int, seconds: float) -> None:
        self._cluster.scheduler.after(seconds, self._start, node_id)

    def _start(self, node_id: int) -> None:
        if not self._cluster.machines[node_id].is_up:
            self._cluster.start_node(node_id)

    def _kill(self, seconds: float) -> str | None:
        node_id = self._stoppable_node()
        if node_id is None:
            return None
        victims = self._cluster.siblings(node_id)
        if len(victims) > 1 and self._randomness.random() < 0.5:
            victims = [node_id]
        for each in victims:
            self._cluster.kill(each)
            self._start_again(each, seconds)
        return f"{_named(victims)} for {seconds:.1f} s"

    def _kill_in_write(self, seconds: float) -> str | None:
        node_id = self._stoppable_node()
        if node_id is None:
            return None
        operations = self._randomness.randint(1, 30)
        cluster = self._cluster

        def died() -> None:
            cluster.log_event("faults", f"node {node_id} is killed during a write")
            self._start_again(node_id, seconds)

        cluster.machines[node_id].kill_within(operations, died)
        return f"node {node_id} at its disk operation {operations} from now"

    def _kill_in_cleaning(self, seconds: float) -> str | None:
        """Kills a node, or cuts its power, soon after its cleaner started to copy a segment."""
        cluster = self._cluster
        node_id = self._stoppable_node()
        if node_id is None:
            return None
        operations = self._randomness.randint(1, 30)
        wants_power = self._randomness.random() < 0.5

        def loses_power() -> bool:
            if not wants_power or not self._may_lose_power():
                return False
            self._heal_disks()
            cluster.note_power_loss(node_id)
            for each in cluster.siblings(node_id):
                if each != node_id:
                    cluster.machines[each].kill(power_lost=True)
                    self._start_again(each, seconds)
            return True

        def died() -> None:
            cluster.log_event("faults", f"node {node_id} is killed during cleaning")
            self._start_again(node_id, seconds)

        cluster.machines[node_id].kill_within(
            operations,
            died,
            within=_CLEANED,
            may_die=lambda: self._stoppable_node() is not None,
            power_lost=loses_power,
        )
        return f"node {node_id} at disk operation {operations} of its next cleaning"

    def _kill_in_decision(self, seconds: float) -> str | None:
        """Kills a coordinator after it has decided a transaction and before the markers are written. The next
        coordinator must complete it."""
        cluster = self._cluster
        give_up = cluster.scheduler.now + _DECISION_SECONDS
        if self._stoppable_node() is None:
            return None

        def watch() -> None:
            node_id = cluster.deciding_coordinator()
            if self._is_over or cluster.scheduler.now > give_up:
                return
            if node_id and self._stoppable_node() is not None:
                cluster.log_event("faults", f"node {node_id} is killed after a transaction decision")
                cluster.kill(node_id)
                self._start_again(node_id, seconds)
            else:
                cluster.scheduler.after(0.001, watch)

        watch()
        return "the next coordinator that decides a transaction"

    def _heal_disks(self) -> None:
        """Also cancels planned kills: after a power loss, only the other nodes have the lost data."""
        for machine in self._cluster.machines.values():
            machine.disk.heal()

    def _may_lose_power(self) -> bool:
        return not self._failed_disks and not self._cluster.out_of_sync()

    def _kill_in_election(self, seconds: float) -> str | None:
        """Pauses the leader of the quorum, and kills a voter during the election. The voter must remember its vote."""
        cluster = self._cluster
        leader = cluster.controller()
        if self._stoppable_node() is None or not leader or cluster.machines[leader].process is None:
            return None
        victim = self._randomness.choice([node_id for node_id in cluster.voter_ids if node_id != leader])
        epoch = cluster.newest_epoch()
        give_up = cluster.scheduler.now + 3.0

        def watch() -> None:
            if cluster.newest_epoch() == epoch:
                if cluster.scheduler.now < give_up and not self._is_over:
                    cluster.scheduler.after(0.001, watch)
                return
            cluster.scheduler.after(self._randomness.uniform(0.0, 0.004), strike)

        def strike() -> None:
            if cluster.machines[victim].is_up and self._stoppable_node() is not None and not self._is_over:
                cluster.log_event("faults", f"node {victim} is killed during an election")
                cluster.kill(victim)
                self._start_again(victim, self._randomness.uniform(0.01, 0.1))

        cluster.machines[leader].pause()
        self._later(min(seconds, 2.5) + 1.0, cluster.machines[leader].resume, f"node {leader} resumes")
        watch()
        return f"node {leader}, the leader, is paused; node {victim} will be killed"

    def _lose_power(self, seconds: float) -> str | None:
        node_id = self._stoppable_node()
        if node_id is None or not self._may_lose_power():
            return None
        self._heal_disks()
        self._cluster.kill(node_id, power_lost=True)
        for each in self._cluster.siblings(node_id):
            self._start_again(each, seconds)
        return f"{_named(self._cluster.siblings(node_id))} for {seconds:.1f} s"

    def _blackout(self, seconds: float) -> str | None:
        """Slows the disks down, waits until the quorum commits a record, and cuts the power of all machines. A majority
        must have synced the record."""
        cluster = self._cluster
        committed = cluster.newest_high_watermark()
        give_up = cluster.scheduler.now + 2.0
        for node_id in cluster.voter_ids:
            cluster.machines[node_id].disk.slowness = _SLOW_DISK_BEFORE_BLACKOUT

        def watch() -> None:
            if self._is_over:
                return
            if cluster.newest_high_watermark() == committed and cluster.scheduler.now < give_up:
                cluster.scheduler.after(0.001, watch)
            else:
                cluster.scheduler.after(self._randomness.choice((0.0, 0.002, 0.01)), strike)

        def strike() -> None:
            if self._is_over:
                return
            cluster.log_event("faults", "all machines lose power")
            cluster.cut_all_power()
            for node_id, machine in cluster.machines.items():
                machine.disk.heal()
                self._start_again(node_id, self._randomness.uniform(0.0, min(seconds, 2.0)))

        watch()
        return "after the next commit of the quorum"

    def _restart(self, seconds: float) -> str | None:
        node_id = self._stoppable_node()
        if node_id is None or not self._cluster.is_ready(node_id):
            return None
        machine = self._cluster.machines[node_id]
        life = machine.process

        def stopped() -> None:
            self._cluster.log_event("faults", f"node {node_id} has stopped")
            self._start_again(node_id, min(seconds, 1.0))

        def kill_if_stuck() -> None:
            if machine.process is life and not self._is_over:
                self._cluster.log_event("faults", f"node {node_id} takes too long to stop and is killed")
                self._cluster.kill(node_id)
                self._start_again(node_id, 0.2)

        machine.stop(stopped)
        self._cluster.scheduler.after(12.0, kill_if_stuck)
        return f"node {node_id} gets a stop request"

    def _pause(self, seconds: float) -> str | None:
        node_id = self._any_node()
        machine = self._cluster.machines[node_id]
        if machine.process is None or machine.process.loop.paused:
            return None
        machine.pause()
        self._later(seconds, machine.resume, f"node {node_id} resumes")
        return f"node {node_id} for {seconds:.1f} s"

    def _slow_processor(self, seconds: float) -> str:
        """Slows down one machine or all of them."""
        factor = self._randomness.choice((20, 100, 500))
        nodes = [self._any_node()] if self._randomness.random() < 0.5 else list(self._cluster.machines)
        for node_id in nodes:
            self._cluster.machines[node_id].slowness = factor

        def undo() -> None:
            for node_id in nodes:
                self._cluster.machines[node_id].slowness = 1.0

        self._later(seconds, undo, f"nodes {nodes} are no longer slow")
        return f"nodes {nodes}, {factor} times, for {seconds:.1f} s"

    def _overload(self, seconds: float) -> str:
        """Overloads one machine or all. A node runs about 250 callbacks per second; at factor 400 it just keeps up."""
        factor = self._randomness.choice((100, 400, 800, 1200))
        nodes = [self._any_node()] if self._randomness.random() < 0.3 else list(self._cluster.machines)
        for node_id, machine in self._cluster.machines.items():
            machine.slowness = factor if node_id in nodes else 1.0
        return f"nodes {nodes}, {factor} times"

    def _hiccup(self, seconds: float) -> str | None:
        """Pauses a machine for a short time, as if other processes used its processor."""
        machine = self._cluster.machines[self._any_node()]
        if machine.process is None or machine.process.loop.paused:
            return None
        pause = self._randomness.choice((0.05, 0.2, 0.5, 0.8)) * self._randomness.uniform(0.5, 1.0)
        machine.pause()
        self._cluster.scheduler.after(pause, machine.resume)
        return f"{machine.name} for {pause:.2f} s"

    def _any_node(self) -> int:
        return self._choose(list(self._cluster.machines))

    # The network

    def _isolate(self, seconds: float) -> str | None:
        node_id = self._any_node()
        names = self._hosts_of_machine(node_id)
        also_clients = self._randomness.random() < 0.5
        others = [host for host in self._cluster.fabric.attachments if host not in names]
        if not also_clients:
            others = [host for host in others if host in self._cluster.node_hosts]
        if not others:
            return None
        self._block(_both_ways(names, others), seconds)
        return f"node {node_id} from {'all others' if also_clients else 'the other nodes'} for {seconds:.1f} s"

    def _hosts_of_machine(self, node_id: int) -> list[str]:
        return [self._cluster.machines[each].name for each in self._cluster.siblings(node_id)]

    def _cut_off(self, seconds: float) -> str | None:
        """Isolates a leader from the other nodes, but not from its clients; one at a time."""
        cluster = self._cluster
        leaders = [node_id for node_id in cluster.broker_ids if cluster.leads_partition(node_id)]
        if not leaders or cluster.scheduler.now < self._cut_off_until:
            return None
        self._cut_off_until = cluster.scheduler.now + seconds
        node_id = self._randomness.choice(leaders)
        names = self._hosts_of_machine(node_id)
        others = [host for host in cluster.node_hosts if host not in names]
        self._block(_both_ways(names, others), seconds)
        return f"node {node_id} for {seconds:.1f} s"

    def _two_hosts(self) -> tuple[str, str]:
        first, second = self._randomness.sample(self._cluster.node_hosts, 2)
        return first, second

    def _partition(self, seconds: float) -> str:
        first, second = self._two_hosts()
        self._block([(first, second), (second, first)], seconds)
        return f"{first} and {second} for {seconds:.1f} s"

    def _block_one_way(self, seconds: float) -> str:
        first, second = self._two_hosts()
        self._block([(first, second)], seconds)
        return f"{first} cannot reach {second} for {seconds:.1f} s"

    def _block(self, pairs: list[tuple[str, str]], seconds: float) -> None:
        fabric = self._cluster.fabric
        for pair in pairs:
            fabric.block(*pair)

        def heal() -> None:
            for pair in pairs:
                fabric.heal(*pair)

        self._later(seconds, heal, f"a partition heals ({pairs[0][0]}, {pairs[0][1]})")

    def _delay(self, seconds: float) -> str:
        links = self._cluster.fabric.links()
        chosen = self._randomness.sample(links, min(len(links), self._randomness.randint(1, 4)))
        factor = self._randomness.choice((20, 100, 500))
        for link in chosen:
            link.slowness = factor

        def undo() -> None:
            for link in chosen:
                link.slowness = 1.0

        self._later(seconds, undo, "the delays end")
        return ", ".join(f"{link.source}>{link.target}" for link in chosen) + f" {factor} times slower, {seconds:.1f} s"

    def _reset(self, seconds: float) -> str | None:
        streams = self._cluster.fabric.streams()
        if not streams:
            return None
        chosen = self._randomness.sample(streams, min(len(streams), self._randomness.choice((1, 2, 8))))
        for stream in chosen:
            stream.reset()
        return ", ".join(f"{stream.host}-{stream.peer_host}" for stream in chosen)

    # Disks and clocks

    def _fill_disk(self, seconds: float) -> str | None:
        if self._cluster.is_recovering_from_power_loss():
            return None
        node_id = self._any_node()
        disk = self._cluster.machines[node_id].disk
        disk.room = self._randomness.choice((0, 100, 1000))

        def undo() -> None:
            disk.room = None

        self._later(seconds, undo, f"the disk of node {node_id} has space again")
        self._cluster.expect_exit(node_id, seconds)
        return f"node {node_id} has {disk.room} bytes of space for {seconds:.1f} s"

    def _slow_disk(self, seconds: float) -> str:
        node_id = self._any_node()
        disk = self._cluster.machines[node_id].disk
        disk.slowness = self._randomness.choice((20.0, 100.0, 500.0))

        def undo() -> None:
            disk.slowness = 1.0

        self._later(seconds, undo, f"the disk of node {node_id} is no longer slow")
        return f"node {node_id}, {disk.slowness:g} times, for {seconds:.1f} s"

    def _fail_writes(self, seconds: float) -> str | None:
        return self._break_disk(self._any_node(), seconds, "writes_fail")

    def _tear_writes(self, seconds: float) -> str | None:
        return self._break_disk(self._any_node(), seconds, "writes_tear")

    def _fail_reads(self, seconds: float) -> str | None:
        return self._break_disk(self._any_node(), seconds, "reads_fail")

    def _fail_syncs(self, seconds: float) -> str | None:
        return self._break_disk(self._any_node(), seconds, "syncs_fail")

    def _fail_disk(self, seconds: float) -> str | None:
        """Makes the disk of a leader or of the active controller fail, while everything else is healthy."""
        cluster = self._cluster
        nodes = [node_id for node_id in cluster.machines if cluster.leads_partition(node_id)]
        if (controller := cluster.controller()) and controller not in nodes:
            nodes.append(controller)
        if cluster.failing_disk is not None or not nodes or cluster.out_of_sync():
            return None
        node_id = self._randomness.choice(nodes)
        how = self._randomness.choice(_DISK_FAILURES)
        cluster.failing_disk = node_id, cluster.scheduler.now
        return self._break_disk(node_id, seconds, *how)

    def _break_disk(self, node_id: int, seconds: float, *how: str) -> str | None:
        cluster = self._cluster
        if cluster.is_recovering_from_power_loss():
            return None
        disk = cluster.machines[node_id].disk
        for fault in how:
            setattr(disk, fault, True)

        def undo() -> None:
            for fault in how:
                setattr(disk, fault, False)
            if cluster.failing_disk is not None and cluster.failing_disk[0] == node_id:
                cluster.failing_disk = None

        self._later(seconds, undo, f"the disk of node {node_id} works again")
        cluster.expect_exit(node_id, seconds)
        self._failed_disks.add(node_id)
        return f"node {node_id} for {seconds:.1f} s ({', '.join(how)})"

    def _move_log(self, seconds: float) -> str | None:
        return begin_move(self._cluster, self._any_node(), self._randomness)

    def _kill_in_move(self, seconds: float) -> str | None:
        """Kills a node, or cuts its power, while it moves a log."""
        cluster = self._cluster
        node_id = self._stoppable_node()
        moved = None if node_id is None else begin_move(cluster, node_id, self._randomness)
        if node_id is None or moved is None:
            return None
        operations = self._randomness.randint(1, 40)
        wants_power = self._randomness.random() < 0.5

        def loses_power() -> bool:
            if not wants_power or not self._may_lose_power():
                return False
            self._heal_disks()
            cluster.note_power_loss(node_id)
            return True

        def died() -> None:
            cluster.log_event("faults", f"node {node_id} is killed during a move")
            self._start_again(node_id, seconds)

        cluster.machines[node_id].kill_within(
            operations,
            died,
            within=_MOVE_BEGINS,
            may_die=lambda: self._stoppable_node() is not None,
            power_lost=loses_power,
        )
        return f"{moved}, at disk operation {operations}"

    def _fail_directory(self, seconds: float) -> str | None:
        """Makes one log directory of a node fail, not the one with the metadata log."""
        cluster = self._cluster
        node_id = self._randomness.choice(cluster.broker_ids)
        directories = MORE_DISKS[: cluster.disks - 1]
        if not directories or cluster.is_recovering_from_power_loss() or cluster.out_of_sync():
            return None
        root = self._randomness.choice(directories)
        disk = cluster.machines[node_id].disk
        disk.dead_roots.add(root)
        self._later(seconds, lambda: disk.dead_roots.discard(root), f"{root} of node {node_id} works again")
        return f"{root} of node {node_id} for {seconds:.1f} s"

    def _jump_clock(self, seconds: float) -> str:
        node_id = self._any_node()
        jump_ms = self._randomness.choice((-3_600_000, -5_000, -300, 300, 5_000, 3_600_000))
        self._cluster.machines[node_id].clock.offset_ms += jump_ms
        return f"node {node_id} by {jump_ms / 1000:+g} s"


def begin_move(cluster: "Cluster", node_id: int, randomness: random.Random) -> str | None:
    """Moves a log of a node to another of its directories, as `AlterReplicaLogDirs` does."""
    node = cluster.node(node_id)
    broker = node.broker if node is not None else None
    if broker is None or cluster.machines[node_id].process is None:
        return None
    partitions = sorted(
        (each for each in broker.partitions if not each.is_log_offline), key=lambda each: each.topic_partition
    )
    if not partitions:
        return None
    partition = randomness.choice(partitions)
    home = broker.logs.place_of(partition.topic_partition)
    targets = [each for each in broker.logs.online if each is not home]
    if home is None or not targets:
        return None
    target = randomness.choice(targets)
    broker.moves.begin(partition, target)
    return f"{partition.topic_partition} of node {node_id} from {home.root} to {target.root}"


def _both_ways(names: list[str], others: list[str]) -> list[tuple[str, str]]:
    return [(name, other) for name in names for other in others] + [(other, name) for name in names for other in others]


def _named(nodes: list[int]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"the machine with nodes {nodes}"
