"""Whole clusters on good days: elections, failover without waiting for timeouts, handing over, no one disturbed."""

import statistics

from millstream.node.consensus.raft.roles import Role
from tests.unit.node.consensus.raft.cluster import Cluster


def settled(seed: int, voters: int, observers: int = 0) -> Cluster:
    cluster = Cluster(seed, voters, observers)
    assert cluster.run_until(cluster.settled, 20_000)
    cluster.append(3)
    assert cluster.run_until(cluster.settled, 20_000)
    return cluster


def led(cluster: Cluster) -> int:
    leader = cluster.leader()
    assert leader is not None
    return leader


def test_a_dead_leader_is_replaced_within_a_fraction_of_the_fetch_timeout() -> None:
    """Virtual time: connections to a dead process are refused, and that is not waited out."""
    took = []
    for seed in range(40):
        cluster = settled(seed, 3 if seed % 2 else 5)
        cluster.crash(led(cluster))
        began = cluster.now
        assert cluster.run_until(lambda cluster=cluster: cluster.leader() is not None, 10_000)
        took.append(cluster.now - began)
    assert statistics.median(took) < cluster.settings.fetch_timeout_ms / 4
    assert max(took) < cluster.settings.fetch_timeout_ms


def test_leadership_is_handed_over_at_once() -> None:
    for seed in range(20):
        cluster = settled(seed, 3)
        first = led(cluster)
        replica = cluster.nodes[first].replica
        assert replica is not None
        replica.shutdown(cluster.now)
        cluster.after(first)
        began = cluster.now
        assert cluster.run_until(lambda cluster=cluster: cluster.leader() is not None, 10_000)
        assert cluster.leader() != first
        assert cluster.now - began < cluster.settings.fetch_timeout_ms


def test_a_calm_cluster_keeps_its_leader() -> None:
    cluster = settled(1, 5, observers=2)
    leader, epochs = led(cluster), dict(cluster.leaders)
    for _ in range(60):
        cluster.run(1000)
        cluster.append()
    assert (cluster.leader(), cluster.leaders) == (leader, epochs)


def test_a_node_that_was_cut_off_disturbs_no_one_when_it_returns() -> None:
    """Pre-vote: it asked in vain all the time, and its epoch is still the cluster's."""
    cluster = settled(2, 3)
    leader, epochs = led(cluster), dict(cluster.leaders)
    lonely = next(i for i in cluster.nodes if i != leader)
    cluster.cut = {(a, b) for a in cluster.nodes for b in cluster.nodes if lonely in (a, b)}
    cluster.run(60_000)
    cluster.append()
    cluster.cut = set()
    assert cluster.run_until(cluster.settled, 20_000)
    assert (cluster.leader(), cluster.leaders) == (leader, epochs)


def test_a_leader_that_is_cut_off_steps_down_and_its_tail_is_dropped() -> None:
    cluster = settled(3, 3)
    first = led(cluster)
    others = [i for i in cluster.nodes if i != first]
    cluster.cut = {(first, i) for i in others} | {(i, first) for i in others}
    cluster.append(2)
    lost = cluster.nodes[first].log.end
    cluster.run(10_000)
    replica = cluster.nodes[first].replica
    assert replica is not None and not replica.is_leader
    second = led(cluster)
    assert second in others
    cluster.append(1)
    cluster.cut = set()
    assert cluster.run_until(cluster.settled, 20_000)
    assert cluster.nodes[first].log.end.epoch > lost.epoch
    assert any(line.split()[1:3] == [str(first), "truncates"] for line in cluster.story)


def test_without_a_majority_nothing_is_committed_and_service_returns_with_it() -> None:
    cluster = settled(4, 5)
    leader = led(cluster)
    down = [i for i in cluster.nodes if i != leader][:3]
    for node_id in down:
        cluster.crash(node_id)
    committed = len(cluster.committed)
    cluster.append(2)
    cluster.run(30_000)
    assert len(cluster.committed) == committed
    assert cluster.leader() is None
    cluster.start(down[0])
    assert cluster.run_until(lambda: len(cluster.committed) > committed, 20_000)


def test_voters_are_replaced_one_by_one() -> None:
    cluster = settled(5, 3, observers=3)
    cluster.run(100)
    cluster.upgrade()
    assert cluster.run_until(cluster.settled, 5_000)
    for new, old in [(4, 1), (5, 2), (6, 3)]:
        for change in ({"add": new}, {"remove": old}):
            assert cluster.run_until(lambda: cluster.leader() is not None, 10_000)
            assert cluster.run_until(cluster.settled, 10_000)
            cluster.change(**change)
            assert cluster.run_until(cluster.settled, 20_000), change
    assert [response.error for response in cluster.change_responses] == [0] * 6
    assert led(cluster) in (4, 5, 6)
    for node_id in (1, 2, 3):
        cluster.crash(node_id)
    before = len(cluster.committed)
    cluster.run(3000)
    assert cluster.append()
    assert cluster.run_until(lambda: len(cluster.committed) > before, 10_000)


def test_observers_follow_through_a_change_of_leaders() -> None:
    cluster = settled(6, 3, observers=1)
    cluster.crash(led(cluster))
    assert cluster.run_until(lambda: cluster.leader() is not None, 10_000)
    cluster.append()
    observer = cluster.nodes[4]
    assert observer.replica is not None
    assert cluster.run_until(lambda: observer.log.end == cluster.nodes[led(cluster)].log.end, 10_000)
    assert (observer.replica.role, observer.replica.is_voter) == (Role.FOLLOWER, False)
