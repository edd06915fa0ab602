"""Where replicas go."""

from collections import Counter
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import NO_TOPIC_ID, BrokerId
from millstream.formats.model.placement import Place, default_machine
from millstream.node.metadata.brokers import Heartbeat, process_heartbeat, unregister_broker
from millstream.node.metadata.configs import ConfigChange, Operation, incremental_alter_configs
from millstream.node.metadata.image import ConfigResource, ResourceType
from millstream.node.metadata.partitions import check_assignment, interleaved, new_partition, place_replicas
from millstream.node.metadata.reassignment import Reassignment, alter_reassignments
from millstream.node.metadata.records import UNASSIGNED_DIRECTORY, BrokerRegistrationChangeRecord
from millstream.node.metadata.topics import NewTopic, internal_topic
from tests.unit.node.metadata.cluster import Cluster, introduction


def fence(cluster: Cluster, *numbers: int) -> None:
    for number in numbers:
        epoch = cluster.image.brokers[BrokerId(number)].epoch
        cluster.write([BrokerRegistrationChangeRecord(broker_id=BrokerId(number), broker_epoch=epoch, fenced=1)])


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 60), st.integers())
def test_leaders_and_replicas_are_even(broker_count: int, factor: int, partitions: int, seed: int) -> None:
    image = Cluster(broker_count).image
    factor = min(factor, broker_count)
    placed = place_replicas(image, partitions, factor, Random(seed))
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(number, 0) for number in image.brokers) <= 1
    if partitions % broker_count == 0:
        shares = Counter(number for replicas in placed for number in replicas)
        assert len(set(shares.values())) == 1


def test_the_partitions_of_one_leader_have_followers_everywhere() -> None:
    placed = place_replicas(Cluster(4).image, 4 * 3, 2, Random(3))
    assert len({replicas[1] for replicas in placed if replicas[0] == 1}) == 3


def test_more_replicas_than_brokers() -> None:
    with pytest.raises(KafkaError, match=r"only 2 broker\(s\) are registered") as refused:
        place_replicas(Cluster(2).image, 1, 3, Random(1))
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_brokers_that_are_away_are_taken_only_when_needed_and_never_first() -> None:
    cluster = Cluster(3)
    fence(cluster, 1)
    assert all(set(replicas) == {2, 3} for replicas in place_replicas(cluster.image, 10, 2, Random(1)))
    assert all(replicas[2] == 1 for replicas in place_replicas(cluster.image, 10, 3, Random(1)))
    fence(cluster, 2, 3)
    with pytest.raises(KafkaError, match="All brokers are currently fenced"):
        place_replicas(cluster.image, 1, 1, Random(1))


def test_a_new_partition_has_its_active_replicas_in_sync() -> None:
    cluster = Cluster(3)
    fence(cluster, 1)
    record = new_partition(cluster.image, NO_TOPIC_ID, 0, (1, 3, 2))
    assert (record.leader, record.isr, record.leader_epoch, record.partition_epoch) == (3, (3, 2), 0, 0)
    assert record.directories == (UNASSIGNED_DIRECTORY,) * 3
    with pytest.raises(KafkaError, match="are fenced or shutting down"):
        new_partition(cluster.image, NO_TOPIC_ID, 0, (1,))


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        ([], "empty replica list"),
        ([1, 1], "more than once"),
        ([1, 9], "broker 9, but no such broker is registered"),
        ([1], "not consistent with previous partitions, which have 2"),
    ],
)
def test_wrong_assignments_are_refused(replicas: list[int], message: str) -> None:
    with pytest.raises(KafkaError, match=message) as refused:
        check_assignment(Cluster(2).image, replicas, 2)
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def in_racks(*racks: str | None) -> Cluster:
    cluster = Cluster(0)
    for number, rack in enumerate(racks, 1):
        cluster.add(introduction(number, rack=rack))
    return cluster


@given(
    st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(1, 60),
    st.integers(),
)
def test_replicas_are_on_as_many_racks_as_there_are(
    racks: list[str | None], factor: int, partitions: int, seed: int
) -> None:
    image = in_racks(*racks).image
    factor = min(factor, len(racks))
    placed = place_replicas(image, partitions, factor, Random(seed))
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        assert len({racks[number - 1] for number in replicas}) == min(factor, len(set(racks)))
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(number, 0) for number in image.brokers) <= 1


@given(st.integers(1, 4), st.integers(2, 3), st.integers(1, 3), st.integers(1, 40), st.integers())
def test_racks_of_one_size_share_evenly(size: int, racks: int, factor: int, partitions: int, seed: int) -> None:
    image = in_racks(*(str(rack) for rack in range(racks) for _ in range(size))).image
    factor = min(factor, racks * size)
    placed = place_replicas(image, partitions, factor, Random(seed))
    held = Counter(number for replicas in placed for number in replicas)
    counts = [held.get(number, 0) for number in image.brokers]
    assert max(counts) - min(counts) <= 2


def test_brokers_that_are_away_come_last_even_if_they_have_a_rack_of_their_own() -> None:
    cluster = in_racks("a", "a", "b", "b")
    fence(cluster, 3, 4)
    for replicas in place_replicas(cluster.image, 20, 3, Random(2)):
        assert set(replicas[:2]) == {1, 2}
        assert replicas[2] in (3, 4)


def test_brokers_of_racks_are_interleaved() -> None:
    racks = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: None}
    places = {number: Place(rack, default_machine(number)) for number, rack in racks.items()}
    assert interleaved(places, places) == [1, 4, 6, 2, 5, 3]


def cordon(cluster: Cluster, number: int, value: str | None = "*") -> ErrorCode:
    operation = Operation.DELETE if value is None else Operation.SET
    change = ConfigChange("cordoned.log.dirs", operation, value)
    resource = ConfigResource(ResourceType.BROKER, str(number))
    decision = incremental_alter_configs(cluster.image, [(resource, [change])], cluster.config)
    cluster.take(decision)
    return decision.results[0].error


def test_a_cordoned_broker_gets_nothing_new() -> None:
    cluster = Cluster(3)
    cluster.create(NewTopic(name="a", assignments=[(0, (3, 1)), (1, (1, 2))]))
    assert cordon(cluster, 3) is ErrorCode.NONE
    assert all(set(replicas) == {1, 2} for replicas in place_replicas(cluster.image, 9, 2, Random(1)))
    with pytest.raises(KafkaError, match=r"only 2 broker\(s\) are registered and may get new replicas"):
        place_replicas(cluster.image, 1, 3, Random(1))
    with pytest.raises(KafkaError, match="Broker 3 is cordoned"):
        check_assignment(cluster.image, (3,), None)
    assert internal_topic("__consumer_offsets", cluster.image, 1, 3, {}).replication_factor == 2
    keep = Reassignment(topic="a", partition=0, replicas=(1, 3))
    take = Reassignment(topic="a", partition=1, replicas=(1, 3))
    results = alter_reassignments(cluster.image, [keep, take], cluster.config).results
    assert [response.error for response in results] == [ErrorCode.NONE, ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    cordon(cluster, 3, None)
    assert len(place_replicas(cluster.image, 1, 3, Random(1))[0]) == 3


def test_a_broker_that_leaves_is_no_longer_cordoned() -> None:
    cluster = Cluster(2)
    cordon(cluster, 2)
    cluster.take(unregister_broker(cluster.image, BrokerId(2), cluster.config))
    assert not cluster.image.cordoned(2)
    assert cluster.image.configs == {}


def test_a_broker_reports_the_directories_that_its_file_cordons() -> None:
    cluster = Cluster(1)
    cluster.add(introduction(2, log_dirs=(UUID(int=201), UUID(int=202))))
    broker = cluster.image.brokers[BrokerId(2)]
    cordoned = broker.online_log_dirs

    def beat(*directories: UUID) -> int:
        heartbeat = Heartbeat(
            broker_id=broker.id,
            broker_epoch=broker.epoch,
            current_metadata_offset=cluster.image.offset,
            cordoned_log_dirs=directories,
        )
        decision = process_heartbeat(cluster.image, heartbeat, cluster.config, others_caught_up=True)
        cluster.take(decision)
        return len(decision.records)

    assert beat(cordoned[0]) == 1 and not cluster.image.cordoned(2)
    assert beat(*cordoned, UUID(int=77)) == 1 and beat(*cordoned) == 0
    assert cluster.image.brokers[broker.id].cordoned_log_dirs == cordoned
    assert cluster.image.cordoned(2) and not cluster.image.cordoned(1)
    assert all(replicas == (1,) for replicas in place_replicas(cluster.image, 5, 1, Random(1)))
    cordon(cluster, 2, "")
    assert not cluster.image.cordoned(2)  # the dynamic setting counts first
    cordon(cluster, 2, None)
    assert cluster.image.cordoned(2)
    assert beat() == 1 and not cluster.image.cordoned(2)
