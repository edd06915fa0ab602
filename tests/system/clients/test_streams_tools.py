"""Streams groups with Kafka's own tools: kafka-streams-groups, kafka-groups, kafka-dump-log, kafka-features."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.testing.embedded import EmbeddedBroker
from tests import wire as wires
from tests.system.cluster.kafka_tools import KafkaTools
from tests.waiting import until

GROUP = "application"
GROUPS_COMMAND = "org.apache.kafka.tools.GroupsCommand"
SUBTOPOLOGY: dict[str, Any] = {
    "subtopology_id": "0",
    "source_topics": ["words"],
    "source_topic_regex": [],
    "state_changelog_topics": [
        {
            "name": f"{GROUP}-store-changelog",
            "partitions": 0,
            "replication_factor": 0,
            "topic_configs": [{"key": "cleanup.policy", "value": "compact"}],
        }
    ],
    "repartition_sink_topics": [],
    "repartition_source_topics": [],
    "copartition_groups": [],
}
ROLES = ("active_tasks", "standby_tasks", "warmup_tasks")


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    settings = {"group.streams.initial.rebalance.delay.ms": 0, "group.streams.assignment.interval.ms": 0}
    with EmbeddedBroker(settings) as running:
        yield running


def beat(wire: wires.Wire, epoch: int, **fields: Any) -> Any:
    unchanged = dict.fromkeys((*ROLES, "topology", "client_tags", "task_offsets", "task_end_offsets"))
    return wire.call(
        "streams_group_heartbeat",
        0,
        **{"group_id": GROUP, "member_id": "member-1", "member_epoch": epoch, **unchanged, **fields},
    )


def run_member(wire: wires.Wire) -> int:
    """Joins, and commits an offset of each task; the epoch of the member."""
    joined = beat(
        wire,
        0,
        rebalance_timeout_ms=10_000,
        process_id="process-1",
        topology={"epoch": 0, "subtopologies": [SUBTOPOLOGY]},
        **{role: [] for role in ROLES},
    )
    assert joined.error_code == 0, joined.error_message
    epoch = joined.member_epoch

    def has_tasks() -> bool:
        nonlocal epoch
        response = beat(wire, epoch)
        epoch = response.member_epoch
        return bool(response.active_tasks)

    if not joined.active_tasks:
        until(has_tasks, "the member got no tasks")
    rows = [{"partition_index": index, "committed_offset": 3, "committed_metadata": ""} for index in (0, 1)]
    committed = wire.call(
        "offset_commit",
        9,
        group_id=GROUP,
        generation_id_or_member_epoch=epoch,
        member_id="member-1",
        topics=[{"name": "words", "partitions": rows}],
    )
    assert {row.error_code for topic in committed.topics for row in topic.partitions} == {0}
    return epoch


def committed(wire: wires.Wire) -> dict[int, int]:
    (group,) = wire.call("offset_fetch", 8, groups=[{"group_id": GROUP, "topics": None}]).groups
    return {row.partition_index: row.committed_offset for topic in group.topics for row in topic.partitions}


def test_a_group_from_its_first_member_to_its_deletion(broker: EmbeddedBroker, kafka_tools: KafkaTools) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)

    def said(*arguments: str) -> str:
        return kafka_tools("kafka-streams-groups", *at, *arguments)

    with wires.Wire(broker.bootstrap_servers) as wire:
        wire.create_topic("words", 2)
        for index in (0, 1):
            wire.produce("words", wires.batch(*(str(number).encode() for number in range(5))), partition=index)
        run_member(wire)

        assert GROUP in said("--list")
        assert re.search(rf"{GROUP}\s+Stable", said("--list", "--state"))
        listed = kafka_tools(GROUPS_COMMAND, *at, "--list")
        assert re.search(rf"{GROUP}\s+Streams\s+streams", listed)
        state = said("--describe", "--group", GROUP, "--state")
        assert re.search(rf"{GROUP}\s+\S+ \(1\)\s+Stable\s+1", state), state
        members = said("--describe", "--group", GROUP, "--members", "--verbose")
        assert "member-1" in members and "process-1" in members and "0:[0,1]" in members.replace(" ", ""), members
        offsets = said("--describe", "--group", GROUP, "--offsets")
        assert len(re.findall(rf"{GROUP}\s+words\s+[01]\s+2", offsets)) == 2, offsets  # the lag

        # It has members
        assert (
            "is not empty" in kafka_tools.outcome("kafka-streams-groups", *at, "--delete", "--group", GROUP)[1].lower()
        )

        beat(wire, -1)
        reset = ("--reset-offsets", "--group", GROUP, "--input-topic", "words", "--to-earliest", "--execute")
        assert len(re.findall(r"words\s+[01]\s+0", said(*reset))) == 2
        assert committed(wire) == {0: 0, 1: 0}
        said("--delete-offsets", "--group", GROUP, "--input-topic", "words:1")
        assert committed(wire) == {0: 0}

    # kill -9, and everything that was accepted stays so
    broker.kill()
    broker.restart()
    assert re.search(rf"{GROUP}\s+Empty", said("--list", "--state"))
    assert "successful" in said("--delete", "--group", GROUP).lower()
    assert GROUP not in said("--list")


def test_the_records_can_be_read_by_kafka(broker: EmbeddedBroker, kafka_tools: KafkaTools) -> None:
    with wires.Wire(broker.bootstrap_servers) as wire:
        if wire.call("metadata", 12, topics=[{"name": "words"}]).topics[0].error_code:
            wire.create_topic("words", 2)
        run_member(wire)
    broker.stop()
    files = [str(path) for path in broker.data_dir.glob("**/__consumer_offsets-*/*.log") if path.stat().st_size]
    dumped = kafka_tools("kafka-dump-log", "--offsets-decoder", "--print-data-log", "--files", ",".join(files))
    for kind in (17, 19, 20, 21, 22, 23):
        assert f'"type":"{kind}"' in dumped, dumped[:2000]
    assert '"subtopologyId":"0"' in dumped and "Failed to decode" not in dumped
    broker.start()


def test_kafka_features_shows_the_streams_version(broker: EmbeddedBroker, kafka_tools: KafkaTools) -> None:
    described = kafka_tools("kafka-features", "--bootstrap-server", broker.bootstrap_servers, "describe")
    assert re.search(
        r"Feature: streams.version\s+SupportedMinVersion: 0\s+SupportedMaxVersion: 1\s+FinalizedVersionLevel: 1",
        described,
    )
