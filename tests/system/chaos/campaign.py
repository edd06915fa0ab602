"""A campaign: start a cluster and its clients, strike with one nemesis after another, then judge."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from millstream.simulator.history import check
from millstream.simulator.history.operations import Outcome, save
from tests import waiting
from tests.s3_server import faulty_store
from tests.system.chaos import nemeses, replicas
from tests.system.chaos.cluster import Cluster
from tests.system.chaos.nemeses import Nemesis
from tests.system.chaos.network import Bridged, Disks, Loopback, Network
from tests.system.chaos.security import Security
from tests.system.chaos.summary import Fault, Summary, unexplained
from tests.system.chaos.workload import GROUP, NO_GROUP, RATE, TOPIC, Workload

PARTITIONS = 6
_CALM_SECONDS = 2.0
_ENOUGH = 200
"""Acknowledged records before the first fault."""
_STALE_GRACE_SECONDS = 3.0
"""After the end of a fault that allows stale reads: requests that were under way have responses by then."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides what happens: the same plan strikes in the same order."""

    seed: int
    seconds: float
    """The nemeses strike round after round until this is over; each at least once."""
    node_count: int = 3
    system: str = "millstream"
    only: tuple[str, ...] = ()
    directory: Path = Path()
    contained: bool = False
    secured: bool = False
    tiered: bool = False
    """The topic is tiered to an S3 server, which is one more victim."""
    rate: float = RATE
    """Records per second of each producer."""
    previous: Path | None = None
    """The source of the previous version: nodes begin with it, change between the two, and the upgrade is ended."""


def run(plan: Plan, say: Callable[[str], None]) -> Summary:
    network: Network = Bridged(plan.node_count) if plan.contained else Loopback(plan.node_count)
    # The clients write about 2 MB a minute, and nothing is deleted: a campaign of an hour needs more.
    megabytes = 96 + int(plan.seconds / 10)
    disks = Disks(plan.directory, small=plan.contained, megabytes=megabytes, failing=True)
    chance = random.Random(plan.seed)
    faults: list[Fault] = []
    security = Security(plan.directory, plan.node_count, network) if plan.secured else None
    with (
        faulty_store(plan.directory / "s3", network.client_host) if plan.tiered else nullcontext() as store,
        Cluster(
            plan.system, plan.node_count, network, disks, plan.directory, {}, security, store, plan.previous
        ) as cluster,
    ):
        say(f"{plan.node_count} nodes are up")
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.add_client(TOPIC, GROUP, NO_GROUP)
        workload = Workload(cluster.client_settings, PARTITIONS, plan.seed, plan.rate, reads_history=plan.tiered)
        workload.start()
        now = workload.recorder.now
        time.sleep(_CALM_SECONDS)
        # On a busy machine the clients begin late, and a fault that finds nothing to damage shows nothing.
        waiting.until(lambda: _acknowledged(workload) >= _ENOUGH, "the clients have written nothing")
        until = now() + plan.seconds
        try:
            for nemesis in _order(plan, cluster, chance, lambda: now() < until, say):
                fault = _strike(nemesis, cluster, workload)
                faults.append(fault)
                say(f"{fault.name} ({fault.detail}): {fault.over_at - fault.struck_at:.1f} s")
        except Exception as problem:
            # The history up to here is still worth judging.
            workload.problems.append(f"the campaign ended early: {problem!r}")
        workload.finish()
        say("the clients have finished")
        say(f"{len(workload.ended_logins)} logins ended with their connection")
        workload.problems += unexplained(workload.ended_logins, faults)
        if store is not None:
            say(f"{len(store.segments())} objects are in the store")
            if len(store.segments()) < PARTITIONS:
                workload.problems.append("the store has fewer objects than the topic has partitions")
        _check_nodes(cluster, workload.problems)
    history = workload.recorder.history
    if not workload.problems and not plan.tiered:  # replicas keep different parts of a tiered log on their disks
        workload.problems += replicas.differences(cluster.nodes.values(), PARTITIONS)
    save(history, plan.directory / "history.jsonl")
    replicas.keep(cluster.nodes.values(), plan.directory)
    kinds = (("secured", plan.secured), ("tiered", plan.tiered), ("two versions", plan.previous is not None))
    system = ", ".join((plan.system, *(name for name, is_so in kinds if is_so)))
    title = f"{system}, {plan.node_count} nodes, seed {plan.seed}, {plan.seconds:.0f} s"
    return Summary(title, faults, history, check(history), workload.errors, workload.problems)


def _acknowledged(workload: Workload) -> int:
    return sum(send.outcome is Outcome.ACKED for send in workload.recorder.history.sends)


def _order(
    plan: Plan, cluster: Cluster, chance: random.Random, go_on: Callable[[], bool], say: Callable[[str], None]
) -> Iterator[Nemesis]:
    """Every nemesis in shuffled order; then, while there is time, all of them again in another order. An upgrade is
    ended after them, and a leader is killed that writes the new formats."""
    usual = nemeses.ALL + (nemeses.OF_SECURED if plan.secured else ()) + (nemeses.OF_TIERED if plan.tiered else ())
    usual += nemeses.OF_UPGRADES if plan.previous is not None else ()
    chosen = [each for each in usual if not plan.only or each.__name__ in plan.only]
    for each in chosen:
        if not each.is_possible(cluster):
            say(f"left out, not possible on this machine: {each.name}")
    possible = [each for each in chosen if each.is_possible(cluster)]
    first = True
    while possible and (first or go_on()):
        for each in chance.sample(possible, len(possible)):
            if first or go_on():
                yield each(cluster, chance)
        first = False
    if plan.previous is not None:
        yield nemeses.EndOfUpgrade(cluster, chance)
        yield nemeses.KillLeader(cluster, chance)


def _strike(nemesis: Nemesis, cluster: Cluster, workload: Workload) -> Fault:
    now = workload.recorder.now
    fault = Fault(nemesis.name, "", now())
    fault.detail = nemesis.strike()
    fault.victims = frozenset(cluster.nodes[number].address for number in nemesis.victims)
    time.sleep(nemesis.hold_s)
    nemesis.heal()
    fault.healed_at = now()
    try:
        cluster.wait_until_in_sync(TOPIC)
        fault.in_sync_at = now()
    finally:
        if nemesis.stale_reads_allowed:
            workload.recorder.stale_allowed(fault.struck_at, now() + _STALE_GRACE_SECONDS, nemesis.name)
    time.sleep(_CALM_SECONDS)
    fault.over_at = now()
    if nemesis.is_unseen:
        workload.problems += [
            f"{nemesis.name}: a client got an error {at - fault.struck_at:.1f} s afterwards: {text}"
            for at, text in list(workload.client_errors)
            if fault.struck_at <= at <= fault.over_at
        ]
    return fault


def _check_nodes(cluster: Cluster, problems: list[str]) -> None:
    for node in cluster.nodes.values():
        if not node.running:
            problems.append(f"node {node.number} has ended by itself:\n{node.log_tail()}")
