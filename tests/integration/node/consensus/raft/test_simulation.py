"""Raft's promises under faults: many seeds, each a different bad day, then liveness once the faults stop."""

import os

import pytest

from tests.unit.node.consensus.raft.cluster import Cluster, Faults

SEEDS = int(os.environ.get("RAFT_SEEDS", "300"))
FIRST_SEED = int(os.environ.get("RAFT_FIRST_SEED", "0"))


def bad_day(seed: int, voters: int, observers: int, dynamic: bool) -> Cluster:
    """Faults for some seconds of virtual time, then calm until everything agrees."""
    cluster = Cluster(seed, voters, observers)
    try:
        _bad_day(cluster, dynamic)
    except BaseException as error:
        error.add_note("\n".join([f"seed {seed}", *cluster.story[-60:]]))
        raise
    return cluster


def _bad_day(cluster: Cluster, dynamic: bool) -> None:
    random = cluster.random
    if dynamic:
        assert cluster.run_until(cluster.settled, 20_000), "no leader on a good day"
        cluster.run(100)
        cluster.upgrade()
    ids = list(cluster.nodes)
    cluster.faults = Faults(
        loss=random.choice([0, 0.02, 0.1, 0.3]),
        duplicate=random.choice([0, 0.05, 0.2]),
        max_delay_ms=random.choice([2, 20, 200, 800]),
        max_flush_ms=random.choice([0, 5, 50, 400]),
    )
    for _ in range(random.randint(10, 30)):
        cluster.run(random.choice([1, 10, 50, 200, 1000]))
        node_id = random.choice(ids)
        node = cluster.nodes[node_id]
        match random.randrange(14 if dynamic else 11):
            case 0 | 1 | 2:
                cluster.append(random.randint(1, 4))
            case 3 | 4:
                if node.replica is not None:
                    cluster.crash(node_id)
            case 5:
                leader = cluster.leader()
                if leader is not None:
                    cluster.crash(leader)
            case 6:
                for other in ids:
                    if cluster.nodes[other].replica is None and random.random() < 0.7:
                        cluster.start(other)
            case 7:
                side = {i for i in ids if random.random() < 0.5}
                one_way = random.random() < 0.3
                cut = {(a, b) for a in side for b in ids if b not in side}
                cluster.cut = cut if one_way else cut | {(b, a) for a, b in cut}
                cluster.say(f"cut {sorted(side)} one way: {one_way}")
            case 8:
                cluster.cut = set()
            case 9:
                cluster.snapshot(node_id)
            case 10:
                if random.random() < 0.3:
                    leader = cluster.leader()
                    if leader is not None and (replica := cluster.nodes[leader].replica) is not None:
                        replica.resign(cluster.now)
                        cluster.after(leader)
                else:
                    node.paused_until = cluster.now + random.choice([100, 1000, 5000])
            case _:
                leader = cluster.leader()
                if leader is not None and (replica := cluster.nodes[leader].replica) is not None:
                    if node_id in replica.voters.by_id:
                        cluster.change(remove=node_id)
                    else:
                        cluster.change(add=node_id)
        cluster.check_log_matching()
    cluster.say("calm")
    cluster.heal()
    assert cluster.run_until(lambda: cluster.settled(), 60_000), "no agreement after the faults stopped"
    before = len(cluster.committed)
    assert cluster.append()
    assert cluster.run_until(lambda: cluster.settled() and len(cluster.committed) > before, 5_000), "no progress"
    cluster.check_log_matching()
    cluster.check_leader_change_first()


SHAPES = [(3, 0, False), (3, 1, False), (5, 0, False), (3, 1, True), (3, 2, True), (5, 1, True)]


@pytest.mark.parametrize("part", range(len(SHAPES)))
def test_promises_hold_under_faults(part: int) -> None:
    for seed in range(FIRST_SEED + part, FIRST_SEED + SEEDS, len(SHAPES)):
        bad_day(seed, *SHAPES[part])


@pytest.mark.parametrize(
    ("seed", "was"),
    [
        (47, "a voter that had not seen the voters move into the log refused a candidate it did not know"),
        (101, "a candidate that had lost was due at once, again and again, until its pause was over"),
        (104, "an unattached replica with unflushed records was due at once, again and again"),
        (219, "the only one with the longest log was being removed, asked for no votes, and granted none"),
        (802, "the same after a restart, when it no longer knew what was committed"),
    ],
)
def test_seeds_that_failed_once(seed: int, was: str) -> None:
    bad_day(seed, *SHAPES[seed % len(SHAPES)])
