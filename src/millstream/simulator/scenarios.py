"""Scenarios: which faults happen in a run, how likely they are, at what pace, and with which broker settings."""

import logging
import random
from dataclasses import dataclass
from enum import StrEnum

from millstream.simulator.cluster import DEFAULT_TIMES

_POWER_SETTINGS = {"share.coordinator.state.topic.num.partitions": "1"}
_WITH_FLUSH = 0.2
"""Of the clusters in trouble: with `flush.before.ack`."""


class Scenario(StrEnum):
    TROUBLE = "trouble"
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
    trouble_seconds: float = 8.0
    separate_roles: bool | None = None
    """Controllers apart from brokers; None leaves it to the seed."""
    scenario: Scenario | None = None
    """None leaves it to the seed, too."""
    log_level: int = logging.WARNING


class Fault(StrEnum):
    KILL = "kill"
    KILL_IN_WRITE = "kill within a write"
    KILL_IN_ELECTION = "kill within an election"
    KILL_IN_CLEANING = "kill within cleaning"
    KILL_IN_DECISION = "kill within a decision"
    POWER_LOSS = "power loss"
    BLACKOUT = "blackout"
    RESTART = "restart"
    PAUSE = "pause"
    SLOW_PROCESSOR = "slow processor"
    BUSY = "too much to do"
    HICCUP = "hiccup"
    ISOLATE = "isolate"
    CUT_OFF = "cut off"
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
"""What meets nodes that start on empty disks: mostly machines with too much to do."""
_TRANSACTION_WEIGHTS = {**_WEIGHTS, Fault.KILL_IN_DECISION: 12}
"""Coordinators go at the worst moment."""
_FAILOVER_WEIGHTS = {Fault.CUT_OFF: 1}
"""Leaders that are gone for the others, and not for their clients."""
_BUSY_WEIGHTS = {Fault.BUSY: 1, Fault.HICCUP: 4}
"""Machines that have more to do than they can, and nothing else."""
_DISK_WEIGHTS = {Fault.DISK_FAILURE: 1}
"""Disks of leaders that fail, one at a time, while all else is well."""
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
_READS_OF_ERRORS = 0.5
"""Of the disks that fail: reads instead of writes."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    at: float
    fault: Fault
    seconds: float
    """How long it lasts, or how long a node that was stopped stays down."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of which each plan, or each fault, gets some: between two faults, and how long they last."""

    mean_gaps: tuple[float, ...]
    durations: tuple[float, ...]


_USUAL_PACE = Pace((0.5, 1.0, 2.0, 4.0), (0.05, 0.3, 1.0, 2.5, 6.0))
_BUSY_PACE = Pace((0.1, 0.5), (5.0,))
_FAILOVER_PACE = Pace((0.5,), (5.0,))
"""One after the other, and each until somebody else leads."""
_DISK_PACE = Pace((1.0,), (4.0, 6.0))


_WEIGHTS_BY_SCENARIO = {
    Scenario.FORMING: _FORMING_WEIGHTS,
    Scenario.BLACKOUT: _BLACKOUT_WEIGHTS,
    Scenario.TRANSACTIONS: _TRANSACTION_WEIGHTS,
    Scenario.FAILOVER: _FAILOVER_WEIGHTS,
    Scenario.BUSY: _BUSY_WEIGHTS,
    Scenario.DISK: _DISK_WEIGHTS,
}
"""Which faults, where not all alike."""
_PACES = {Scenario.FAILOVER: _FAILOVER_PACE, Scenario.BUSY: _BUSY_PACE, Scenario.DISK: _DISK_PACE}


def make_plan(
    seed: str,
    scenario: Scenario,
    *,
    begin: float,
    end: float,
) -> list[PlannedFault]:
    """What happens when. Whom it hits is decided when it happens. Some runs have one kind of fault only, so that each
    kind also meets a cluster that is well otherwise."""
    likely, pace = _WEIGHTS_BY_SCENARIO.get(scenario, _WEIGHTS), _PACES.get(scenario, _USUAL_PACE)
    randomness = random.Random(f"{seed}/plan")
    kinds = list(likely)
    if randomness.random() < 0.4 and scenario is not Scenario.BUSY:
        kinds = randomness.sample(kinds, randomness.randint(1, min(3, len(kinds))))
    weights = [likely[kind] for kind in kinds]
    mean_gap = randomness.choice(pace.mean_gaps)
    reading = random.Random(f"{seed}/reading")  # of its own, so that what else is planned does not depend on it
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
    # A run that was asked to have five nodes, or controllers apart, has them.
    is_free = options.nodes == Options().nodes and options.separate_roles is None
    return Scenario.POWER if chance < 0.3 and is_free else Scenario.TROUBLE


def cluster_settings(randomness: random.Random, scenario: Scenario) -> dict[str, str]:
    """Some settings that change what happens differ from run to run."""
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


def flush_settings(seed: str, scenario: Scenario) -> dict[str, str]:
    """A single node without power, and some clusters, acknowledge what is on the leader's disk."""
    is_some = scenario is Scenario.TROUBLE and random.Random(f"{seed}/flush").random() < _WITH_FLUSH
    return {"log.flush.before.ack": "true"} if is_some or scenario is Scenario.POWER else {}
