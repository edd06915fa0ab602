"""Tiered storage on one broker: closed segments go to the store and from the disk, and clients see no difference."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from millstream.testing import EmbeddedBroker
from tests.integration.node.tier.tiered_topic import (
    SETTINGS,
    consume,
    local_logs,
    make_tiered,
    objects,
    produce,
    until_tiered,
    value_of,
)
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tier")


@pytest.fixture(scope="module")
def broker(store: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({**SETTINGS, "millstream.tier.url": f"file://{store}"}) as running:
        yield running


def _offset(broker: EmbeddedBroker, topic: str, timestamp: int) -> tuple[int, int]:
    with Wire(broker.bootstrap_servers) as wire:
        row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        response = wire.call(
            "list_offsets", 11, replica_id=-1, isolation_level=0, topics=[{"name": topic, "partitions": [row]}]
        )
        (found,) = response.topics[0].partitions
        assert found.error_code == 0, found.error_code
        return found.offset, found.timestamp


def _alter(admin: AdminClient, topic: str, **values: str) -> None:
    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in values.items()
        ],
    )
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_SECONDS)


def test_every_record_is_read_from_the_tier_after_the_disk_has_lost_it(broker: EmbeddedBroker, store: Path) -> None:
    make_tiered(broker.bootstrap_servers, "all")
    produce(broker.bootstrap_servers, "all", range(2000))
    start = until_tiered(broker.data_dir, "all")
    assert start > 1000
    found = consume(broker.bootstrap_servers, "all", 2000)
    assert [(each.offset(), each.value()) for each in found] == [(n, value_of(n)) for n in range(2000)]
    middle = consume(broker.bootstrap_servers, "all", 300, first=777)
    assert [each.offset() for each in middle[:300]] == list(range(777, 1077))


def test_the_special_offsets_of_a_tiered_topic(broker: EmbeddedBroker) -> None:
    make_tiered(broker.bootstrap_servers, "special")
    assert _offset(broker, "special", -5)[0] == -1
    produce(broker.bootstrap_servers, "special", range(1000))
    start = until_tiered(broker.data_dir, "special")
    assert _offset(broker, "special", -2)[0] == 0
    assert _offset(broker, "special", -4)[0] == start
    assert _offset(broker, "special", -5)[0] == start - 1
    assert _offset(broker, "special", -6)[0] == start
    assert _offset(broker, "special", -1)[0] == 1000


def test_a_search_by_time_reaches_into_the_tier(broker: EmbeddedBroker) -> None:
    first = 1_790_000_000_000
    make_tiered(broker.bootstrap_servers, "times", {"retention.ms": "-1", "local.retention.ms": "-1"})
    produce(broker.bootstrap_servers, "times", range(1000), first_timestamp=first)
    start = until_tiered(broker.data_dir, "times")
    for number in (0, 1, 333, start - 1, start, 999):
        assert _offset(broker, "times", first + number) == (number, first + number)
    assert _offset(broker, "times", first + 1000) == (-1, -1)
    assert _offset(broker, "times", -3) == (999, first + 999)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("times", b"old", timestamp=first - 5000)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert _offset(broker, "times", first - 9000) == (0, first)


def test_aborted_transactions_stay_invisible_in_the_tier(broker: EmbeddedBroker) -> None:
    make_tiered(broker.bootstrap_servers, "txn")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "tiered", "linger.ms": 0})
    producer.init_transactions(TIMEOUT_SECONDS)
    wanted = []
    for number in range(40):
        producer.begin_transaction()
        for part in range(20):
            producer.produce("txn", value_of(number * 100 + part))
        assert producer.flush(TIMEOUT_SECONDS) == 0  # an abort drops what is not sent yet
        if number % 2:
            producer.commit_transaction(TIMEOUT_SECONDS)
            wanted += [value_of(number * 100 + part) for part in range(20)]
        else:
            producer.abort_transaction(TIMEOUT_SECONDS)
    until_tiered(broker.data_dir, "txn")
    found = consume(broker.bootstrap_servers, "txn", len(wanted), isolation="read_committed")
    assert [each.value() for each in found] == wanted
    everything = consume(broker.bootstrap_servers, "txn", 800)
    assert len(everything) == 800


def test_deleted_records_are_deleted_in_the_tier(broker: EmbeddedBroker, store: Path) -> None:
    admin = make_tiered(broker.bootstrap_servers, "deleted")
    produce(broker.bootstrap_servers, "deleted", range(1000))
    start = until_tiered(broker.data_dir, "deleted")
    topic_id = _topic_id(broker, "deleted")
    before = len(objects(store_of(store, topic_id)))
    at = TopicPartition("deleted", 0, start // 2)
    assert admin.delete_records([at])[at].result(TIMEOUT_SECONDS).low_watermark == start // 2
    assert _offset(broker, "deleted", -2)[0] == start // 2
    until(lambda: len(objects(store_of(store, topic_id))) < before, "objects are deleted")
    found = consume(broker.bootstrap_servers, "deleted", 1000 - start // 2, first=start // 2)
    assert found[0].offset() == start // 2


def test_retention_deletes_in_the_tier(broker: EmbeddedBroker, store: Path) -> None:
    make_tiered(broker.bootstrap_servers, "expires", {"retention.bytes": "60000"})
    produce(broker.bootstrap_servers, "expires", range(2000))
    until(lambda: _offset(broker, "expires", -2)[0] > 800, "the log start moves")
    topic_id = _topic_id(broker, "expires")
    until(lambda: len(objects(store_of(store, topic_id))) <= 4, "old objects are deleted")
    first = _offset(broker, "expires", -2)[0]
    found = consume(broker.bootstrap_servers, "expires", 2000 - first, first=first)
    assert [each.offset() for each in found] == list(range(first, 2000))


def test_the_objects_of_a_deleted_topic_go(broker: EmbeddedBroker, store: Path) -> None:
    admin = make_tiered(broker.bootstrap_servers, "gone")
    produce(broker.bootstrap_servers, "gone", range(500))
    until_tiered(broker.data_dir, "gone")
    place = store_of(store, _topic_id(broker, "gone"))
    assert objects(place)
    admin.delete_topics(["gone"])["gone"].result(TIMEOUT_SECONDS)
    until(lambda: not [each for each in place.rglob("*") if each.is_file()], "all objects are deleted")


def test_tiered_storage_is_disabled_only_with_its_data(broker: EmbeddedBroker, store: Path) -> None:
    admin = make_tiered(broker.bootstrap_servers, "ends")
    produce(broker.bootstrap_servers, "ends", range(500))
    start = until_tiered(broker.data_dir, "ends")
    with pytest.raises(KafkaException, match="disable remote storage without deleting remote data"):
        _alter(admin, "ends", remote_storage_enable="false")
    place = store_of(store, _topic_id(broker, "ends"))
    _alter(admin, "ends", remote_storage_enable="false", remote_log_delete_on_disable="true")
    until(lambda: not objects(place), "all objects are deleted")
    until(lambda: _offset(broker, "ends", -2)[0] == start, "the log begins on the disk")
    assert len(consume(broker.bootstrap_servers, "ends", 500 - start, first=start)) == 500 - start


def test_a_restart_and_a_crash_change_nothing(store: Path) -> None:
    with EmbeddedBroker({**SETTINGS, "millstream.tier.url": f"file://{store}/other"}) as broker:
        make_tiered(broker.bootstrap_servers, "stays")
        produce(broker.bootstrap_servers, "stays", range(1000))
        start = until_tiered(broker.data_dir, "stays")
        for end in (broker.stop, broker.kill):
            end()
            broker.start()
            assert _offset(broker, "stays", -2)[0] == 0
            assert _offset(broker, "stays", -4)[0] >= start
            assert len(consume(broker.bootstrap_servers, "stays", 1000)) == 1000
        produce(broker.bootstrap_servers, "stays", range(1000, 1600))
        until_tiered(broker.data_dir, "stays", start)
        found = consume(broker.bootstrap_servers, "stays", 1600)
        assert [each.value() for each in found] == [value_of(n) for n in range(1600)]


def test_while_the_store_is_down_segments_wait_on_the_disk(tmp_path: Path) -> None:
    place = tmp_path / "store"
    with EmbeddedBroker({**SETTINGS, "millstream.tier.url": f"file://{place}"}) as broker:
        make_tiered(broker.bootstrap_servers, "waits")
        produce(broker.bootstrap_servers, "waits", range(500))
        start = until_tiered(broker.data_dir, "waits")
        aside = tmp_path / "aside"
        place.rename(aside)
        place.write_text("not a directory")
        produce(broker.bootstrap_servers, "waits", range(500, 1500))
        until(lambda: "tier_task_failed" in broker.log_file.read_text(), "the failure is in the log")
        assert len(local_logs(broker.data_dir, "waits")) > 3
        assert len(consume(broker.bootstrap_servers, "waits", 1500 - start, first=start)) == 1500 - start
        place.unlink()
        shutil.move(aside, place)
        until_tiered(broker.data_dir, "waits", start)
        assert len(consume(broker.bootstrap_servers, "waits", 1500)) == 1500


def test_what_cannot_be_tiered_is_refused(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    compacted = NewTopic("compacted", 1, 1, config={"remote.storage.enable": "true", "cleanup.policy": "compact"})
    with pytest.raises(KafkaException, match=r"cleanup\.policy=delete"):
        admin.create_topics([compacted])["compacted"].result(TIMEOUT_SECONDS)
    long = NewTopic(
        "long", 1, 1, config={"remote.storage.enable": "true", "retention.ms": "1000", "local.retention.ms": "2000"}
    )
    with pytest.raises(KafkaException, match=r"local\.retention\.ms=2000 must not be above retention\.ms=1000"):
        admin.create_topics([long])["long"].result(TIMEOUT_SECONDS)


def test_without_a_store_topics_cannot_be_tiered(millstream_broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": millstream_broker.bootstrap_servers})
    with pytest.raises(KafkaException, match="Tiered Storage functionality is disabled"):
        admin.create_topics([NewTopic("tiered", 1, 1, config={"remote.storage.enable": "true"})])["tiered"].result(
            TIMEOUT_SECONDS
        )


def store_of(store: Path, topic_id: str) -> Path:
    (found,) = store.glob(f"*/{topic_id}")
    return found


def _topic_id(broker: EmbeddedBroker, topic: str) -> str:
    with Wire(broker.bootstrap_servers) as wire:
        (row,) = wire.call("metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False).topics
        return str(row.topic_id)


def test_the_manifest_names_the_objects(broker: EmbeddedBroker, store: Path) -> None:
    make_tiered(broker.bootstrap_servers, "named")
    produce(broker.bootstrap_servers, "named", range(500))
    until_tiered(broker.data_dir, "named")
    place = store_of(store, _topic_id(broker, "named"))
    manifest = json.loads((place / "0" / "manifest.json").read_text())
    named = {each["name"].rsplit("/", 1)[1] for each in manifest["segments"]}
    assert named == {each.name for each in objects(place)}
    assert manifest["topic"] == "named" and manifest["configs"]["remote.storage.enable"] == "true"


def test_copies_wait_for_their_lag(broker: EmbeddedBroker, store: Path) -> None:
    """60 KB of the log must come after a segment before it is copied, or the segment must be an hour old."""
    lags = {"remote.copy.lag.ms": "3600000", "remote.copy.lag.bytes": "60000", "local.retention.bytes": "60000"}
    admin = make_tiered(broker.bootstrap_servers, "lagging", lags)
    produce(broker.bootstrap_servers, "lagging", range(1000))
    until(lambda: _offset(broker, "lagging", -5)[0] > 0, "the oldest segments are in the tier")
    until(lambda: _offset(broker, "lagging", -4)[0] > 0, "they go from the disk")
    sizes = [path.stat().st_size for path in (broker.data_dir / "lagging-0").glob("*.log")]
    assert sum(sizes) >= 60_000, "the newest ones stay on the disk alone"
    assert _offset(broker, "lagging", -5)[0] < 700
    _alter(admin, "lagging", remote_copy_lag_ms="0")
    until(lambda: _offset(broker, "lagging", -5)[0] > 700, "without a lag all closed segments are in the tier")
    assert len(consume(broker.bootstrap_servers, "lagging", 1000)) == 1000
    with pytest.raises(KafkaException, match=r"remote\.copy\.lag\.bytes=70000 must not be above the local retention"):
        _alter(admin, "lagging", remote_copy_lag_bytes="70000")


def test_a_topic_that_has_records_can_be_tiered(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {"internal.segment.bytes": "20000"}
    admin.create_topics([NewTopic("later", 1, 1, config=config)])["later"].result(TIMEOUT_SECONDS)
    produce(broker.bootstrap_servers, "later", range(600))
    at = TopicPartition("later", 0, 100)
    admin.delete_records([at])[at].result(TIMEOUT_SECONDS)
    _alter(admin, "later", remote_storage_enable="true", local_retention_bytes="1")
    start = until_tiered(broker.data_dir, "later", 300)
    assert (_offset(broker, "later", -2)[0], _offset(broker, "later", -4)[0]) == (100, start)
    found = consume(broker.bootstrap_servers, "later", 500, first=100)
    assert [(each.offset(), each.value()) for each in found] == [(n, value_of(n)) for n in range(100, 600)]


def test_internal_topics_are_not_tiered(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

    def is_there() -> bool:
        with Wire(broker.bootstrap_servers) as wire:
            wire.call("find_coordinator", 4, key_type=0, coordinator_keys=["any"])
        return "__consumer_offsets" in admin.list_topics(timeout=TIMEOUT_SECONDS).topics

    until(is_there, "the topic of committed offsets")
    with pytest.raises(KafkaException, match=r"internal topic|cleanup\.policy"):
        _alter(admin, "__consumer_offsets", remote_storage_enable="true")
    with pytest.raises(KafkaException, match="internal topic"):
        _alter(admin, "__consumer_offsets", remote_storage_enable="true", cleanup_policy="delete")


def test_the_broker_sweeps_orphans(tmp_path: Path) -> None:
    settings = {"millstream.tier.sweep.interval.ms": "200", "millstream.tier.sweep.age.ms": "0"}
    with EmbeddedBroker({**SETTINGS, **settings, "millstream.tier.url": f"file://{tmp_path}"}) as broker:
        make_tiered(
            broker.bootstrap_servers, "swept", {"remote.log.copy.disable": "true", "local.retention.bytes": "-2"}
        )
        produce(broker.bootstrap_servers, "swept", range(100))
        orphan = tmp_path / _cluster_id(broker) / _topic_id(broker, "swept") / "0" / "left.segment"
        orphan.parent.mkdir(parents=True)
        orphan.write_bytes(b"left by a leader that was killed")
        other = tmp_path / "another-cluster" / _topic_id(broker, "swept") / "0" / "kept.segment"
        other.parent.mkdir(parents=True)
        other.write_bytes(b"of another cluster in the same bucket")
        until(lambda: not orphan.exists(), "the orphan is deleted")
        assert other.exists()


def _cluster_id(broker: EmbeddedBroker) -> str:
    with Wire(broker.bootstrap_servers) as wire:
        return str(wire.call("describe_cluster", 1).cluster_id)
