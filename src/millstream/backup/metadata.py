"""The metadata of a backup: read from the active controller as an observer reads it, and adapted to new nodes.

Only the metadata log has all of it: ids of topics, keys of SCRAM users, tokens. So the reader needs ClusterAction on
the cluster, as a broker does, and must reach the controllers.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millstream.backup.blocking_store import BackupError
from millstream.config.table import transactions
from millstream.config.table.topic import MILLSTREAM_TIER_RESTORE_FROM
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId
from millstream.formats.protocol.schema import Message
from millstream.formats.records.record import read_batches
from millstream.node.consensus.quorum.opening import read_image
from millstream.node.consensus.quorum.snapshots import SnapshotContent, decode_snapshot, encode_snapshot
from millstream.node.metadata.features import SUPPORTED_FEATURES
from millstream.node.metadata.image import MetadataImage, ResourceType, replay
from millstream.node.metadata.records import (
    NO_LEADER,
    ConfigRecord,
    CorruptMetadataError,
    Endpoint,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    decode_record,
)
from millstream.node.metadata.snapshot import snapshot_records
from millstream.node.metadata.topic_names import CLUSTER_METADATA_TOPIC
from millstream.node.runtime.disk import RealDisk
from millstream.raw_client import Cluster
from millstream.raw_client.errors import WireError, error_code

_TOPIC_ID = uuid.UUID(int=1)
_OBSERVER = (1 << 31) - 1
"""The replica id with which the id of the newest snapshot is requested: no node has it."""
_FETCH_BYTES = 8 << 20
_READ_ATTEMPTS = 20
_READ_PAUSE_SECONDS = 0.1
_LARGEST_SNAPSHOT = 4 << 30
_NAMESPACE = uuid.UUID("5d0e6c0e-62d5-4c8e-9d6a-6f2f7c0d3b5b")
_OF_NODES = (
    transactions.TRANSACTION_HOLD.name,
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "cordoned.log.dirs",
)
"""Settings that make sense on the old nodes only, or for a moment."""


def read_metadata(
    cluster: Cluster, cluster_id: str, controllers: Cluster | None = None, data_dirs: Sequence[str] = ()
) -> MetadataImage:
    """The committed metadata. `controllers`: a client of the controllers, if the settings for brokers do not fit.
    A single node may have no listener of controllers: its metadata is read from its data directory."""
    found, leader_epoch, committed = _active_controller(cluster, controllers)
    if found is None:
        return _from_directories(data_dirs, cluster_id, committed)
    with found as controller:
        return _Reader(controller, leader_epoch).read()


def _active_controller(cluster: Cluster, controllers: Cluster | None) -> tuple[Cluster | None, int, int]:
    """The active controller, None if its listener is not known; its epoch, and the end of the committed metadata.

    A broker is asked: it passes the request on to the active controller. A controller that is not active refuses it.
    """
    topic = {"topic_name": CLUSTER_METADATA_TOPIC, "partitions": [{"partition_index": 0}]}
    response = cluster.call("describe_quorum", topics=[topic])
    row = response.topics[0].partitions[0] if response.topics else None
    code = response.error_code or (row.error_code if row is not None else 0)
    if code or row is None:
        raise BackupError(
            f"the quorum cannot be described: {error_code(code).name}. The user needs Describe of the cluster"
        )
    for node in response.nodes:
        if node.node_id == row.leader_id and node.listeners:
            at = node.listeners[0]
            return (controllers or cluster).only(f"{at.host}:{at.port}"), row.leader_epoch, row.high_watermark
    return controllers, row.leader_epoch, row.high_watermark


def _from_directories(data_dirs: Sequence[str], cluster_id: str, committed: int) -> MetadataImage:
    problem = "the active controller has no listener of its own, as a single node has by default"
    for _ in range(_READ_ATTEMPTS):
        for root in data_dirs:
            try:
                image = read_image(RealDisk(), root)
            except (CorruptMetadataError, OSError) as error:
                problem = f"{root} cannot be read: {error}"
                continue
            if image.cluster_id != cluster_id:
                problem = f"{root} is not a data directory of this cluster"
            elif image.offset < committed - 1:
                problem = f"{root} has not all of the metadata"
            else:
                return image
        time.sleep(_READ_PAUSE_SECONDS)
    raise BackupError(f"{problem}: run the command on the machine of the active controller, with --data-dir DIR")


class _Reader:
    def __init__(self, controller: Cluster, leader_epoch: int) -> None:
        self._controller = controller
        self._leader_epoch = leader_epoch

    def read(self) -> MetadataImage:
        try:
            image, offset = MetadataImage(), 0
            row = self._fetch(-1, 0)
            if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                image, offset = self._snapshot()
                row = self._fetch(-1, offset)
            until = row.high_watermark
            while True:
                _check(row.error_code)
                batches = []
                for header, rows in read_batches(row.records or b""):
                    records = [] if header.is_control else [decode_record(each.value or b"") for each in rows]
                    batches.append((header.last_offset, header.leader_epoch, records))
                if batches:
                    image = replay(image, batches)
                    offset = batches[-1][0] + 1
                if offset >= until:
                    return image
                if not batches:
                    raise BackupError(f"the active controller sends no metadata at offset {offset}: try again")
                row = self._fetch(-1, offset)
        except WireError as error:
            raise BackupError(
                f"the metadata cannot be read from the active controller: {error}. The user needs ClusterAction of the "
                "cluster; if the listener of controllers has other settings, use --bootstrap-controller and "
                "--controller-config"
            ) from None
        except (CorruptMetadataError, KafkaError) as error:
            raise BackupError(f"the metadata of the cluster cannot be read by this version: {error}") from None

    def _fetch(self, replica: int, offset: int) -> Any:
        partition = {
            "partition": 0,
            "current_leader_epoch": self._leader_epoch,
            "fetch_offset": offset,
            "last_fetched_epoch": 0 if replica >= 0 else -1,
            "partition_max_bytes": _FETCH_BYTES,
        }
        response = self._controller.call(
            "fetch",
            replica_state={"replica_id": replica, "replica_epoch": -1},
            replica_id=replica,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=_FETCH_BYTES,
            topics=[{"topic_id": _TOPIC_ID, "topic": CLUSTER_METADATA_TOPIC, "partitions": [partition]}],
        )
        _check(response.error_code)
        if not response.responses:
            raise BackupError("the active controller sends no metadata: try again")
        return response.responses[0].partitions[0]

    def _snapshot(self) -> tuple[MetadataImage, int]:
        row = self._fetch(_OBSERVER, 0)
        _check(row.error_code)
        end_offset, epoch = row.snapshot_id.end_offset, row.snapshot_id.epoch
        if end_offset < 0:
            raise BackupError("the active controller names no snapshot of its metadata: try again")
        data = bytearray()
        size = 1
        while len(data) < size:
            piece = self._piece(end_offset, epoch, len(data))
            _check(piece.error_code)
            size = piece.size
            if size > _LARGEST_SNAPSHOT or not piece.unaligned_records:
                raise BackupError(f"the snapshot of the metadata cannot be read ({size} bytes)")
            data += piece.unaligned_records
        content = decode_snapshot(bytes(data), "the snapshot of the active controller")
        return replay(MetadataImage(), [(end_offset - 1, epoch, content.records)]), end_offset

    def _piece(self, end_offset: int, epoch: int, position: int) -> Message:
        partition = {
            "partition": 0,
            "current_leader_epoch": self._leader_epoch,
            "snapshot_id": {"end_offset": end_offset, "epoch": epoch},
            "position": position,
        }
        response = self._controller.call(
            "fetch_snapshot",
            replica_id=_OBSERVER,
            max_bytes=_FETCH_BYTES,
            topics=[{"name": CLUSTER_METADATA_TOPIC, "partitions": [partition]}],
        )
        _check(response.error_code)
        piece: Message = response.topics[0].partitions[0]
        return piece


def _check(number: int) -> None:
    code = error_code(number)
    if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH):
        raise BackupError("another controller became active while the metadata was read: try again")
    if code in (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
        raise BackupError("the user may not read the metadata: grant ClusterAction on the cluster")
    if code is not ErrorCode.NONE:
        raise BackupError(f"the active controller refuses to send its metadata: {code.name}")


def encode_image(image: MetadataImage, now_ms: int) -> Iterator[bytes]:
    """As a snapshot in Kafka's format, without the offset and the epoch of the image."""
    content = SnapshotContent(now_ms, records=tuple(snapshot_records(image)))
    return map(bytes, encode_snapshot(content, image.epoch, now_ms))


def decode_image(data: bytes, name: str, offset: int, epoch: int) -> MetadataImage:
    try:
        return replay(MetadataImage(), [(offset, epoch, decode_snapshot(data, name).records)])
    except CorruptMetadataError as error:
        raise BackupError(f"the metadata of the backup cannot be read by this version: {error}") from None


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The metadata of the restored cluster. All nodes must make the same: it depends on nothing else."""

    image: MetadataImage
    """Of the backup."""
    cluster_id: str
    nodes: tuple[int, ...]
    backup_id: str

    @property
    def end_offset(self) -> int:
        """The offset after the snapshot."""
        return self.image.offset + 1

    @property
    def broker_epoch(self) -> int:
        """Of each node: as if it had been registered, and had stopped cleanly."""
        return self.image.offset

    def directory_id(self, node: int) -> uuid.UUID:
        return uuid.uuid5(_NAMESPACE, f"{self.cluster_id}/{self.backup_id}/{node}")

    def nodes_by_old(self) -> dict[int, int]:
        """A new node for each old broker; brokers share one if there are fewer nodes."""
        old = {int(each) for each in self.image.brokers}
        for topic in self.image.topics.values():
            for partition in topic.partitions:
                old.update(partition.replicas)
        return {each: self.nodes[place % len(self.nodes)] for place, each in enumerate(sorted(old))}

    def replicas(self, old: Sequence[int], by_old: Mapping[int, int]) -> tuple[int, ...]:
        """As many as before, or as there are nodes."""
        wanted = min(max(len(old), 1), len(self.nodes))
        found = list(dict.fromkeys(by_old[each] for each in old)) or [self.nodes[0]]
        first = self.nodes.index(found[0])
        others = [*self.nodes[first:], *self.nodes[:first]]
        found += [each for each in others if each not in found]
        return tuple(found[:wanted])

    def records(self) -> Iterator[MetadataRecord]:
        by_old = self.nodes_by_old()
        one_to_one = len(set(by_old.values())) == len(by_old)
        for record in snapshot_records(replace(self.image, cluster_id=self.cluster_id, brokers={}, controllers={})):
            match record:
                case RegisterBrokerRecord() | RegisterControllerRecord():
                    continue
                case TopicRecord():
                    # The log of a branch is complete: nothing has to be made from its parent.
                    yield TopicRecord(name=record.name, topic_id=record.topic_id)
                case PartitionRecord():
                    yield self._partition(record, by_old)
                case ConfigRecord():
                    kept = self._config(record, by_old if one_to_one else {})
                    if kept is not None:
                        yield kept
                case _:
                    yield record
        for node in self.nodes:
            yield RegisterBrokerRecord(
                broker_id=BrokerId(node),
                incarnation_id=uuid.uuid5(_NAMESPACE, f"registration/{self.directory_id(node)}"),
                broker_epoch=self.broker_epoch,
                # Until the node registers with its own.
                end_points=(Endpoint(name="RESTORED", host=f"node-{node}.invalid", port=9092, security_protocol=0),),
                features=SUPPORTED_FEATURES,
                fenced=True,
                log_dirs=(self.directory_id(node),),
            )

    def _partition(self, record: PartitionRecord, by_old: Mapping[int, int]) -> PartitionRecord:
        replicas = self.replicas([each for each in record.replicas if each not in record.adding_replicas], by_old)
        return PartitionRecord(
            partition_id=record.partition_id,
            topic_id=record.topic_id,
            replicas=replicas,
            isr=replicas,
            leader=NO_LEADER,
            leader_epoch=record.leader_epoch + 1,
            partition_epoch=record.partition_epoch + 1,
            directories=tuple(self.directory_id(each) for each in replicas),
        )

    def _config(self, record: ConfigRecord, by_old: Mapping[int, int]) -> ConfigRecord | None:
        if record.name in _OF_NODES or record.name == MILLSTREAM_TIER_RESTORE_FROM.name:
            return None  # the records of a topic that was restored from the tier are in the backup
        if record.resource_type != ResourceType.BROKER or not record.resource_name:
            return record
        node = by_old.get(int(record.resource_name)) if record.resource_name.isdigit() else None
        return replace(record, resource_name=str(node)) if node is not None else None
