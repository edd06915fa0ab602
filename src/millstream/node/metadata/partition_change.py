"""What becomes of a partition when its replicas, its ISR or brokers change: who leads, who is in sync, who may lead.

The rules are Kafka's (KRaft with KIP-966):
- A member of the ISR on an active broker leads; the present leader stays if it can, else the first in the order of
  replicas.
- Members that leave an ISR which is then smaller than `min.insync.replicas` stay eligible to lead (ELR): while the ISR
  was too small nothing was acknowledged that they lack. A large enough ISR ends this. An ISR may so become empty, and
  the leader it had is remembered.
- With an empty ISR, one of the ELR leads. With an empty ELR too (its members crashed), the remembered leader does, once
  it is back; other replicas only where unclean elections are allowed. Such a leader may lack records: it recovers.
- Without the ELR feature the last member never leaves the ISR.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import Enum, auto
from typing import Any
from uuid import UUID

from millstream.config.broker_config import BrokerConfig
from millstream.formats.model.identifiers import BrokerId
from millstream.node.metadata.image import MetadataImage, PartitionState, TopicImage
from millstream.node.metadata.records import NO_LEADER, UNASSIGNED_DIRECTORY, PartitionChangeRecord
from millstream.node.metadata.replication_rules import ReplicationRules

RECOVERED = 0
RECOVERING = 1
"""The leader was elected although it may lack records."""


class Election(Enum):
    ONLINE = auto()
    """The present leader stays if it can."""
    PREFERRED = auto()
    """The first of the replicas leads if it can."""
    UNCLEAN = auto()
    """Anyone leads rather than nobody."""


class PartitionChanger:
    """Makes the changes of partitions that one decision asks for.

    `leaving` can no longer lead (though the image has it active), `arriving` can (though the image has it fenced),
    `crashed` came back after an unclean stop: its log may have lost records that it acknowledged.
    """

    def __init__(
        self,
        image: MetadataImage,
        config: BrokerConfig,
        *,
        leaving: BrokerId | None = None,
        arriving: BrokerId | None = None,
        crashed: BrokerId | None = None,
    ) -> None:
        self._image = image
        self._rules = ReplicationRules(image, config)
        active: set[int] = {broker.id for broker in image.brokers.values() if broker.active}
        if arriving is not None:
            active.add(arriving)
        active -= {leaving, crashed}
        self._active = active
        self._gone = {broker for broker in (leaving, crashed) if broker is not None}
        self._crashed = crashed

    def without_the_gone(self, partitions: Iterable[tuple[TopicImage, int]]) -> list[PartitionChangeRecord]:
        """The changes of these partitions when brokers that leave or crashed leave the ISR, and a leader is wanted."""
        changes = []
        for topic, number in partitions:
            old_isr = topic.partitions[number].isr
            isr = tuple(replica for replica in old_isr if replica not in self._gone)
            change = self.change(topic, number, isr=isr)
            if change is not None:
                changes.append(change)
        return changes

    def change(
        self,
        topic: TopicImage,
        number: int,
        *,
        election: Election | None = None,
        isr: Sequence[int] | None = None,
        replicas: Sequence[int] | None = None,
        adding: Sequence[int] | None = None,
        removing: Sequence[int] | None = None,
        leader_recovery_state: int | None = None,
    ) -> PartitionChangeRecord | None:
        """The change that gives a partition what is named, with all that follows from it; None if nothing does."""
        old = topic.partitions[number]
        rules = self._rules
        new_isr = old.isr if isr is None else tuple(isr)
        new_replicas = old.replicas if replicas is None else tuple(replicas)
        new_adding = old.adding_replicas if adding is None else tuple(adding)
        new_removing = old.removing_replicas if removing is None else tuple(removing)
        recovery = old.leader_recovery_state if leader_recovery_state is None else leader_recovery_state
        if election is None:
            election = Election.UNCLEAN if rules.unclean_elections(topic.name) else Election.ONLINE

        if (new_adding or new_removing) and (done := _completed(new_replicas, new_removing, new_isr)) is not None:
            new_replicas, new_isr = done
            new_adding = new_removing = ()

        minimum = min(rules.min_insync_replicas(topic.name), len(new_replicas))
        eligible: tuple[int, ...] = ()
        if rules.eligible_leader_replicas and len(new_isr) < minimum:
            eligible = self._eligible(old, new_isr, new_replicas)

        leader, unclean = self._elect(old, new_replicas, new_isr, eligible, election)
        if leader != old.leader:
            if unclean:
                # All that is known to be complete is given up: the new leader alone is in sync, with itself.
                new_isr, eligible, recovery = (leader,), (), RECOVERING
            elif leader in eligible:
                new_isr = (leader,)
                # If it is enough by itself, it acknowledges from now on what the others do not have.
                eligible = tuple(each for each in eligible if each != leader) if minimum > 1 else ()
        if not new_isr and not rules.eligible_leader_replicas:
            new_isr = tuple(each for each in old.isr if each in new_replicas)
            if not new_isr:
                # Its reassignment was cancelled, which only unclean elections allow: the first replica has to do.
                new_isr, recovery = new_replicas[:1], RECOVERING

        new_epoch = leader != old.leader or (
            new_replicas is not old.replicas and not set(old.replicas) <= set(new_replicas)
        )
        wanted = {
            "isr": new_isr,
            "replicas": new_replicas,
            "adding_replicas": new_adding,
            "removing_replicas": new_removing,
            "directories": self._directories(old, new_replicas, new_isr),
            "leader_recovery_state": recovery,
            "eligible_leader_replicas": eligible,
            "last_known_elr": self._last_known_leader(old, new_isr, leader),
        }
        changes: dict[str, Any] = {name: value for name, value in wanted.items() if value != getattr(old, name)}
        if new_epoch:
            changes["leader"] = leader
        return PartitionChangeRecord(partition_id=number, topic_id=topic.id, **changes) if changes else None

    def _eligible(self, old: PartitionState, isr: Collection[int], replicas: Collection[int]) -> tuple[int, ...]:
        candidates = dict.fromkeys((*old.eligible_leader_replicas, *old.isr))
        return tuple(each for each in candidates if each not in isr and each != self._crashed and each in replicas)

    def _elect(
        self,
        old: PartitionState,
        replicas: Sequence[int],
        isr: Collection[int],
        eligible: Collection[int],
        election: Election,
    ) -> tuple[int, bool]:
        """Who leads, and whether it may lack records."""
        active = self._active
        complete = isr or eligible
        first = (replicas[0], old.leader) if election is Election.PREFERRED and replicas else (old.leader,)
        for replica in (*first, *replicas):
            if replica in complete and replica in active:
                return replica, False
        if self._rules.eligible_leader_replicas and not complete and len(old.last_known_elr) == 1:
            last = old.last_known_elr[0]
            if last in active and last in replicas and self._has_kept_its_disk(old, last):
                return last, True
        if election is Election.UNCLEAN:
            for replica in sorted(replicas, key=lambda each: not self._has_kept_its_disk(old, each)):
                if replica in active:
                    return replica, True
        return NO_LEADER, False

    def _last_known_leader(self, old: PartitionState, isr: Sequence[int], leader: int) -> tuple[int, ...]:
        """Kafka keeps the last leader of a partition that has nobody left in the field of the last known ELR."""
        if not self._rules.eligible_leader_replicas:
            return old.last_known_elr
        if leader != NO_LEADER:
            return ()
        if not isr and old.isr:
            # An ISR of one that has no leader is what the time without the ELR feature left: that one led last.
            return (old.leader if old.has_leader else old.isr[-1],)
        return old.last_known_elr

    def _directories(self, old: PartitionState, replicas: tuple[int, ...], isr: Collection[int]) -> tuple[UUID, ...]:
        """Where each replica is; one that has caught up may have done so on another disk than it had before."""
        joined = set(isr) - set(old.isr)
        if replicas == old.replicas and not joined:
            return old.directories
        known = dict(zip(old.replicas, old.directories, strict=False))
        return tuple(
            directory_of(self._image, replica) if replica in joined or replica not in known else known[replica]
            for replica in replicas
        )

    def _has_kept_its_disk(self, partition: PartitionState, replica: int) -> bool:
        """A broker that came back with an empty disk must not lead: others may have what it had."""
        broker = self._image.brokers.get(BrokerId(replica))
        at = dict(zip(partition.replicas, partition.directories, strict=False)).get(replica, UNASSIGNED_DIRECTORY)
        return broker is None or not broker.log_dirs or at == UNASSIGNED_DIRECTORY or at in broker.log_dirs


def directory_of(image: MetadataImage, broker_id: int) -> UUID:
    """The directory of a new replica: the broker's one, or left to it if it has several."""
    broker = image.brokers.get(BrokerId(broker_id))
    if broker is None or len(broker.log_dirs) != 1 or broker.has_lost_its_disk:
        return UNASSIGNED_DIRECTORY
    return broker.log_dirs[0]


def _completed(
    replicas: Sequence[int], removing: Collection[int], isr: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Replicas and ISR after a reassignment, if all that shall stay are in sync; else None."""
    staying = tuple(replica for replica in replicas if replica not in removing)
    if not staying or not set(staying) <= set(isr):
        return None
    return staying, tuple(replica for replica in isr if replica not in removing)
