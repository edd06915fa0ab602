"""ElectLeaders, preferred leaders, and partitions without a leader."""

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId
from millstream.node.metadata.elections import ElectionType, balance_leaders, elect_leaderless, elect_leaders
from millstream.node.metadata.partitions import RECOVERING
from millstream.node.metadata.records import BrokerRegistrationChangeRecord, ConfigRecord
from millstream.node.metadata.topics import NewTopic
from tests.unit.node.metadata.cluster import Cluster


def some_cluster() -> Cluster:
    cluster = Cluster(3)
    cluster.create(NewTopic(name="a", assignments=[(0, (1, 2)), (1, (2, 3)), (2, (3, 1))]))
    return cluster


def elect(cluster: Cluster, kind: int, *partitions: int) -> list[tuple[int, ErrorCode]]:
    asked = [("a", number) for number in partitions] if partitions else None
    decision = elect_leaders(cluster.image, kind, asked, cluster.config)
    cluster.take(decision)
    return [(response.partition, response.error) for response in decision.results]


def test_the_preferred_replica_leads_again() -> None:
    cluster = some_cluster()
    cluster.fence(1)
    cluster.unfence(1)
    assert elect(cluster, ElectionType.PREFERRED, 0) == [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    cluster.alter_isr(2, 1)
    assert elect(cluster, ElectionType.PREFERRED, 0, 1) == [(0, ErrorCode.NONE), (1, ErrorCode.ELECTION_NOT_NEEDED)]
    assert cluster.partition().leader == 1


def test_all_partitions_without_those_that_need_nothing() -> None:
    cluster = some_cluster()
    cluster.fence(1)
    cluster.unfence(1)
    cluster.alter_isr(2, 1)
    assert elect(cluster, ElectionType.PREFERRED) == [(0, ErrorCode.NONE)]
    assert elect(cluster, ElectionType.PREFERRED) == []


def test_unclean_elections_by_hand() -> None:
    cluster = some_cluster()
    cluster.fence(2)
    assert elect(cluster, ElectionType.UNCLEAN, 0) == [(0, ErrorCode.ELECTION_NOT_NEEDED)]
    cluster.fence(1)
    assert elect(cluster, ElectionType.UNCLEAN, 0) == [(0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    cluster.unfence(2)
    assert not cluster.partition().has_leader
    assert elect(cluster, ElectionType.UNCLEAN, 0) == [(0, ErrorCode.NONE)]
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2,))
    assert cluster.partition().leader_recovery_state == RECOVERING


def test_elections_of_what_is_not_there() -> None:
    cluster = some_cluster()
    decision = elect_leaders(cluster.image, 0, [("a", 3), ("b", 0)], cluster.config)
    assert {response.error for response in decision.results} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    with pytest.raises(KafkaError) as refused:
        elect_leaders(cluster.image, 2, None, cluster.config)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_leaders_go_back_by_themselves() -> None:
    cluster = some_cluster()
    for number in (1, 3):
        cluster.fence(number)
        cluster.unfence(number)
        for partition in range(3):
            state = cluster.partition(number=partition)
            cluster.alter_isr(state.leader, *(set(state.replicas) - {state.leader}), number=partition)
    moved = [number for number in range(3) if cluster.partition(number=number).leader != number + 1]
    assert len(moved) > 1
    decision = balance_leaders(cluster.image, cluster.config, limit=1)
    assert len(decision.records) == len(decision.results) == 1
    cluster.take(decision)
    cluster.take(balance_leaders(cluster.image, cluster.config))
    assert [cluster.partition(number=number).leader for number in range(3)] == [1, 2, 3]
    assert balance_leaders(cluster.image, cluster.config).records == ()


def test_leaders_do_not_go_to_who_is_away() -> None:
    cluster = some_cluster()
    cluster.fence(1)
    assert balance_leaders(cluster.image, cluster.config).records == ()


def test_who_has_no_leader_gets_one_when_that_is_possible() -> None:
    cluster = some_cluster()
    cluster.fence(2)
    cluster.fence(1)
    cluster.unfence(2)
    assert elect_leaderless(cluster.image, cluster.config).records == ()
    allow = "unclean.leader.election.enable"
    cluster.write([ConfigRecord(resource_type=2, resource_name="a", name=allow, value="true")])
    cluster.take(elect_leaderless(cluster.image, cluster.config))
    assert cluster.partition().leader == 2


def test_partitions_without_leader_elect_one_after_an_interrupted_unfencing() -> None:
    cluster = some_cluster()
    cluster.fence(2, 1)
    broker = cluster.image.brokers[BrokerId(1)]
    cluster.write([BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=-1)])
    assert not cluster.partition().has_leader
    cluster.take(elect_leaderless(cluster.image, cluster.config))
    assert cluster.partition().leader == 1
    assert cluster.partition().leader_recovery_state == 0
