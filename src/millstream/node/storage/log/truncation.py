"""Cutting off the end of a log, as a follower does that wrote what its leader never had; or all of it, to go on
elsewhere."""

from typing import TYPE_CHECKING

from millstream.node.storage.log.leader_epochs import LeaderEpochs
from millstream.node.storage.log.producer_snapshots import rebuild_producers
from millstream.node.storage.log.producer_state import ProducerState
from millstream.node.storage.log.segment import Segment

if TYPE_CHECKING:
    from millstream.node.storage.log.partition_log import PartitionLog


def truncate(log: "PartitionLog", offset: int) -> None:
    """Remove every batch that reaches `offset`; a batch is kept whole or not at all, so the log may end before it."""
    log.truncations += 1  # a flush under way must not count on what is now gone
    segments = log.segments
    while len(segments) > 1 and segments.active.base_offset > offset:
        for path in segments.drop_last():
            log.disk.remove(path)
    active = segments.active
    if active.index is None:
        active.activate_from_batches()
    position = active.find(offset)
    if position is not None:
        active.truncate(position, offset)
    # The batch before may end well before the offset: the cleaner leaves gaps.
    end = active.read_end_offset()
    log.directory_changed = True  # files of segments and of aborted transactions may be gone
    log.log_end_offset = end
    # One below the end, so that the next flush has the segment that was cut: else its old tail could come back with the
    # power, before what is written to the next segment by then.
    log.recovery_point = min(log.recovery_point, max(end - 1, active.base_offset))
    log.cleaned_offset = min(log.cleaned_offset, end)
    log.log_start_offset = min(log.log_start_offset, end)
    if log.high_watermark is not None:
        log.high_watermark = min(log.high_watermark, end)
    if log.epochs.truncate_from_end(end):
        log.save_shortened_epochs()
    log.snapshots.remove_after(end)
    log.producers = rebuild_producers(log.disk, log.directory, segments, log.snapshots.offsets, log.log_start_offset)


def restart(log: "PartitionLog", segment: Segment, *, is_created: bool) -> None:
    """Remove everything and go on in `segment`. A crash on the way leaves an empty log, or the old one with an empty
    segment behind a gap, which recovery removes."""
    log.truncations += 1
    offset = segment.base_offset
    segments = log.segments
    while len(segments) > 1:
        for path in segments.drop_last():
            log.disk.remove(path)
    segments.replace_active(segment)
    log.snapshots.remove_after(-1)
    if not is_created:
        segment.create()
    log.directory_changed = True
    log.log_start_offset = log.log_end_offset = log.recovery_point = log.cleaned_offset = offset
    if log.high_watermark is not None:
        log.high_watermark = offset
    log.producers = ProducerState()
    log.epochs = LeaderEpochs()
    log.save_shortened_epochs()
