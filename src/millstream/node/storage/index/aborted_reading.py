"""Which aborted transactions a reader has to hear of with what it was given: those that overlap, and few others.

How far a slice reaches is known only once it is read; the index knows an offset that it does not reach, and that will
do. A transaction too many does no harm, one too few would show aborted records.
"""

from millstream.node.storage.log.log_reader import SEARCHED_SEGMENTS, Slice
from millstream.node.storage.log.partition_log import PartitionLog


def aborted_among(log: PartitionLog, records: Slice, offset: int, up_to: int) -> list[tuple[int, int]]:
    """(producer id, first offset) of what was aborted in a slice just read from `offset` on, before `up_to`."""
    if not records.length:
        return []
    segments = log.segments
    slot = segments.slot_of(offset)
    if records.is_located:
        end = segments.end_of(slot, log.log_end_offset)
        if segments[slot].aborted:
            end = min(end, segments[slot].offset_beyond(records.position + records.length, end))
    else:
        # It may yet be found in a later segment, where offsets are gone from the first ones.
        last = min(slot + SEARCHED_SEGMENTS, len(segments)) - 1
        end = segments.end_of(last, log.log_end_offset)
    return log.aborted_transactions(offset, min(end, up_to))
