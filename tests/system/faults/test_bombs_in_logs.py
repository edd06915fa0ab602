"""Batches that are small in a log and very large once they are opened: what reads logs takes no harm from them, and the
broker responds to other clients meanwhile."""

import http.client
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import request_schema
from millstream.formats.records.record import Record, build_batch
from millstream.raw_client import Cluster
from millstream.registry.log import SchemaLog
from millstream.testing import EmbeddedBroker
from tests.acting_broker import act_as_broker
from tests.integration.node.broker.test_share import REJECT, Group
from tests.system.faults.test_bombs import created, many_records, peak_bytes
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, batch, framed, header, now_ms

MOST_RECORDS = 100_000
BEYOND = 2 * MOST_RECORDS
SETTINGS: dict[str, Any] = {
    "millstream.batch.max.records": MOST_RECORDS,
    "log.cleaner.backoff.ms": 100,
    "offsets.topic.num.partitions": 1,
}
GROUP = "replayed"
BROKER_SCOPE = 4

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(SETTINGS) as running:
        yield running
        log = running.log_file.read_text()
        assert "Traceback" not in log, log[-3000:]


def until(broker: EmbeddedBroker, condition: Callable[[], bool]) -> None:
    """Waits for an event, with requests of another client in between, each of which must get its response."""
    give_up = time.monotonic() + 120
    with Wire(broker.bootstrap_servers) as other:
        while not condition():
            assert time.monotonic() < give_up, broker.log_file.read_text()[-3000:]
            other.call("api_versions", 3)


def logged(broker: EmbeddedBroker, *words: str) -> Callable[[], bool]:
    """Whether the broker's log has a line with all of these words."""
    return lambda: any(all(word in line for word in words) for line in broker.log_file.read_text().splitlines())


def meanwhile(broker: EmbeddedBroker, work: Callable[[], Any]) -> tuple[Any, int]:
    """The result of a blocking call, and how many requests of another client got a response before it."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    responses = 0
    with Wire(broker.bootstrap_servers, 120) as other:
        other.call("api_versions", 3)
        thread.start()
        while thread.is_alive():
            other.call("api_versions", 3)
            responses += thread.is_alive()
    thread.join()
    return results[0], responses


def alter(wire: Wire, kind: int, resource: str, name: str, value: str | None) -> None:
    row = {"name": name, "config_operation": 0 if value is not None else 1, "value": value}
    resources = [{"resource_type": kind, "resource_name": resource, "configs": [row]}]
    assert wire.call("incremental_alter_configs", 1, resources=resources).responses[0].error_code == 0


def plant(broker: EmbeddedBroker, wire: Wire, topic: str, bomb: bytes) -> None:
    """Writes a batch as if the limit had been higher at that time."""
    assert wire.produce(topic, bomb).error_code == ErrorCode.MESSAGE_TOO_LARGE
    alter(wire, BROKER_SCOPE, "", "millstream.batch.max.records", "2000000")
    until(broker, lambda: wire.produce(topic, bomb).error_code == 0)
    alter(wire, BROKER_SCOPE, "", "millstream.batch.max.records", None)
    probe = created(broker, f"probe-{topic}", max_message_bytes=str(64 << 20))
    until(broker, lambda: wire.produce(probe, bomb).error_code == ErrorCode.MESSAGE_TOO_LARGE)


def metric(broker: EmbeddedBroker, name: str) -> float:
    host, port = broker.bootstrap_servers.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_SECONDS)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith(f"{name} "))


def test_the_cleaner_keeps_it_as_it_is_and_cleans_the_rest(broker: EmbeddedBroker) -> None:
    dirty = {"segment_bytes": "1048576", "min_cleanable_dirty_ratio": "0.01"}
    altered = created(broker, "altered", **dirty)
    beside = created(broker, "beside", cleanup_policy="compact", **dirty)
    bomb = many_records(BEYOND, b"k", b"value")
    before = peak_bytes(broker)
    with Wire(broker.bootstrap_servers, 120) as wire:
        for topic in (altered, beside):
            for number in range(4):
                rows = [Record(b"a", bytes([number]) * 500_000, timestamp=now_ms())]
                assert wire.produce(topic, bytes(build_batch(rows))).error_code == 0
            if topic == altered:
                plant(broker, wire, topic, bomb)
            for number in range(4):
                rows = [Record(b"a", bytes([number]) * 500_000, timestamp=now_ms())]
                assert wire.produce(topic, bytes(build_batch(rows))).error_code == 0
        alter(wire, 2, altered, "cleanup.policy", "compact")
        until(broker, logged(broker, "batches_passed_over", "partition=altered-0 count=1 first_offset=4 "))
        until(broker, logged(broker, "log_cleaned", "partition=beside-0"))
        assert metric(broker, "millstream_compaction_passed_over_batches") == 1
        assert metric(broker, "millstream_compaction_uncleanable_logs") == 0
        kept = bytes(wire.fetch(altered, 4).records)
        assert kept[16 : len(bomb)] == bomb[16:], "all but offset and leader epoch"
    assert peak_bytes(broker) - before < 64 << 20


def test_it_is_found_by_time_as_a_whole(broker: EmbeddedBroker) -> None:
    topic = created(broker, "times", max_message_bytes=str(64 << 20))
    with Wire(broker.bootstrap_servers, 120) as wire:
        wire.produce(topic, batch(b"before"))
        plant(broker, wire, topic, many_records(2_000_000))
        before = peak_bytes(broker)

        def look(timestamp: int) -> int:
            partitions = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}]
            topics = [{"name": topic, "partitions": partitions}]
            response = wire.call("list_offsets", 7, replica_id=-1, isolation_level=0, topics=topics)
            row = response.topics[0].partitions[0]
            assert row.error_code == 0
            return int(row.offset)

        # The bomb's only time is that of its header, which is not before the one of the record in front of it.
        latest, _ = meanwhile(broker, lambda: look(-3))
        assert latest in (0, 2_000_000)
        found, _ = meanwhile(broker, lambda: look(0))
        assert found == 0
        wire.call(
            "delete_records", 2, topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 1}]}],
            timeout_ms=30_000,
        )  # fmt: skip
        found, _ = meanwhile(broker, lambda: look(0))
        assert found == 1
    assert peak_bytes(broker) - before < 64 << 20


def test_a_dead_letter_of_it_has_no_copy(broker: EmbeddedBroker) -> None:
    topic, graveyard = created(broker, "given-up"), "dlq.given-up"
    with Wire(broker.bootstrap_servers, 120) as wire:
        wire.create_topic(graveyard, 1, **{"errors.deadletterqueue.group.enable": "true"})
        group = Group(wire, topic, "givers")
        settings = {"errors.deadletterqueue.topic.name": graveyard, "share.auto.offset.reset": "earliest"}
        assert group.configure(**settings) == 0
        plant(broker, wire, topic, many_records(BEYOND, b"k", b"secret"))
        group.fetch(max_wait_ms=30_000)
        group.acknowledge((0, 0, [REJECT]))
        letter, _ = meanwhile(broker, lambda: wire.fetch(graveyard, max_wait_ms=60_000, min_bytes=1).records)
    assert b"__dlq.errors.offset" in bytes(letter) and b"secret" not in bytes(letter)
    assert logged(broker, "dead_letter_without_copy", "millstream.batch.max.records")()


def test_a_registry_and_the_brokers_pass_over_it_in_the_topic_of_schemas(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    checked = created(broker, "checked", millstream_value_schema_validation="true")
    with Cluster(broker.bootstrap_servers) as cluster, Wire(broker.bootstrap_servers, 120) as wire:
        schemas = SchemaLog(cluster)
        schemas.start()
        try:
            assert wire.produce("_schemas", many_records(20_000, b"k", b"{}")).error_code == 0
            with caplog.at_level(logging.WARNING):
                schemas.catch_up()
        finally:
            schemas.close()
        unknown = batch(b"\0\0\0\0\x09body")
        refused, _ = meanwhile(broker, lambda: wire.produce(checked, unknown))
    assert refused.error_code == ErrorCode.INVALID_RECORD
    skipped = [line for line in caplog.text.splitlines() if "schemas_" in line]
    assert len(skipped) == 1 and "schemas_batch_skipped" in skipped[0] and "20000 records" in skipped[0]
    assert logged(broker, "schemas_batch_skipped", "20000 records")()


def produce_as_broker(wire: Wire, topic: str, data: bytes) -> int:
    """As another broker does; the connection has proved to be one."""
    schema = request_schema("produce")
    fields = {"transactional_id": None, "acks": -1, "timeout_ms": 60_000}
    fields["topic_data"] = [{"name": topic, "partition_data": [{"index": 0, "records": data}]}]  # type: ignore[assignment]
    head = header(schema.api_key, 9, 0, flexible=True, client_id="millstream-broker-1")
    wire.send_raw(framed(head + schema.encode(fields, 9)))
    return int(wire.receive("produce", 9)[1].responses[0].partition_responses[0].error_code)


def commit(wire: Wire, offset: int) -> int:
    topics = [{"name": "replay", "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
    alone = {"generation_id_or_member_epoch": -1, "member_id": ""}
    response = wire.call("offset_commit", 8, group_id=GROUP, **alone, topics=topics)
    return int(response.topics[0].partitions[0].error_code)


def committed(wire: Wire) -> int:
    """The committed offset of the group, once its coordinator has loaded its log."""
    while True:
        groups = [{"group_id": GROUP, "topics": [{"name": "replay", "partition_indexes": [0]}]}]
        response = wire.call("offset_fetch", 8, groups=groups, require_stable=False).groups[0]
        if response.error_code not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
            assert response.error_code == 0
            return int(response.topics[0].partitions[0].committed_offset)


def test_a_coordinator_passes_over_it_when_it_loads(broker: EmbeddedBroker) -> None:
    created(broker, "replay")
    key = b"\x00\x00\x00\x01?\x00\x00\x00\x00\x00\x00"  # of a group that never committed: a tombstone does nothing
    with Wire(broker.bootstrap_servers, 120) as wire:
        wire.call("find_coordinator", 4, key_type=0, coordinator_keys=[GROUP])
        until(
            broker, lambda: wire.call("metadata", 12, topics=[{"name": "__consumer_offsets"}]).topics[0].error_code == 0
        )
        partitions = [{"partition_index": 0, "committed_offset": 41}]
        until(
            broker,
            lambda: wire.call(
                "offset_commit", 8, group_id=GROUP, generation_id_or_member_epoch=-1, member_id="",
                topics=[{"name": "replay", "partitions": partitions}],
            ).topics[0].partitions[0].error_code == 0,
        )  # fmt: skip
        assert wire.produce("__consumer_offsets", many_records(9, key, None)).error_code == (
            ErrorCode.INVALID_TOPIC_EXCEPTION
        ), "clients do not write there"
        alter(wire, BROKER_SCOPE, "", "millstream.batch.max.records", "2000000")
        alter(wire, 2, "__consumer_offsets", "max.message.bytes", str(64 << 20))
        act_as_broker(wire, broker.data_dir)
        until(broker, lambda: produce_as_broker(wire, "__consumer_offsets", many_records(1_500_000, key, None)) == 0)
        assert produce_as_broker(wire, "__consumer_offsets", many_records(90_000, key, None)) == 0
        alter(wire, BROKER_SCOPE, "", "millstream.batch.max.records", None)
    broker.restart()
    with Wire(broker.bootstrap_servers, 120) as wire:
        found, _ = meanwhile(broker, lambda: committed(wire))
    assert found == 41
    assert logged(broker, "coordinator_record_passed_over", "BeyondLimitsError", "1500000 records")()
