"""The second part of a pass: a group of segments is copied into one, without the records that are superseded.

Batches that keep all their records are copied as they are. In the dirty part the map has said of every record what
becomes of it, so that only batches in between are opened; in the clean part each record's key is looked up.
"""

from collections.abc import Iterator

from millstream.records.batch import CODEC_MASK, HEADER_SIZE, BatchHeader, Bytes, read_header
from millstream.storage.cleaner.batches import delete_horizon_ms, empty_batch, rebuilt_batch
from millstream.storage.cleaner.block_reader import read_blocks
from millstream.storage.cleaner.key_map import DEAD, TOMBSTONE, KeyMap
from millstream.storage.cleaner.plan import Plan, Source
from millstream.storage.cleaner.records import RecordSpan, content_of, iterate_spans
from millstream.storage.cleaner.segment_copy import SegmentCopy
from millstream.storage.cleaner.transactions import CleanedTransactions


class Copier:
    """Goes over all groups of one pass in order: records are numbered, and transactions remembered, across them."""

    def __init__(self, plan: Plan, keys: KeyMap) -> None:
        self._plan = plan
        self._keys = keys
        self._transactions = CleanedTransactions(plan.aborted)
        self._number = 0
        """Of the next record of the dirty part."""
        self.finished: SegmentCopy | None = None
        """The copy that was begun last."""

    def copy_group(self, group: list[Source]) -> Iterator[int]:
        """Write the group's copy, which is `finished` then; yields bytes read and written, after each block."""
        plan = self._plan
        copy = self.finished = SegmentCopy(plan, group)
        last_with_batches = [source for source in group if source.size][-1]
        for source in group:
            remaining = source.size
            for block, batches in read_blocks(source.segment.file(), 0, source.size, plan.block_bytes):
                plan.check()
                written = copy.size
                for at, header in batches:
                    end = at + header.size
                    remaining -= header.size
                    # The copy ends with the offset that its sources end with: where a segment seems to end early,
                    # recovery would take what follows for a gap in the log.
                    is_last = remaining == 0 and source is last_with_batches
                    kept = self._judge(block, at, end, header, is_last)
                    if kept is None:
                        copy.changed = True
                    elif kept is _AS_IT_IS:
                        copy.add(memoryview(block)[at:end], header)
                    else:
                        copy.changed = True
                        copy.add(kept, read_header(kept))
                    plan.stats.read_records += header.record_count
                plan.stats.read_bytes += len(block)
                copy.flush()
                yield len(block) + copy.size - written
        copy.finish(self._transactions.retained)
        self._transactions.retained = []
        yield 0

    # What becomes of one batch: None, it goes; _AS_IT_IS; or what is written in its place.

    def _judge(self, block: bytes, at: int, end: int, header: BatchHeader, is_last: bool) -> Bytes | None:
        if header.is_control:
            kept = self._judge_marker(block, at, end, header)
        else:
            kept = self._judge_data(block, at, end, header)
        if kept is None and (is_last or self._is_last_of_producer(header)):
            return empty_batch(header) if header.record_count else _AS_IT_IS
        return kept

    def _judge_marker(self, block: bytes, at: int, end: int, header: BatchHeader) -> Bytes | None:
        plan = self._plan
        batch = block[at:end]
        if not self._transactions.is_over(batch, header.record_count, header.producer_id, header.last_offset):
            return _AS_IT_IS
        horizon = delete_horizon_ms(header)
        if header.record_count == 0 or (horizon is not None and horizon <= plan.now_ms):
            return None
        if horizon is not None:
            return _AS_IT_IS
        spans = list(iterate_spans(batch, HEADER_SIZE, header.record_count, with_keys=False))
        return rebuilt_batch(header, batch, spans, plan.now_ms + plan.delete_retention_ms)

    def _judge_data(self, block: bytes, at: int, end: int, header: BatchHeader) -> Bytes | None:
        aborted = self._transactions.is_aborted(header.attributes, header.producer_id, header.last_offset)
        count = header.record_count
        if header.last_offset < self._plan.dirty_start:
            return None if aborted or not count else self._judge_clean(block, at, end, header)
        if header.base_offset >= self._keys.next_offset:
            return None if aborted else _AS_IT_IS  # not mapped: the next pass will say
        number = self._number
        self._number += count
        return None if aborted or not count else self._judge_dirty(block, at, end, header, number)

    def _judge_clean(self, block: bytes, at: int, end: int, header: BatchHeader) -> Bytes | None:
        content, first, _ = content_of(header.attributes & CODEC_MASK, block, at + HEADER_SIZE, end)
        latest = self._keys.latest
        horizon = delete_horizon_ms(header)
        forgets = horizon is not None and horizon <= self._plan.now_ms
        kept = [
            span
            for span in iterate_spans(content, first, header.record_count, with_keys=True)
            if span.key is not None and span.key not in latest and not (forgets and span.is_tombstone)
        ]
        return self._rebuild(header, content, kept, any(span.is_tombstone for span in kept))

    def _judge_dirty(self, block: bytes, at: int, end: int, header: BatchHeader, number: int) -> Bytes | None:
        fates = self._keys.fates
        count = header.record_count
        after = number + count
        horizon = delete_horizon_ms(header)
        forgets = horizon is not None and horizon <= self._plan.now_ms
        has_tombstones = fates.find(TOMBSTONE, number, after) >= 0
        dead = fates.count(DEAD, number, after)
        if forgets and has_tombstones:
            dead += fates.count(TOMBSTONE, number, after)
        if dead == count:
            return None
        if dead == 0 and (horizon is not None or not has_tombstones):
            return _AS_IT_IS
        content, first, _ = content_of(header.attributes & CODEC_MASK, block, at + HEADER_SIZE, end)
        gone = (DEAD, TOMBSTONE) if forgets else (DEAD,)
        spans = iterate_spans(content, first, count, with_keys=False)
        kept = [span for fate, span in zip(fates[number:after], spans, strict=True) if fate not in gone]
        return self._rebuild(header, content, kept, has_tombstones and not forgets)

    def _rebuild(
        self, header: BatchHeader, content: bytes, kept: list[RecordSpan], has_tombstones: bool
    ) -> Bytes | None:
        if not kept:
            return None
        plan = self._plan
        horizon = None
        if has_tombstones and delete_horizon_ms(header) is None:
            horizon = plan.now_ms + plan.delete_retention_ms
        elif len(kept) == header.record_count:
            return _AS_IT_IS
        return rebuilt_batch(header, content, kept, horizon)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        if header.producer_id < 0:
            return False
        last = self._plan.producers.get(header.producer_id)
        if last is None:
            return False
        if last.offset is not None:
            return header.last_offset == last.offset
        return header.is_control and header.producer_epoch == last.epoch


_AS_IT_IS: Bytes = b"as it is"
