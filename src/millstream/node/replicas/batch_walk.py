"""Where the batches of a slice lie, from their headers alone: the records in between are not read."""

from collections.abc import Iterator
from typing import NamedTuple

from millstream.node.storage.log.batch_scan import walk_headers
from millstream.node.storage.log.slice import Slice


class BatchPlace(NamedTuple):
    first: int
    last: int
    """First and last offset."""
    position: int
    """In the file."""
    size: int
    is_control: bool
    is_transactional: bool
    producer_id: int
    is_empty: bool
    """Compaction left nothing of it but its producer's last sequence."""


def walk_batches(records: Slice) -> Iterator[BatchPlace]:
    """The whole batches of a slice that is ready."""
    end = records.position + records.length
    for position, header in walk_headers(records.file, records.position, end):
        yield BatchPlace(
            header.base_offset,
            header.last_offset,
            position,
            header.size,
            header.is_control,
            header.is_transactional,
            header.producer_id,
            header.record_count == 0,
        )
