"""Rules for the replicas of partitions: placement of new ones, election of leaders, ISR and ELR.

Placement: leaders go round the brokers from a random start. Followers follow at a distance that grows each round, so
that the partitions of a failed broker get leaders on all others. With zones (`broker.rack`) or machines with several
brokers, each round goes from zone to zone and from machine to machine, and the replicas of a partition are on as many
zones and on as many machines as possible.

Changes follow Kafka's rules (KRaft with KIP-966):
- A member of the ISR on an active broker leads. The current leader stays if it can; otherwise the first in the order of
  replicas leads.
- Members that leave an ISR which is then smaller than `min.insync.replicas` stay eligible to lead (ELR): such an ISR
  acknowledged no records that they lack. A large enough ISR clears the ELR. So an ISR may become empty; then the last
  leader is stored.
- With an empty ISR, a member of the ELR leads. With an empty ELR too (its members crashed), the stored leader leads
  when it returns; other replicas only if unclean elections are allowed. Such a leader may lack records: it recovers.
- Without the ELR feature the last member never leaves the ISR.

The controller decides for all brokers alike: the topic's setting counts, then the setting of all brokers, then the
controller's own file. Settings of single brokers do not count.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from itertools import zip_longest
from random import Random
from typing import Any
from uuid import UUID

from millstream.config.broker_config import BrokerConfig, ConfigSource
from millstream.config.setting import ConfigError, Setting
from millstream.config.table import log
from millstream.config.table import topic as topic_settings
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId, TopicId
from millstream.formats.model.placement import Place, Used
from millstream.node.metadata.features import eligible_leader_replicas_enabled
from millstream.node.metadata.image import MetadataImage, PartitionState, ResourceType, TopicImage
from millstream.node.metadata.records import (
    LOST_DIRECTORY,
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    PartitionChangeRecord,
    PartitionRecord,
)


class ReplicationRules:
    def __init__(self, image: MetadataImage, config: BrokerConfig) -> None:
        self._image = image
        self._with_settings = {name for kind, name in image.configs if kind == ResourceType.TOPIC}
        self.eligible_leader_replicas = eligible_leader_replicas_enabled(image)
        """Whether the ELR feature (KIP-966) is enabled, so that the ISR may become empty."""
        self._min_insync_replicas: int = _for_all_brokers(log.MIN_INSYNC_REPLICAS, image, config)
        self._unclean_elections: bool = _for_all_brokers(log.UNCLEAN_LEADER_ELECTION_ENABLE, image, config)

    def min_insync_replicas(self, topic: str) -> int:
        """`min.insync.replicas` of the topic. It may be above the replication factor."""
        value: int = self._min_insync_replicas
        if self._with_settings and topic in self._with_settings:
            value = self._own(topic_settings.MIN_INSYNC_REPLICAS, topic, value)
        return value

    def unclean_elections(self, topic: str) -> bool:
        """`unclean.leader.election.enable` of the topic."""
        value: bool = self._unclean_elections
        if self._with_settings and topic in self._with_settings:
            value = self._own(topic_settings.UNCLEAN_LEADER_ELECTION_ENABLE, topic, value)
        return value

    def _own(self, setting: Setting[Any], topic: str, otherwise: Any) -> Any:
        text = self._image.topic_config(topic).get(setting.name)
        return otherwise if text is None else _parsed(setting, text, otherwise)


def _for_all_brokers(setting: Setting[Any], image: MetadataImage, config: BrokerConfig) -> Any:
    value = setting.default
    for text in (
        config.layers[ConfigSource.STATIC_BROKER_CONFIG].get(setting.name),
        image.default_broker_config.get(setting.name),
    ):
        if text is not None:
            value = _parsed(setting, text, value)
    return value


def _parsed(setting: Setting[Any], text: str, otherwise: Any) -> Any:
    """The parsed value. A stored value that this version does not accept is ignored."""
    try:
        return setting.parse(text)
    except ConfigError:
        return otherwise


RECOVERED = 0
RECOVERING = 1
"""The leader was elected in an unclean election and may lack records."""


class Election(Enum):
    ONLINE = auto()
    """The current leader stays if it can lead."""
    PREFERRED = auto()
    """The first replica leads if it can."""
    UNCLEAN = auto()
    """Any active replica may lead if no other can."""


class PartitionChanger:
    """Computes the change records of partitions for one decision.

    `leaving` can no longer lead, although it is active in the image. `arriving` can lead, although it is fenced in the
    image. `crashed` restarted after an unclean shutdown: its log may have lost acknowledged records. `online`: the log
    directories that a broker has from now on.
    """

    def __init__(
        self,
        image: MetadataImage,
        config: BrokerConfig,
        *,
        leaving: BrokerId | None = None,
        arriving: BrokerId | None = None,
        crashed: BrokerId | None = None,
        online: tuple[BrokerId, Collection[UUID]] | None = None,
    ) -> None:
        self._image = image
        self._online = online
        self._rules = ReplicationRules(image, config)
        active: set[int] = {broker.id for broker in image.brokers.values() if broker.active}
        if arriving is not None:
            active.add(arriving)
        active -= {leaving, crashed}
        self._active = active
        self._gone = {broker for broker in (leaving, crashed) if broker is not None}
        self._crashed = crashed

    def shrink_isrs(self, partitions: Iterable[tuple[TopicImage, int]]) -> list[PartitionChangeRecord]:
        """The changes that remove leaving or crashed brokers from the ISRs of these partitions, and elect leaders."""
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
        directories: tuple[UUID, ...] | None = None,
        emptied: int | None = None,
    ) -> PartitionChangeRecord | None:
        """The record for the given changes and their consequences: completed reassignment, ELR, leader, epoch.

        `emptied`: a replica that has lost its log, so it must not lead because it led last. None if nothing changes.
        """
        old = topic.partitions[number]
        if directories is not None:
            old = replace(old, directories=directories)
        if emptied is not None and old.last_known_elr == (emptied,):
            old = replace(old, last_known_elr=())
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
                # Unclean: only the new leader is in the ISR.
                new_isr, eligible, recovery = (leader,), (), RECOVERING
            elif leader in eligible:
                new_isr = (leader,)
                # If one in-sync replica is enough, the leader acknowledges records that the others do not have.
                eligible = tuple(each for each in eligible if each != leader) if minimum > 1 else ()
        if not new_isr and not rules.eligible_leader_replicas:
            new_isr = tuple(each for each in old.isr if each in new_replicas)
            if not new_isr:
                # A cancelled reassignment, which only unclean elections allow: the first replica becomes the ISR.
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
        before = topic.partitions[number]
        changes: dict[str, Any] = {name: value for name, value in wanted.items() if value != getattr(before, name)}
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
        """The leader, and whether the election is unclean (the leader may lack records)."""
        active = self._active
        complete = isr or eligible
        first = (replicas[0], old.leader) if election is Election.PREFERRED and replicas else (old.leader,)
        for replica in (*first, *replicas):
            if replica in complete and replica in active and self._has_kept_its_disk(old, replica):
                return replica, False
        if self._rules.eligible_leader_replicas and not complete and len(old.last_known_elr) == 1:
            last = old.last_known_elr[0]
            if last in active and last in replicas and self._has_kept_its_disk(old, last):
                return last, True
        if election is Election.UNCLEAN:
            for replica in sorted(replicas, key=lambda each: not self._has_kept_its_disk(old, each)):
                if replica in active and not self._has_failed_disk(old, replica):
                    return replica, True
        return NO_LEADER, False

    def _last_known_leader(self, old: PartitionState, isr: Sequence[int], leader: int) -> tuple[int, ...]:
        """The value of last_known_elr: Kafka stores there the last leader of a partition with an empty ISR."""
        if not self._rules.eligible_leader_replicas:
            return old.last_known_elr
        if leader != NO_LEADER:
            return ()
        if not isr and old.isr:
            # An ISR with one member and no leader was written without the ELR feature: this member led last.
            return (old.leader if old.has_leader else old.isr[-1],)
        return old.last_known_elr

    def _directories(self, old: PartitionState, replicas: tuple[int, ...], isr: Collection[int]) -> tuple[UUID, ...]:
        """The log directory of each replica. A replica that joined the ISR may have another directory than before."""
        joined = set(isr) - set(old.isr)
        if replicas == old.replicas and not joined:
            return old.directories
        known = dict(zip(old.replicas, old.directories, strict=False))

        def directory(replica: int) -> UUID:
            found = directory_of(self._image, replica)
            if replica in joined and found != UNASSIGNED_DIRECTORY:
                return found
            return known.get(replica, found)  # a broker with several directories says itself where the replica is

        return tuple(map(directory, replicas))

    def _has_kept_its_disk(self, partition: PartitionState, replica: int) -> bool:
        """Whether the replica's log directory is still there. A broker with a new, empty directory must not lead."""
        broker, at = self._image.brokers.get(BrokerId(replica)), partition.directory_of(replica)
        if self._online is not None and self._online[0] == replica:
            return at.int < LOST_DIRECTORY.int or at in self._online[1]
        return broker is None or broker.has_directory(at)

    def _has_failed_disk(self, partition: PartitionState, replica: int) -> bool:
        """Whether the replica is in a log directory that has failed, of a broker with several. Such a replica is not
        created again elsewhere, so it cannot lead."""
        broker = self._image.brokers.get(BrokerId(replica))
        several = broker is not None and broker.has_several_log_dirs
        return (several or self._online is not None) and not self._has_kept_its_disk(partition, replica)


def directory_of(image: MetadataImage, broker_id: int) -> UUID:
    """The log directory of a new replica; unassigned if the broker has several."""
    broker = image.brokers.get(BrokerId(broker_id))
    if broker is None or len(broker.log_dirs) != 1 or broker.has_offline_log_dir:
        return UNASSIGNED_DIRECTORY
    return broker.log_dirs[0]


def _completed(
    replicas: Sequence[int], removing: Collection[int], isr: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Replicas and ISR after a reassignment, if all replicas that stay are in sync; else None."""
    staying = tuple(replica for replica in replicas if replica not in removing)
    if not staying or not set(staying) <= set(isr):
        return None
    return staying, tuple(replica for replica in isr if replica not in removing)


def place_replicas(
    image: MetadataImage, partition_count: int, replication_factor: int, random: Random
) -> list[tuple[int, ...]]:
    """Replicas for each new partition, the preferred leader first; INVALID_REPLICATION_FACTOR if there are too few
    brokers."""
    brokers = [broker for broker in image.brokers.values() if not image.cordoned(broker.id)]
    if replication_factor > len(brokers):
        cordoned = "" if len(brokers) == len(image.brokers) else " and may get new replicas (cordoned.log.dirs)"
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): only {len(brokers)} broker(s) are "
            f"registered{cordoned}. Use a replication factor of at most {len(brokers)}.",
        )
    active = sorted(broker.id for broker in brokers if broker.active)
    if not active:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced. Try again later.")
    # Fenced brokers get replicas only if there are too few active ones, and are never the first leader.
    away = sorted({broker.id for broker in brokers} - set(active))
    near = min(replication_factor, len(active))
    start, distance = random.randrange(len(active)), random.randrange(len(active))
    places = {int(broker.id): broker.place for broker in brokers}
    machines = len({place.machine for place in places.values()})
    if machines < len(places) or len({place.zone for place in places.values()}) > 1:
        return _placed_apart(places, active, away, partition_count, replication_factor, start, distance)
    placements = []
    for partition in range(partition_count):
        round_number = partition // len(active)
        replicas = _striped(active, start + partition, distance + round_number, near)
        if near < replication_factor:
            replicas += _striped(away, start + partition, distance + round_number, replication_factor - near)
        placements.append(replicas)
    return placements


def interleaved(places: Mapping[int, Place], brokers: Iterable[int]) -> list[int]:
    """The brokers in an order in which neighbours are in different zones and on different machines, as far as
    possible."""
    by_zone: dict[str | None, dict[str, list[int]]] = {}
    for broker in sorted(brokers):
        place = places[broker]
        by_zone.setdefault(place.zone, {}).setdefault(place.machine, []).append(broker)
    return _merged(_merged(machines.values()) for machines in by_zone.values())


def _merged(groups: Iterable[list[int]]) -> list[int]:
    """The first broker of each group, then the second ones, and so on."""
    largest_first = sorted(groups, key=lambda members: (-len(members), members))
    return [broker for row in zip_longest(*largest_first) for broker in row if broker is not None]


def _placed_apart(
    places: Mapping[int, Place],
    active: Sequence[int],
    away: Sequence[int],
    partition_count: int,
    replication_factor: int,
    start: int,
    distance: int,
) -> list[tuple[int, ...]]:
    leaders = interleaved(places, active)
    others = interleaved(places, away)
    held: Counter[int] = Counter()
    placements = []
    for partition in range(partition_count):
        first = (start + partition) % len(leaders)
        replicas = [leaders[first]]
        shift = first + 1 + distance + partition // len(leaders)
        near, far = _rotated(leaders, shift), _rotated(others, shift)
        used = Used(places, replicas)
        while len(replicas) < replication_factor:
            # Active brokers come first, even if that costs a zone: a replica on a fenced broker protects nothing.
            candidates = near if len(replicas) < len(leaders) else far
            free = [broker for broker in candidates if broker not in replicas]
            chosen = min(free, key=lambda broker: (*used.cost(broker), held[broker]))
            replicas.append(chosen)
            used.add(chosen)
        held.update(replicas)
        placements.append(tuple(replicas))
    return placements


def _rotated(brokers: list[int], by: int) -> list[int]:
    cut = by % len(brokers) if brokers else 0
    return brokers[cut:] + brokers[:cut]


def _striped(brokers: Sequence[int], first: int, distance: int, count: int) -> tuple[int, ...]:
    """`count` different brokers: the broker at `first`, then brokers at the distance."""
    size = len(brokers)
    followers = ((first + 1 + (distance + follower) % (size - 1)) % size for follower in range(count - 1))
    return (brokers[first % size], *(brokers[index] for index in followers))


def machine_count(image: MetadataImage, brokers: Iterable[int] | None = None) -> int:
    """The number of machines of these brokers; of all brokers that may get new replicas, if none are given."""
    if brokers is None:
        brokers = [each.id for each in image.brokers.values() if each.active and not image.cordoned(each.id)]
    return len({found.machine for each in brokers if (found := image.brokers.get(BrokerId(each))) is not None})


def check_assignment(
    image: MetadataImage, replicas: Sequence[int], replication_factor: int | None, present: Collection[int] = ()
) -> None:
    """Raises INVALID_REPLICA_ASSIGNMENT for an invalid manual assignment. `present` are the existing replicas."""
    problem = None
    if not replicas:
        problem = "The manual partition assignment includes an empty replica list."
    elif len(set(replicas)) != len(replicas):
        problem = f"The manual partition assignment includes a broker more than once: {list(replicas)}."
    elif unknown := [broker for broker in replicas if broker not in image.brokers]:
        problem = f"The manual partition assignment includes broker {unknown[0]}, but no such broker is registered."
    elif cordoned := [broker for broker in replicas if broker not in present and image.cordoned(broker)]:
        problem = f"Broker {cordoned[0]} is cordoned (cordoned.log.dirs) and gets no new replicas."
    elif replication_factor is not None and len(replicas) != replication_factor:
        problem = (
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s)."
        )
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def new_partition(
    image: MetadataImage, topic_id: TopicId, partition: int, replicas: tuple[int, ...]
) -> PartitionRecord:
    """The record of a new partition: all active replicas are in the ISR, and the first of them is the leader."""
    isr = tuple(broker for broker in replicas if image.brokers[BrokerId(broker)].active)
    if not isr:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers of the assignment for partition {partition}, {list(replicas)}, are fenced or shutting down.",
        )
    return PartitionRecord(
        partition_id=partition,
        topic_id=topic_id,
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        directories=tuple(directory_of(image, broker) for broker in replicas),
    )
