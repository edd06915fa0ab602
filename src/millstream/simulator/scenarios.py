"""Scenarios: which faults happen in a run, how likely they are, at what pace, and with which broker settings."""

import logging
import random
from enum import StrEnum

from millstream.common.lazy_dataclass import dataclass
from millstream.simulator.cluster import DEFAULT_TIMES

_POWER_SETTINGS = {"share.coordinator.state.topic.num.partitions": "1"}
_WITH_FLUSH = 0.2
"""Share of the default runs with `flush.before.ack`."""


class Scenario(StrEnum):
    MIXED = "mixed"
    FORMING = "forming"
    BLACKOUT = "blackout"
    TRANSACTIONS = "transactions"
    FAILOVER = "failover"
    BUSY = "busy"
    DISK = "disk"
    POWER = "power"


@dataclass(frozen=True, slots=True)
class Options:
    nodes: int = 3
    fault_seconds: float = 8.0
    separate_roles: bool | None = None
    """Separate controllers and brokers; None: the seed decides."""
    scenario: Scenario | None = None
    """None: the seed decides."""
    tls: bool = False
    """Mutual TLS on all listeners, also for clients."""
    secured: bool = False
    """SASL_SSL for clients, mutual TLS between nodes, and ACLs."""
    log_level: int = logging.WARNING
    processes: int = 1
    """Nodes on each machine, of which the first is a controller too. `nodes` is then the number of machines."""
    quotas: bool = False
    """Whether the administrator limits clients, with quotas that change."""
    conditional: bool = False
    """Whether two more clients append conditionally (KIP-27)."""
    branches: bool = False
    """Whether one more client branches topics, and deletes branches."""
    tiered: bool = False
    """Whether topics are tiered, to a store that is slow and fails."""
    mixed_versions: bool = False
    """Whether nodes are of the earlier or of the newer version, by chance at each start. All begin with the earlier;
    after the faults the upgrade is ended."""
    disks: int = 1
    """Log directories of each node, at most three. With several, logs move between them, and single ones fail."""


class Fault(StrEnum):
    KILL = "kill"
    KILL_IN_WRITE = "kill during a write"
    KILL_IN_ELECTION = "kill during an election"
    KILL_IN_CLEANING = "kill during cleaning"
    KILL_IN_DECISION = "kill after a transaction decision"
    POWER_LOSS = "power loss"
    BLACKOUT = "blackout"
    RESTART = "restart"
    PAUSE = "pause"
    SLOW_PROCESSOR = "slow processor"
    BUSY = "overload"
    HICCUP = "short pause"
    ISOLATE = "isolate"
    CUT_OFF = "isolate a leader from other nodes"
    PARTITION = "partition"
    ONE_WAY_PARTITION = "one-way partition"
    DELAYS = "delays"
    RESETS = "resets"
    DISK_FULL = "disk full"
    SLOW_DISK = "slow disk"
    WRITE_ERRORS = "write errors"
    TORN_WRITES = "torn writes"
    READ_ERRORS = "read errors"
    DISK_FAILURE = "disk failure"
    SYNC_FAILURE = "fsync failure"
    CLOCK_JUMP = "clock jump"
    MOVE_LOG = "move of a log to another directory"
    KILL_IN_MOVE = "kill during a move"
    DIRECTORY_FAILURE = "failure of one log directory"


_WEIGHTS = {
    Fault.KILL: 5,
    Fault.KILL_IN_WRITE: 4,
    Fault.KILL_IN_ELECTION: 3,
    Fault.KILL_IN_CLEANING: 4,
    Fault.POWER_LOSS: 4,
    Fault.RESTART: 3,
    Fault.PAUSE: 4,
    Fault.SLOW_PROCESSOR: 2,
    Fault.ISOLATE: 4,
    Fault.PARTITION: 3,
    Fault.ONE_WAY_PARTITION: 4,
    Fault.DELAYS: 4,
    Fault.RESETS: 4,
    Fault.DISK_FULL: 2,
    Fault.SLOW_DISK: 3,
    Fault.WRITE_ERRORS: 2,
    Fault.TORN_WRITES: 2,
    Fault.SYNC_FAILURE: 1,
    Fault.CLOCK_JUMP: 3,
}
_FORMING_WEIGHTS = {
    Fault.KILL: 1,
    Fault.KILL_IN_WRITE: 1,
    Fault.PAUSE: 4,
    Fault.SLOW_PROCESSOR: 6,
    Fault.ISOLATE: 1,
    Fault.PARTITION: 2,
    Fault.ONE_WAY_PARTITION: 2,
    Fault.DELAYS: 5,
    Fault.RESETS: 2,
    Fault.SLOW_DISK: 3,
    Fault.CLOCK_JUMP: 1,
}
"""Faults while nodes start on empty disks: mostly overloaded machines."""
_TRANSACTION_WEIGHTS = {**_WEIGHTS, Fault.KILL_IN_DECISION: 12}
"""With kills of transaction coordinators right after a decision."""
_FAILOVER_WEIGHTS = {Fault.CUT_OFF: 1}
"""Leaders that other nodes cannot reach, but clients can."""
_BUSY_WEIGHTS = {Fault.BUSY: 1, Fault.HICCUP: 4}
"""Only overloaded machines."""
_DISK_WEIGHTS = {Fault.DISK_FAILURE: 1}
"""Disks of leaders fail, one at a time; everything else is healthy."""
_BLACKOUT_WEIGHTS = {
    Fault.BLACKOUT: 6,
    Fault.KILL: 1,
    Fault.KILL_IN_ELECTION: 1,
    Fault.PAUSE: 1,
    Fault.PARTITION: 1,
    Fault.ONE_WAY_PARTITION: 1,
    Fault.DELAYS: 1,
    Fault.SLOW_DISK: 2,
}
_DISKS_WEIGHTS = {Fault.MOVE_LOG: 14, Fault.KILL_IN_MOVE: 10, Fault.DIRECTORY_FAILURE: 7}
"""With several log directories, in addition to the others."""
_READS_OF_ERRORS = 0.5
"""Share of write errors that are replaced by read errors."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    at: float
    fault: Fault
    seconds: float
    """Duration of the fault, or of the downtime of a stopped node."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Choices in seconds: the mean gap between faults of a plan, and the duration of each fault."""

    mean_gaps: tuple[float, ...]
    durations: tuple[float, ...]


_USUAL_PACE = Pace((0.5, 1.0, 2.0, 4.0), (0.05, 0.3, 1.0, 2.5, 6.0))
_BUSY_PACE = Pace((0.1, 0.5), (5.0,))
_FAILOVER_PACE = Pace((0.5,), (5.0,))
"""Long enough for a new leader to be elected each time."""
_DISK_PACE = Pace((1.0,), (4.0, 6.0))


_WEIGHTS_BY_SCENARIO = {
    Scenario.FORMING: _FORMING_WEIGHTS,
    Scenario.BLACKOUT: _BLACKOUT_WEIGHTS,
    Scenario.TRANSACTIONS: _TRANSACTION_WEIGHTS,
    Scenario.FAILOVER: _FAILOVER_WEIGHTS,
    Scenario.BUSY: _BUSY_WEIGHTS,
    Scenario.DISK: _DISK_WEIGHTS,
}
"""Fault weights of the scenarios without the default ones."""
_PACES = {Scenario.FAILOVER: _FAILOVER_PACE, Scenario.BUSY: _BUSY_PACE, Scenario.DISK: _DISK_PACE}


def make_plan(
    seed: str,
    scenario: Scenario,
    *,
    begin: float,
    end: float,
    disks: int = 1,
) -> list[PlannedFault]:
    """A plan of faults with their times. The node is chosen when a fault happens. Some runs have only one to three
    kinds of faults, so that each kind also meets an otherwise healthy cluster."""
    likely, pace = _WEIGHTS_BY_SCENARIO.get(scenario, _WEIGHTS), _PACES.get(scenario, _USUAL_PACE)
    randomness = random.Random(f"{seed}/plan")
    kinds = list(likely)
    if randomness.random() < 0.4 and scenario is not Scenario.BUSY:
        kinds = randomness.sample(kinds, randomness.randint(1, min(3, len(kinds))))
    if disks > 1:
        kinds, likely = [*kinds, *_DISKS_WEIGHTS], {**likely, **_DISKS_WEIGHTS}
    weights = [likely[kind] for kind in kinds]
    mean_gap = randomness.choice(pace.mean_gaps)
    reading = random.Random(f"{seed}/reading")  # separate, so that the rest of the plan does not depend on it
    plan: list[PlannedFault] = []
    moment = begin
    while True:
        moment += min(randomness.expovariate(1 / mean_gap), 3 * mean_gap)
        if moment >= end:
            return plan
        (fault,) = randomness.choices(kinds, weights)
        if fault is Fault.WRITE_ERRORS and reading.random() < _READS_OF_ERRORS:
            fault = Fault.READ_ERRORS
        seconds = randomness.choice(pace.durations) * randomness.uniform(0.5, 1.5)
        plan.append(PlannedFault(moment, fault, seconds))


def choose_scenario(seed: str, options: Options) -> Scenario:
    chance = random.Random(f"{seed}/scenario").random()
    if chance < 0.1:
        return Scenario.FORMING
    if chance < 0.2:
        return Scenario.BLACKOUT
    # The power scenario has one node, so it is not chosen when the options ask for more.
    is_free = options.nodes == Options().nodes and options.separate_roles is None and options.processes == 1
    return Scenario.POWER if chance < 0.3 and is_free else Scenario.MIXED


def cluster_settings(randomness: random.Random, scenario: Scenario) -> dict[str, str]:
    """Broker settings of a run: some are chosen at random, because they change what happens."""
    usual = DEFAULT_TIMES if scenario is Scenario.FORMING and randomness.random() < 0.5 else {}
    if scenario is Scenario.BUSY:
        usual = DEFAULT_TIMES
    if scenario is Scenario.POWER:
        usual = _POWER_SETTINGS
    return {
        **usual,
        "log.flush.offset.checkpoint.interval.ms": str(randomness.choice((2_000, 60_000))),
        "metadata.log.max.record.bytes.between.snapshots": str(randomness.choice((3_000, 20_000, 20_971_520))),
        "num.replica.fetchers": str(randomness.choice((1, 1, 2))),
        "log.roll.ms": str(randomness.choice((3_000, 600_000))),
        "transaction.state.log.num.partitions": str(randomness.choice((1, 1, 2))),
    }


EARLIER_LEVELS = {"metadata.version": 29, "transaction.version": 1}
"""The highest levels that a node of the earlier version knows, of the features that the newest version has higher."""


def earlier_version() -> dict[str, str]:
    """The settings of a node of the earlier version."""
    return {"millstream.max.feature.levels": ",".join(f"{name}={level}" for name, level in EARLIER_LEVELS.items())}


TIER_SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "millstream.tier.url": "file:///simulated",
    "remote.log.manager.task.interval.ms": "300",
    "log.retention.check.interval.ms": "300",
}
TIERED_TOPIC = {"remote.storage.enable": "true", "local.retention.bytes": "1", "internal.segment.bytes": "1500"}


def flush_settings(seed: str, scenario: Scenario) -> dict[str, str]:
    """`flush.before.ack` for the power scenario and for some default runs."""
    is_some = scenario is Scenario.MIXED and random.Random(f"{seed}/flush").random() < _WITH_FLUSH
    return {"log.flush.before.ack": "true"} if is_some or scenario is Scenario.POWER else {}
