"""Replicas move: begun, completed, replaced, cancelled, refused, listed."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.node.metadata.brokers import register_broker
from millstream.node.metadata.partitions import RECOVERING
from millstream.node.metadata.reassignment import (
    OngoingReassignment,
    Reassignment,
    alter_reassignments,
    list_reassignments,
)
from millstream.node.metadata.records import ConfigRecord
from millstream.node.metadata.topics import NewTopic
from tests.unit.node.metadata.cluster import Cluster, introduction


def some_cluster() -> Cluster:
    cluster = Cluster(6)
    cluster.create(NewTopic(name="a", assignments=[(0, (1, 2, 3)), (1, (2, 3, 1))]))
    return cluster


def move(cluster: Cluster, replicas: Sequence[int] | None, number: int = 0, *, change_factor: bool = True) -> ErrorCode:
    asked = [Reassignment(topic="a", partition=number, replicas=replicas)]
    decision = alter_reassignments(cluster.image, asked, cluster.config, allow_replication_factor_change=change_factor)
    cluster.take(decision)
    return decision.results[0].error


def moving(cluster: Cluster) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    state = cluster.partition()
    return state.replicas, state.adding_replicas, state.removing_replicas


def test_a_reassignment_is_complete_when_all_that_stay_are_in_sync() -> None:
    cluster = some_cluster()
    assert move(cluster, (4, 5, 2)) is ErrorCode.NONE
    assert moving(cluster) == ((4, 5, 2, 1, 3), (4, 5), (1, 3))
    assert (cluster.partition().leader, cluster.partition().leader_epoch) == (1, 0)
    assert cluster.alter_isr(1, 2, 3, 4).error is ErrorCode.NONE
    assert moving(cluster) == ((4, 5, 2, 1, 3), (4, 5), (1, 3))
    response = cluster.alter_isr(1, 2, 3, 4, 5)
    assert response.error is ErrorCode.NEW_LEADER_ELECTED
    assert moving(cluster) == ((4, 5, 2), (), ())
    state = cluster.partition()
    assert (state.leader, state.isr, state.leader_epoch) == (4, (2, 4, 5), 1)
    assert len(state.directories) == 3


def test_a_leader_that_stays_hears_that_it_is_complete() -> None:
    cluster = some_cluster()
    move(cluster, (4, 1))
    response = cluster.alter_isr(1, 2, 3, 4)
    assert response.error is ErrorCode.NONE
    state = cluster.partition()
    assert response.state == state
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((4, 1), (1, 4), 1, 1)


def test_another_order_and_fewer_replicas_are_there_at_once() -> None:
    cluster = some_cluster()
    assert move(cluster, (3, 2, 1)) is ErrorCode.NONE
    assert moving(cluster) == ((3, 2, 1), (), ())
    assert move(cluster, (2, 3)) is ErrorCode.NONE
    assert moving(cluster) == ((2, 3), (), ())
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2, 3))
    assert move(cluster, (2, 3)) is ErrorCode.NONE


def test_a_reassignment_is_cancelled() -> None:
    cluster = some_cluster()
    assert move(cluster, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    move(cluster, (4, 5, 6))
    cluster.alter_isr(1, 2, 3, 4)
    assert move(cluster, None) is ErrorCode.NONE
    assert moving(cluster) == ((1, 2, 3), (), ())
    assert (cluster.partition().isr, cluster.partition().leader) == ((1, 2, 3), 1)


def test_going_back_to_no_one_in_sync() -> None:
    cluster = some_cluster()
    move(cluster, (4, 5, 6))
    cluster.alter_isr(1, 4)
    cluster.fence(1, 2, 3)
    assert (cluster.partition().leader, cluster.partition().isr) == (4, (4,))
    cluster.unfence(2)
    assert move(cluster, None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move(cluster, (1, 2, 5)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    allow = "unclean.leader.election.enable"
    cluster.write([ConfigRecord(resource_type=2, resource_name="a", name=allow, value="true")])
    assert move(cluster, None) is ErrorCode.NONE
    state = cluster.partition()
    assert (state.leader, state.isr, state.leader_recovery_state) == (2, (2,), RECOVERING)


def test_a_reassignment_is_replaced_by_another() -> None:
    cluster = some_cluster()
    move(cluster, (4, 5, 6))
    cluster.alter_isr(1, 2, 3, 4)
    assert move(cluster, (1, 2, 5)) is ErrorCode.NONE
    assert moving(cluster) == ((1, 2, 5, 3), (5,), (3,))
    assert (cluster.partition().isr, cluster.partition().leader_epoch) == ((1, 2, 3), 1)
    assert move(cluster, None) is ErrorCode.NONE
    assert set(cluster.partition().replicas) == {1, 2, 3}


def test_back_to_where_it_was_is_complete_at_once() -> None:
    cluster = some_cluster()
    move(cluster, (4, 5, 6))
    assert move(cluster, (1, 2, 3)) is ErrorCode.NONE
    assert moving(cluster) == ((1, 2, 3), (), ())


def test_the_replication_factor_may_be_kept() -> None:
    cluster = some_cluster()
    assert move(cluster, (1, 2), change_factor=False) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert move(cluster, (4, 5, 6), change_factor=False) is ErrorCode.NONE
    assert move(cluster, (1, 2, 3, 4, 5), change_factor=False) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert move(cluster, (1, 2, 6), change_factor=False) is ErrorCode.NONE
    assert move(cluster, (1, 2, 4, 6)) is ErrorCode.NONE


@pytest.mark.parametrize("replicas", [(), (1, 1), (1, 9)])
def test_wrong_replicas_are_refused(replicas: tuple[int, ...]) -> None:
    assert move(some_cluster(), replicas) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_one_refusal_does_not_hinder_others() -> None:
    cluster = some_cluster()
    asked = [
        Reassignment(topic="b", partition=0, replicas=(1,)),
        Reassignment(topic="a", partition=7, replicas=(1,)),
        Reassignment(topic="a", partition=1, replicas=(4, 2, 3)),
        Reassignment(topic="a", partition=1, replicas=(5, 2, 3)),
    ]
    decision = alter_reassignments(cluster.image, asked, cluster.config)
    assert [response.error for response in decision.results] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert len(decision.records) == 1


def test_what_is_under_way_is_listed() -> None:
    cluster = some_cluster()
    assert list_reassignments(cluster.image) == []
    move(cluster, (4, 2, 3))
    row = OngoingReassignment(
        topic="a", partition=0, replicas=(4, 2, 3, 1), adding_replicas=(4,), removing_replicas=(1,)
    )
    assert list_reassignments(cluster.image) == [row]
    assert list_reassignments(cluster.image, [("a", [0, 0, 1, 9]), ("b", [0])]) == [row]
    assert list_reassignments(cluster.image, [("a", [1])]) == []


def test_a_new_replica_goes_to_the_directory_of_its_broker() -> None:
    cluster = some_cluster()
    with_directory = introduction(7, log_dirs=(UUID(int=70),))
    cluster.take(register_broker(cluster.image, with_directory, cluster.config, next_offset=len(cluster.log)))
    move(cluster, (1, 2, 7))
    assert cluster.partition().directories[2] == UUID(int=70)


def test_a_reassignment_below_the_minimum_keeps_who_may_lead() -> None:
    cluster = Cluster(4)
    cluster.create(NewTopic(name="a", assignments=[(0, (1, 2, 3))], configs={"min.insync.replicas": "3"}))
    cluster.fence(2, 3)
    assert cluster.partition().eligible_leader_replicas == (2, 3)
    move(cluster, (1, 2, 4))
    assert cluster.partition().eligible_leader_replicas == (2, 3)
    cluster.unfence(2)
    cluster.alter_isr(1, 2, 4)
    assert (cluster.partition().replicas, cluster.partition().eligible_leader_replicas) == ((1, 2, 4), ())
