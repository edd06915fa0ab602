"""The metadata of an Apache Kafka node: read as it is, and refused before a byte is written where it does not fit."""

from pathlib import Path
from uuid import UUID

import pytest

from millstream.config.loading import load_broker_config
from millstream.config.setting import ConfigError
from millstream.formats.model.identifiers import BrokerId, TopicId, TopicName
from millstream.formats.records.record import Record, build_batch
from millstream.node.consensus.quorum.control_records import LeaderChange, encode_control
from millstream.node.consensus.quorum.opening import formatted_records, inspect_metadata, read_directory
from millstream.node.consensus.quorum.snapshots import SnapshotContent, encode_snapshot
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterSet
from millstream.node.metadata.image import cluster_id_record
from millstream.node.metadata.records import (
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    encode_record,
)
from millstream.node.metadata.return_to_kafka import Obstacle, obstacles_for_kafka
from millstream.node.runtime.disk import RealDisk

NOW = 1_700_000_000_000
ORDERS = TopicId(UUID(int=77))
LEVEL = FeatureLevelRecord(name="metadata.version", feature_level=30)
BEGIN: tuple[MetadataRecord, ...] = (
    BeginTransactionRecord(name="Bootstrap records"),
    LEVEL,
    EndTransactionRecord(),
    RegisterControllerRecord(controller_id=1, incarnation_id=UUID(int=5)),
    TopicRecord(name=TopicName("orders"), topic_id=ORDERS),
    PartitionRecord(partition_id=0, topic_id=ORDERS, replicas=(1,), isr=(1,), leader=1),
)


def registration(*log_dirs: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=BrokerId(1),
        incarnation_id=UUID(int=6),
        broker_epoch=3,
        end_points=(),
        log_dirs=tuple(UUID(int=each) for each in log_dirs),
    )


def setting(kind: int, resource: str, name: str, value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)


def directory_of_kafka(root: Path, *records: MetadataRecord, voters: tuple[int, ...] = (1,), more: bytes = b"") -> Path:
    """A data directory as `kafka-storage format --standalone` and a first start leave it."""
    metadata = root / "__cluster_metadata-0"
    metadata.mkdir(parents=True)
    voter_set = VoterSet(
        tuple(Voter(ReplicaKey(each, UUID(int=each)), (Endpoint("CONTROLLER", "h", 9093),)) for each in voters)
    )
    content = SnapshotContent(NOW, kraft_version=1, voters=voter_set)
    snapshot = b"".join(encode_snapshot(content, 0, NOW))
    (metadata / f"{0:020d}-{0:010d}.checkpoint").write_bytes(snapshot)
    change = encode_control(LeaderChange(1, tuple(map(ReplicaKey, voters)), (ReplicaKey(1),)), NOW)
    rows = [Record(key=None, value=encode_record(each), timestamp=NOW) for each in records]
    rows += [Record(key=None, value=more, timestamp=NOW)] if more else []
    log = build_batch([change], base_offset=0, leader_epoch=1, control=True)
    log += build_batch(rows, base_offset=1, leader_epoch=1) if rows else b""
    (metadata / f"{0:020d}.log").write_bytes(log)
    return root


def refusal(root: Path, *settings: str) -> str:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError) as refused:
        inspect_metadata(RealDisk(), str(root), load_broker_config(overrides=settings))
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    return refused.value.message


def test_metadata_of_kafka_is_accepted_and_read(tmp_path: Path) -> None:
    root = directory_of_kafka(tmp_path / "data", *BEGIN, registration(9))
    inspect_metadata(RealDisk(), str(root), load_broker_config())
    image, has_voters = read_directory(RealDisk(), str(root))
    assert list(image.topics) == ["orders"]
    assert image.features == {"metadata.version": 30}
    assert list(image.controllers) == [1]
    assert image.cluster_id == ""
    assert has_voters


def test_an_unknown_record_or_version_is_named(tmp_path: Path) -> None:
    root = directory_of_kafka(tmp_path / "type", *BEGIN, more=b"\x01\x63\x00\x00")
    assert "metadata record of unknown type 99" in refusal(root)
    root = directory_of_kafka(tmp_path / "version", *BEGIN, more=b"\x01\x02\x09\x00")
    assert "metadata record topic of unknown version 9" in refusal(root)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (FeatureLevelRecord(name="metadata.version", feature_level=31), "metadata.version at level 31"),
        (FeatureLevelRecord(name="rocket.version", feature_level=1), "rocket.version at level 1"),
        (registration(9, 10), "node 1 had 2 log directories"),
        (setting(2, "orders", "remote.storage.enable", "true"), "the topic orders has remote.storage.enable=true"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, record: MetadataRecord, message: str) -> None:
    assert message in refusal(directory_of_kafka(tmp_path / "data", *BEGIN, record))


def test_a_node_of_a_larger_quorum_does_not_begin_alone(tmp_path: Path) -> None:
    root = directory_of_kafka(tmp_path / "data", *BEGIN, voters=(1, 2, 3))
    assert "the voters of its quorum are the nodes 1, 2, 3" in refusal(root)
    others = "controller.quorum.bootstrap.servers=a:1,b:1,c:1"
    listeners = ("controller.listener.names=C", "listeners=PLAINTEXT://h:0,C://h:0")
    inspect_metadata(RealDisk(), str(root), load_broker_config(overrides=[others, *listeners]))


def test_logs_without_the_metadata_log_are_not_a_new_cluster(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    assert "no metadata log: if Kafka had another metadata.log.dir" in refusal(tmp_path)


def test_the_records_of_a_formatted_directory(tmp_path: Path) -> None:
    content = SnapshotContent(0, records=(LEVEL,))
    (tmp_path / "bootstrap.checkpoint").write_bytes(b"".join(encode_snapshot(content, 0, NOW)))
    assert formatted_records(RealDisk(), str(tmp_path)) == (LEVEL,)
    assert formatted_records(RealDisk(), str(tmp_path / "none")) == ()
    (directory_of_kafka(tmp_path / "other") / "bootstrap.checkpoint").write_bytes(b"\0" * 70)
    assert "bootstrap.checkpoint" in refusal(tmp_path / "other")


def test_what_kafka_cannot_use_is_found(tmp_path: Path) -> None:
    root = directory_of_kafka(
        tmp_path / "data",
        *BEGIN,
        cluster_id_record("id"),
        setting(2, "orders", "remote.storage.enable", "true"),
        setting(2, "orders", "flush.before.ack", "true"),
        setting(2, "orders", "millstream.mirror.state", "mirroring"),
        setting(32, "queue", "share.key.order", "true"),
    )
    image, has_voters = read_directory(RealDisk(), str(root))
    found = list(obstacles_for_kafka(image, ["orders-0", "cores", "backup"], has_voters=has_voters))
    assert [(each.blocks, each.subject) for each in found] == [
        (True, "directory backup"),
        (True, "directory cores"),
        (True, "topic orders"),
        (True, "topic orders"),
        (False, "topic orders"),
        (False, "group queue"),
        (False, "version"),
        (False, "settings"),
    ]
    assert "flush.before.ack" in found[4].text
    assert found[6] == Obstacle(False, "version", "metadata.version is 30: Kafka 4.3 or later is needed")
    assert "bootstrap.servers" in found[7].text
