"""Brokers register, are fenced and unfenced, shut down, and leave."""

from typing import Any
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId, TopicName
from millstream.node.metadata.brokers import (
    Heartbeat,
    HeartbeatResult,
    begin_controlled_shutdown,
    fence_broker,
    process_heartbeat,
    register_broker,
    unfence_broker,
    unregister_broker,
)
from millstream.node.metadata.image import apply
from millstream.node.metadata.records import (
    LOST_DIRECTORY,
    NO_LEADER,
    BrokerRegistrationChangeRecord,
    Endpoint,
    RegisterBrokerRecord,
    SupportedFeature,
)
from millstream.node.metadata.topics import NewTopic
from tests.unit.node.metadata.cluster import Cluster, introduction

ONE = BrokerId(1)
TWO = BrokerId(2)


def beat(
    cluster: Cluster, number: int = 1, *, offset: int | None = None, others_caught_up: bool = True, **wishes: Any
) -> HeartbeatResult:
    heartbeat = Heartbeat(
        broker_id=BrokerId(number),
        broker_epoch=cluster.image.brokers[BrokerId(number)].epoch,
        current_metadata_offset=cluster.image.offset if offset is None else offset,
        **wishes,
    )
    decision = process_heartbeat(cluster.image, heartbeat, cluster.config, others_caught_up=others_caught_up)
    cluster.take(decision)
    return decision.results[0]


def replicated(brokers: int = 3, partitions: int = 6, factor: int = 3) -> Cluster:
    cluster = Cluster(brokers)
    cluster.create(NewTopic(name="a", partition_count=partitions, replication_factor=factor))
    return cluster


def test_a_new_broker_is_fenced_at_first() -> None:
    cluster = Cluster(0)
    decision = register_broker(cluster.image, introduction(1, rack="r"), cluster.config, next_offset=7)
    assert decision.results[0].broker_epoch == 7
    cluster.take(decision)
    broker = cluster.image.brokers[ONE]
    assert (broker.fenced, broker.epoch, broker.rack) == (True, 7, "r")


def test_the_epoch_is_the_offset_of_the_registration() -> None:
    cluster = replicated()
    again = introduction(1, incarnation_id=UUID(int=5))
    decision = register_broker(cluster.image, again, cluster.config, next_offset=len(cluster.log))
    cluster.take(decision)
    assert isinstance(decision.records[-1], RegisterBrokerRecord)
    assert decision.results[0].broker_epoch == cluster.image.offset == len(cluster.log) - 1


def test_the_same_process_may_register_twice() -> None:
    cluster = replicated()
    before = cluster.image.brokers[ONE]
    decision = register_broker(cluster.image, introduction(1), cluster.config, next_offset=99, session_alive=True)
    assert (decision.records, decision.results[0].broker_epoch) == ((), before.epoch)
    moved = introduction(1, end_points=(Endpoint(name="PLAINTEXT", host="elsewhere", port=1),))
    cluster.take(register_broker(cluster.image, moved, cluster.config, next_offset=99, session_alive=True))
    after = cluster.image.brokers[ONE]
    assert (after.epoch, after.fenced, after.end_points[0].host) == (before.epoch, False, "elsewhere")


def test_a_second_process_waits_until_the_first_is_gone() -> None:
    cluster = replicated()
    elsewhere = (Endpoint(name="PLAINTEXT", host="elsewhere", port=1),)
    again = introduction(1, incarnation_id=UUID(int=5), end_points=elsewhere)
    with pytest.raises(KafkaError, match=r"Another broker is running with node\.id=1") as refused:
        register_broker(cluster.image, again, cluster.config, next_offset=50, session_alive=True)
    assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.take(begin_controlled_shutdown(cluster.image, ONE, cluster.config))
    assert register_broker(cluster.image, again, cluster.config, next_offset=50, session_alive=True).results
    assert register_broker(cluster.image, again, cluster.config, next_offset=50).results


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID, "belongs to cluster another"),
        ({"end_points": ()}, ErrorCode.INVALID_REGISTRATION, "Set its listeners"),
        ({"broker_id": BrokerId(-3)}, ErrorCode.INVALID_REGISTRATION, "0 or more"),
        ({"log_dirs": (UUID(int=40),)}, ErrorCode.DUPLICATE_BROKER_REGISTRATION, "data directory of broker 2"),
        ({"features": ()}, ErrorCode.UNSUPPORTED_VERSION, "does not support feature metadata.version"),
        (
            {
                "features": (
                    SupportedFeature(name="metadata.version", min_supported_version=1, max_supported_version=9),
                )
            },
            ErrorCode.UNSUPPORTED_VERSION,
            "from level 1 to 9, but the cluster uses level 30",
        ),
    ],
)
def test_brokers_that_are_not_admitted(changes: dict[str, object], code: ErrorCode, message: str) -> None:
    cluster = Cluster(1)
    cluster.take(
        register_broker(cluster.image, introduction(2, log_dirs=(UUID(int=40),)), cluster.config, next_offset=9)
    )
    with pytest.raises(KafkaError, match=message) as refused:
        register_broker(cluster.image, introduction(1, **changes), cluster.config, next_offset=10)
    assert refused.value.code is code


def test_a_broker_is_unfenced_once_it_has_caught_up() -> None:
    cluster = replicated()
    cluster.restart(1, clean=True, unfence=False)
    epoch = cluster.image.brokers[ONE].epoch
    response = beat(cluster, offset=epoch - 1)
    assert (response.is_caught_up, response.is_fenced) == (False, True)
    response = beat(cluster, offset=epoch, want_fence=True)
    assert (response.is_caught_up, response.is_fenced) == (True, True)
    response = beat(cluster, offset=epoch)
    assert (response.is_caught_up, response.is_fenced, response.should_shut_down) == (True, False, False)
    assert cluster.image.brokers[ONE].active
    log = len(cluster.log)
    assert not beat(cluster, offset=epoch).is_fenced
    assert len(cluster.log) == log


def test_a_broker_may_ask_to_be_fenced() -> None:
    cluster = replicated()
    assert beat(cluster, want_fence=True).is_fenced
    assert all(1 not in cluster.partition(number=number).isr for number in range(6))


def test_a_controlled_shutdown_moves_the_leaders() -> None:
    cluster = replicated()
    response = beat(cluster, want_shut_down=True)
    assert (response.should_shut_down, response.is_fenced, response.in_controlled_shutdown) == (False, False, True)
    for number in range(6):
        partition = cluster.partition(number=number)
        assert partition.leader in (2, 3)
        assert set(partition.isr) == {2, 3}
    assert not beat(cluster, want_shut_down=True, others_caught_up=False).should_shut_down
    response = beat(cluster, want_shut_down=True)
    assert (response.should_shut_down, response.is_fenced) == (True, True)
    assert beat(cluster, want_shut_down=True).should_shut_down
    # A process that has begun to stop is not taken back.
    assert beat(cluster).is_fenced
    assert unfence_broker(cluster.image, ONE, cluster.config).records == ()


def test_a_shutdown_that_was_written_only_in_part_goes_on() -> None:
    cluster = replicated()
    records = begin_controlled_shutdown(cluster.image, ONE, cluster.config).records
    cluster.write(records[:2])
    response = beat(cluster, want_shut_down=True)
    assert not response.should_shut_down
    assert all(cluster.partition(number=number).leader != 1 for number in range(6))
    assert beat(cluster, want_shut_down=True).should_shut_down


def test_the_last_replica_shuts_down_and_leads_when_it_is_back() -> None:
    cluster = replicated(brokers=1, partitions=2, factor=1)
    assert beat(cluster, want_shut_down=True).in_controlled_shutdown
    assert beat(cluster, want_shut_down=True).should_shut_down
    assert cluster.partition().leader == NO_LEADER
    assert cluster.partition().eligible_leader_replicas == (1,)
    cluster.restart(1, clean=True)
    assert (cluster.partition().leader, cluster.partition().leader_recovery_state) == (1, 0)


@pytest.mark.parametrize("wishes", [{"want_fence": True, "want_shut_down": True}, {"want_shut_down": True}])
def test_who_leads_nothing_may_stop_at_once(wishes: dict[str, bool]) -> None:
    cluster = Cluster(2)
    response = beat(cluster, **wishes)
    assert (response.should_shut_down, response.is_fenced) == (True, True)
    assert cluster.image.brokers[ONE].fenced


def test_a_broker_whose_log_directory_failed_leads_nothing_until_it_registers_again() -> None:
    disk = UUID(int=77)
    cluster = replicated()
    cluster.restart(1, clean=True, disk=disk)
    response = beat(cluster, want_fence=True, want_shut_down=True, offline_log_dirs=(disk,))
    assert response.is_fenced and response.should_shut_down
    for partition in cluster.image.topics[TopicName("a")].partitions:
        assert partition.leader in (TWO, 3) and ONE not in partition.isr
    registered = cluster.image.brokers[ONE]
    assert registered.fenced and registered.has_offline_log_dir and registered.log_dirs == (LOST_DIRECTORY,)
    assert beat(cluster).is_fenced, "a heartbeat that was under way before does not let it in again"
    cluster.restart(1, clean=False, disk=disk)
    assert cluster.image.brokers[ONE].active and not cluster.image.brokers[ONE].has_offline_log_dir


def test_a_directory_that_is_not_the_brokers_own_does_not_count() -> None:
    cluster = replicated()
    assert not beat(cluster, offline_log_dirs=(UUID(int=99),)).is_fenced
    assert not cluster.image.brokers[ONE].has_offline_log_dir


def test_heartbeats_of_who_is_no_member() -> None:
    cluster = Cluster(1)
    for number, epoch in ((1, 77), (9, 0)):
        beating = Heartbeat(broker_id=BrokerId(number), broker_epoch=epoch, current_metadata_offset=0)
        with pytest.raises(KafkaError) as refused:
            process_heartbeat(cluster.image, beating, cluster.config, others_caught_up=True)
        assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_broker_is_fenced_after_its_partitions_and_unfenced_before() -> None:
    cluster = replicated(partitions=4)
    fencing = fence_broker(cluster.image, ONE, cluster.config).records
    assert isinstance(fencing[-1], BrokerRegistrationChangeRecord)
    # Half of it is a state from which the rest can be decided again.
    half = apply(cluster.image, fencing[:2], offset=99, epoch=1).image
    rest = fence_broker(half, ONE, cluster.config).records
    whole = apply(cluster.image, fencing, offset=99, epoch=1).image
    assert apply(half, rest, offset=99, epoch=1).image == whole
    cluster.fence(1)
    assert fence_broker(cluster.image, ONE, cluster.config).records == ()
    assert isinstance(unfence_broker(cluster.image, ONE, cluster.config).records[0], BrokerRegistrationChangeRecord)


def test_a_broker_that_leaves_for_good_keeps_its_replicas() -> None:
    cluster = replicated()
    cluster.take(unregister_broker(cluster.image, ONE, cluster.config))
    assert ONE not in cluster.image.brokers
    for number in range(6):
        partition = cluster.partition(number=number)
        assert set(partition.replicas) == {1, 2, 3}
        assert set(partition.isr) == {2, 3}
    with pytest.raises(KafkaError) as refused:
        unregister_broker(cluster.image, ONE, cluster.config)
    assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    cluster.restart(1, clean=False)
    assert cluster.alter_isr(*cluster.partition().isr, 1).error is ErrorCode.NONE


def test_a_broker_that_comes_back_unregistered_has_crashed_for_all_we_know() -> None:
    cluster = Cluster(2)
    cluster.create(NewTopic(name="a", assignments=[(0, (1, 2))], configs={"min.insync.replicas": "2"}))
    cluster.take(unregister_broker(cluster.image, TWO, cluster.config))
    assert cluster.partition().eligible_leader_replicas == (2,)
    cluster.restart(2, clean=True)
    assert cluster.partition().eligible_leader_replicas == ()
