"""The records of a streams group, byte by byte as Apache Kafka 4.3.1 wrote them.

`streams_records.golden` has the last record of each key, as hex, of a group with two members: one has an endpoint, a
rack and a tag; tasks have moved from one to the other; the topology has a repartition topic and a changelog.
"""

from pathlib import Path

from millstream.node.groups.core.streams.group import (
    GroupState,
    StreamsGroup,
    assignment_record,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
    topology_record,
)
from tests.unit.node.coordination.shard_run import ShardRun

GOLDEN = Path(__file__).with_name("streams_records.golden")


def recorded() -> dict[bytes, bytes]:
    pairs = (line.split() for line in GOLDEN.read_text().splitlines())
    return {bytes.fromhex(key): bytes.fromhex(value) for key, value in pairs}


def test_records_of_kafka_are_read_and_written() -> None:
    records = recorded()
    run = ShardRun()
    for key, value in records.items():
        run.shard.replay(key, value)
    group = run.shard.groups["app"]
    assert isinstance(group, StreamsGroup)
    assert group.state is GroupState.STABLE
    assert {member.id: dict(member.assigned.active) for member in group.members.values()} == {
        "m1": {"0": {0: 3, 1: 3}, "1": {0: 3, 1: 3}},
        "m2": {"0": {2: 4, 3: 4}, "1": {2: 4, 3: 4}},
    }
    assert group.topology is not None
    configs = group.assignment_configs
    made = [
        epoch_record("app", group.epoch, group.metadata_hash, group.validated_topology_epoch, configs),
        topology_record("app", group.topology),
        target_epoch_record("app", group.assignment_epoch, group.assigned_at_ms),
        *(member_record("app", member) for member in group.members.values()),
        *(target_record("app", member_id, target) for member_id, target in group.targets.items()),
        *(assignment_record("app", member) for member in group.members.values()),
    ]
    assert {record.key: record.value for record in made} == records
    assert set(group.deletion_records()) == {(record.key, None) for record in made}
