"""One compacted log on a real disk, written to, cleaned, stopped and killed; and what a reader would find in it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from millstream.config.topic_config import LogConfig
from millstream.formats.model.identifiers import Marker
from millstream.formats.records.batch import BatchHeader
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import Record, build_batch, read_batches
from millstream.node.storage.cleaner.cleaning import Cleaning, Offload
from millstream.node.storage.cleaner.plan import CleanerSettings, Throttle, cleanable
from millstream.node.storage.log.partition_log import PartitionLog

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000
COMPACT = frozenset({"compact"})
Put = tuple[bytes | None, bytes | None]
T = TypeVar("T")


def config(**settings: object) -> LogConfig:
    return LogConfig(**{"cleanup_policy": COMPACT, "segment_bytes": 1000, "index_interval_bytes": 100, **settings})  # type: ignore[arg-type]


def append(
    log: PartitionLog,
    *puts: Put,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
    timestamp: int = NOW,
) -> int:
    """One batch of (key, value); `producer` is id, epoch, first sequence. Returns its base offset."""
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    batch = build_batch(
        [Record(key, value, timestamp=timestamp + at) for at, (key, value) in enumerate(puts)],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return log.append(batch, leader_epoch=0, now_ms=NOW).base_offset


def end_transaction(log: PartitionLog, producer_id: int, *, committed: bool, epoch: int = 0) -> int:
    return log.append_marker(Marker(producer_id, epoch, 0, committed, 1), leader_epoch=0, now_ms=NOW).base_offset


def offload(function: Callable[[], T]) -> "asyncio.Future[T]":
    """In the same thread, at once."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    try:
        future.set_result(function())
    except Exception as error:
        future.set_exception(error)
    return future


def begin_cleaning(
    log: PartitionLog,
    now_ms: int = NOW,
    settings: CleanerSettings | None = None,
    *,
    is_wanted: Callable[[PartitionLog], bool] = lambda log: True,
    run: Offload = offload,
    throttle: Throttle | None = None,
) -> Cleaning:
    return Cleaning(
        log,
        cleanable(log, now_ms),
        settings or CleanerSettings(),
        now_ms,
        offload=run,
        throttle=throttle or Throttle(),
        now=lambda: 0.0,
        is_wanted=is_wanted,
    )


def clean(log: PartitionLog, now_ms: int = NOW, settings: CleanerSettings | None = None) -> Cleaning:
    """One pass over the log."""
    cleaning = begin_cleaning(log, now_ms, settings)
    log.cleaned_offset = asyncio.run(cleaning.run())
    return cleaning


def batches(log: PartitionLog, start: int | None = None) -> list[tuple[BatchHeader, list[Record]]]:
    """All batches as a reader gets them, from the log's start on."""
    offset = log.log_start_offset if start is None else start
    found = []
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20, up_to=log.log_end_offset, at_least_one=True)
        piece.prepare()
        for header, records in read_batches(piece.read()):
            found.append((header, records))
            offset = header.last_offset + 1
        if not piece.length:
            break
    return found


def records(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of all data records."""
    return [
        (record.offset, record.key, record.value)
        for header, found in batches(log)
        if not header.is_control
        for record in found
    ]


def committed_records(log: PartitionLog) -> list[Record]:
    """What a read_committed consumer sees, by the rules of Kafka's clients."""
    up_to = log.last_stable_offset
    aborted = sorted(log.aborted_transactions(log.log_start_offset, up_to), key=lambda entry: entry[1])
    aborting: set[int] = set()
    seen: list[Record] = []
    for header, found in batches(log):
        while aborted and aborted[0][1] <= header.last_offset:
            aborting.add(aborted.pop(0)[0])
        if header.base_offset >= up_to:
            break
        if header.is_control:
            if found and _is_abort(found[0]):
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            seen += found
    return seen


def _is_abort(record: Record) -> bool:
    assert record.key is not None
    return record.key[2:4] == b"\x00\x00"


def table(seen: Sequence[Record]) -> dict[bytes, bytes]:
    """What a consumer that keeps the latest value of each key ends up with."""
    latest: dict[bytes, bytes] = {}
    for record in seen:
        assert record.key is not None
        if record.value is None:
            latest.pop(record.key, None)
        else:
            latest[record.key] = record.value
    return latest
