"""Offset resets without a cluster: targets, durations, times, files, and the rules of a plan."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from millstream.admin.errors import InvalidArgumentError
from millstream.admin.offsets import OffsetMove, ResetTarget, parse_duration, parse_time, plan_reset, read_offsets
from millstream.raw_client import EARLIEST, LATEST, OffsetAndTime, TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Log:
    """A cluster with offsets 5 to 20 in each partition, of which those from 18 on are in an open transaction."""

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = True
    ) -> dict[TopicPartition, OffsetAndTime]:
        fixed = {EARLIEST: 5, LATEST: 18 if read_committed else 20}
        return {each: OffsetAndTime(fixed.get(time, -1 if time > 1000 else 9), -1) for each, time in wanted.items()}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (ResetTarget.earliest(), (5, False)),
        (ResetTarget.latest(), (18, False)),
        (ResetTarget.to_offset(19), (19, False)),
        (ResetTarget.to_offset(3), (5, True)),
        (ResetTarget.to_offset(99), (20, True)),
        (ResetTarget.to_time(1000), (9, False)),
        (ResetTarget.to_time(2000), (18, False)),
        (ResetTarget.shift_by(-2), (8, False)),
        (ResetTarget.shift_by(50), (20, True)),
        (ResetTarget.to_offsets({P0: 7}), (7, False)),
    ],
)
def test_every_target_has_its_offset(target: ResetTarget, expected: tuple[int, bool]) -> None:
    (move,) = plan_reset(Log(), {P0: 10}, [P0], target)  # type: ignore[arg-type]
    assert (move.new, move.is_clamped) == expected and move.old == 10


def test_a_shift_leaves_partitions_without_an_offset_out() -> None:
    moves = plan_reset(Log(), {P1: 10}, [P1, P0], ResetTarget.shift_by(1))  # type: ignore[arg-type]
    assert moves == [OffsetMove(P1, 10, 11)]


def test_the_moves_are_in_the_order_of_the_partitions() -> None:
    moves = plan_reset(Log(), {}, [P1, P0], ResetTarget.earliest())  # type: ignore[arg-type]
    assert [move.partition for move in moves] == [P0, P1]


def test_a_negative_offset_is_refused_with_the_next_step() -> None:
    with pytest.raises(InvalidArgumentError, match="shift by a negative number"):
        ResetTarget.to_offset(-1)


def test_times_and_durations_are_parsed() -> None:
    assert parse_time("@1500") == datetime.fromtimestamp(1.5, UTC)
    assert parse_time("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_duration("90s") == timedelta(seconds=90)
    assert parse_duration("P1DT2H") == timedelta(days=1, hours=2)
    for parse in (parse_time, parse_duration):
        with pytest.raises(InvalidArgumentError, match="soon: write"):
            parse("soon")


@pytest.mark.parametrize(
    "text",
    [
        "topic,partition,offset\n# comment\norders,0,3\norders,1,9\n",
        '[{"topic": "orders", "partition": 0, "offset": 3}, {"topic": "orders", "partition": 1, "offset": 9}]',
        '{"partitions": [{"topic": "orders", "partition": 0, "old": 1, "new": 3},'
        ' {"topic": "orders", "partition": 1, "new": 9}]}',
        '[{"group": "g", "partitions": [{"topic": "orders", "partition": 0, "offset": 3},'
        ' {"topic": "orders", "partition": 1, "offset": 9}, {"topic": "orders", "partition": 2, "offset": null}]}]',
    ],
    ids=["csv", "json", "reset-offsets", "lag"],
)
def test_offsets_of_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "offsets"
    file.write_text(text)
    assert read_offsets(str(file)) == {P0: 3, P1: 9}


@pytest.mark.parametrize("text", ["", "orders,0\n", "orders,zero,1\n", "{}", "[]"])
def test_a_file_without_offsets_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "offsets"
    file.write_text(text)
    with pytest.raises(InvalidArgumentError):
        read_offsets(str(file))
