"""What pages are made from, without a cluster: problems, series, histograms, plans of pipelines, typed targets."""

import math
from dataclasses import replace
from uuid import UUID

import pytest

from millstream.admin.broker_metrics import parse
from millstream.admin.cluster import NO_QUORUM, LogDirectories, Partition, Quorum, QuorumNode, Reassignment
from millstream.admin.groups import Group, GroupMember
from millstream.admin.offsets import ResetTarget
from millstream.console.console import UserError
from millstream.console.formats import ago, rate, short_count, size
from millstream.console.groups.offsets import ResetMode, parse_target
from millstream.console.live.metrics import History, Series, quantile
from millstream.console.live.pipelines import progress_of as pipeline_progress
from millstream.console.live.problems import Severity, problems_of
from millstream.console.live.snapshot import Broker, Snapshot, Topic, not_preferred, progress_of
from millstream.console.live.watcher import with_lag
from millstream.raw_client import TopicPartition
from millstream.raw_client.model import NO_LEADER


def partition(index: int, leader: int, isr: tuple[int, ...] = (1, 2, 3), topic: str = "orders") -> Partition:
    return Partition(topic, index, leader, (1, 2, 3), isr, False, 0)


def snapshot(*partitions: Partition) -> Snapshot:
    voters = [QuorumNode(number, UUID(int=0), 10, 0, 0, True, number == 1) for number in (1, 2, 3)]
    return Snapshot(
        number=1,
        at=1000.0,
        error=None,
        cluster_id="c",
        brokers=tuple(Broker(number, "localhost", 9090 + number, None, False) for number in (1, 2, 3)),
        topics={"orders": Topic("orders", False, partitions)},
        quorum=Quorum(1, 1, 10, voters),
        min_in_sync={"orders": 2},
    )


HEALTHY = snapshot(partition(0, 1), partition(1, 2), partition(2, 3))


def test_a_healthy_cluster_has_no_problems() -> None:
    assert problems_of(HEALTHY) == []
    assert problems_of(Snapshot()) == [], "nothing was asked yet: nothing is wrong yet"


def test_a_broker_that_does_not_respond_is_named_with_what_it_leads() -> None:
    first, second, third = HEALTHY.brokers
    silent = replace(HEALTHY, brokers=(first, replace(second, error="connection refused"), third))
    (problem,) = problems_of(silent)
    assert problem.severity is Severity.CRITICAL
    assert problem.what == "Broker 2 does not respond"
    assert "connection refused" in problem.why and "1 partition" in problem.why
    assert "localhost:9092" in problem.next_step


def test_partitions_in_trouble_are_named_the_worst_first() -> None:
    found = problems_of(snapshot(partition(0, NO_LEADER, (2,)), partition(1, 1, (1,)), partition(2, 1, (1, 3))))
    assert [problem.what for problem in found] == [
        "1 partition without a leader",
        "1 partition below min.insync.replicas",
        "1 partition under-replicated",
    ]
    assert "orders-0" in found[0].why and "broker 2" in found[0].next_step
    assert "brokers 2, 3" in found[1].next_step


def test_a_quorum_without_leader_and_a_full_disk_are_problems() -> None:
    disk = LogDirectories(50, 100, 5, False, {}, {})
    found = problems_of(replace(HEALTHY, quorum=NO_QUORUM, disks={3: disk}))
    assert [problem.what for problem in found] == [
        "The metadata quorum has no leader",
        "The disk of broker 3 is 95% full",
    ]
    assert problems_of(replace(HEALTHY, quorum=None)) == [], "brokers that know of no quorum"


def test_a_voter_that_fell_behind_is_a_warning() -> None:
    assert HEALTHY.quorum is not None
    leader, second, third = HEALTHY.quorum.nodes
    late = replace(HEALTHY.quorum, nodes=[leader, second, replace(third, lag=7, behind_ms=60_000)])
    (problem,) = problems_of(replace(HEALTHY, quorum=late))
    assert (problem.severity, problem.what) == (Severity.WARNING, "Voter 3 of the quorum is behind")


def test_leaders_in_one_place_are_told_of() -> None:
    found = problems_of(snapshot(*(partition(index, 1) for index in range(20))))
    assert [problem.severity for problem in found] == [Severity.INFO]
    assert len(not_preferred(snapshot(partition(0, 2), partition(1, 1), partition(2, 2, (2, 3))))) == 1


def test_a_series_keeps_the_last_points_in_order() -> None:
    series = Series(kept=10)
    for at in range(100):
        series.add(float(at), at * 2.0)
    series.add(50.0, 1.0)  # a clock that went back
    points = list(series.points())
    assert points[-1] == (99.0, 198.0)
    assert 10 <= len(points) <= 13
    assert list(series.points(since=98.0)) == [(98.0, 196.0), (99.0, 198.0)]


def test_a_series_has_a_gap_where_nothing_was_read() -> None:
    series = Series()
    for at in (1.0, 2.0, 30.0, 31.0):
        series.add(at, 5.0)
    assert [math.isnan(value) for _, value in series.points()] == [False, False, True, False, False]
    assert (series.last(), series.last(since=32.0)) == (5.0, None)
    slow = Series()
    for at in (1.0, 12.0, 23.0):
        slow.add(at, 5.0, every_s=10.0)  # read less often: no gap
    assert not any(math.isnan(value) for _, value in slow.points())


def test_metrics_are_read_with_their_labels() -> None:
    text = (
        "# HELP a b\n# TYPE x counter\n"
        'x{topic="a\\"b\\\\n",le="+Inf"} 3\n'
        "y 1.5e3\nz NaN\nbroken line here\n\n"
    )  # fmt: skip
    found = list(parse(text))
    assert (found[0].name, found[0].labels, found[0].value) == ("x", {"topic": 'a"b\\n', "le": "+Inf"}, 3.0)
    assert found[1].value == 1500.0
    assert [sample.name for sample in found] == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ({}, 0.5, None),
        ({0.1: 0, float("inf"): 0}, 0.5, None),
        ({0.1: 10, 0.2: 10, float("inf"): 10}, 0.5, 0.05),
        ({0.1: 0, 0.2: 10, float("inf"): 10}, 0.5, 0.15),
        ({0.1: 0, 0.2: 0, float("inf"): 10}, 0.99, 0.2),
    ],
)
def test_quantiles_are_those_of_prometheus(buckets: dict[float, float], share: float, expected: float | None) -> None:
    found = quantile(buckets, share)
    assert found == (None if expected is None else pytest.approx(expected))


def test_rates_come_from_ends_and_a_silent_leader_makes_no_burst() -> None:
    history = History()
    topic_partitions = [each.topic_partition for each in HEALTHY.partitions]
    history.note_ends(0.0, dict.fromkeys(topic_partitions, 100), HEALTHY.topics)
    history.note_ends(1.0, dict.fromkeys(topic_partitions, 110), HEALTHY.topics)
    assert history.rates(1.0) == {"orders": 30.0}
    history.note_ends(2.0, {topic_partitions[0]: 120}, HEALTHY.topics)
    assert history.rates(2.0) == {"orders": pytest.approx(20.0)}


def group(name: str, offset: int, members: tuple[GroupMember, ...] = ()) -> Group:
    return Group(name, "classic", "Empty", "", 1, list(members), offsets={TopicPartition("orders", 0): offset})


def test_lag_is_counted_from_the_ends() -> None:
    ends = {TopicPartition("orders", 0): 50}
    assert with_lag({"a": group("a", 20)}, ends)["a"].lag == 30
    assert with_lag({"a": group("a", 60)}, ends)["a"].lag == 0
    assert with_lag({"a": group("a", 60)}, {})["a"].lag == 0


def test_groups_without_members_that_move_are_queries() -> None:
    history = History()
    ends = {TopicPartition("orders", 0): 100}
    member = GroupMember("m", None, "c", "h", [])
    for at, offset in ((0.0, 10), (2.0, 30)):
        found = {
            "shop.totals": group("shop.totals", offset),
            "old": group("old", 5),
            "moving": group("moving", offset),
            "a.b": group("a.b", offset, (member,)),
            "stopped.consumers": replace(group("stopped.consumers", offset), protocol_type="consumer"),
            "mailers.redrive": group("mailers.redrive", offset),
        }
        now = replace(HEALTHY, at=at, groups=with_lag(found, ends), groups_known=True)
        history.note_groups(now, 1.0)
    progress = {each.group: each for each in pipeline_progress(now, history)}
    assert set(progress) == {"shop.totals", "moving"}
    shop = progress["shop.totals"]
    assert (shop.pipeline, shop.query, shop.phase, shop.lag, shop.rate) == ("shop", "totals", "running", 70, 10.0)
    later = replace(now, at=100.0)
    assert {each.phase for each in pipeline_progress(later, history)} == {"stalled"}


def test_how_far_a_move_is_goes_by_the_slowest_new_replica() -> None:
    topic_partition = TopicPartition("orders", 0)
    disks = {
        number: LogDirectories(0, None, None, False, {topic_partition: held}, {})
        for number, held in {1: 200, 2: 100, 3: 50}.items()
    }
    moving = replace(HEALTHY, disks=disks)
    assert progress_of(moving, Reassignment(topic_partition, (1, 2, 3), (2, 3), ())) == 25.0
    assert progress_of(moving, Reassignment(topic_partition, (1, 2), (), (2,))) == 100.0
    assert progress_of(moving, Reassignment(TopicPartition("gone", 0), (1,), (2,), ())) == 100.0


def test_what_is_typed_beside_a_target() -> None:
    assert parse_target(ResetMode.EARLIEST, "whatever") == ResetTarget.earliest()
    assert parse_target(ResetMode.OFFSET, " 1,000 ") == ResetTarget.to_offset(1000)
    assert parse_target(ResetMode.SHIFT, "-5") == ResetTarget.shift_by(-5)
    assert parse_target(ResetMode.TIME, "1970-01-01T00:00:01+00:00") == ResetTarget.to_time(1000)
    for where, text in (
        (ResetMode.OFFSET, "-1"),
        (ResetMode.OFFSET, "x"),
        (ResetMode.SHIFT, ""),
        (ResetMode.TIME, "yesterday"),
    ):
        with pytest.raises(UserError):
            parse_target(where, text)


def test_numbers_are_short() -> None:
    assert [short_count(number) for number in (0, 999, 9999, 10_000, 1_234_567, 2e9)] == [
        "0", "999", "9,999", "10.0 k", "1.2 M", "2.0 G",
    ]  # fmt: skip
    assert [size(number) for number in (0, 999, 1500, 2.5e9)] == ["0 B", "999 B", "1.5 KB", "2.5 GB"]
    assert [rate(number) for number in (0, 0.25, 1234)] == ["0/s", "0.2/s", "1,234/s"]
    assert [ago(number) for number in (500, 90_000, 130_000, 8e6)] == ["0 s ago", "90 s ago", "2 min ago", "2 h ago"]
