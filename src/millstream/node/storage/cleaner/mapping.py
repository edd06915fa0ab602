"""The first part of a pass: the dirty part of a log goes into the key map, as far as the map has room."""

from collections.abc import Iterator

from millstream.formats.records.batch import CODEC_MASK, CONTROL_BIT, HEADER_SIZE, TRANSACTIONAL_BIT, Bytes
from millstream.formats.records.opening import BeyondLimitsError
from millstream.node.storage.cleaner.block_reader import read_blocks
from millstream.node.storage.cleaner.errors import UncleanableError
from millstream.node.storage.cleaner.key_map import DEAD, KeyMap
from millstream.node.storage.cleaner.plan import Plan
from millstream.node.storage.cleaner.records import decompressed_content
from millstream.node.storage.cleaner.transactions import CleanedTransactions

_MOST_NOT_MAPPED = 1_000_000
"""Batches of one pass that became too large when they were opened; the next pass goes on behind them."""


def map_dirty(plan: Plan, keys: KeyMap) -> Iterator[int]:
    """Fill the map; yields, after each block, how many bytes were read."""
    transactions = CleanedTransactions(plan.aborted)
    dirty_start = plan.dirty_start
    for source in plan.sources:
        if source.end_offset <= dirty_start or not source.size:
            continue
        segment = source.segment
        start = segment.find(dirty_start, in_thread=True) if segment.base_offset < dirty_start else 0
        if start is not None:
            for block, batches in read_blocks(segment.file(), start, source.size, plan.block_bytes):
                plan.check()
                for at, after, header in batches:
                    attributes, count = header[5], header[12]
                    last_offset = header[0] + header[6]
                    if attributes & CONTROL_BIT:
                        transactions.is_over(block[at:after], count, header[9], last_offset)
                    elif attributes & TRANSACTIONAL_BIT and transactions.is_aborted(header[9], last_offset):
                        if count <= plan.limits.max_records:
                            if keys.fates and keys.used_bytes + count > plan.map_bytes:
                                return
                            keys.fates += bytes([DEAD]) * count
                    elif count > plan.limits.max_records:
                        pass  # it is kept as it is, and `copying` sees so by its header, too
                    elif not attributes & CODEC_MASK:
                        if not _map_if_room(keys, header[0], block, at + HEADER_SIZE, after, count):
                            return
                    else:
                        try:
                            with decompressed_content(plan, header, block, at, after) as content:
                                if not _map_if_room(keys, header[0], content, 0, len(content), count):
                                    return
                        except BeyondLimitsError:
                            if len(plan.not_mapped) == _MOST_NOT_MAPPED:
                                return
                            plan.not_mapped.append(header[0])
                    keys.next_offset = last_offset + 1
                done = batches[-1][1] - batches[0][0]
                plan.stats.mapped_bytes += done
                yield done
        keys.next_offset = source.end_offset  # whatever offsets are missing at its end


def _map_if_room(keys: KeyMap, base_offset: int, content: Bytes, first: int, last: int, count: int) -> bool:
    if not keys.has_room(count, last - first):
        return False
    try:
        keys.map_records(content, first, last, count)
    except UncleanableError as error:
        raise UncleanableError(f"the batch at offset {base_offset} cannot be read: {error}") from error
    return True
