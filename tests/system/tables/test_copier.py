"""One topic and its table: columns by the registry and their evolution, keys, dead letters, losses, topics made again.

Without Spark: what tasks do runs in this process. `test_serve.py` has the same in Spark.
"""

import io
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.admin.topics import TopicAdmin
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.lake.errors import LakeError, StaleWriteError
from millstream.lake.ledger import LedgerState, OffsetRange
from millstream.raw_client import Cluster
from millstream.schemas.registry_client import RegistryClient, Schema
from millstream.tables.conversion import Registry
from millstream.tables.copier import plan
from millstream.tables.verification import verify
from millstream.testing import EmbeddedBroker
from tests.system.tables.conftest import (
    DEAD_LETTERS,
    copier_of,
    copy_all,
    make_topic,
    options_for,
    publish,
    rows_in,
    run_here,
    table_at,
)

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": "string"}],
}
ORDER_2 = {**ORDER, "fields": [*ORDER["fields"], {"name": "city", "type": ["null", "string"], "default": None}]}


@pytest.fixture(scope="module")
def gateway(broker: EmbeddedBroker) -> Iterator[Gateway]:
    with Gateway(GatewayOptions(broker.bootstrap_servers, schemas_topic="_schemas-of-tables")) as running:
        yield running


def _register(gateway: Gateway, subject: str, schema: Mapping[str, Any]) -> int:
    return RegistryClient(gateway.url).register(subject, Schema(json.dumps(schema), "AVRO"))


def _avro(schema_id: int, schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return struct.pack(">bI", 0, schema_id) + out.getvalue()


def dead_letters(broker: EmbeddedBroker, topic: str) -> list[tuple[bytes | None, dict[str, str | bytes | None]]]:
    """Committed dead letters of a topic: value and headers."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "dead-letters-of-tests",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(DEAD_LETTERS, 0, 0)])
    found = []
    while True:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            break
        headers = dict(message.headers() or [])
        if headers["millstream.topic"] == topic.encode():
            found.append((message.value(), headers))
    consumer.close()
    return found


def test_columns_follow_the_registry(
    broker: EmbeddedBroker, cluster: Cluster, gateway: Gateway, tmp_path: Path, table_format: str
) -> None:
    topic = make_topic(cluster, f"typed-{table_format}", format=table_format, partition_by="name")
    first = _register(gateway, f"{topic}-value", ORDER)
    options = options_for(broker, tmp_path, registry=Registry((("registry.url", gateway.url),)))
    copier = copier_of(cluster, topic, options)
    publish(broker, topic, [(b"k", _avro(first, ORDER, {"id": each, "name": "ada"})) for each in range(5)])
    publish(broker, topic, [(b"k", b"no avro")])
    copy_all(copier)
    second = _register(gateway, f"{topic}-value", ORDER_2)
    publish(broker, topic, [(b"k", _avro(second, ORDER_2, {"id": 9, "name": "bob", "city": "Rom"}))])
    copy_all(copier)  # no restart is needed
    table = table_at(tmp_path / topic)
    rows = sorted(rows_in(table), key=lambda row: row["_offset"])
    assert [(row["id"], row["name"], row["city"]) for row in rows] == [
        *((each, "ada", None) for each in range(5)),
        (9, "bob", "Rom"),
    ]
    assert table.partitioning.names == ("name",)
    ((value, headers),) = dead_letters(broker, topic)
    assert value == b"no avro" and headers["millstream.offset"] == b"5" and headers["millstream.reason"]
    report = verify(table, cluster)
    assert report.is_proven and sum(each.range.dead_letters for each in report.checks) == 1


def test_dead_letters_are_sent_once(broker: EmbeddedBroker, cluster: Cluster, gateway: Gateway, tmp_path: Path) -> None:
    """A server that dies between the dead letters and the commit."""
    topic = make_topic(cluster, "letters-once", 1)
    good = _register(gateway, f"{topic}-value", ORDER)
    options = options_for(broker, tmp_path, registry=Registry((("registry.url", gateway.url),)))
    publish(broker, topic, [(b"k", b"bad 1"), (b"k", _avro(good, ORDER, {"id": 1, "name": "a"})), (b"k", b"bad 2")])
    dying = copier_of(cluster, topic, options)
    dying.next_plan()

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    wanted = dying.next_plan()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("millstream.lake.delta_table.DeltaLakeTable.commit", dies)
        dying.copy(run_here, wanted)
    publish(broker, topic, [(b"k", b"bad 3")])
    copy_all(copier_of(cluster, topic, options))  # reads further than the batch that died
    assert [value for value, _ in dead_letters(broker, topic)] == [b"bad 1", b"bad 2", b"bad 3"]
    assert verify(table_at(tmp_path / topic), cluster).is_proven


def test_of_two_servers_one_commit_is_refused(
    broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path, table_format: str
) -> None:
    """Of two batches with the same records one is refused, and its files are deleted."""
    topic = make_topic(cluster, f"two-servers-{table_format}", format=table_format)
    publish(broker, topic, [(f"k{each}", "v") for each in range(20)])
    options = options_for(broker, tmp_path)
    one, other = copier_of(cluster, topic, options), copier_of(cluster, topic, options)
    first, second = one.next_plan(), other.next_plan()
    one.copy(run_here, first)
    with pytest.raises(StaleWriteError, match="another server writes this table too"):
        other.copy(run_here, second)
    table = table_at(tmp_path / topic)
    assert len(rows_in(table)) == 20 and verify(table, cluster).is_proven
    other.forget()
    assert other.is_current(other.next_plan())


def test_keys_and_more_partitions(broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path, table_format: str) -> None:
    """After a key has moved to a new partition, its smaller offsets there are still newer."""
    topic = make_topic(cluster, f"keyed-{table_format}", 1, format=table_format, mode="upsert")
    publish(broker, topic, [("a", f"old {each}") for each in range(20)] + [("b", "1"), ("c", "1"), ("c", None)])
    options = options_for(broker, tmp_path)
    copy_all(copier_of(cluster, topic, options))
    TopicAdmin(cluster).add_partitions(topic, 2)
    publish(broker, topic, [("a", "new")], partition=1)
    publish(broker, topic, [(None, "no key")], partition=1)
    copy_all(copier_of(cluster, topic, options))
    table = table_at(tmp_path / topic)
    assert {row["key"]: row["value"] for row in rows_in(table)} == {b"a": b"new", b"b": b"1"}
    ((value, headers),) = dead_letters(broker, topic)
    assert value == b"no key" and headers["millstream.reason"] == b"the key column key is null"
    assert verify(table, cluster).is_proven


def test_deletions_by_key_columns(broker: EmbeddedBroker, cluster: Cluster, gateway: Gateway, tmp_path: Path) -> None:
    """A tombstone has no value: its key column comes from the key of the record."""
    topic = make_topic(cluster, "keyed-by-column", 1, format="iceberg", mode="upsert", keys="id")
    schema = _register(gateway, f"{topic}-value", ORDER)
    options = options_for(broker, tmp_path, registry=Registry((("registry.url", gateway.url),)))
    publish(
        broker,
        topic,
        [(str(each), _avro(schema, ORDER, {"id": each, "name": f"n{each}"})) for each in (1, 2, 3)]
        + [("2", None), ("no number", None)],
    )
    copy_all(copier_of(cluster, topic, options))
    table = table_at(tmp_path / topic)
    assert sorted(row["id"] for row in rows_in(table)) == [1, 3]
    assert [headers["millstream.offset"] for _, headers in dead_letters(broker, topic)] == [b"4"]


def test_a_topic_that_was_made_again(broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path) -> None:
    topic = make_topic(cluster, "made-again", 1)
    publish(broker, topic, [("k", "old")])
    copy_all(copier_of(cluster, topic, options_for(broker, tmp_path)))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(30)
    make_topic(cluster, topic, 1)
    publish(broker, topic, [("k", "new")])
    copier = copier_of(cluster, topic, options_for(broker, tmp_path))
    copy_all(copier)
    assert [row["value"] for row in rows_in(table_at(tmp_path / topic))] == [b"old"]
    again = tmp_path / f"{topic}-{copier.table.topic_id[:8]}"
    assert [row["value"] for row in rows_in(table_at(again))] == [b"new"]
    old = verify(table_at(tmp_path / topic), cluster)
    assert old.is_proven and "was deleted" in old.notes[0]
    admin.delete_topics([topic])[topic].result(30)
    make_topic(cluster, topic, 1, location=str(tmp_path / topic))
    publish(broker, topic, [("k", "third")])
    with pytest.raises(LakeError, match="belongs to another topic"):
        copier_of(cluster, topic, options_for(broker, tmp_path)).next_plan()


def test_records_that_are_gone(broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path) -> None:
    topic = make_topic(cluster, "gone", 1)
    publish(broker, topic, [("k", str(each)) for each in range(10)])
    copier = copier_of(cluster, topic, options_for(broker, tmp_path))
    copy_all(copier)
    publish(broker, topic, [("k", str(each)) for each in range(10, 20)])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, 15)]).values():
        future.result(30)
    with pytest.raises(LakeError, match="offsets 10 to 14 were removed"):
        copier.next_plan()
    copy_all(copier_of(cluster, topic, options_for(broker, tmp_path, skip_lost=True)))
    table = table_at(tmp_path / topic)
    assert sorted(int(row["value"]) for row in rows_in(table)) == [*range(10), *range(15, 20)]
    report = verify(table, cluster)
    assert report.is_proven and any("5 offsets from 10 on were gone" in each for each in report.notes)


def test_only_markers_of_transactions(broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path) -> None:
    """Offsets without records are no work for ever, and no hole."""
    from confluent_kafka import Producer

    topic = make_topic(cluster, "markers", 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "markers"})
    producer.init_transactions(30)
    copier = copier_of(cluster, topic, options_for(broker, tmp_path))
    for commits in (True, False):
        producer.begin_transaction()
        producer.produce(topic, "v", "k")
        producer.flush()
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)
        copy_all(copier)
    assert len(rows_in(table_at(tmp_path / topic))) == 1
    assert copier.commits == 1 and copier.lag_records(copier.next_plan()) == 0
    publish(broker, topic, [("k", "w")])
    copy_all(copier)
    report = verify(table_at(tmp_path / topic), cluster)
    assert report.is_proven and [each.range.end for each in report.checks][-1] == 5


def test_small_files_are_rewritten_and_old_ones_deleted(
    broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path, table_format: str
) -> None:
    """Small files are rewritten after some commits; old versions and files are deleted."""
    from datetime import timedelta

    topic = make_topic(cluster, f"maintained-{table_format}", 1, format=table_format)
    options = options_for(broker, tmp_path, compact_after=9, vacuum_every_s=0.0, retain=timedelta(0))
    copier = copier_of(cluster, topic, options)
    for each in range(9):
        publish(broker, topic, [("k", str(each))])
        copy_all(copier)
    table = table_at(tmp_path / topic)
    assert len(table.scan().files) == 9
    copier.maintain()
    table = table_at(tmp_path / topic)
    assert len(table.scan().files) == 1 and copier.compacted_ms and copier.vacuumed_ms
    left = [path for path in (tmp_path / topic).rglob("*.parquet") if "_delta_log" not in path.parts]
    assert len(left) == 1
    assert len(rows_in(table)) == 9 and verify(table, cluster).is_proven


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "upsert"}, "was made with millstream.table.mode=append"),
        ({"columns": "registry"}, "has the columns of millstream.table.columns=raw"),
    ],
)
def test_settings_that_do_not_fit_the_table(
    broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    from millstream.admin.topics import ConfigChange, ConfigOperation, ConfigResource

    topic = make_topic(cluster, f"unfit-{next(iter(changes))}", 1)
    publish(broker, topic, [("k", "v")])
    copy_all(copier_of(cluster, topic, options_for(broker, tmp_path)))
    publish(broker, topic, [("k", "v")])
    for name, value in changes.items():
        change = ConfigChange(f"millstream.table.{name}", value, ConfigOperation.SET)
        TopicAdmin(cluster).change(ConfigResource.TOPIC, topic, [change])
    copier = copier_of(cluster, topic, options_for(broker, tmp_path))
    with pytest.raises(LakeError, match=message):
        copier.copy(run_here, copier.next_plan())


def test_plans_begin_at_the_ledger_and_end_at_the_limit() -> None:
    state = LedgerState({0: OffsetRange(0, 0, 10)}, partitions=2)
    found = plan(state, {0: 0, 1: 5}, {0: 110, 1: 5}, max_records=50, skip_lost=False, topic="t")
    assert (found.begins, found.ends) == ({0: 10, 1: 5}, {0: 60, 1: 5}) and not found.is_empty
    with pytest.raises(LakeError, match="ends at offset 3, and the table at 10"):
        plan(state, {0: 0}, {0: 3}, max_records=50, skip_lost=True, topic="t")
