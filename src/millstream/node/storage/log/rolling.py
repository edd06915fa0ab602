"""When the active segment has had enough: by time, or because its indexes are full. Size and offsets are the append's
to see."""

from millstream.config.topic_config import LogConfig
from millstream.node.storage.index.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from millstream.node.storage.index.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from millstream.node.storage.log.segment import Segment


def is_due(segment: Segment, config: LogConfig, timestamp: int, now_ms: int) -> bool:
    """Whether a batch with this greatest timestamp belongs in the next segment.

    `segment.ms` runs from the first batch's time to this one's, and by the clock where batches have no time. One place
    in the time index is kept for the closing entry.
    """
    if segment.size == 0:
        return False
    first = segment.first_timestamp
    if first is None:
        first = segment.read_first_timestamp()
    waited_ms = timestamp - first if first is not None and first >= 0 else now_ms - segment.created_ms
    room = config.segment_index_bytes
    assert segment.index is not None and segment.times is not None
    return (
        waited_ms > config.roll_ms
        or len(segment.index.offsets) >= room // OFFSET_ENTRY_SIZE
        or len(segment.times.offsets) >= room // TIME_ENTRY_SIZE - 1
    )


def is_idle_due(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    """Whether the segment has been open for `segment.ms` by the clock, though nothing was appended to tell."""
    return segment.size > 0 and now_ms - segment.created_ms > config.roll_ms
