"""A log whose first segments are in the tier: what it keeps, removes, cuts and starts again from."""

from typing import Any, cast

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.storage.log.earlier_batches import write_batches_file
from millstream.node.storage.log.log_reader import empty_slice
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.log.producer_state import ProducerState
from millstream.node.storage.log.retention import waits_for_tier
from millstream.node.storage.log.tiered_part import TierStart
from tests.unit.node.storage.batches import NOW, batch
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.test_partition_log import append, read

SIZE = len(batch(b"value"))
HOUR_MS = 3_600_000
TIERED = LogConfig(segment_bytes=5 * SIZE, remote_storage_enable=True, local_retention_bytes=0, retention_ms=-1)


class FakeTier:
    """The tier up to an offset; notes what is read from it."""

    is_known = True

    def __init__(self, end_offset: int) -> None:
        self.end_offset = self.removable_end = end_offset
        self.reads: list[int] = []

    def read(self, offset: int, max_bytes: int, *, up_to: int, at_least_one: bool) -> Any:
        self.reads.append(offset)
        return empty_slice()


def tiered(node: Node, count: int, end: int) -> tuple[PartitionLog, FakeTier]:
    log = node.log(TIERED)
    for _ in range(count):
        append(log, b"value")
    tier = FakeTier(end)
    log.tier = cast(Any, tier)
    return log, tier


def maintain(node: Node, later_ms: int = 0) -> None:
    for job in node.directory.maintenance(NOW + later_ms):
        job.done(job.run())


def test_only_what_is_in_the_tier_leaves_the_disk(node: Node) -> None:
    log, tier = tiered(node, 23, 10)
    assert waits_for_tier(log, NOW)
    maintain(node, 0)
    assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (0, 10, 23)
    assert log.segments.bases == [10, 15, 20]
    tier.end_offset = tier.removable_end = 12
    maintain(node, 1 * HOUR_MS)
    assert log.segments.bases == [10, 15, 20], "a segment is in the tier as a whole, or not"
    tier.end_offset = 20
    maintain(node, 2 * HOUR_MS)
    assert log.segments.bases == [10, 15, 20], "a restart would need it"
    tier.removable_end = 20
    maintain(node, 3 * HOUR_MS)
    assert (log.segments.bases, log.log_start_offset) == ([20], 0)


def test_offsets_before_the_disk_are_read_from_the_tier(node: Node) -> None:
    log, tier = tiered(node, 23, 20)
    maintain(node)
    for offset in (0, 19):
        log.read(offset, 100, up_to=23, at_least_one=True)
    assert tier.reads == [0, 19]
    assert read(log, 20).length == 3 * SIZE
    log.delete_records_before(7)
    with pytest.raises(KafkaError) as refused:
        log.read(6, 100, up_to=23, at_least_one=True)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    log.tier = None
    with pytest.raises(KafkaError) as missing:
        log.read(8, 100, up_to=23, at_least_one=True)
    assert missing.value.code == ErrorCode.KAFKA_STORAGE_ERROR, "not out of range: a consumer would skip the records"


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_does_not_move_the_log_start(node: Node, clean: bool) -> None:
    tiered(node, 23, 20)
    maintain(node)
    node.restart(clean=clean)
    again = node.log(TIERED)
    assert (again.log_start_offset, again.local_start_offset, again.log_end_offset) == (0, 20, 23)


def test_a_cut_below_the_disk_leaves_an_empty_log(node: Node) -> None:
    log, _ = tiered(node, 23, 20)
    maintain(node)
    assert log.truncate_to(13) == 13
    assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (0, 13, 13)
    assert log.epochs.entries() == [(0, 0)], "of the records in the tier: by them a leader finds where both differ"
    assert append(log) == 13


def test_a_follower_starts_where_the_tier_ends(node: Node) -> None:
    log = node.log(TIERED)
    producers = ProducerState()
    for number in range(3):
        producers.append(7, 0, 10 * number, 9, 10 * number + 9, NOW, False)
    log.restart_from_tier(TierStart(30, 4, [(0, 0), (3, 12)], list(producers.entries.values())), NOW)
    assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (4, 30, 30)
    assert log.end_offset_of_epoch(1) == (0, 12)
    node.restart(clean=False)
    again = node.log(TIERED)
    assert (again.log_end_offset, again.latest_epoch) == (30, 3)
    entry = again.producers.entries[7]
    assert [each[0] for each in entry.batches] == [0, 10, 20], "also those that a snapshot does not have"


def test_a_damaged_file_of_batches_is_no_obstacle(node: Node) -> None:
    log = node.log(TIERED)
    append(log)
    write_batches_file(log.disk, log.directory, log.producers, 0)
    (node.path / "tiered-producers-checkpoint").write_bytes(b"{")
    node.restart(clean=True)
    assert node.log(TIERED).log_end_offset == 1


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_whose_records_are_all_in_the_tier_goes_on_after_a_restart(node: Node, clean: bool) -> None:
    log, _ = tiered(node, 20, 20)
    log.roll(NOW)
    write_batches_file(log.disk, log.directory, log.producers, 20)
    maintain(node)
    assert (log.segments.bases, log.log_end_offset) == ([20], 20)
    node.restart(clean=clean)
    again = node.log(TIERED)
    assert (again.log_start_offset, again.local_start_offset, again.log_end_offset) == (0, 20, 20)
    assert append(again) == 20, "no offset is given twice"
