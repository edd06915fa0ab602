"""`millstream migrate check` against a live cluster."""

from pathlib import Path
from uuid import UUID

from millstream.admin.topics import TopicAdmin
from millstream.node.consensus.quorum.snapshots import SnapshotContent, encode_snapshot
from millstream.node.metadata.records import FeatureLevelRecord, MetadataRecord
from millstream.node.runtime.identity import short_uuid
from millstream.testing import EmbeddedBroker
from tests.integration.cli.conftest import Run
from tests.mirrors import cluster_of, fresh, make_source_topic, produce, read_all
from tests.unit.node.consensus.quorum.test_kafka_metadata import BEGIN, LEVEL, directory_of_kafka


def test_what_does_not_come_over_is_listed(run: Run, millstream_broker: object) -> None:
    bootstrap = millstream_broker.bootstrap_servers  # type: ignore[attr-defined]
    topic = make_source_topic(bootstrap, fresh("moving"), 2, {"retention.ms": "1000000", "min.insync.replicas": "1"})
    found = run("migrate", "check", "--from", bootstrap, "--json")
    document = found.json()
    assert document["topics"] >= 1 and document["partitions"] >= 2 and document["cluster_id"]
    about = [each["text"] for each in document["findings"] if each["subject"] == f"topic {topic}"]
    assert len(about) == 1 and about[0].startswith("min.insync.replicas=1")  # retention.ms comes over by itself
    table = run("migrate", "check", "--from", bootstrap)
    assert "min.insync.replicas=1" in table.out


def test_a_cluster_that_is_not_there(offline: Run) -> None:
    found = offline("migrate", "check", "--from", "127.0.0.1:1", "--timeout", "2")
    assert found.code != 0 and "127.0.0.1:1" in found.err


def kafka_directory(root: Path, *records: MetadataRecord) -> Path:
    """A data directory of a Kafka node that was alone."""
    data = directory_of_kafka(root, *records)
    (data / "meta.properties").write_text(
        f"#\n#Tue Nov 17 14:36:40 UTC 2026\nnode.id=1\ndirectory.id={short_uuid(UUID(int=1))}\nversion=1\n"
        "cluster.id=kafka-made-this-id-0001\n"
    )
    (data / "__cluster_metadata-0" / "quorum-state").write_text(
        '{"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )
    (data / "cleaner-offset-checkpoint").write_bytes(b"")
    return data


def test_a_node_goes_on_with_the_metadata_of_kafka(offline: Run, tmp_path: Path) -> None:
    """The whole of it, with records, groups and transactions: tests/system/mirror/test_apache_kafka_directory.py."""
    data = kafka_directory(tmp_path / "data", *BEGIN)
    assert offline("migrate", "check", "--data-dir", data).code == 0
    with EmbeddedBroker(data_dir=data) as broker:
        with cluster_of(broker.bootstrap_servers) as cluster:
            admin = TopicAdmin(cluster)
            assert admin.cluster().cluster_id == "kafka-made-this-id-0001"
            assert admin.topic("orders").topic_id == UUID(int=77)
            versions = cluster.call("api_versions", client_software_name="test", client_software_version="1")
            levels = {each.name: each.max_version_level for each in versions.finalized_features}
            assert levels["metadata.version"] == 30
            assert "transaction.version" not in levels, "what Kafka did not turn on stays off"
        assert produce(broker.bootstrap_servers, "orders", ["a", "b"]) == [0, 1]
        in_use = offline("migrate", "check", "--data-dir", data, "--to", "kafka")
        assert in_use.code == 1
        assert "in use by a running broker" in in_use.err
        broker.restart()
        assert len(read_all(broker.bootstrap_servers, "orders")) == 2
    back = offline("migrate", "check", "--data-dir", data, "--to", "kafka", "--json")
    assert back.code == 0
    assert {each["severity"] for each in back.json()["findings"]} == {"note"}
    (data / "backup").mkdir()
    blocked = offline("migrate", "check", "--data-dir", data, "--to", "kafka")
    assert blocked.code == 1
    assert "directory backup" in blocked.out


def test_a_directory_that_kafka_only_formatted(tmp_path: Path) -> None:
    data = kafka_directory(tmp_path / "data")
    (data / "__cluster_metadata-0" / f"{0:020d}.log").unlink()
    (data / "__cluster_metadata-0" / "quorum-state").unlink()
    levels = (LEVEL, FeatureLevelRecord(name="transaction.version", feature_level=1))
    content = SnapshotContent(0, records=levels)
    (data / "bootstrap.checkpoint").write_bytes(b"".join(encode_snapshot(content, 0, 1)))
    with EmbeddedBroker(data_dir=data) as broker, cluster_of(broker.bootstrap_servers) as cluster:
        versions = cluster.call("api_versions", client_software_name="test", client_software_version="1")
        found = {each.name: each.max_version_level for each in versions.finalized_features}
        assert found.pop("kraft.version", 1) == 1
        assert found == {"metadata.version": 30, "transaction.version": 1}
