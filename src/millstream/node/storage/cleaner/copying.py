"""The two steps of a pass: map the dirty part of a log, then copy groups of segments without superseded records.

Batches that keep all their records are copied as they are. In the dirty part the map has a byte for every record, so
that only batches that lose some of their records are decompressed; in the clean part each record's key is looked up.

Base offset, last offset and sequence of a batch stay as they were (KIP-98), so that consumers find their position and a
producer's last sequence is kept. The delete horizon (KIP-534) replaces the base timestamp, and attribute bit 6 says so;
timestamps of records are relative to it.

A batch above the limits for decompression, or with malformed records, is kept as it is. Then tombstones behind it are
kept too: it may have an older record of their key, which would be visible again without them.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop

from millstream.formats.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Bytes,
    seal,
)
from millstream.formats.records.compiled import check_records
from millstream.formats.records.compression import Codec, compress
from millstream.formats.records.opening import BeyondLimitsError
from millstream.formats.records.varint import MalformedRecordError
from millstream.node.storage.cleaner import compiled
from millstream.node.storage.cleaner.errors import MalformedBatchError, PartlyMappedError, UncleanableError
from millstream.node.storage.cleaner.key_map import DEAD, TOMBSTONE, KeyMap
from millstream.node.storage.cleaner.plan import Plan, Source
from millstream.node.storage.cleaner.records import decompressed_content, read_blocks
from millstream.node.storage.cleaner.segment_copy import SegmentCopy
from millstream.node.storage.index.transaction_index import AbortedTransaction, read_marker

DELETE_HORIZON_BIT = 0x40


def empty_batch(header: BatchHeader) -> bytearray:
    """The batch without its records, as Kafka writes it."""
    kept = header.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    return _assemble(header, b"", kept, NO_TIMESTAMP, header.max_timestamp, 0)


def rebuilt_batch(
    header: BatchHeader,
    data: Bytes,
    first: int,
    fates: bytes | bytearray,
    *,
    drops_tombstones: bool,
    horizon_ms: int | None,
) -> bytearray:
    """The batch with the records that are kept, which are in `data` from `first` on; with `horizon_ms`, its tombstones
    and markers may be removed then."""
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon_ms is not None:
        attributes, base_timestamp = attributes | DELETE_HORIZON_BIT, horizon_ms
    shift_ms = base_timestamp - header.base_timestamp
    content, count, greatest = compiled.kept_records(data, first, fates, drops_tombstones, shift_ms)
    max_timestamp = header.max_timestamp if header.has_log_append_time else header.base_timestamp + greatest
    codec = Codec(attributes & CODEC_MASK)
    if codec is not Codec.NONE:
        content = compress(codec, content)
    return _assemble(header, content, attributes, base_timestamp, max_timestamp, count)


def _assemble(
    header: BatchHeader, content: Bytes, attributes: int, base_timestamp: int, max_timestamp: int, count: int
) -> bytearray:
    batch = bytearray(HEADER_SIZE)
    size = HEADER_SIZE + len(content)
    HEADER.pack_into(
        batch, 0, header.base_offset, size - LOG_OVERHEAD, header.leader_epoch, header.magic, 0, attributes,
        header.last_offset_delta, base_timestamp, max_timestamp, header.producer_id, header.producer_epoch,
        header.base_sequence, count,
    )  # fmt: skip
    batch += content
    seal(batch, 0, size)
    return batch


class CleanedTransactions:
    """Transactions during a pass: records of aborted ones are removed, and markers once no record of theirs is left.

    Fed with the batches of a log in order, and with the aborted transactions in its indexes.
    """

    __slots__ = ("_aborted", "_committed", "_ongoing", "_seen", "retained")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted = [(each.first_offset, each) for each in aborted]
        heapify(self._aborted)
        self._ongoing: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()
        """Producers of ongoing aborted transactions with a batch so far."""
        self._committed: set[int] = set()
        """Producers with a batch in a transaction that is not aborted."""
        self.retained: list[AbortedTransaction] = []
        """Aborted transactions with batches before their markers: the index of the copy must have them."""

    def is_aborted(self, producer_id: int, last_offset: int) -> bool:
        """Note a batch of a transaction; whether that is aborted."""
        self._advance(last_offset)
        ongoing = self._ongoing.get(producer_id)
        if ongoing is not None and ongoing.last_offset > last_offset:
            self._seen.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def is_over(self, batch: bytes, record_count: int, producer_id: int, last_offset: int) -> bool:
        """Note a control batch; whether no batch is left of the transaction that it ends."""
        self._advance(last_offset)
        if record_count == 0:
            return True  # it is empty already
        marker = read_marker(batch)
        if marker is None:
            return False
        if marker.committed:
            if producer_id in self._committed:
                self._committed.discard(producer_id)
                return False
            return True
        transaction = self._ongoing.pop(producer_id, None)
        if transaction is not None and producer_id in self._seen:
            self._seen.discard(producer_id)
            self.retained.append(transaction)
            return False
        return True

    def _advance(self, offset: int) -> None:
        aborted = self._aborted
        while aborted and aborted[0][0] <= offset:
            transaction = heappop(aborted)[1]
            if transaction.last_offset >= offset:  # else its marker is before the begin of this pass, or is removed
                self._ongoing[transaction.producer_id] = transaction


Fields = tuple[int, ...]
"""A batch header: the fields of `BatchHeader`, unnamed."""

_AS_IT_IS = bytearray()
"""Marks a batch that is copied as it is."""
_IN_PART = bytearray()
"""Marks a batch that loses some records, or gets a delete horizon."""


class Copier:
    """Copies all groups of one pass in order: record numbers and transactions continue from group to group."""

    def __init__(self, plan: Plan, keys: KeyMap) -> None:
        self._plan = plan
        self._keys = keys
        self._transactions = CleanedTransactions(plan.aborted)
        self._number = 0
        """The number of the next record of the dirty part."""
        self.finished: SegmentCopy | None = None
        """The copy that was begun last."""
        self._next_not_mapped = 0
        """Index of the next one of the plan's batches that are not mapped."""

    def copy_group(self, group: list[Source]) -> Iterator[int]:
        """Write the group's copy, which is `finished` then; yields bytes read and written, after each block."""
        plan = self._plan
        stats = plan.stats
        copy = self.finished = SegmentCopy(plan, group)
        last_with_batches = [source for source in group if source.size][-1]
        for source in group:
            remaining = source.size
            for block, batches in read_blocks(source.segment.file(), 0, source.size, plan.block_bytes):
                plan.check()
                view = memoryview(block)
                written = copy.size
                for at, after, header in batches:
                    remaining -= after - at
                    stats.read_records += header[12]
                    kept = self._judge(block, at, after, header)
                    # The copy ends with the same offset as its sources: if a segment seems to end early, recovery
                    # finds a gap behind it.
                    if kept is None and (
                        (remaining == 0 and source is last_with_batches) or self._is_last_of_producer(header)
                    ):
                        kept = empty_batch(BatchHeader._make(header)) if header[12] else _AS_IT_IS
                    if kept is _AS_IT_IS:
                        copy.add(view[at:after], header)
                        continue
                    copy.changed = True
                    if header[5] & CONTROL_BIT and header[12] and (kept is None or len(kept) == HEADER_SIZE):
                        copy.lacks_markers = True
                    if kept is not None:
                        copy.add(kept, HEADER.unpack_from(kept))
                done = batches[-1][1] - batches[0][0]
                stats.read_bytes += done
                copy.flush(plan.block_bytes)
                yield done + copy.size - written
        copy.finish(self._transactions.retained)
        self._transactions.retained = []
        yield 0

    # The result for one batch: None if it is removed; _AS_IT_IS; or the batch to write instead.

    def _judge(self, block: bytes, at: int, after: int, header: Fields) -> Bytes | None:
        attributes, count = header[5], header[12]
        last_offset = header[0] + header[6]
        if attributes & CONTROL_BIT:
            return self._judge_marker(block[at:after], BatchHeader._make(header))
        is_aborted = attributes & TRANSACTIONAL_BIT and self._transactions.is_aborted(header[9], last_offset)
        if last_offset < self._plan.dirty_start:
            return None if is_aborted or not count else self._judge_clean(block, at, after, header)
        if header[0] >= self._keys.next_offset:
            return None if is_aborted else _AS_IT_IS  # not mapped: left to the next pass
        if self._was_not_mapped(header):
            return None if is_aborted else self._pass_over(header)
        number = self._number
        self._number += count
        return None if is_aborted or not count else self._judge_dirty(block, at, after, header, number)

    def _judge_marker(self, batch: bytes, header: BatchHeader) -> Bytes | None:
        plan = self._plan
        if not self._transactions.is_over(batch, header.record_count, header.producer_id, header.last_offset):
            return _AS_IT_IS
        if header.record_count == 0 or self._may_forget(header):
            return None
        if header.attributes & DELETE_HORIZON_BIT:
            return _AS_IT_IS
        horizon_ms = plan.now_ms + plan.delete_retention_ms
        if header.record_count > plan.limits.max_records:
            return self._pass_over(header)
        fates = bytes(header.record_count)
        return rebuilt_batch(header, batch, HEADER_SIZE, fates, drops_tombstones=False, horizon_ms=horizon_ms)

    def _judge_clean(self, block: bytes, at: int, after: int, header: Fields) -> Bytes | None:
        count = header[12]
        if count > self._plan.limits.max_records:
            return self._pass_over(header)
        try:
            if not header[5] & CODEC_MASK:
                return self._judge_by_key(block, at + HEADER_SIZE, after, header)
            with decompressed_content(self._plan, header, block, at, after) as content:
                return self._judge_by_key(content, 0, len(content), header)
        except (BeyondLimitsError, UncleanableError):
            return self._pass_over(header)

    def _judge_by_key(self, content: Bytes, first: int, last: int, header: Fields) -> Bytes | None:
        fates = self._keys.fates_by_key(content, first, last, header[12])
        kept = self._judge_whole(fates, header)
        return self._rebuilt(fates, header, content, first) if kept is _IN_PART else kept

    def _judge_dirty(self, block: bytes, at: int, after: int, header: Fields, number: int) -> Bytes | None:
        fates = self._keys.fates[number : number + header[12]]
        kept = self._judge_whole(fates, header)
        if kept is not _IN_PART:
            return kept
        if not header[5] & CODEC_MASK:
            return self._rebuilt(fates, header, block, at + HEADER_SIZE)
        with decompressed_content(self._plan, header, block, at, after) as content:
            return self._rebuilt(fates, header, content, 0)

    def _judge_whole(self, fates: bytearray, header: Fields) -> Bytes | None:
        tombstones = fates.count(TOMBSTONE)
        dead = fates.count(DEAD) + (tombstones if self._may_forget_tombstones(header) else 0)
        if dead == len(fates):
            return None
        return _IN_PART if dead or self._sets_horizon(tombstones, header) else _AS_IT_IS

    def _rebuilt(self, fates: bytearray, header: Fields, content: Bytes, first: int) -> Bytes:
        plan = self._plan
        sets_horizon = self._sets_horizon(fates.count(TOMBSTONE), header)
        return rebuilt_batch(
            BatchHeader._make(header),
            content,
            first,
            fates,
            drops_tombstones=self._may_forget_tombstones(header),
            horizon_ms=plan.now_ms + plan.delete_retention_ms if sets_horizon else None,
        )

    def _sets_horizon(self, tombstones: int, header: Fields) -> bool:
        return bool(tombstones) and not header[5] & DELETE_HORIZON_BIT

    # Batches above the limits, and batches that cannot be read

    def _was_not_mapped(self, header: Fields) -> bool:
        """Whether this batch of the dirty part is not in the map."""
        plan, at = self._plan, self._next_not_mapped
        if at < len(plan.not_mapped) and plan.not_mapped[at] == header[0]:
            self._next_not_mapped += 1
            return True
        return header[12] > plan.limits.max_records

    def _pass_over(self, header: Fields) -> Bytes:
        stats = self._plan.stats
        stats.passed_over += 1
        if stats.first_passed_over < 0:
            stats.first_passed_over = header[0]
        return _AS_IT_IS

    def _may_forget_tombstones(self, header: Fields) -> bool:
        return not self._plan.stats.passed_over and self._may_forget(header)

    def _may_forget(self, header: Fields) -> bool:
        """Whether the delete horizon of the batch has passed."""
        return bool(header[5] & DELETE_HORIZON_BIT) and header[7] <= self._plan.now_ms

    def _is_last_of_producer(self, header: Fields) -> bool:
        last = self._plan.producers.get(header[9]) if header[9] >= 0 else None
        if last is None:
            return False
        if last.offset is not None:
            return header[0] + header[6] == last.offset
        return bool(header[5] & CONTROL_BIT) and header[10] == last.epoch


_MAX_NOT_MAPPED = 1_000_000
"""Batches of one pass that were above the limits when they were decompressed, or that cannot be read; the next pass
goes on behind them."""


def map_dirty(plan: Plan, keys: KeyMap) -> Iterator[int]:
    """Fill the map, as far as it has room; yields, after each block, how many bytes were read.

    PartlyMappedError if a record in the middle of a batch cannot be read: the map has the records before it already.
    With `plan.checks_records` that cannot happen.
    """
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
                        pass  # it is kept as it is; the copy sees that in its header too
                    else:
                        try:
                            if not attributes & CODEC_MASK:
                                if not _map_if_room(plan, keys, header, block, at + HEADER_SIZE, after):
                                    return
                            else:
                                with decompressed_content(plan, header, block, at, after) as content:
                                    if not _map_if_room(plan, keys, header, content, 0, len(content)):
                                        return
                        except (BeyondLimitsError, MalformedBatchError):
                            if len(plan.not_mapped) == _MAX_NOT_MAPPED:
                                return
                            plan.not_mapped.append(header[0])
                    keys.next_offset = last_offset + 1
                done = batches[-1][1] - batches[0][0]
                plan.stats.mapped_bytes += done
                yield done
        keys.next_offset = source.end_offset  # the last offsets may be missing


def _map_if_room(plan: Plan, keys: KeyMap, header: Fields, content: Bytes, first: int, last: int) -> bool:
    count = header[12]
    if plan.checks_records:
        try:
            check_records(content, first, last, count, header[6], False, 0)
        except MalformedRecordError:
            raise MalformedBatchError(f"the batch at offset {header[0]} cannot be read") from None
    if not keys.has_room(count, last - first):
        return False
    try:
        keys.map_records(content, first, last, count)
    except UncleanableError as error:
        raise PartlyMappedError(f"the batch at offset {header[0]} cannot be read: {error}") from error
    return True
