"""What the topics pages are made of, without a cluster: states, layouts, what goes with a topic, names, settings."""

import pytest

pytest.importorskip("nicegui")  # rows link to pages

from millstream.admin.cluster import LogDirectories, Partition
from millstream.admin.groups import Group, GroupMember
from millstream.admin.hot_keys import key_text, merged
from millstream.console.live.snapshot import Broker, Snapshot, Topic
from millstream.console.topics.rows import (
    Contents,
    Reader,
    brokers_of,
    contents_of,
    deletion_summary,
    health,
    layout_rows,
    readers_of,
    topic_rows,
)
from millstream.console.topics.settings import known_settings, name_error, readable_value, value_error
from millstream.raw_client import TopicPartition


def snapshot(*partitions: Partition, down: int | None = None, **more: object) -> Snapshot:
    topics = {each.topic: Topic(each.topic, False, ()) for each in partitions}
    for name in topics:
        mine = tuple(each for each in partitions if each.topic == name)
        topics[name] = Topic(name, name.startswith("__"), mine)
    brokers = tuple(Broker(n, "host", 9092, None, False, error="gone" if n == down else None) for n in (1, 2, 3))
    return Snapshot(number=1, error=None, brokers=brokers, topics=topics, **more)  # type: ignore[arg-type]


def part(index: int, leader: int, isr: tuple[int, ...] = (1, 2, 3), topic: str = "orders") -> Partition:
    return Partition(topic, index, leader, (1, 2, 3), isr, False, 0)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (snapshot(part(0, 1)), ("healthy", "good")),
        (snapshot(part(0, 1, (1, 2))), ("1 under-replicated", "warn")),
        (snapshot(part(0, 1, (1,)), min_in_sync={"orders": 2}), ("1 below min ISR", "bad")),
        (snapshot(part(0, -1), part(1, 1)), ("1 offline", "bad")),
        (snapshot(part(0, 2), part(1, 1), down=2), ("1 offline", "bad")),
    ],
)
def test_the_health_of_a_topic_is_that_of_its_partitions(seen: Snapshot, expected: tuple[str, str]) -> None:
    assert health(seen.topics["orders"], seen) == expected


def test_the_layout_has_a_cell_for_each_broker() -> None:
    topic_partition = TopicPartition("orders", 0)
    disks = {2: LogDirectories(2000, None, None, False, {topic_partition: 2000}, {})}
    seen = snapshot(Partition("orders", 0, 2, (2, 3), (2,), False, 7), down=3, disks=disks, ends={topic_partition: 5})
    topic = seen.topics["orders"]
    (row,) = layout_rows(topic, seen, brokers_of(topic, seen))
    assert (row["b1"], row["b2"], row["b3"]) == ("·", "leader|2.0 KB", "down")
    assert row["_tones"] == {"b1": "none", "b2": "leader", "b3": "behind"}
    assert (row["end"], row["epoch"]) == (5, 7)


def test_internal_topics_are_shown_on_demand() -> None:
    seen = snapshot(part(0, 1), part(0, 1, topic="__internal"))
    assert [row["topic"] for row in topic_rows(seen, internal=False)] == ["orders"]
    assert len(topic_rows(seen, internal=True)) == 2


def test_who_reads_a_topic_and_what_goes_with_it() -> None:
    topic_partition = TopicPartition("orders", 0)
    groups = {
        "idle": Group("idle", "classic", "Empty", "", 1, [], offsets={topic_partition: 3}, lags={topic_partition: 7}),
        "busy": Group("busy", "consumer", "Stable", "", 1, [GroupMember("m", None, "c", "h", [topic_partition])]),
        "other": Group("other", "consumer", "Empty", "", 1, [], offsets={TopicPartition("else", 0): 1}),
    }
    seen = snapshot(part(0, 1), groups=groups, groups_known=True, ends={topic_partition: 10})
    assert readers_of("orders", seen) == (Reader("busy", "consumer", 1, 0), Reader("idle", "classic", 0, 7))
    assert topic_rows(seen, internal=False)[0]["readers"] == 2
    going = contents_of("orders", seen, {0: 4})
    assert (going.partitions, going.replicas, going.records) == (1, 3, 6)
    lines = deletion_summary(going)
    assert lines[1:3] == ["1 partition with 3 replicas", "6 records, 0 B on disk"]
    assert "read by group busy (consumer, 1 member, lag 0)" in lines
    assert "unknown number" in deletion_summary(Contents("x", 1, 1, None, 0, ()))[2]


def test_wrong_names_of_topics_have_a_reason() -> None:
    existing = {"a.b": object()}
    assert name_error("fine-1_2.x", existing) is None
    for name, reason in {
        "": "name",
        "a.b": "already",
        "a_b": "a.b",
        "ä": "letters",
        "..": "letters",
        "x" * 250: "249",
    }.items():
        assert reason in str(name_error(name, existing)), name


def test_values_are_checked_before_they_are_sent() -> None:
    assert value_error("retention.ms", "1000") is None
    assert "not allowed" in str(value_error("retention.ms", "soon"))
    assert value_error("a.setting.of.another.broker", "x") is None


def test_large_numbers_are_put_in_words() -> None:
    assert readable_value("retention.ms", "604800000") == "604800000 (7 d)"
    assert readable_value("segment.bytes", "1073741824") == "1073741824 (1.1 GB)"
    for name, value in (("retention.ms", "-1"), ("x", "5000"), ("x", "text"), ("x.ms", "")):
        assert readable_value(name, value) == value
    assert readable_value("flush.ms", str((1 << 63) - 1)) == "no limit"


def test_settings_are_known_with_help_and_choices() -> None:
    settings = {each.name: each for each in known_settings()}
    assert settings["compression.type"].choices[:2] and "producer" in settings["compression.type"].choices
    assert all(each.explanation for each in settings.values())
    assert not any(name.startswith("internal.") for name in settings)


def test_reports_of_several_brokers_become_one() -> None:
    def report(records: float, share: float, partition: int) -> dict[str, object]:
        key = {"key": "k", "record_share": share, "record_share_at_least": share, "byte_share": 0.5}
        return {
            "topic": "t",
            "time_ms": partition,
            "half_life_s": 30,
            "records_per_second": records,
            "bytes_per_second": 10.0,
            "partition_count": 1,
            "partitions": [{"partition": partition, "records_per_second": records, "bytes_per_second": 10.0}],
            "sampled_records": 5,
            "keys": [key | {"byte_share_at_least": 0.5}],
        }

    found = merged([report(30, 1.0, 0), report(10, 0.0, 1)], 10)
    assert found["records_per_second"] == 40
    assert found["keys"] == [
        {"key": "k", "record_share": 0.75, "record_share_at_least": 0.75, "byte_share": 0.5, "byte_share_at_least": 0.5}
    ]
    assert len(merged([report(1, 1, 0), report(1, 1, 1)], 1)["partitions"]) == 1
    assert key_text({"key": None}) == "(no key)"
    assert key_text({"key_base64": "AA=="}) == "base64:AA=="
