"""Each invariant is shown what it must refuse, and what it must let pass."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from millstream.formats.model.identifiers import BrokerId, TopicId, TopicName
from millstream.node.metadata.image import BrokerRegistration, MetadataImage, PartitionState, TopicImage
from millstream.simulator.invariants.cluster import (
    AcknowledgedIsDurable,
    CommittedLogsAreEqual,
    CommittedMetadataIsStable,
    EpochsOnlyGrow,
    HighWatermarksOnlyGrow,
    InSyncReplicasAreAlive,
    NoBrokerIsFenced,
    OneLeaderPerLeaderEpoch,
    OneQuorumLeaderPerEpoch,
    all_invariants,
)
from millstream.simulator.invariants.logs import CommittedLogs
from millstream.simulator.invariants.observation import (
    Batch,
    Observation,
    ObservedImage,
    ObservedQuorum,
    ObservedReplica,
    PartitionKey,
)
from millstream.simulator.results import Violation

TOPIC = UUID(int=7)


class Log:
    """Batches of one record each; `epochs` has the leader epoch of each."""

    def __init__(self, *epochs: int, checksum: int = 0, start: int = 0) -> None:
        self.start = start
        self._batches = [Batch(offset, offset, epoch, checksum) for offset, epoch in enumerate(epochs)]

    @property
    def end(self) -> int:
        return len(self._batches)

    @property
    def size(self) -> int:
        return len(self._batches)

    def batches(self, offset: int, below: int) -> Iterable[Batch]:
        return self._batches[offset:below]


def quorum(node_id: int = 1, **fields: Any) -> ObservedQuorum:
    made = ObservedQuorum(node_id, 1, epoch=1, leader_id=None, is_leader=False, high_watermark=0, log=Log())
    return replace(made, **fields)


def replica(node_id: int = 1, **fields: Any) -> ObservedReplica:
    made = ObservedReplica(
        node_id,
        1,
        PartitionKey(TOPIC, 0),
        "orders-0",
        "orders",
        leader_epoch=1,
        is_leader=False,
        high_watermark=0,
        log=Log(),
    )
    return replace(made, **fields)


def observation(*seen: Any, acked: int = 0) -> Observation:
    made = Observation(0.0, acked={("orders", 0): acked})
    for each in seen:
        places: dict[type, list[Any]] = {
            ObservedQuorum: made.quorums,
            ObservedReplica: made.replicas,
            ObservedImage: made.images,
        }
        places[type(each)].append(each)
    return made


def test_one_quorum_leader_per_epoch() -> None:
    invariant = OneQuorumLeaderPerEpoch()
    invariant.check(observation(quorum(1, is_leader=True, leader_id=1), quorum(2, leader_id=1), quorum(3)))
    invariant.check(
        observation(quorum(2, epoch=2, is_leader=True, leader_id=2), quorum(1, is_leader=True, leader_id=1))
    )
    with pytest.raises(Violation, match="OneQuorumLeaderPerEpoch: epoch 1 is led by node 1, but by node 2"):
        invariant.check(observation(quorum(2, is_leader=True)))
    with pytest.raises(Violation, match="epoch 2 is led by node 2, but by node 3 according to node 1"):
        invariant.check(observation(quorum(1, epoch=2, leader_id=3)))


def test_epochs_only_grow() -> None:
    invariant = EpochsOnlyGrow()
    invariant.check(observation(quorum(1, epoch=3), quorum(2, epoch=1), replica(1, leader_epoch=4)))
    invariant.check(observation(quorum(1, epoch=3, life=2), replica(1, leader_epoch=2, life=2)))
    with pytest.raises(Violation, match="node 1 went from quorum epoch 3 to 2"):
        invariant.check(observation(quorum(1, epoch=2, life=3)))
    with pytest.raises(Violation, match=r"orders-0 on node 1 went from leader epoch 4 to 3"):
        invariant.check(observation(replica(1, leader_epoch=3)))


def test_high_watermarks_only_grow() -> None:
    invariant = HighWatermarksOnlyGrow()
    invariant.check(observation(quorum(high_watermark=5), replica(high_watermark=5)))
    invariant.check(observation(quorum(high_watermark=2, life=2), replica(high_watermark=3, life=2)))
    invariant.check(observation())
    invariant.check(observation(replica(high_watermark=1, life=2)))  # it went away and came back
    with pytest.raises(Violation, match="quorum's high watermark on node 1 went from 2 to 1"):
        invariant.check(observation(quorum(high_watermark=1, life=2)))
    with pytest.raises(Violation, match=r"orders-0 on node 1 went from 1 to 0"):
        invariant.check(observation(replica(high_watermark=0, life=2)))


def test_committed_metadata_stays() -> None:
    invariant = CommittedMetadataIsStable()
    invariant.check(
        observation(quorum(1, high_watermark=2, log=Log(1, 1, 1)), quorum(2, high_watermark=1, log=Log(1, 2)))
    )
    invariant.check(observation(quorum(1, high_watermark=3, log=Log(1, 1, 2))))
    with pytest.raises(Violation, match=r"metadata log of node 2 has .*leader_epoch=2.* is committed there"):
        invariant.check(observation(quorum(2, high_watermark=2, log=Log(1, 2))))
    with pytest.raises(Violation, match="has high watermark 9, but its log ends at 2"):
        invariant.check(observation(quorum(3, high_watermark=9, log=Log(1, 1))))


def test_nodes_with_the_same_records_have_the_same_image() -> None:
    invariant = CommittedMetadataIsStable()
    one, other = image(isr=(1, 2)), image(isr=(1,))
    invariant.check_images(observation(ObservedImage(1, 1, one), ObservedImage(2, 1, one)))
    invariant.check_images(observation(ObservedImage(1, 1, one), ObservedImage(2, 1, replace(other, offset=9))))
    with pytest.raises(Violation, match="images of nodes 1 and 2 differ"):
        invariant.check_images(observation(ObservedImage(1, 1, one), ObservedImage(2, 1, other)))


def test_in_sync_logs_agree() -> None:
    invariant = CommittedLogsAreEqual(CommittedLogs(), left_out=("passing-",))
    invariant.check(
        observation(replica(1, high_watermark=2, log=Log(1, 1)), replica(2, high_watermark=1, log=Log(1, 5)))
    )
    invariant.check(observation(replica(3, high_watermark=2, log=None)))
    invariant.check(observation(replica(3, topic="passing-1", high_watermark=2, log=Log(8, 8))))
    with pytest.raises(Violation, match=r"orders-0 on node 2 has .* is committed there"):
        invariant.check(observation(replica(2, high_watermark=2, log=Log(1, 5))))
    with pytest.raises(Violation, match=r"orders-0 on node 4 has .* is committed there"):
        invariant.check(observation(replica(4, high_watermark=1, log=Log(1, checksum=9))))


def test_a_log_that_cannot_be_read_does_not_agree() -> None:
    class Hollow(Log):
        def batches(self, offset: int, below: int) -> Iterable[Batch]:
            raise LookupError("nothing there")

    with pytest.raises(Violation, match="cannot be read"):
        CommittedLogsAreEqual(CommittedLogs()).check(observation(replica(high_watermark=1, log=Hollow(1))))
    with pytest.raises(Violation, match="cannot be read"):
        CommittedMetadataIsStable().check(observation(quorum(high_watermark=1, log=Hollow(1))))


def test_acked_is_kept() -> None:
    invariant = AcknowledgedIsDurable()
    leader = replica(1, is_leader=True, log=Log(1, 1, 1))
    invariant.check(observation(leader, replica(2, log=Log(1)), acked=3))
    deposed = replica(2, is_leader=True, leader_epoch=1, log=Log(1))
    invariant.check(observation(replace(leader, leader_epoch=2), deposed, acked=3))
    with pytest.raises(Violation, match="on node 3, leader of epoch 3, ends at 2, but offset 2 was acknowledged"):
        invariant.check(observation(replica(3, is_leader=True, leader_epoch=3, log=Log(1, 1)), acked=3))


def test_one_leader_per_leader_epoch() -> None:
    invariant = OneLeaderPerLeaderEpoch()
    invariant.check(observation(replica(1, is_leader=True), replica(2, is_leader=True, leader_epoch=2), replica(3)))
    with pytest.raises(Violation, match="orders-0 is led by nodes 1 and 3 in leader epoch 1"):
        invariant.check(observation(replica(3, is_leader=True)))


def image(*, isr: tuple[int, ...], leader: int = 1, fenced: tuple[int, ...] = ()) -> MetadataImage:
    brokers = {
        BrokerId(number): BrokerRegistration(
            id=BrokerId(number), epoch=number, incarnation_id=UUID(int=number), end_points=(), fenced=number in fenced
        )
        for number in (1, 2, 3)
    }
    state = PartitionState(replicas=(1, 2, 3), isr=isr, leader=leader, leader_epoch=1, partition_epoch=1)
    topic = TopicImage(name=TopicName("orders"), id=TopicId(TOPIC), partitions=(state,))
    return MetadataImage(
        offset=5, brokers=brokers, topics={topic.name: topic}, topics_by_id={topic.id: topic}, cluster_id="c"
    )


def test_in_sync_replicas_live() -> None:
    invariant = InSyncReplicasAreAlive()
    invariant.check(observation(ObservedImage(1, 1, image(isr=(1, 2, 3)))))
    invariant.check(observation(ObservedImage(1, 1, image(isr=(1,), fenced=(2, 3)))))
    invariant.check(observation(ObservedImage(1, 1, image(isr=(1,), leader=-1, fenced=(1, 2, 3)))))
    with pytest.raises(Violation, match=r"in-sync replicas \(1, 2\) of .* but brokers \[1\] are unfenced"):
        invariant.check(observation(ObservedImage(1, 1, image(isr=(1, 2), fenced=(2, 3)))))
    with pytest.raises(Violation, match="leader 1, but brokers"):
        invariant.check(observation(ObservedImage(1, 1, image(isr=(1,), fenced=(1,)))))
    with pytest.raises(Violation, match=r"in-sync replicas \(1, 4\)"):
        invariant.check(observation(ObservedImage(1, 1, image(isr=(1, 4)))))


def test_no_one_is_fenced() -> None:
    invariant = NoBrokerIsFenced()
    invariant.check(observation(ObservedImage(1, 1, image(isr=(1,), fenced=(2, 3)))))
    invariant.check(observation(ObservedImage(1, 1, image(isr=(1, 2), fenced=(3,)))))
    invariant.check(observation(ObservedImage(2, 1, image(isr=(1,), fenced=(2, 3)))))  # it is behind
    with pytest.raises(Violation, match="broker 2 is fenced according to node 1"):
        invariant.check(observation(ObservedImage(1, 1, image(isr=(1,), fenced=(2, 3)))))


def test_every_invariant_is_in_the_list() -> None:
    assert {type(each).__name__ for each in all_invariants()} == {
        "AcknowledgedIsDurable",
        "CommittedMetadataIsStable",
        "EpochsOnlyGrow",
        "HighWatermarksOnlyGrow",
        "CommittedLogsAreEqual",
        "InSyncReplicasAreAlive",
        "OneLeaderPerLeaderEpoch",
        "OneQuorumLeaderPerEpoch",
    }
