"""Reading a log: from an offset to a range of bytes in one segment.

At the tail, memory alone knows where batches begin; elsewhere the index and a short walk find out, on the spot if that
needs no disk, else when the slice is prepared.
"""

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.storage.disk import File
from millstream.node.storage.log.segment import SEARCH_BLOCK_BYTES, Segment
from millstream.node.storage.log.segment_list import SegmentList
from millstream.node.storage.log.slice import Bounds, Slice, empty_slice, extent

SEARCHED_SEGMENTS = 16
"""How many segments a search may pass over because the offsets it looks for are gone from them."""


def read(
    segments: SegmentList, log_end_offset: int, offset: int, max_bytes: int, up_to: int, at_least_one: bool
) -> Slice:
    """As `PartitionLog.read`, for an offset within the log and below `up_to`."""
    segment = segments.active
    end_offset = log_end_offset
    slot = -1
    if offset < segment.base_offset:
        slot = segments.slot_of(offset)
        segment = segments[slot]
        end_offset = segments.end_of(slot, log_end_offset)
    start = segment.position_of(offset)
    end = segment.size if up_to >= end_offset else segment.position_of(up_to)
    if start is None or end is None or end <= start:
        slot = slot if slot >= 0 else len(segments) - 1
        return _search(segments, slot, log_end_offset, Bounds(offset, max_bytes, up_to, at_least_one))
    length = span = end - start
    file = segment.log.get()
    if length > max_bytes:
        length = extent(segment, start, end, Bounds(offset, max_bytes, up_to, at_least_one), file)
        if length == 0:
            return empty_slice()
    return _slice(segment, file, start, length, end_offset, min(up_to, end_offset) - offset, span)


def _slice(segment: Segment, file: File, start: int, length: int, end_offset: int, count: int, span: int) -> Slice:
    """`count` offsets lie in the `span` of bytes that begins where the slice does."""
    vouched = segment.vouched_length(file, start, length)
    if vouched and file.is_resident(start, vouched):
        return Slice(
            file, start, vouched, True, (), None, count if vouched == span else max(count * vouched // span, 1)
        )
    return Slice(file, start, length, False, ((segment, end_offset),))


def _search(segments: SegmentList, slot: int, log_end_offset: int, bounds: Bounds) -> Slice:
    segment = segments[slot]
    if segment.index_is_open():
        file = segment.log.get()
        if file.is_resident(segment.search_start(bounds.offset), SEARCH_BLOCK_BYTES):
            try:
                found = segment.find(bounds.offset)
                if found is not None:
                    end_offset = segments.end_of(slot, log_end_offset)
                    end = bounds.end_position(segment, end_offset)
                    length = extent(segment, found, end, bounds, file)
                    count = min(bounds.up_to, end_offset) - bounds.offset
                    if not length:
                        return empty_slice()
                    return _slice(segment, file, found, length, end_offset, count, end - found)
            except OSError as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    last = min(slot + SEARCHED_SEGMENTS, len(segments))
    candidates = [(segments[at], segments.end_of(at, log_end_offset)) for at in range(slot, last)]
    return Slice(segment.log.get(), 0, min(bounds.max_bytes, segment.size), False, candidates, bounds)
