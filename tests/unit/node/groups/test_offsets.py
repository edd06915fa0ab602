"""Commit, fetch, delete, expiry; and that all of it is in the log."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.groups.core import records
from millstream.node.groups.core.records import (
    CommittedOffset,
    RecordType,
    group_record,
    offset_record,
    read_offset_key,
    read_offset_value,
)
from tests.unit.node.coordination.shard_run import ShardRun, message
from tests.unit.node.coordination.test_classic_groups import SUBSCRIBED_TO_T, stable_group

MINUTE_MS = 60_000
LARGEST_BATCH = 128 << 10
WEEK_MS = 7 * 24 * 60 * MINUTE_MS
TEXT = st.text(st.characters(codec="utf-8"), max_size=300)


@given(
    TEXT,
    TEXT,
    st.integers(0, 1 << 30),
    st.integers(-1, 1 << 62),
    st.integers(-1, 99),
    TEXT,
    st.uuids() | st.just(UUID(int=0)),
)
def test_records_are_those_of_the_schema(
    group: str, topic: str, partition: int, offset: int, epoch: int, metadata: str, topic_id: UUID
) -> None:
    committed = CommittedOffset(offset, epoch, metadata, 1234, -1, topic_id)
    record = offset_record(group, topic, partition, committed)
    value = {
        "offset": offset,
        "leader_epoch": epoch,
        "metadata": metadata,
        "commit_timestamp": 1234,
        "topic_id": topic_id,
    }
    key = {"group": group, "topic": topic, "partition": partition}
    assert record == group_record(RecordType.OFFSET_COMMIT, key, value)
    assert record.value is not None
    assert read_offset_key(record.key) == (group, topic, partition)
    assert read_offset_value(record.value) == committed


def test_the_file_of_schemas_is_read_once() -> None:
    assert records._FORMATS._schemas is records._FORMATS._schemas


def test_records_with_an_expiry_of_their_own() -> None:
    committed = CommittedOffset(5, -1, "x", 1000, 2000)
    value = offset_record("g", "t", 0, committed).value
    assert value is not None and value[:2] == b"\x00\x01"
    assert read_offset_value(value) == committed


@pytest.fixture
def run() -> ShardRun:
    made = ShardRun()
    made.topics.add("t", 2)
    made.topics.add("u", 1)
    return made


def test_simple_consumers_commit_without_a_group(run: ShardRun) -> None:
    assert run.commit({("t", 0): 7, ("u", 0): 8}) == {("t", 0): 0, ("u", 0): 0}
    assert run.committed() == {("t", 0): 7, ("u", 0): 8}
    assert run.commit({("t", 0): 9}, version=2) == {("t", 0): 0}
    run.restart()
    assert run.committed() == {("t", 0): 9, ("u", 0): 8}
    assert run.shard.groups["g"].is_simple


def test_what_is_wrong_with_one_partition_is_said_of_it_alone(run: ShardRun) -> None:
    long = "x" * 4097
    assert run.commit({("t", 0): 1, ("t", 2): 1, ("gone", 0): 1}) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("gone", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert run.commit({("t", 1): 1}, metadata=long) == {("t", 1): ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert run.commit({("t", 1): 1}, metadata=long[1:]) == {("t", 1): ErrorCode.NONE}
    assert run.commit({("gone", 0): 1}, version=10) == {("gone", 0): ErrorCode.UNKNOWN_TOPIC_ID}


def test_only_members_of_the_generation_may_commit(run: ShardRun) -> None:
    at = ("t", 0)
    assert run.commit({at: 1}, group="none", generation=1, member="m") == {at: ErrorCode.GROUP_ID_NOT_FOUND}
    assert run.commit({at: 1}, group="none", generation=1, version=8) == {at: ErrorCode.ILLEGAL_GENERATION}
    (member,) = stable_group(run)
    assert run.commit({at: 1}, member=member, generation=1) == {at: ErrorCode.NONE}
    assert run.commit({at: 1}, member=member, generation=0) == {at: ErrorCode.ILLEGAL_GENERATION}
    assert run.commit({at: 1}, member=member, generation=-1) == {at: ErrorCode.ILLEGAL_GENERATION}
    assert run.commit({at: 1}, member="stranger", generation=1) == {at: ErrorCode.UNKNOWN_MEMBER_ID}
    assert run.commit({at: 1}) == {at: ErrorCode.UNKNOWN_MEMBER_ID}
    run.join(member=member)
    assert run.commit({at: 2}, member=member, generation=1) == {at: ErrorCode.ILLEGAL_GENERATION}
    assert run.commit({at: 2}, member=member, generation=2) == {at: ErrorCode.REBALANCE_IN_PROGRESS}


def test_members_can_commit_while_the_group_prepares(run: ShardRun) -> None:
    leader, other = stable_group(run, 2)
    run.join(member=leader)
    assert run.commit({("t", 0): 3}, member=other, generation=1) == {("t", 0): ErrorCode.NONE}


def test_fetch_of_what_is_not_there(run: ShardRun) -> None:
    wanted = message("offset_fetch", group_id="g", topics=[{"name": "t", "partition_indexes": [0, 5]}])
    (topic,) = run.shard.offsets.fetch(wanted, 7)["topics"]
    assert [(row["committed_offset"], row["error_code"]) for row in topic["partitions"]] == [(-1, 0), (-1, 0)]


def test_a_partition_named_often_is_in_the_response_once(run: ShardRun) -> None:
    run.commit({("t", 0): 7, ("t", 1): 8}, metadata="x" * 4000)
    rows = [{"name": "t", "partition_indexes": [0] * 1000}, {"name": "t", "partition_indexes": [0, 1]}] * 100
    response = run.shard.offsets.fetch(message("offset_fetch", group_id="g", topics=rows), 7)
    shown = [row["committed_offset"] for topic in response["topics"] for row in topic["partitions"]]
    assert shown == [7, 8]


def test_fetch_by_topic_id(run: ShardRun) -> None:
    run.commit({("t", 0): 5}, version=10)
    topic = run.topics.get("t")
    assert topic is not None
    rows = [
        {"topic_id": topic.id, "partition_indexes": [0]},
        {"topic_id": UUID(int=99), "partition_indexes": [0]},
    ]
    request = message("offset_fetch", groups=[{"group_id": "g", "topics": rows}])
    found, unknown = run.shard.offsets.fetch(request.groups[0], 10)["topics"]
    assert found["partitions"][0]["committed_offset"] == 5 and found["topic_id"] == topic.id
    assert unknown["partitions"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID


def test_offsets_of_a_topic_that_was_made_again_are_not_those_of_the_old_one(run: ShardRun) -> None:
    run.commit({("t", 0): 5})
    run.topics.remove("t")
    run.topics.add("t", 2)
    wanted = message("offset_fetch", group_id="g", topics=[{"name": "t", "partition_indexes": [0]}])
    assert run.shard.offsets.fetch(wanted, 7)["topics"][0]["partitions"][0]["committed_offset"] == -1


def test_offsets_go_with_their_topic(run: ShardRun) -> None:
    run.commit({("t", 0): 5, ("u", 0): 6})
    run.topics.remove("t")
    run.run(lambda shard, now: shard.topics_changed({"t"}, now))
    assert run.committed() == {("u", 0): 6}
    run.restart()
    assert run.committed() == {("u", 0): 6}


def batch_bytes(run: ShardRun, since: int) -> int:
    return sum(len(key) + len(value or b"") for key, value in run.log[since:])


def test_many_offsets_of_a_deleted_topic_go_in_several_batches(run: ShardRun) -> None:
    run.topics.add("wide", 2500)
    for group in ("a", "b", "c", "d"):
        run.commit({("wide", partition): 1 for partition in range(2500)}, group=group)
    run.commit({("t", 0): 1}, group="a")
    run.topics.remove("wide")
    written = len(run.log)
    run.run(lambda shard, now: shard.topics_changed({"wide"}, now))
    assert 0 < batch_bytes(run, written) < LARGEST_BATCH
    run.fail_writes = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "full")
    with pytest.raises(KafkaError):
        run.advance(10)
    run.fail_writes = None
    run.advance(60_000)  # it is tried again
    assert [run.committed(group) for group in "abcd"] == [{("t", 0): 1}, {}, {}, {}]


def test_topics_that_went_while_no_one_looked(run: ShardRun) -> None:
    run.commit({("t", 0): 5, ("t", 1): 6, ("u", 0): 6})
    run.commit({("t", 0): 7}, retention_ms=WEEK_MS, version=4)  # its record does not tell the topic's id
    run.topics.remove("t")
    run.topics.add("t", 2)
    run.topics.remove("u")
    run.restart()
    run.advance(1)
    assert run.committed() == {("t", 0): 7}
    run.topics.add("u", 1)
    run.restart()
    run.advance(1)
    assert run.committed() == {("t", 0): 7}


def test_a_group_with_many_offsets_is_deleted_bit_by_bit(run: ShardRun) -> None:
    run.topics.add("wide", 5000)
    run.commit({("wide", partition): 1 for partition in range(5000)})
    steps, is_gone = 0, False
    while not is_gone:
        written = len(run.log)
        is_gone = run.run(lambda shard, now: shard.delete_group("g", now))
        assert batch_bytes(run, written) < LARGEST_BATCH
        assert ("g" in run.shard.groups) is not is_gone
        steps += 1
    assert steps > 2
    run.restart()
    assert not run.shard.groups and not run.committed()


def test_long_names_make_no_large_batch(run: ShardRun) -> None:
    run.topics.add("wide", 50)
    run.commit({("wide", partition): 1 for partition in range(50)}, group="x" * 8000)
    written = len(run.log)
    assert not run.run(lambda shard, now: shard.delete_group("x" * 8000, now))
    assert batch_bytes(run, written) < LARGEST_BATCH


def delete(run: ShardRun, *topics: tuple[str, int]) -> list[int]:
    rows = [{"name": name, "partitions": [{"partition_index": index}]} for name, index in topics]
    request = message("offset_delete", group_id="g", topics=rows)
    response = run.run(lambda shard, now: shard.offsets.delete(request, now))
    return [row["error_code"] for topic in response["topics"] for row in topic["partitions"]]


def test_deleted_offsets_are_gone(run: ShardRun) -> None:
    with pytest.raises(KafkaError) as caught:
        delete(run, ("t", 0))
    assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND
    run.commit({("t", 0): 5, ("u", 0): 6})
    assert delete(run, ("t", 0), ("t", 1), ("gone", 0)) == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert run.committed() == {("u", 0): 6}


def test_offsets_that_members_need_cannot_be_deleted(run: ShardRun) -> None:
    run.commit({("t", 0): 5, ("u", 0): 6})
    stable_group(run, protocols=[("range", SUBSCRIBED_TO_T)])
    assert delete(run, ("t", 0), ("u", 0)) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0]


def test_only_consumers_may_lose_offsets_while_they_are_members(run: ShardRun) -> None:
    stable_group(run, kind="connect")
    with pytest.raises(KafkaError) as caught:
        delete(run, ("t", 0))
    assert caught.value.code == ErrorCode.NON_EMPTY_GROUP


# Expiry


def test_simple_offsets_expire_by_the_time_of_their_commit(run: ShardRun) -> None:
    run.commit({("t", 0): 5})
    run.advance(WEEK_MS // 2)
    run.commit({("t", 1): 5})
    run.advance(WEEK_MS // 2 + 20 * MINUTE_MS)
    assert run.committed() == {("t", 1): 5}
    run.advance(WEEK_MS)
    assert not run.committed() and not run.shard.groups
    run.restart()
    assert not run.shard.groups


def test_many_offsets_expire_in_several_batches(run: ShardRun) -> None:
    run.topics.add("wide", 5000)
    run.commit({("wide", partition): 1 for partition in range(5000)})
    run.advance(WEEK_MS - MINUTE_MS)
    run.commit({("t", 0): 1}, group="other")
    run.now_ms += 2 * MINUTE_MS
    written = len(run.log)
    run.run(lambda shard, now: shard.offsets.expiry.expire(now))
    assert 0 < batch_bytes(run, written) < LARGEST_BATCH
    assert run.committed() and "g" in run.shard.groups
    run.advance(10)
    assert not run.committed() and set(run.shard.groups) == {"other"}
    run.restart()
    assert set(run.shard.groups) == {"other"}


def test_offsets_of_a_group_age_from_when_it_became_empty(run: ShardRun) -> None:
    (member,) = stable_group(run, session_ms=1_800_000)
    run.commit({("t", 0): 5}, member=member, generation=1)
    for _ in range(8 * 24 * 3):
        run.advance(20 * MINUTE_MS)
        run.heartbeat(member, 1)
    assert run.committed() == {("t", 0): 5}
    run.leave((member, None))
    run.advance(WEEK_MS - 20 * MINUTE_MS)
    assert run.committed() == {("t", 0): 5}
    run.advance(40 * MINUTE_MS)
    assert not run.committed() and not run.shard.groups


def test_offsets_of_topics_a_stable_group_no_longer_reads_expire(run: ShardRun) -> None:
    (member,) = stable_group(run, session_ms=1_800_000, protocols=[("range", SUBSCRIBED_TO_T)])
    run.commit({("t", 0): 5, ("u", 0): 6}, member=member, generation=1)
    for _ in range(8 * 24 * 3):
        run.advance(20 * MINUTE_MS)
        run.heartbeat(member, 1)
    assert run.committed() == {("t", 0): 5}


def test_old_clients_choose_how_long(run: ShardRun) -> None:
    run.commit({("t", 0): 5}, retention_ms=MINUTE_MS, version=4)
    run.commit({("t", 1): 5})
    run.advance(20 * MINUTE_MS)
    assert run.committed() == {("t", 1): 5}


@pytest.mark.parametrize("retention_ms", [(1 << 63) - 1, -(1 << 63), 0])
def test_any_retention_can_be_asked_for(retention_ms: int, run: ShardRun) -> None:
    assert run.commit({("t", 0): (1 << 63) - 1}, retention_ms=retention_ms, version=2) == {("t", 0): 0}
    run.restart()
    assert run.committed() == {("t", 0): (1 << 63) - 1}


def test_a_compacted_log_gives_the_same_state(run: ShardRun) -> None:
    for number in range(100):
        run.commit({("t", number % 2): number, ("u", 0): number}, group=f"g{number % 7}")
    before = {group: run.committed(group) for group in run.shard.groups}
    run.compact()
    run.restart()
    assert len(run.log) < 30
    assert {group: run.committed(group) for group in run.shard.groups} == before
