"""Who leads, who is in sync and who may lead: the rules of KIP-966 one by one."""

from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import BrokerId
from millstream.node.metadata.elections import ElectionType, elect_leaders
from millstream.node.metadata.image import PartitionState
from millstream.node.metadata.partitions import RECOVERED, RECOVERING
from millstream.node.metadata.records import NO_LEADER, BrokerRegistrationChangeRecord, ConfigRecord
from millstream.node.metadata.topics import NewTopic
from tests.unit.node.metadata.cluster import Cluster

ELR = "eligible.leader.replicas.version"


def cluster_with(*replicas: int, min_insync: int = 1, unclean: bool = False, brokers: int = 4) -> Cluster:
    cluster = Cluster(brokers)
    configs: dict[str, str | None] = {"min.insync.replicas": str(min_insync)}
    if unclean:
        configs["unclean.leader.election.enable"] = "true"
    assert cluster.create(NewTopic(name="a", assignments=[(0, replicas)], configs=configs)) == [ErrorCode.NONE]
    return cluster


def summary(partition: PartitionState) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return partition.leader, partition.isr, partition.eligible_leader_replicas, partition.last_known_elr


def test_the_first_replica_in_sync_takes_over() -> None:
    cluster = cluster_with(1, 2, 3)
    before = cluster.partition()
    cluster.fence(1)
    after = cluster.partition()
    assert summary(after) == (2, (2, 3), (), ())
    assert (after.leader_epoch, after.partition_epoch) == (before.leader_epoch + 1, before.partition_epoch + 1)
    assert after.leader_recovery_state == RECOVERED


def test_a_follower_that_goes_leaves_the_leader_its_epoch() -> None:
    cluster = cluster_with(1, 2, 3)
    before = cluster.partition()
    cluster.fence(3)
    after = cluster.partition()
    assert summary(after) == (1, (1, 2), (), ())
    assert (after.leader_epoch, after.partition_epoch) == (before.leader_epoch, before.partition_epoch + 1)


def test_who_leaves_a_too_small_isr_may_still_lead() -> None:
    cluster = cluster_with(1, 2, 3, min_insync=2)
    cluster.fence(3)
    assert summary(cluster.partition()) == (1, (1, 2), (), ())
    cluster.fence(2)
    assert summary(cluster.partition()) == (1, (1,), (2,), ())
    cluster.fence(1)
    assert summary(cluster.partition()) == (NO_LEADER, (), (2, 1), (1,))
    cluster.unfence(3)
    assert summary(cluster.partition()) == (NO_LEADER, (), (2, 1), (1,))
    cluster.unfence(2)
    assert summary(cluster.partition()) == (2, (2,), (1,), ())
    assert cluster.partition().leader_recovery_state == RECOVERED


def test_an_isr_that_is_large_enough_forgets_who_else_may_lead() -> None:
    cluster = cluster_with(1, 2, 3, min_insync=2)
    cluster.fence(3)
    cluster.fence(2)
    cluster.unfence(3)
    assert cluster.alter_isr(1, 3).error is ErrorCode.NONE
    assert summary(cluster.partition()) == (1, (1, 3), (), ())


def test_a_crash_costs_the_right_to_lead() -> None:
    cluster = cluster_with(1, 2, 3, min_insync=2)
    cluster.fence(3)
    cluster.fence(2)
    cluster.restart(2, clean=False)
    assert summary(cluster.partition()) == (1, (1,), (), ())


def test_a_clean_restart_does_not() -> None:
    cluster = cluster_with(1, 2, 3, min_insync=2)
    cluster.fence(3)
    cluster.fence(2)
    cluster.fence(1)
    cluster.restart(2, clean=True)
    assert summary(cluster.partition()) == (2, (2,), (1,), ())


def test_the_last_known_leader_comes_back_after_all_crashed() -> None:
    cluster = cluster_with(1, 2, min_insync=2)
    cluster.fence(2)
    cluster.fence(1)
    assert summary(cluster.partition()) == (NO_LEADER, (), (2, 1), (1,))
    cluster.restart(2, clean=False)
    assert summary(cluster.partition()) == (NO_LEADER, (), (1,), (1,))
    cluster.restart(1, clean=False, unfence=False)
    assert summary(cluster.partition()) == (NO_LEADER, (), (), (1,))
    cluster.unfence(1)
    assert summary(cluster.partition()) == (1, (1,), (), ())
    assert cluster.partition().leader_recovery_state == RECOVERING


def test_who_comes_back_with_an_empty_disk_does_not_lead() -> None:
    cluster = Cluster(2)
    cluster.restart(1, clean=True, disk=UUID(int=98))
    assert cluster.create(NewTopic(name="a", assignments=[(0, (1, 2))])) == [ErrorCode.NONE]
    cluster.fence(2)
    cluster.restart(1, clean=False, unfence=False, disk=UUID(int=99))
    cluster.unfence(1)
    cluster.unfence(2)
    assert summary(cluster.partition()) == (NO_LEADER, (), (), (1,))
    cluster.take(elect_leaders(cluster.image, ElectionType.UNCLEAN, None, cluster.config))
    assert cluster.partition().leader == 2, "who is behind has more than who has nothing"
    cluster.alter_isr(2, 1)
    assert cluster.partition().directories[0] == UUID(int=99), "who has caught up has done so on its new disk"


def test_a_single_replica_that_crashed_leads_again() -> None:
    cluster = cluster_with(1)
    before = cluster.partition().leader_epoch
    cluster.restart(1, clean=False, unfence=False)
    assert summary(cluster.partition()) == (NO_LEADER, (), (), (1,))
    cluster.unfence(1)
    assert summary(cluster.partition()) == (1, (1,), (), ())
    assert cluster.partition().leader_epoch == before + 2


def test_minimum_above_the_number_of_replicas_counts_as_all_of_them() -> None:
    cluster = cluster_with(1, 2, min_insync=5)
    cluster.fence(2)
    assert summary(cluster.partition()) == (1, (1,), (2,), ())
    cluster.unfence(2)
    cluster.alter_isr(1, 2)
    assert summary(cluster.partition()) == (1, (1, 2), (), ())


def test_unclean_elections_where_they_are_allowed() -> None:
    cluster = cluster_with(1, 2, unclean=True)
    cluster.fence(2)
    cluster.unfence(2)
    assert summary(cluster.partition()) == (1, (1,), (), ())
    cluster.fence(1)
    assert summary(cluster.partition()) == (2, (2,), (), ())
    assert cluster.partition().leader_recovery_state == RECOVERING


@pytest.mark.parametrize(
    ("topic", "default", "static", "allowed"),
    [
        (None, None, "true", True),
        (None, "false", "true", False),
        (None, "true", "false", True),
        ("true", "false", "false", True),
        ("false", "true", "true", False),
        (None, "nonsense", "true", True),
    ],
)
def test_unclean_election_follows_the_setting_of_the_topic_first(
    topic: str | None, default: str | None, static: str, allowed: bool
) -> None:
    name = "unclean.leader.election.enable"
    cluster = Cluster(2, f"{name}={static}")
    cluster.create(NewTopic(name="a", assignments=[(0, (1, 2))], configs={name: topic} if topic else {}))
    if default is not None:
        cluster.write([ConfigRecord(resource_type=4, resource_name="", name=name, value=default)])
    cluster.write(
        [ConfigRecord(resource_type=4, resource_name="2", name=name, value="true" if not allowed else "false")]
    )
    cluster.fence(2)
    cluster.unfence(2)
    cluster.fence(1)
    assert cluster.partition().has_leader is allowed


def test_without_the_feature_the_last_in_sync_stays() -> None:
    cluster = cluster_with(1, 2, min_insync=2)
    cluster.set_feature(ELR, 0)
    cluster.fence(2)
    assert summary(cluster.partition()) == (1, (1,), (), ())
    cluster.fence(1)
    assert summary(cluster.partition()) == (NO_LEADER, (1,), (), ())
    cluster.unfence(2)
    assert summary(cluster.partition()) == (NO_LEADER, (1,), (), ())
    cluster.restart(1, clean=False)
    assert summary(cluster.partition()) == (1, (1,), (), ())
    assert cluster.partition().leader_recovery_state == RECOVERED


def test_the_feature_comes_to_a_partition_that_waits_for_its_last_in_sync() -> None:
    cluster = cluster_with(1, 2)
    cluster.set_feature(ELR, 0)
    cluster.fence(2)
    cluster.fence(1)
    assert summary(cluster.partition()) == (NO_LEADER, (1,), (), ())
    cluster.set_feature(ELR, 1)
    cluster.restart(1, clean=False, unfence=False)
    assert summary(cluster.partition()) == (NO_LEADER, (), (), (1,))
    cluster.unfence(1)
    assert summary(cluster.partition()) == (1, (1,), (), ())


def test_the_feature_goes_and_so_does_what_it_remembered() -> None:
    cluster = cluster_with(1, 2, min_insync=2)
    cluster.fence(2)
    cluster.set_feature(ELR, 0)
    cluster.unfence(2)
    cluster.alter_isr(1, 2)
    assert summary(cluster.partition()) == (1, (1, 2), (), ())


def test_who_shuts_down_neither_leads_nor_is_in_sync() -> None:
    cluster = cluster_with(1, 2, 3)
    epoch = cluster.image.brokers[BrokerId(2)].epoch
    cluster.write([BrokerRegistrationChangeRecord(broker_id=BrokerId(2), broker_epoch=epoch, in_controlled_shutdown=1)])
    cluster.fence(1)
    assert summary(cluster.partition()) == (3, (2, 3), (), ())


def test_a_leader_that_is_enough_by_itself_leaves_no_one_else_eligible() -> None:
    cluster = cluster_with(1, 2, min_insync=2)
    cluster.fence(2)
    cluster.fence(1)
    lower = ConfigRecord(resource_type=2, resource_name="a", name="min.insync.replicas", value="1")
    cluster.write([lower])
    assert summary(cluster.partition()) == (NO_LEADER, (), (2, 1), (1,))
    cluster.unfence(2)
    assert summary(cluster.partition()) == (2, (2,), (), ())
