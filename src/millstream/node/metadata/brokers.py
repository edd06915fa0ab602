"""Decisions on brokers: registration, heartbeats, fencing, shutdown, removal, and blocks of producer ids.

Each decision includes the changes of the broker's partitions. The order of the records allows to write them in several
batches: a controller that takes over in between finds a state from which the next decision continues. A broker is
fenced after its partitions have other leaders. It is unfenced before it gets leadership; `elections.elect_leaderless`
finds partitions that are still without a leader.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig
from millstream.config.table import cluster
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId, ProducerId
from millstream.node.metadata.features import (
    CONTROLLERS_REGISTER,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    brokers_report_cordons,
    check_feature_support,
    controllers_register,
)
from millstream.node.metadata.handover import AdoptedReplica, Adopter, hand_over, retire
from millstream.node.metadata.image import BrokerRegistration, MetadataImage, ResourceType, TopicImage
from millstream.node.metadata.partitions import PartitionChanger
from millstream.node.metadata.records import (
    LOST_DIRECTORY,
    NO_LEADER,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    Decision,
    DecisionResult,
    Endpoint,
    MetadataRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    SupportedFeature,
    UnregisterBrokerRecord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationRequest:
    """The data of a BrokerRegistration request, which a broker sends when it starts."""

    broker_id: BrokerId
    incarnation_id: UUID
    """A new id for every start of the process."""
    cluster_id: str
    end_points: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...] = SUPPORTED_FEATURES
    rack: str | None = None
    log_dirs: tuple[UUID, ...] = ()
    previous_broker_epoch: int = -1
    """The broker's previous epoch if it stopped cleanly; else -1."""
    machine_id: str | None = None
    adopted: tuple[AdoptedReplica, ...] = ()
    """Replicas of other brokers of this machine whose logs have moved to this broker."""
    retired: tuple[int, ...] = ()
    """Brokers of this machine that do not exist any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationResult(DecisionResult):
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The data of a BrokerHeartbeat request."""

    broker_id: BrokerId
    broker_epoch: int
    current_metadata_offset: int
    """The last metadata record that the broker has applied."""
    want_fence: bool = False
    want_shut_down: bool = False
    offline_log_dirs: tuple[UUID, ...] = ()
    """The ids of failed log directories."""
    cordoned_log_dirs: tuple[UUID, ...] = ()
    """The ids of log directories that the settings file of the broker cordons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResult(DecisionResult):
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool
    in_controlled_shutdown: bool
    """Not sent: the controller stores the offset at which the shutdown began."""


def register_controller(image: MetadataImage, controller: RegisterControllerRecord) -> Decision[None]:
    """Registers a controller process (KIP-919). A process that is registered already changes nothing."""
    if not controllers_register(image):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Controllers register from {METADATA_VERSION.name} {CONTROLLERS_REGISTER} on; the cluster has "
            f"{image.features.get(METADATA_VERSION.name, 0)}.",
        )
    if not controller.end_points:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION, f"Controller {controller.controller_id} names no listener. Give one."
        )
    check_feature_support(image, controller.controller_id, controller.features, "controller")
    is_known = image.controllers.get(controller.controller_id) == controller
    return Decision(() if is_known else (controller,), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChangeResult(DecisionResult):
    broker_id: BrokerId


def register_broker(
    image: MetadataImage,
    broker: RegistrationRequest,
    config: BrokerConfig,
    *,
    next_offset: int,
    session_alive: bool = False,
) -> Decision[RegistrationResult]:
    """Registers a broker process, fenced at first. `next_offset` is the offset of the first record of the decision.

    `session_alive`: the process that registered with this id before still sends heartbeats. A process that registers
    again keeps its epoch. A new process replaces the earlier one: the broker leaves every ISR, and if it did not stop
    cleanly (the new process does not send its epoch), every ELR too. There is one exception: the broker stopped
    cleanly, it was not fenced, and no other broker is active. Then no partition changes. With 10,000 partitions, a
    start would otherwise write 20,000 records.
    """
    earlier = image.brokers.get(broker.broker_id)
    _check_introduction(image, broker)
    if earlier is not None and earlier.incarnation_id == broker.incarnation_id:
        return _registered_again(image, earlier, broker, config)
    if earlier is not None and session_alive and not earlier.in_controlled_shutdown:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Another broker is running with node.id={broker.broker_id}. Give each broker its own node.id. If this is "
            "the same broker after a restart, it can register when its previous session has ended.",
        )
    stopped_cleanly = earlier is not None and broker.previous_broker_epoch == earlier.epoch
    adopter = Adopter(
        id=broker.broker_id,
        machine_id=broker.machine_id,
        log_dirs=broker.log_dirs,
        stopped_cleanly=stopped_cleanly,
    )
    handed_over = hand_over(image, adopter, broker.adopted, config)
    was_active = stopped_cleanly and earlier is not None and earlier.active
    has_kept_disks = earlier is not None and set(earlier.log_dirs) <= set(broker.log_dirs)
    goes_on = was_active and has_kept_disks and not handed_over and _is_alone(image, broker.broker_id)
    records: list[MetadataRecord] = [*handed_over]
    if not goes_on:
        done = {(each.topic_id, each.partition_id) for each in handed_over}
        left = _removed_from_isrs(
            image, config, broker.broker_id, crashed=not stopped_cleanly, online=set(broker.log_dirs) - {LOST_DIRECTORY}
        )
        records += [each for each in left if (each.topic_id, each.partition_id) not in done]
    records += retire(image, adopter, broker.retired, handed_over)
    broker_epoch = next_offset + len(records)
    records.append(
        RegisterBrokerRecord(
            broker_id=broker.broker_id,
            incarnation_id=broker.incarnation_id,
            broker_epoch=broker_epoch,
            end_points=broker.end_points,
            features=broker.features,
            rack=broker.rack,
            fenced=not goes_on,
            log_dirs=broker.log_dirs,
            machine_id=broker.machine_id,
        )
    )
    return Decision(tuple(records), (RegistrationResult(broker_epoch=broker_epoch),))


def process_heartbeat(
    image: MetadataImage, heartbeat: Heartbeat, config: BrokerConfig, *, others_caught_up: bool
) -> Decision[HeartbeatResult]:
    """Fences, unfences or shuts down the broker, as the heartbeat requests and the state allows.

    `others_caught_up`: every other active broker has applied the records of this broker's controlled shutdown. Only
    then may it stop, because it gets no more requests. Raises STALE_BROKER_EPOCH if the broker epoch is not current.
    """
    broker = registered(image, heartbeat.broker_id, heartbeat.broker_epoch)
    caught_up = heartbeat.current_metadata_offset >= broker.epoch
    if set(heartbeat.offline_log_dirs) & set(broker.online_log_dirs):
        return _log_dir_failed(image, broker, heartbeat, config, caught_up)
    records: tuple[MetadataRecord, ...] = ()
    fenced, shutting_down, stop = broker.fenced, broker.in_controlled_shutdown, False
    if broker.fenced:
        stop = heartbeat.want_shut_down
        # A process that began to shut down is never unfenced: the next process registers again.
        fenced = stop or heartbeat.want_fence or not caught_up or broker.in_controlled_shutdown
    elif heartbeat.want_fence and heartbeat.want_shut_down and not broker.in_controlled_shutdown:
        fenced = stop = True
    elif heartbeat.want_fence and not broker.in_controlled_shutdown:
        fenced = True
    elif heartbeat.want_shut_down or broker.in_controlled_shutdown:
        if leads_any(image, broker.id):
            shutting_down = True
            records = begin_controlled_shutdown(image, broker.id, config).records
        elif not broker.in_controlled_shutdown or others_caught_up:
            fenced = stop = True
    if fenced and not broker.fenced:
        records = fence_broker(image, broker.id, config).records
    elif broker.fenced and not fenced:
        records = unfence_broker(image, broker.id, config).records
    records += _changed_cordons(image, broker, heartbeat)
    result = HeartbeatResult(
        is_caught_up=caught_up,
        is_fenced=fenced,
        should_shut_down=stop,
        in_controlled_shutdown=shutting_down and not fenced,
    )
    return Decision(records, (result,))


def _changed_cordons(
    image: MetadataImage, broker: BrokerRegistration, heartbeat: Heartbeat
) -> tuple[MetadataRecord, ...]:
    cordoned = tuple(each for each in broker.online_log_dirs if each in heartbeat.cordoned_log_dirs)
    if cordoned == broker.cordoned_log_dirs or not brokers_report_cordons(image):
        return ()
    return (BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, cordoned_log_dirs=cordoned),)


def _log_dir_failed(
    image: MetadataImage, broker: BrokerRegistration, heartbeat: Heartbeat, config: BrokerConfig, caught_up: bool
) -> Decision[HeartbeatResult]:
    """Other brokers lead what a broker led in a log directory that has failed. If no directory is left, it is fenced.

    A broker without a directory registers again when the disk works again. Its process counts as shutting down, so that
    a late heartbeat does not unfence it. The replicas of a directory that failed may have lost records, as after a
    crash.
    """
    online = tuple(each for each in broker.online_log_dirs if each not in heartbeat.offline_log_dirs)
    if online and not heartbeat.want_shut_down:
        changer = PartitionChanger(image, config, crashed=broker.id, online=(broker.id, online))
        lost = [
            (topic, number)
            for topic, number in partitions_with_isr_or_elr_member(image, broker.id)
            if topic.partitions[number].directory_of(broker.id) in heartbeat.offline_log_dirs
        ]
        change = BrokerRegistrationChangeRecord(
            broker_id=broker.id, broker_epoch=broker.epoch, log_dirs=(*online, LOST_DIRECTORY)
        )
        still = HeartbeatResult(
            is_caught_up=caught_up,
            is_fenced=broker.fenced,
            should_shut_down=False,
            in_controlled_shutdown=broker.in_controlled_shutdown and not broker.fenced,
        )
        return Decision((*changer.shrink_isrs(lost), change), (still,))
    records: list[MetadataRecord] = [] if broker.fenced else list(_removed_from_isrs(image, config, broker.id))
    records.append(
        BrokerRegistrationChangeRecord(
            broker_id=broker.id,
            broker_epoch=broker.epoch,
            fenced=1,
            in_controlled_shutdown=1,
            log_dirs=online or (LOST_DIRECTORY,),
        )
    )
    result = HeartbeatResult(
        is_caught_up=caught_up, is_fenced=True, should_shut_down=True, in_controlled_shutdown=False
    )
    return Decision(tuple(records), (result,))


def fence_broker(image: MetadataImage, broker_id: BrokerId, config: BrokerConfig) -> Decision[BrokerChangeResult]:
    """Fences a broker: other brokers lead its partitions, and it leaves every ISR."""
    broker = registered(image, broker_id)
    result = (BrokerChangeResult(broker_id=broker_id),)
    if broker.fenced:
        return Decision((), result)
    records: list[MetadataRecord] = list(_removed_from_isrs(image, config, broker_id))
    records.append(BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, fenced=1))
    return Decision(tuple(records), result)


def unfence_broker(image: MetadataImage, broker_id: BrokerId, config: BrokerConfig) -> Decision[BrokerChangeResult]:
    """Unfences a broker, and elects leaders for partitions that had none."""
    broker = registered(image, broker_id)
    result = (BrokerChangeResult(broker_id=broker_id),)
    if not broker.fenced or broker.in_controlled_shutdown:
        return Decision((), result)
    records: list[MetadataRecord] = [
        BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, fenced=-1)
    ]
    changer = PartitionChanger(image, config, arriving=broker_id)
    records += changer.shrink_isrs(leaderless(image))
    return Decision(tuple(records), result)


def begin_controlled_shutdown(
    image: MetadataImage, broker_id: BrokerId, config: BrokerConfig
) -> Decision[BrokerChangeResult]:
    """Moves leadership to other brokers before the broker stops. May be repeated for partitions that are left."""
    broker = registered(image, broker_id)
    records: list[MetadataRecord] = []
    if not broker.in_controlled_shutdown:
        records.append(
            BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, in_controlled_shutdown=1)
        )
    records += _removed_from_isrs(image, config, broker_id)
    return Decision(tuple(records), (BrokerChangeResult(broker_id=broker_id),))


def unregister_broker(image: MetadataImage, broker_id: BrokerId, config: BrokerConfig) -> Decision[BrokerChangeResult]:
    """Removes a broker. Its replicas stay assigned and are under-replicated until they are moved, as in Kafka.

    Also removes its cordon: the next broker with this id may get replicas.
    """
    broker = registered(image, broker_id)
    records: list[MetadataRecord] = list(_removed_from_isrs(image, config, broker_id))
    records.append(UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch))
    name = cluster.CORDONED_LOG_DIRS.name
    if name in image.broker_config(broker_id):
        records.append(
            ConfigRecord(resource_type=ResourceType.BROKER, resource_name=str(broker_id), name=name, value=None)
        )
    return Decision(tuple(records), (BrokerChangeResult(broker_id=broker_id),))


def registered(image: MetadataImage, broker_id: BrokerId, broker_epoch: int | None = None) -> BrokerRegistration:
    """The registration of a broker; Kafka's error if it is not registered, or has another epoch."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        code = ErrorCode.BROKER_ID_NOT_REGISTERED if broker_epoch is None else ErrorCode.STALE_BROKER_EPOCH
        raise KafkaError(code, f"Broker {broker_id} is not registered. It must register first.")
    if broker_epoch is not None and broker.epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Broker {broker_id} has epoch {broker.epoch}, not {broker_epoch}: another process has registered with "
            "this id, or the broker must register again.",
        )
    return broker


def _is_alone(image: MetadataImage, broker_id: BrokerId) -> bool:
    return not any(broker.active for broker in image.brokers.values() if broker.id != broker_id)


def leads_any(image: MetadataImage, broker_id: BrokerId) -> bool:
    return any(partition.leader == broker_id for topic in image.topics.values() for partition in topic.partitions)


def leaderless(image: MetadataImage) -> Iterator[tuple[TopicImage, int]]:
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            if partition.leader == NO_LEADER:
                yield topic, number


def partitions_with_isr_or_elr_member(image: MetadataImage, broker_id: BrokerId) -> Iterator[tuple[TopicImage, int]]:
    """The partitions with the broker in their ISR or ELR. (10,000 partitions take a millisecond.)"""
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            if broker_id in partition.isr or broker_id in partition.eligible_leader_replicas:
                yield topic, number


def _removed_from_isrs(
    image: MetadataImage,
    config: BrokerConfig,
    broker_id: BrokerId,
    *,
    crashed: bool = False,
    online: Collection[UUID] | None = None,
) -> list[PartitionChangeRecord]:
    """`online`: the log directories of the broker. Replicas in another one may have lost records, as after a crash."""
    if crashed:
        changer = PartitionChanger(image, config, crashed=broker_id)
        return changer.shrink_isrs(partitions_with_isr_or_elr_member(image, broker_id))
    leaving, lost = (
        PartitionChanger(image, config, leaving=broker_id),
        PartitionChanger(image, config, crashed=broker_id),
    )
    kept: list[tuple[TopicImage, int]] = []
    gone: list[tuple[TopicImage, int]] = []
    for topic, number in partitions_with_isr_or_elr_member(image, broker_id):
        at = topic.partitions[number].directory_of(broker_id)
        is_kept = online is None or at.int < LOST_DIRECTORY.int or at in online
        (kept if is_kept else gone).append((topic, number))
    return [*leaving.shrink_isrs(kept), *lost.shrink_isrs(gone)]


def _registered_again(
    image: MetadataImage, earlier: BrokerRegistration, broker: RegistrationRequest, config: BrokerConfig
) -> Decision[RegistrationResult]:
    """The same process registers again, perhaps with other data. It stays fenced or unfenced.

    With a log directory that works again, it may lead partitions that have no leader.
    """
    result = (RegistrationResult(broker_epoch=earlier.epoch),)
    now = replace(
        earlier,
        end_points=broker.end_points,
        features=broker.features,
        rack=broker.rack,
        log_dirs=broker.log_dirs,
        machine_id=broker.machine_id,
    )
    if now == earlier:
        return Decision((), result)
    record = RegisterBrokerRecord(
        broker_id=now.id,
        incarnation_id=now.incarnation_id,
        broker_epoch=now.epoch,
        end_points=now.end_points,
        features=now.features,
        rack=now.rack,
        fenced=now.fenced,
        in_controlled_shutdown=now.in_controlled_shutdown,
        log_dirs=now.log_dirs,
        machine_id=now.machine_id,
        cordoned_log_dirs=now.cordoned_log_dirs or None,
    )
    records: list[MetadataRecord] = [record]
    returned = set(broker.log_dirs) - set(earlier.log_dirs)
    if returned and earlier.active:
        changer = PartitionChanger(image, config, online=(now.id, broker.log_dirs))
        records += changer.shrink_isrs(
            (topic, number)
            for topic, number in leaderless(image)
            if topic.partitions[number].directory_of(now.id) in returned
        )
    return Decision(tuple(records), result)


def _check_introduction(image: MetadataImage, broker: RegistrationRequest) -> None:
    if broker.cluster_id != image.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Broker {broker.broker_id} belongs to cluster {broker.cluster_id}, but this is cluster "
            f"{image.cluster_id}. Start it with an empty data directory, or with the addresses of its own cluster.",
        )
    if broker.broker_id < 0:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "A broker's node.id must be 0 or more.")
    if not broker.end_points:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION,
            f"Broker {broker.broker_id} has no address for clients. Set its listeners.",
        )
    for other in image.brokers.values():
        if other.id != broker.broker_id and set(other.online_log_dirs) & set(broker.log_dirs):
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"Broker {broker.broker_id} has a copy of the data directory of broker {other.id}. Start broker "
                f"{broker.broker_id} with an empty data directory.",
            )
    check_feature_support(image, broker.broker_id, broker.features)


PRODUCER_ID_BLOCK_SIZE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock(DecisionResult):
    first: ProducerId
    size: int = PRODUCER_ID_BLOCK_SIZE


def allocate_producer_ids(image: MetadataImage, broker_id: BrokerId, broker_epoch: int) -> Decision[ProducerIdBlock]:
    """Allocates a block of new producer ids to a broker."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {broker_id} is not registered.")
    if broker.epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} has epoch {broker.epoch}, not {broker_epoch}."
        )
    first = image.next_producer_id
    if first > (1 << 63) - 1 - PRODUCER_ID_BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids are allocated.")
    record = ProducerIdsRecord(
        broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK_SIZE
    )
    return Decision((record,), (ProducerIdBlock(first=ProducerId(first)),))
