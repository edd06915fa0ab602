"""Reads the files of a partition entry by entry, and reports their problems.

Does not use the code by which a broker opens a log, because it must also read files that a broker cannot open. Each
entry is a dictionary with `file` and `kind`; an entry of kind `problem` describes damage.
"""

import base64
import mmap
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any

from millstream.formats.model.errors import KafkaError
from millstream.formats.records.batch import HEADER_SIZE, BatchHeader, has_valid_checksum, is_plausible, read_header
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import Record, iterate_records
from millstream.node.storage.file_formats import (
    CLEANED_OFFSETS,
    HIGH_WATERMARKS,
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    LOG_SUFFIX,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    DamagedFileError,
    decode_epochs,
    decode_offsets,
    decode_topic_id,
    parse_offset_file,
)
from millstream.node.storage.index import offset_index, time_index
from millstream.node.storage.index.transaction_index import decode_aborted, read_marker
from millstream.node.storage.log.producer_snapshots import decode_snapshot

Entry = dict[str, Any]
Progress = Callable[[int], None]
"""Called with the number of bytes read of a segment."""

OFFSET_CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANED_OFFSETS)


def files_of(path: str) -> list[str]:
    """The files to read: the path itself, or all log files in a partition or data directory, in order."""
    if not os.path.isdir(path):
        return [path]
    found = []
    for directory, inner, names in os.walk(path):
        inner.sort()
        found += [os.path.join(directory, name) for name in sorted(names) if _reader_of(name) is not None]
    return found


def read_file(path: str, *, records: bool, progress: Progress | None = None) -> Iterator[Entry]:
    """The entries of one file, each with the file's path and its kind."""
    name = os.path.basename(path)
    reader = _reader_of(name)
    if reader is None:
        yield _problem(
            "this is not a log file: expected .log, .index, .timeindex, .txnindex, .snapshot or a checkpoint"
        )
        return
    try:
        if reader is read_segment:
            yield from read_segment(path, records=records, progress=progress)
        else:
            yield from reader(path)
    except DamagedFileError as error:
        yield _problem(str(error))
    except FileNotFoundError:
        pass  # deleted by a running broker in the meantime


def read_segment(path: str, *, records: bool, progress: Progress | None = None) -> Iterator[Entry]:
    """The batches of a segment with their checksums checked, and their records if wanted."""
    parsed = parse_offset_file(os.path.basename(path))
    expected = parsed[0] if parsed else 0
    data = _mapped(path)
    position, end = 0, len(data)
    while end - position >= HEADER_SIZE:
        header = read_header(data, position)
        if not is_plausible(header) or position + header.size > end:
            break
        valid = has_valid_checksum(data, position, header)
        yield _batch(position, header, valid) | _marker(header, data[position : position + header.size])
        if not valid:
            yield _problem("the checksum is wrong", position)
        if header.base_offset < expected:
            yield _problem(f"offset {header.base_offset} comes after {expected - 1}", position)
        expected = header.last_offset + 1
        if records and valid:
            try:
                for record in iterate_records(header, data[position : position + header.size]):
                    yield _record(record)
            except KafkaError as error:
                yield _problem(error.message, position)
        position += header.size
        if progress is not None:
            progress(position)
    if position < end:
        zeros = not any(data[position : min(end, position + 4096)])
        what = "of zeros" if zeros else "that are not a complete batch"
        yield _problem(f"the file ends with {end - position} bytes {what}", position)


def read_offset_index(path: str) -> Iterator[Entry]:
    """The entries of an offset index, compared with the segment beside it."""
    base, batches = _segment_beside(path)
    previous = (-1, -1)
    for relative, position in _entries(path, offset_index.ENTRY):
        if (relative, position) == (0, 0):
            return  # Kafka allocates an active index in full, so the rest is zeros
        yield {"kind": "index entry", "offset": base + relative, "position": position}
        if relative <= previous[0] or position <= previous[1]:
            yield _problem(f"entry {base + relative} is not greater than the previous one", position)
        previous = (relative, position)
        if batches is not None and batches.get(position, (0, -1))[1] != base + relative:
            yield _problem(f"there is no batch at {position} that ends with offset {base + relative}", position)


def read_time_index(path: str) -> Iterator[Entry]:
    """The entries of a time index, compared with the segment beside it."""
    base, batches = _segment_beside(path)
    spans = sorted(batches.values()) if batches is not None else None
    previous = (-1, -1)
    for timestamp, relative in _entries(path, time_index.ENTRY):
        if (timestamp, relative) == (0, 0):
            return
        yield {"kind": "time index entry", "timestamp": timestamp, "offset": base + relative}
        if timestamp <= previous[0] or relative < previous[1]:
            yield _problem(f"timestamp {timestamp} is not greater than the previous one")
        previous = (timestamp, relative)
        if spans is not None and not _within(spans, base + relative):
            yield _problem(f"offset {base + relative} is not in the segment")


def read_transaction_index(path: str) -> Iterator[Entry]:
    """The aborted transactions of a segment, compared with the markers in it."""
    base, batches = _segment_beside(path)
    firsts = None if batches is None else {first for first, _ in batches.values()}
    for aborted in decode_aborted(_content(path), base):
        yield {"kind": "aborted transaction", **aborted._asdict()}
        if firsts is not None and aborted.last_offset not in firsts:
            yield _problem(f"there is no batch at offset {aborted.last_offset}, where the marker should be")


def read_snapshot(path: str) -> Iterator[Entry]:
    """The producers of a snapshot."""
    for entry in decode_snapshot(_content(path)):
        last = entry.last_batch
        yield {
            "kind": "producer",
            "producer_id": entry.producer_id,
            "producer_epoch": entry.epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": last.last_offset if last else -1,
            "last_timestamp": entry.last_timestamp,
            "coordinator_epoch": entry.coordinator_epoch,
            "transaction_start": entry.transaction_start,
        }


def read_leader_epochs(path: str) -> Iterator[Entry]:
    """The start offsets of the leader epochs."""
    for epoch, start in decode_epochs(_content(path)):
        yield {"kind": "leader epoch", "epoch": epoch, "start_offset": start}


def read_partition_metadata(path: str) -> Iterator[Entry]:
    """The topic's id."""
    yield {"kind": "topic id", "id": str(decode_topic_id(_content(path)))}


def read_offset_checkpoint(path: str) -> Iterator[Entry]:
    """Offsets by partition."""
    for partition, offset in decode_offsets(_content(path)).items():
        yield {"kind": "offset", "partition": str(partition), "offset": offset}


def _reader_of(name: str) -> Callable[..., Iterator[Entry]] | None:
    by_name: dict[str, Callable[..., Iterator[Entry]]] = {
        LEADER_EPOCHS: read_leader_epochs,
        PARTITION_METADATA: read_partition_metadata,
        **dict.fromkeys(OFFSET_CHECKPOINTS, read_offset_checkpoint),
        LOG_SUFFIX: read_segment,
        INDEX_SUFFIX: read_offset_index,
        TIME_INDEX_SUFFIX: read_time_index,
        TRANSACTION_INDEX_SUFFIX: read_transaction_index,
        SNAPSHOT_SUFFIX: read_snapshot,
    }
    return by_name.get(name) or by_name.get(os.path.splitext(name)[1])


def _batch(position: int, header: BatchHeader, valid: bool) -> Entry:
    codec = header.codec
    return {
        "kind": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "position": position,
        "size": header.size,
        "codec": Codec(codec).name.lower() if codec in set(Codec) else f"unknown ({codec})",
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "LogAppendTime" if header.has_log_append_time else "CreateTime",
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": header.crc,
        "valid": valid,
    }


def _marker(header: BatchHeader, batch: memoryview) -> Entry:
    """The transaction marker of a control batch, if it has one."""
    marker = read_marker(batch) if header.is_control else None
    if marker is None:
        return {}
    outcome = "commit" if marker.committed else "abort"
    return {"marker": outcome, "coordinator_epoch": marker.coordinator_epoch}


def _record(record: Record) -> Entry:
    return {
        "kind": "record",
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[_text(name.encode("utf-8", "surrogateescape")), _text(value)] for name, value in record.headers],
    }


def _text(content: bytes | None) -> str | None:
    """UTF-8 text as it is, other bytes as base64."""
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(content or b'').decode()}"


def _problem(text: str, position: int | None = None) -> Entry:
    return {"kind": "problem", **({} if position is None else {"position": position}), "text": text}


def _segment_beside(path: str) -> tuple[int, dict[int, tuple[int, int]] | None]:
    """Base offset of an index, and its segment's batches, position to (first, last offset); None if it is missing."""
    parsed = parse_offset_file(os.path.basename(path))
    segment = os.path.splitext(path)[0] + LOG_SUFFIX
    if not os.path.exists(segment):
        return parsed[0] if parsed else 0, None
    data = _mapped(segment)
    batches = {}
    position = 0
    while len(data) - position >= HEADER_SIZE:
        header = read_header(data, position)
        if not is_plausible(header):
            break
        batches[position] = (header.base_offset, header.last_offset)
        position += header.size
    return parsed[0] if parsed else 0, batches


def _within(spans: list[tuple[int, int]], offset: int) -> bool:
    slot = bisect_right(spans, offset, key=lambda span: span[0]) - 1
    return slot >= 0 and offset <= spans[slot][1]


def _entries(path: str, entry: Struct) -> Iterator[tuple[Any, ...]]:
    content = _content(path)
    whole = len(content) - len(content) % entry.size
    if whole != len(content):
        raise DamagedFileError(f"{len(content)} bytes are not a whole number of entries of {entry.size} bytes")
    return entry.iter_unpack(content)


def _mapped(path: str) -> memoryview:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
