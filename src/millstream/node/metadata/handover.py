"""Handover of replicas between brokers of one machine: decisions for logs that were moved by rename.

`serve --cores` with another number of nodes moves the directories of logs between the folders of its nodes while none
of them runs. The new broker names these replicas when it registers (*adopted replicas*), and the controller puts it in
the place of the former broker, in the same decision: among the replicas, the in-sync replicas, the eligible leaders,
and as the last known leader. So the partition is never without its log, and nothing is copied.

The new broker is fenced when it registers, so it leaves the ISR like every broker that starts: a clean stop of the
former broker keeps it eligible to lead. A former broker that does not exist any more (*retired*) is unregistered when
its last replica is gone.

A replica is not handed over twice: what the metadata says already is left out. So a start that was interrupted can be
repeated. The new broker must prove that it has the disk: it names the former broker's directory id.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig
from millstream.config.table import cluster
from millstream.formats.model.identifiers import BrokerId, TopicId
from millstream.formats.model.placement import default_machine
from millstream.node.metadata.image import (
    BrokerRegistration,
    MetadataImage,
    PartitionState,
    ResourceType,
    TopicImage,
    changed,
)
from millstream.node.metadata.partitions import PartitionChanger
from millstream.node.metadata.records import (
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    UnregisterBrokerRecord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedReplica:
    """A replica whose log has moved to the folder of the broker that registers."""

    topic_id: UUID
    partition: int
    from_broker: BrokerId
    from_directory: UUID
    """The directory id of the former broker."""
    from_epoch: int = -1
    """The epoch in which the former broker stopped cleanly; -1 if it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopter:
    """The broker that registers."""

    id: BrokerId
    machine_id: str | None
    log_dirs: tuple[UUID, ...]
    stopped_cleanly: bool = False

    @property
    def machine(self) -> str:
        return self.machine_id or default_machine(self.id)


def hand_over(
    image: MetadataImage, adopter: Adopter, adopted: Sequence[AdoptedReplica], config: BrokerConfig
) -> list[PartitionChangeRecord]:
    """The changes that give these replicas to the broker, as far as it may have them and has them not yet.

    They include that the broker, which starts, leaves the ISR.
    """
    if not adopted:
        return []
    stopped_cleanly = PartitionChanger(image, config, leaving=adopter.id)
    crashed = PartitionChanger(image, config, crashed=adopter.id)
    records = []
    for each in adopted:
        topic = image.topics_by_id.get(TopicId(each.topic_id))
        former = image.brokers.get(each.from_broker)
        if topic is None or each.partition >= len(topic.partitions) or former is None:
            continue
        old = topic.partitions[each.partition]
        if former.id not in old.replicas or not _may_adopt(former, adopter, each):
            continue
        if adopter.id in old.replicas:
            moved, was_clean = _without(old, former.id, adopter.id), adopter.stopped_cleanly
        else:
            moved, was_clean = _swapped(old, former.id, adopter), 0 <= each.from_epoch <= former.epoch
        if moved is not None:
            records.append(_record(stopped_cleanly if was_clean else crashed, topic, each.partition, old, moved))
    return records


def still_assigned(image: MetadataImage, broker_id: int, replicas: Iterable[tuple[UUID, int]]) -> bool:
    """Whether a broker is still a replica of one of these partitions, whose logs it has given away."""
    wanted = set(replicas)
    return bool(wanted) and any(
        (topic.id, number) in wanted and broker_id in partition.replicas
        for topic in image.topics.values()
        for number, partition in enumerate(topic.partitions)
    )


def refused(image: MetadataImage, broker_id: int, adopted: Iterable[AdoptedReplica]) -> list[str]:
    """The partitions that still belong to the former broker. Their logs are here: this broker must not start."""
    wanted = {(each.topic_id, each.partition): each.from_broker for each in adopted}
    return [
        f"{topic.name}-{number}"
        for topic in (image.topics.values() if wanted else ())
        for number, partition in enumerate(topic.partitions)
        if wanted.get((topic.id, number)) in partition.replicas and broker_id not in partition.replicas
    ]


def retire(
    image: MetadataImage,
    adopter: Adopter,
    retired: Sequence[int],
    handed_over: Sequence[PartitionChangeRecord],
) -> list[MetadataRecord]:
    """The records that unregister brokers of this machine which do not exist any more and have no replicas."""
    gone = {each for each in retired if _is_sibling(image, each, adopter)}
    if not gone:
        return []
    now: Mapping[tuple[UUID, int], tuple[int, ...]] = {
        (each.topic_id, each.partition_id): each.replicas for each in handed_over if each.replicas is not None
    }
    for topic, number, partition in _partitions(image):
        gone.difference_update(now.get((topic.id, number), partition.replicas))
    records: list[MetadataRecord] = []
    for number in sorted(gone):
        broker_id = BrokerId(number)
        records.append(UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=image.brokers[broker_id].epoch))
        name = cluster.CORDONED_LOG_DIRS.name
        if name in image.broker_config(broker_id):
            records.append(
                ConfigRecord(resource_type=ResourceType.BROKER, resource_name=str(broker_id), name=name, value=None)
            )
    return records


def _partitions(image: MetadataImage) -> Iterator[tuple[TopicImage, int, PartitionState]]:
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            yield topic, number, partition


def _is_sibling(image: MetadataImage, broker_id: int, adopter: Adopter) -> bool:
    found = image.brokers.get(BrokerId(broker_id))
    return found is not None and found.id != adopter.id and found.machine == adopter.machine


def _may_adopt(former: BrokerRegistration, adopter: Adopter, replica: AdoptedReplica) -> bool:
    return former.id != adopter.id and former.machine == adopter.machine and replica.from_directory in former.log_dirs


def _swapped(old: PartitionState, former: int, adopter: Adopter) -> PartitionState:
    """The partition with the new broker in place of the former one."""
    new = int(adopter.id)

    def swapped(brokers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(new if broker == former else broker for broker in brokers)

    directories = list(old.directories or (UNASSIGNED_DIRECTORY,) * len(old.replicas))
    directories[old.replicas.index(former)] = (
        adopter.log_dirs[0] if len(adopter.log_dirs) == 1 else UNASSIGNED_DIRECTORY
    )
    return replace(
        old,
        replicas=swapped(old.replicas),
        isr=swapped(old.isr),
        leader=new if old.leader == former else old.leader,
        adding_replicas=swapped(old.adding_replicas),
        removing_replicas=swapped(old.removing_replicas),
        directories=tuple(directories),
        eligible_leader_replicas=swapped(old.eligible_leader_replicas),
        last_known_elr=swapped(old.last_known_elr),
    )


def _without(old: PartitionState, former: int, new: int) -> PartitionState | None:
    """The partition without the former broker: the new one has a replica already. None if that must not be.

    Unless the new one is in sync or eligible to lead, the former replica may be the only one with the newest records.
    """
    if new not in (*old.isr, *old.eligible_leader_replicas) or old.adding_replicas or old.removing_replicas:
        return None

    def without(brokers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(broker for broker in brokers if broker != former)

    at = old.replicas.index(former)
    return replace(
        old,
        replicas=without(old.replicas),
        isr=without(old.isr),
        leader=NO_LEADER if old.leader == former else old.leader,
        directories=(*old.directories[:at], *old.directories[at + 1 :]),
        eligible_leader_replicas=without(old.eligible_leader_replicas),
        last_known_elr=without(old.last_known_elr),
    )


_RECORDED = (
    "isr",
    "replicas",
    "adding_replicas",
    "removing_replicas",
    "directories",
    "leader_recovery_state",
    "eligible_leader_replicas",
    "last_known_elr",
)


def _record(
    changer: PartitionChanger, topic: TopicImage, number: int, old: PartitionState, moved: PartitionState
) -> PartitionChangeRecord:
    """One record for the move and for the start of the new broker, which leaves the ISR.

    It always names a leader, so that a leader epoch begins: a replica has left.
    """
    partitions = (*topic.partitions[:number], moved, *topic.partitions[number + 1 :])
    shrunk = changer.shrink_isrs([(replace(topic, partitions=partitions), number)])
    after = changed(moved, shrunk[0]) if shrunk else moved
    changes: dict[str, Any] = {
        name: getattr(after, name) for name in _RECORDED if getattr(after, name) != getattr(old, name)
    }
    return PartitionChangeRecord(partition_id=number, topic_id=topic.id, leader=after.leader, **changes)
