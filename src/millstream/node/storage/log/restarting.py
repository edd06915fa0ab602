"""Restarts a log: removes everything, and continues the log at another offset.

A follower does this if its leader's log begins after its own end, or if the leader has moved the records to the tier.
"""

from typing import TYPE_CHECKING

from millstream.node.storage.log.earlier_batches import EARLIER_BATCHES, write_batches_file
from millstream.node.storage.log.producer_snapshots import producers_begin
from millstream.node.storage.log.producer_state import ProducerState
from millstream.node.storage.log.tiered_part import TierStart

if TYPE_CHECKING:
    from millstream.node.storage.log.partition_log import PartitionLog


def restart(log: "PartitionLog", offset: int, now_ms: int) -> None:
    """Go on at `offset`, without epochs and producers. A crash on the way leaves an empty log, or the old one with an
    empty segment behind a gap, which recovery removes."""
    segment = log.segments.make(offset, now_ms)
    is_created = offset > log.segments.active.base_offset
    if is_created:
        try:
            segment.create()  # first, because it needs room: without room nothing has changed
        except OSError as error:
            raise log.storage_error(error) from error
    try:
        log.flush_state.truncations += 1
        log.segments.restart_in(segment)
        log.snapshots.remove_after(-1)
        log.disk.remove(f"{log.directory}/{EARLIER_BATCHES}")
        if not is_created:
            segment.create()
        log.flush_state.restarted(offset)
        log.log_start_offset = log.log_end_offset = log.cleaned_offset = offset
        log.place_local_start()
        if log.high_watermark is not None:
            log.high_watermark = offset
        log.producers = ProducerState().with_verifications(log.producers)
        log.producers.begins_at = producers_begin(log.disk, log.directory, offset)
        log.epoch_file.clear()
        log.damaged_from = None
    except OSError as error:
        log.fail(f"restarting the log at {offset} failed: {error}")
        raise log.storage_error(error) from error


def restart_from_tier(log: "PartitionLog", start: TierStart, now_ms: int) -> None:
    """Go on where the tier ends, with the epochs and producers that the tier has for that offset."""
    restart(log, start.offset, now_ms)
    try:
        log.epoch_file.replace(start.epochs)
        log.producers = ProducerState(start.producers).with_verifications(log.producers)
        log.producers.begins_at = producers_begin(log.disk, log.directory, start.offset - 1)
        log.producers.begin_anew(start.offset)
        write_batches_file(log.disk, log.directory, log.producers, start.offset)
        log.snapshots.write(start.offset, log.producers)
    except OSError as error:
        log.fail(f"restarting the log at {start.offset} failed: {error}")
        raise log.storage_error(error) from error
    log.log_start_offset = min(start.log_start_offset, start.offset)
