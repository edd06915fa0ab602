"""The first part of a pass: the dirty part of a log goes into the key map, as far as the map has room."""

from collections.abc import Iterator

from millstream.records.batch import CODEC_MASK, CONTROL_BIT, HEADER_SIZE, TRANSACTIONAL_BIT
from millstream.storage.cleaner.block_reader import read_blocks
from millstream.storage.cleaner.key_map import DEAD, KeyMap
from millstream.storage.cleaner.plan import Plan
from millstream.storage.cleaner.records import content_of
from millstream.storage.cleaner.transactions import CleanedTransactions


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
                        keys.fates += bytes([DEAD]) * count
                    else:
                        content, first, last = content_of(attributes & CODEC_MASK, block, at + HEADER_SIZE, after)
                        if not keys.has_room(count, last - first):
                            return
                        keys.map_records(content, first, last, count)
                    keys.next_offset = last_offset + 1
                done = batches[-1][1] - batches[0][0]
                plan.stats.mapped_bytes += done
                yield done
        keys.next_offset = source.end_offset  # whatever offsets are missing at its end
