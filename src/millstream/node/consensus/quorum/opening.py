"""Opening the quorum of a node by its settings, and the check of the metadata in its data directory before that.

A node that cannot read its metadata must not start: as the only voter it would elect itself, append records behind
those that it cannot read, and make the log unreadable for the program that wrote it. So the check reads everything, and
writes nothing. ConfigError names the file and what to do. The checksum of a batch does not cover its offset and its
epoch; they are compared with the batches around them.

The directory may be one of Apache Kafka (ADR 47). A log without a record of the cluster id was never led by Millstream:
then it is also checked that this node can take the place of the one that wrote it.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import field
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig
from millstream.config.setting import ConfigError
from millstream.config.table import cluster, node
from millstream.config.topic_config import metadata_log_config
from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import TopicPartition
from millstream.formats.records.batch import HEADER_SIZE, BatchHeader, has_valid_checksum, is_plausible, read_header
from millstream.formats.records.record import iterate_records
from millstream.node.consensus.quorum.control_records import Voters, decode_control
from millstream.node.consensus.quorum.metadata_log import MetadataLog, unreadable
from millstream.node.consensus.quorum.metadata_quorum import MetadataQuorum
from millstream.node.consensus.quorum.publication import MetadataRetention
from millstream.node.consensus.quorum.quorum_state import QuorumStateFile
from millstream.node.consensus.quorum.snapshots import Snapshots, decode_snapshot
from millstream.node.consensus.raft.messages import Peer
from millstream.node.consensus.raft.settings import QuorumSettings
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterSet
from millstream.node.environment import Environment
from millstream.node.metadata.features import supported_features
from millstream.node.metadata.image import CLUSTER_ID_NAME, MetadataImage, is_cluster_id, replay
from millstream.node.metadata.records import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    ConfigRecord,
    CorruptMetadataError,
    FeatureLevelRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    check_known,
    decode_record,
)
from millstream.node.metadata.topic_names import CLUSTER_METADATA_TOPIC
from millstream.node.storage.disk import Disk
from millstream.node.storage.file_formats import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOG_SUFFIX,
    DamagedFileError,
    decode_offsets,
    offset_file,
    parse_directory,
    parse_offset_file,
)
from millstream.node.storage.log.directory import LogDirectory

_log = logging.getLogger("millstream.quorum")
_FIRST_BOOTSTRAP_ID = -2
"""Bootstrap servers are peers whose ids are not known: their numbers go down from here."""


def open_quorum(
    config: BrokerConfig,
    logs: LogDirectory,
    disk: Disk,
    environment: Environment,
    *,
    directory_id: UUID,
    cluster_id: str | None,
    endpoints: tuple[Endpoint, ...],
    on_fatal: Callable[[str], None],
) -> MetadataQuorum:
    """Opens the metadata log, or creates it; ConfigError if it is damaged. Listeners subscribe before `start`.

    `endpoints` are this node's controller listeners as others reach them. A node that names no controller but itself is
    a quorum of one.
    """
    log = MetadataLog.open(logs, disk, metadata_log_config(config), environment)
    names = config[node.CONTROLLER_LISTENER_NAMES]
    listener_name = endpoints[0].name if endpoints else (names[0].upper() if names else "CONTROLLER")
    voters = VoterSet(
        tuple(
            Voter(ReplicaKey(voter.id), (Endpoint(listener_name, voter.host, voter.port),)) for voter in config.voters
        )
    )
    if not voters and config.is_alone:
        voters = VoterSet((Voter(ReplicaKey(config.node_id), endpoints),))
    if not voters and config.is_controller and cluster_id is None:
        _log.warning(
            "no_voters_named this node waits for a quorum at controller.quorum.bootstrap.servers. The first nodes of a "
            "new cluster need the voters: set controller.quorum.voters=id@host:port,... on each"
        )
    return MetadataQuorum(
        node_id=config.node_id,
        directory_id=directory_id,
        cluster_id=cluster_id,
        log=log,
        state=QuorumStateFile(disk, log.partition.directory),
        static_voters=voters,
        bootstrap_servers=tuple(
            Peer(_FIRST_BOOTSTRAP_ID - at, (Endpoint(listener_name, host, port),))
            for at, (host, port) in enumerate(config.bootstrap_servers)
        ),
        may_vote=config.is_controller,
        endpoints=endpoints,
        listener_name=listener_name,
        settings=_settings(config),
        retention=MetadataRetention(
            bytes=config[cluster.METADATA_MAX_RETENTION_BYTES], ms=config[cluster.METADATA_MAX_RETENTION_MS]
        ),
        environment=environment,
        on_fatal=on_fatal,
    )


def _settings(config: BrokerConfig) -> QuorumSettings:
    return QuorumSettings(
        election_timeout_ms=config[cluster.CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS],
        fetch_timeout_ms=config[cluster.CONTROLLER_QUORUM_FETCH_TIMEOUT_MS],
        election_backoff_max_ms=config[cluster.CONTROLLER_QUORUM_ELECTION_BACKOFF_MAX_MS],
        request_timeout_ms=config[cluster.CONTROLLER_QUORUM_REQUEST_TIMEOUT_MS],
        retry_backoff_ms=config[cluster.CONTROLLER_QUORUM_RETRY_BACKOFF_MS],
        fetch_max_bytes=config[cluster.CONTROLLER_QUORUM_FETCH_MAX_BYTES],
        snapshot_chunk_bytes=config[cluster.CONTROLLER_QUORUM_FETCH_SNAPSHOT_MAX_BYTES],
    )


_PARTITION = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
_BOOTSTRAP_FILE = "bootstrap.checkpoint"
"""The first records of a cluster, from `kafka-storage format`. They count while the metadata log has no records."""
RESTORING = ".restoring"
"""The folder of a data directory that `millstream backup restore` has not finished."""
_NO_DIRECTORIES = (UUID(int=0), UNASSIGNED_DIRECTORY, LOST_DIRECTORY)


def inspect_metadata(disk: Disk, root: str, config: BrokerConfig) -> None:
    """ConfigError if the metadata in this data directory is damaged, has records that this version does not know, or
    belongs to a node whose place this one cannot take."""
    directory = f"{root}/{_PARTITION}"
    if disk.exists(f"{root}/{RESTORING}"):
        raise ConfigError(
            f"the data directory {root} is not complete: run `millstream backup restore` for it again", name="log.dirs"
        )
    if not disk.exists(directory):
        _refuse_logs_without_metadata(disk, root, config)
        return
    found = _Summary()
    try:
        _inspect(disk, root, directory, found)
        formatted_records(disk, root)
        image = None if found.has_cluster_id or not found.features else read_image(disk, root)
    except (CorruptMetadataError, OSError) as error:
        raise unreadable(directory, error) from None
    problem = _features_problem(found, config) or _directories_problem(found, config) or _voters_problem(found, config)
    if problem is None and image is not None:
        problem = _tier_problem(image)
    if problem is not None:
        raise ConfigError(f"the data directory {root} cannot be used: {problem}", name="log.dirs")


def read_directory(disk: Disk, root: str) -> tuple[MetadataImage, bool]:
    """The metadata in a data directory that no process uses, and whether the voters of its quorum are in the log.
    ConfigError if it cannot be read. Writes nothing."""
    directory = f"{root}/{_PARTITION}"
    if not disk.exists(directory):
        raise ConfigError(
            f"{root} has no metadata log ({_PARTITION}): name the data directory of a node", name="log.dirs"
        )
    found = _Summary()
    try:
        _inspect(disk, root, directory, found)
        return read_image(disk, root), found.has_voters
    except (CorruptMetadataError, OSError) as error:
        raise unreadable(directory, error) from None


def read_image(disk: Disk, root: str) -> MetadataImage:
    """The metadata in a data directory, up to the last record; CorruptMetadataError if it cannot be read."""
    directory = f"{root}/{_PARTITION}"
    snapshots = Snapshots(disk, directory)
    snapshots.find()
    image, start = MetadataImage(), 0
    if (latest := snapshots.latest) is not None:
        start = latest.offset
        image = replay(image, [(latest.offset - 1, latest.epoch, snapshots.read(latest).records)])
    batches = (
        (header.last_offset, header.leader_epoch, [decode_record(record.value or b"") for record in rows])
        for base in _segments(disk, directory)
        for _, header, content in _batches(disk.read_bytes(offset_file(directory, base, LOG_SUFFIX)))
        if header is not None and not header.is_control and header.base_offset >= start
        for rows in (iterate_records(header, content),)
    )
    return replay(image, batches)


def formatted_records(disk: Disk, root: str) -> tuple[MetadataRecord, ...]:
    """The records that `kafka-storage format` wrote for a new cluster: levels of features, SCRAM users."""
    path = f"{root}/{_BOOTSTRAP_FILE}"
    try:
        data = disk.read_bytes(path)
    except FileNotFoundError:
        return ()
    return decode_snapshot(data, path).records


@dataclass(slots=True)
class _Summary:
    """What the check found."""

    features: dict[str, int] = field(default_factory=dict)
    log_dirs: dict[int, tuple[UUID, ...]] = field(default_factory=dict)
    """The log directories with which each broker registered last."""
    voters: tuple[int, ...] = ()
    has_voters: bool = False
    """Whether they are in the log, not only in the settings."""
    has_cluster_id: bool = False

    def take(self, value: bytes) -> None:
        """Checks one record, and decodes only what is needed here: a log may have millions."""
        kind = check_known(value)
        if kind in ("feature_level", "register_broker") or (kind == "config" and CLUSTER_ID_NAME.encode() in value):
            match decode_record(value):
                case FeatureLevelRecord(name=name, feature_level=level):
                    self.features[name] = level
                case RegisterBrokerRecord(broker_id=broker_id, log_dirs=log_dirs):
                    self.log_dirs[broker_id] = tuple(each for each in log_dirs if each not in _NO_DIRECTORIES)
                case ConfigRecord() as record if is_cluster_id(record):
                    self.has_cluster_id = True


def _refuse_logs_without_metadata(disk: Disk, root: str, config: BrokerConfig) -> None:
    """As the only controller, this node would begin an empty cluster, in which these logs belong to no topic."""
    logs = [name for name, is_directory in disk.list(root) if is_directory and parse_directory(name) is not None]
    if logs and config.is_alone and config[node.CLUSTER_ID] is None:
        raise ConfigError(
            f"the data directory {root} has logs of partitions ({min(logs)}) but no metadata log: if Kafka had another "
            f"metadata.log.dir, copy {_PARTITION} from there; if the logs are not needed, use another --data-dir",
            name="log.dirs",
        )


def _features_problem(found: _Summary, config: BrokerConfig) -> str | None:
    supported = {each.name: each for each in supported_features(config)}
    for name, level in found.features.items():
        known = supported.get(name)
        if level > 0 and known is None:
            return f"its metadata has the feature {name} at level {level}, which this version does not know"
        if known is not None and level > 0 and not known.min_supported_version <= level <= known.max_supported_version:
            return (
                f"its metadata has the feature {name} at level {level}; this version supports levels "
                f"{known.min_supported_version} to {known.max_supported_version}"
            )
    return None


def _directories_problem(found: _Summary, config: BrokerConfig) -> str | None:
    count, here = len(found.log_dirs.get(config.node_id, ())), len(config.log_dirs)
    if count <= here or found.has_cluster_id:
        return None
    return (
        f"node {config.node_id} had {count} log directories at Kafka, and its settings name {here} here: name all of "
        "them in log.dirs"
    )


def _voters_problem(found: _Summary, config: BrokerConfig) -> str | None:
    if found.has_cluster_id or not found.voters or not config.is_alone or found.voters == (config.node_id,):
        return None
    return (
        f"the voters of its quorum are the nodes {', '.join(map(str, found.voters))}, but the settings of this node "
        f"({config.node_id}) name no other: name them in controller.quorum.voters or "
        "controller.quorum.bootstrap.servers, and start all of them on copies"
    )


def _tier_problem(image: MetadataImage) -> str | None:
    tiered = [name for name in image.topics if image.topic_config(name).get("remote.storage.enable") == "true"]
    if not tiered:
        return None
    return (
        f"the topic {min(tiered)} has remote.storage.enable=true: segments in the remote storage of Kafka cannot be "
        "read here; mirror the topic instead (docs/migration.md), or disable it there with remote.log.copy.disable"
    )


def _segments(disk: Disk, directory: str) -> list[int]:
    return sorted(
        found[0]
        for name, is_directory in disk.list(directory)
        if not is_directory and (found := parse_offset_file(name)) is not None and found[1] == LOG_SUFFIX
    )


def _inspect(disk: Disk, root: str, directory: str, found: _Summary) -> None:
    state = QuorumStateFile(disk, directory).read()
    if state is not None and state.voters:
        found.voters = state.voters
    snapshots = Snapshots(disk, directory)
    snapshots.find()
    for snapshot in snapshots.ids:
        content = snapshots.check(snapshot, found.take)
        if content.voters is not None:
            found.voters, found.has_voters = content.voters.ids, True
    bases = _segments(disk, directory)
    must_be_whole = disk.exists(f"{root}/{CLEAN_SHUTDOWN}")
    end, epoch = bases[0] if bases else 0, -1
    for base in bases:
        path = offset_file(directory, base, LOG_SUFFIX)
        end, epoch, complaint = _inspect_segment(path, disk.read_bytes(path), base, end, epoch, found)
        if not complaint:
            continue
        # After a crash the last batches may be torn or missing: recovery removes them. Committed records must be there,
        # in the log or in a snapshot.
        latest = snapshots.latest
        if must_be_whole or max(end, latest.offset if latest is not None else 0) < _committed(disk, root):
            raise CorruptMetadataError(complaint)
        break
    if state is not None and epoch > state.leader_epoch:
        raise CorruptMetadataError(
            f"its last epoch is {epoch}, but the file quorum-state knows none after {state.leader_epoch}"
        )


def _inspect_segment(path: str, data: bytes, base: int, end: int, epoch: int, found: _Summary) -> tuple[int, int, str]:
    """The end offset of this segment, its last epoch, and an error message, empty if there is none."""
    position = 0
    if base != end and data:
        return end, epoch, f"{path} begins at offset {base}, but the segment before it ends at {end}"
    for position, header, content in _batches(data):
        if header is None:
            return end, epoch, f"{path} has no whole batch at byte {position} (offset {end})"
        if header.base_offset != end:
            return end, epoch, f"{path} has offset {header.base_offset} at byte {position}, where {end} should be"
        if header.leader_epoch < epoch:
            return end, epoch, f"{path} goes back from epoch {epoch} to {header.leader_epoch} at byte {position}"
        if header.leader_epoch > epoch >= 0 and not header.is_control:
            return end, epoch, f"{path} has epoch {header.leader_epoch} at byte {position}, without a leader's record"
        _inspect_records(f"{path} at byte {position}", header, content, found)
        end, epoch = header.last_offset + 1, header.leader_epoch
    return end, epoch, ""


def _batches(data: bytes) -> Iterator[tuple[int, BatchHeader | None, memoryview]]:
    """(position, header, bytes) of each batch; the last has no header if it is not a whole, sound batch."""
    position, view = 0, memoryview(data)
    while position < len(data):
        header = read_header(data, position) if len(data) - position >= HEADER_SIZE else None
        if (
            header is None
            or not is_plausible(header)
            or position + header.size > len(data)
            or not has_valid_checksum(data, position, header)
        ):
            yield position, None, view[:0]
            return
        yield position, header, view[position : position + header.size]
        position += header.size


def _inspect_records(where: str, header: BatchHeader, content: memoryview, found: _Summary) -> None:
    try:
        for record in iterate_records(header, content):
            if not header.is_control:
                found.take(record.value or b"")
            elif isinstance(control := decode_control(record), Voters):
                found.voters, found.has_voters = control.voters.ids, True
    except KafkaError as error:
        raise CorruptMetadataError(f"{where}: {error.message}") from None
    except CorruptMetadataError as error:
        raise CorruptMetadataError(f"{where}: {error}") from None


def _committed(disk: Disk, root: str) -> int:
    try:
        return decode_offsets(disk.read_bytes(f"{root}/{HIGH_WATERMARKS}")).get(_PARTITION, 0)
    except (FileNotFoundError, DamagedFileError):
        return 0
