"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs; and that a change reaches a log that is in use."""

import time
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.formats.records.batch import read_header
from millstream.formats.records.compression import Codec
from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, batch

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
FROM_TOPIC, DEFAULT = 1, 5


def describe(wire: Wire, kind: int, name: str, keys: list[str] | None = None) -> Message:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    (row,) = wire.call("describe_configs", 4, resources=[resource], include_synonyms=True).results
    return row


def setting(wire: Wire, topic: str, name: str) -> tuple[str, int]:
    (row,) = describe(wire, TOPIC, topic, [name]).configs
    return row.value, row.config_source


def alter(wire: Wire, kind: int, resource: str, *changes: tuple[str, int, str | None], **options: Any) -> Message:
    rows = [{"name": name, "config_operation": operation, "value": value} for name, operation, value in changes]
    resources = [{"resource_type": kind, "resource_name": resource, "configs": rows}]
    (row,) = wire.call(
        "incremental_alter_configs", 1, resources=resources, **{"validate_only": False, **options}
    ).responses
    return row


def test_settings_are_set_and_taken_back(wire: Wire, topic: str) -> None:
    default = setting(wire, topic, "retention.ms")
    assert default[1] == DEFAULT
    assert alter(wire, TOPIC, topic, ("retention.ms", SET, "1234")).error_code == 0
    assert setting(wire, topic, "retention.ms") == ("1234", FROM_TOPIC)
    assert alter(wire, TOPIC, topic, ("retention.ms", SET, "99"), validate_only=True).error_code == 0
    assert setting(wire, topic, "retention.ms") == ("1234", FROM_TOPIC)
    assert alter(wire, TOPIC, topic, ("retention.ms", DELETE, None)).error_code == 0
    assert setting(wire, topic, "retention.ms") == default


def test_lists_grow_and_shrink(wire: Wire, topic: str) -> None:
    assert alter(wire, TOPIC, topic, ("cleanup.policy", APPEND, "compact")).error_code == 0
    assert set(setting(wire, topic, "cleanup.policy")[0].split(",")) == {"delete", "compact"}
    assert alter(wire, TOPIC, topic, ("cleanup.policy", SUBTRACT, "compact")).error_code == 0
    assert setting(wire, topic, "cleanup.policy")[0] == "delete"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG),
        (("segment.bytes", SET, "-1"), ErrorCode.INVALID_CONFIG),
        (("segment.bytes", SET, "9" * 5000), ErrorCode.INVALID_CONFIG),
        (("no.such.setting", SET, "1"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", 77, "1"), ErrorCode.INVALID_REQUEST),
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
    ],
)
def test_changes_that_are_refused(wire: Wire, topic: str, change: tuple[str, int, str | None], code: ErrorCode) -> None:
    row = alter(wire, TOPIC, topic, change)
    assert row.error_code == code
    assert row.error_message
    assert describe(wire, TOPIC, topic).error_code == 0


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "not-there", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "77", ErrorCode.INVALID_REQUEST),
        (BROKER, "9" * 5000, ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (0, "x", ErrorCode.INVALID_REQUEST),
        (-128, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_resources_that_are_not_there(wire: Wire, kind: int, name: str, code: ErrorCode) -> None:
    assert alter(wire, kind, name, ("retention.ms", SET, "1")).error_code == code
    assert describe(wire, kind, name).error_code == code


def test_the_older_way_replaces_everything(wire: Wire, topic: str) -> None:
    alter(wire, TOPIC, topic, ("retention.ms", SET, "1234"))
    configs = [{"name": "segment.bytes", "value": "2000000"}]
    resources = [{"resource_type": TOPIC, "resource_name": topic, "configs": configs}]
    assert wire.call("alter_configs", 2, resources=resources).responses[0].error_code == 0
    assert setting(wire, topic, "segment.bytes") == ("2000000", FROM_TOPIC)
    assert setting(wire, topic, "retention.ms")[1] == DEFAULT


def test_a_resource_named_twice(wire: Wire, topic: str) -> None:
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": []}
    rows = wire.call("incremental_alter_configs", 1, resources=[resource, resource]).responses
    assert {row.error_code for row in rows} == {ErrorCode.INVALID_REQUEST}
    asked = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}
    assert len(wire.call("describe_configs", 4, resources=[asked] * 50).results) == 1


# What a change does to a log in use


def test_max_message_bytes_of_a_live_log(wire: Wire, topic: str) -> None:
    assert wire.produce(topic, batch(bytes(5000))).error_code == 0
    alter(wire, TOPIC, topic, ("max.message.bytes", SET, "1000"))
    assert wire.produce(topic, batch(bytes(5000))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    alter(wire, TOPIC, topic, ("max.message.bytes", DELETE, None))
    assert wire.produce(topic, batch(bytes(5000))).error_code == 0


def test_codec_and_time_of_a_live_log(wire: Wire, topic: str) -> None:
    wire.produce(topic, batch(b"x"))
    alter(wire, TOPIC, topic, ("compression.type", SET, "zstd"), ("message.timestamp.type", SET, "LogAppendTime"))
    assert wire.produce(topic, batch(b"x")).log_append_time_ms > 0
    header = read_header(wire.fetch(topic, 1).records)
    assert header.codec == Codec.ZSTD and header.has_log_append_time


def test_segment_size_and_retention_of_a_live_log(broker: EmbeddedBroker, wire: Wire, topic: str) -> None:
    wire.produce(topic, batch(bytes(10_000)))
    alter(wire, TOPIC, topic, ("segment.bytes", SET, "1048576"))
    for _ in range(30):
        assert wire.produce(topic, batch(bytes(100_000))).error_code == 0
    files = sorted((broker.data_dir / f"{topic}-0").glob("*.log"))
    assert len(files) >= 3
    alter(wire, TOPIC, topic, ("retention.bytes", SET, "1048576"))
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while wire.fetch(topic, 31).log_start_offset == 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert wire.fetch(topic, 31).log_start_offset > 0
    assert wire.fetch(topic, 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_setting_of_the_broker_reaches_topics_that_have_none_of_their_own() -> None:
    with EmbeddedBroker() as broker, Wire(broker.bootstrap_servers) as wire:
        wire.create_topic("plain")
        wire.create_topic("own", 1, max_message_bytes="1048588")
        for name in ("plain", "own"):
            assert wire.produce(name, batch(bytes(5000))).error_code == 0
        assert alter(wire, BROKER, "", ("message.max.bytes", SET, "1000")).error_code == 0
        assert wire.produce("plain", batch(bytes(5000))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert wire.produce("own", batch(bytes(5000))).error_code == 0
        broker.restart()
        with Wire(broker.bootstrap_servers) as again:
            assert again.produce("plain", batch(bytes(5000))).error_code == ErrorCode.MESSAGE_TOO_LARGE
