"""`_schemas` as other registries write it is read, and what is written here they could read."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from millstream.formats.records.record import Record, build_batch, read_batches
from millstream.raw_client import Cluster, TopicPartition
from millstream.raw_client.producing import Producer
from millstream.registry.errors import RegistryError
from millstream.registry.log import prepare_topic
from millstream.registry.records import Reference, Subject, parse_subject
from millstream.registry.registering import SchemaRequest
from millstream.registry.registry import Registry
from millstream.registry.state import Level, Mode

pytestmark = pytest.mark.timeout(300)

# As Confluent's registry has written them: the first three by an old version, which knew Avro only.
BY_HAND = [
    ('{"keytype":"NOOP","magic":0}', None),
    ('{"keytype":"CONFIG","subject":null,"magic":0}', '{"compatibilityLevel":"FULL"}'),
    (
        '{"keytype":"SCHEMA","subject":"a-value","version":1,"magic":1}',
        '{"subject":"a-value","version":1,"id":1,"schema":"\\"string\\"","deleted":false}',
    ),
    (
        '{"keytype":"SCHEMA","subject":"a-value","version":2,"magic":1}',
        '{"subject":"a-value","version":2,"id":4,"md5":"abc","schema":"[\\"null\\",\\"string\\"]","deleted":true}',
    ),
    (
        '{"keytype":"SCHEMA","subject":"b-value","version":1,"magic":1}',
        '{"subject":"b-value","version":1,"id":5,"schemaType":"JSON","schema":"{\\"type\\":\\"object\\"}","deleted":false}',
    ),
    (
        '{"keytype":"SCHEMA","subject":"c-value","version":1,"magic":1}',
        json.dumps(
            {
                "subject": "c-value", "version": 1, "id": 6, "schemaType": "PROTOBUF",
                "references": [{"name": "d.proto", "subject": "d", "version": 3}],
                "schema": 'syntax = "proto3";\nimport "d.proto";\n\nmessage C {\n  D d = 1;\n}\n', "deleted": False,
            }
        ),
    ),
    (
        '{"keytype":"SCHEMA","subject":"d","version":3,"magic":1}',
        '{"subject":"d","version":3,"id":7,"schemaType":"PROTOBUF",'
        '"schema":"syntax = \\"proto3\\";\\n\\nmessage D {\\n  int32 a = 1;\\n}\\n","deleted":false}',
    ),
    ('{"keytype":"CONFIG","subject":"b-value","magic":0}', '{"subject":"b-value","compatibilityLevel":"NONE"}'),
    ('{"keytype":"MODE","subject":"b-value","magic":0}', '{"subject":"b-value","mode":"READONLY"}'),
    (
        '{"keytype":"SCHEMA","subject":"gone","version":1,"magic":1}',
        '{"subject":"gone","version":1,"id":9,"schema":"\\"int\\"","deleted":false}',
    ),
    (
        '{"keytype":"SCHEMA","subject":"gone","version":2,"magic":1}',
        '{"subject":"gone","version":2,"id":10,"schema":"\\"long\\"","deleted":false}',
    ),
    ('{"keytype":"DELETE_SUBJECT","subject":"gone","magic":0}', '{"subject":"gone","version":2}'),
    ('{"keytype":"SCHEMA","subject":"gone","version":1,"magic":1}', None),
    ('{"keytype":"CONTEXT","tenant":"default","context":".team","magic":0}', '{"tenant":"default","context":".team"}'),
    (
        '{"keytype":"SCHEMA","subject":":.team:a-value","version":1,"magic":1}',
        '{"subject":":.team:a-value","version":1,"id":1,"schema":"\\"bytes\\"","deleted":false}',
    ),
]  # fmt: skip


def write_by_hand(cluster: Cluster, topic: str, rows: list[tuple[str, str | None]]) -> None:
    prepare_topic(cluster, topic)
    records = [Record(key.encode(), None if value is None else value.encode()) for key, value in rows]
    producer = Producer(cluster)
    producer.send(TopicPartition(topic, 0), build_batch(records), len(records))
    producer.flush()
    producer.close()


def read_all(cluster: Cluster, topic: str) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Keys and values, without the NOOPs."""
    fetched = cluster.fetch(TopicPartition(topic, 0), 0, max_bytes=1 << 20, max_wait_ms=0)
    rows = []
    for _, records in read_batches(fetched.data):
        for record in records:
            key = json.loads(record.key or b"")
            assert (record.key or b"").decode() == json.dumps(key, separators=(",", ":")), "compaction goes by bytes"
            if key["keytype"] != "NOOP":
                rows.append((key, None if record.value is None else json.loads(record.value)))
    return rows


def test_a_topic_written_by_another_registry(
    start_registry: Callable[[], Registry], cluster: Cluster, topic: str
) -> None:
    write_by_hand(cluster, topic, BY_HAND)
    registry = start_registry()
    assert registry.subjects() == [":.team:a-value", "a-value", "b-value", "c-value", "d"]
    assert registry.subjects(deleted_only=True) == ["gone"]
    assert [row.version for row in registry.versions(parse_subject("a-value"), deleted=True)] == [1, 2]
    assert [row.version for row in registry.versions(parse_subject("gone"), deleted=True)] == [2]
    assert registry.level(None) is Level.FULL
    assert registry.level(parse_subject("b-value")) is Level.NONE
    assert registry.settings.mode(parse_subject("b-value"), default_to_global=False) is Mode.READONLY
    assert registry.by_id(1, Subject(".team", "")).text == '"bytes"'
    assert registry.contexts() == [".", ".team"]
    assert registry.referenced_by(parse_subject("d"), 3) == [6]
    assert registry.rendered(registry.by_id(6), "serialized"), "its import is found"
    stored = registry.register(parse_subject("new"), SchemaRequest('"float"'))
    assert stored.id == 11, "after the highest that was ever given"
    assert registry.register(parse_subject("other"), SchemaRequest('"string"')).id == 1, "what has an id keeps it"
    protobuf = SchemaRequest('syntax="proto3"; message D { int32 a=1; } // the same', "PROTOBUF")
    assert registry.lookup(parse_subject("d"), protobuf).version == 3, "whatever its text"
    moved = registry.register(parse_subject("e"), protobuf)
    assert (moved.id, moved.version) == (7, 1)
    assert moved.text == registry.by_id(7).text, "an id stands for one text"


def test_a_version_that_is_deleted_keeps_what_other_registries_wrote(
    start_registry: Callable[[], Registry], cluster: Cluster, topic: str
) -> None:
    value = '{"subject":"a","version":1,"id":3,"md5":"abc","ts":17,"schema":"\\"int\\"","deleted":false}'
    write_by_hand(cluster, topic, [('{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}', value)])
    registry = start_registry()
    registry.deleter.delete_version(parse_subject("a"), 1, permanent=False)
    (_, written) = read_all(cluster, topic)[-1]
    assert written == json.loads(value) | {"deleted": True}


def test_what_is_written_is_in_the_format_of_others(registry: Registry, cluster: Cluster, topic: str) -> None:
    subject = parse_subject(":.team:s")
    registry.settings.set_config(None, {"compatibility": "none"})
    registry.register(subject, SchemaRequest('{"type": "record", "name": "R", "fields": []}'))
    registry.register(subject, SchemaRequest('{"type": "object"}', "JSON"))
    registry.register(subject, SchemaRequest('{"$ref": "R"}', "JSON", (Reference("R", "s", 2),)))
    registry.settings.set_mode(subject, "readonly", force=False)
    registry.settings.delete_mode(subject)
    registry.deleter.delete_subject(subject, permanent=False)
    registry.deleter.delete_subject(subject, permanent=True)
    name = ":.team:s"
    first = '{"type":"record","name":"R","fields":[]}'
    second, third = '{"type":"object"}', '{"$ref":"R"}'
    reference = {"name": "R", "subject": "s", "version": 2}
    assert read_all(cluster, topic) == [
        ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "NONE"}),
        (
            {"keytype": "CONTEXT", "tenant": "default", "context": ".team", "magic": 0},
            {"tenant": "default", "context": ".team"},
        ),
        (
            {"keytype": "SCHEMA", "subject": name, "version": 1, "magic": 1},
            {"subject": name, "version": 1, "id": 1, "schema": first, "deleted": False},
        ),
        (
            {"keytype": "SCHEMA", "subject": name, "version": 2, "magic": 1},
            {"subject": name, "version": 2, "id": 2, "schemaType": "JSON", "schema": second, "deleted": False},
        ),
        (
            {"keytype": "SCHEMA", "subject": name, "version": 3, "magic": 1},
            {
                "subject": name, "version": 3, "id": 3, "schemaType": "JSON", "references": [reference],
                "schema": third, "deleted": False,
            },
        ),
        ({"keytype": "MODE", "subject": name, "magic": 0}, {"subject": name, "mode": "READONLY"}),
        ({"keytype": "MODE", "subject": name, "magic": 0}, None),
        ({"keytype": "DELETE_SUBJECT", "subject": name, "magic": 0}, {"subject": name, "version": 3}),
        ({"keytype": "SCHEMA", "subject": name, "version": 1, "magic": 1}, None),
        ({"keytype": "SCHEMA", "subject": name, "version": 2, "magic": 1}, None),
        ({"keytype": "SCHEMA", "subject": name, "version": 3, "magic": 1}, None),
    ]  # fmt: skip


def test_ids_are_not_given_twice_even_after_compaction(
    start_registry: Callable[[], Registry], cluster: Cluster, topic: str
) -> None:
    """What is left of a schema that was deleted for good, once the topic is compacted, is the NOOP."""
    noop = '{"keytype":"NOOP","magic":0}', '{"millstream.highest.ids":{".":41,".team":7}}'
    write_by_hand(cluster, topic, [noop])
    registry = start_registry()
    assert registry.register(parse_subject("s"), SchemaRequest('"int"')).id == 42
    assert registry.register(parse_subject(":.team:s"), SchemaRequest('"int"')).id == 8


def test_a_topic_that_cannot_hold_schemas_is_refused(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(f"{topic}-many", 2, 1, {"cleanup.policy": "compact"})
    cluster.create_topic(f"{topic}-deleting", 1, 1, {"cleanup.policy": "delete"})
    with pytest.raises(RegistryError, match="has 2 partitions"):
        prepare_topic(cluster, f"{topic}-many")
    with pytest.raises(RegistryError, match=r"cleanup\.policy=delete"):
        prepare_topic(cluster, f"{topic}-deleting")
