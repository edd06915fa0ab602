"""Whether a client's batch may enter the log: its header and checksum, the topic's limits, the producer's sequence.

The good case is one expression, because every append comes through here; why a batch is refused is worked out
only when it is. Order and codes are those of Kafka's LogValidator, as far as headers can tell.

Changing a batch on its way in, for topics that ask for it: LogAppendTime, or a codec of the topic's own.

This is off the usual path: `message.timestamp.type=CreateTime` with `compression.type=producer` never comes here. Base
offsets and leader epoch are stamped later, by the append itself.
"""

from typing import NamedTuple

from crc32c import crc32c

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, InvalidRecordsError, KafkaError
from millstream.formats.model.identifiers import Origin, VerificationGuard
from millstream.formats.records.batch import (
    ATTRIBUTES,
    ATTRIBUTES_START,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC_START,
    MAGIC_V2,
    MAX_SEQUENCE,
    MAX_TIMESTAMP,
    MAX_TIMESTAMP_START,
    MINIMUM_LENGTH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PLACEMENT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Bytes,
    has_valid_checksum,
    is_plausible,
    read_header,
    seal,
)
from millstream.formats.records.compiled import IS_COMPILED, check_records
from millstream.formats.records.compression import (
    CODEC_BY_NAME,
    MAX_DECOMPRESSED_BYTES,
    MOST_GROWTH,
    Codec,
    DecompressionFailedError,
    compress,
    decompressed,
)
from millstream.formats.records.opening import MINIMUM_RECORD_BYTES, OpeningLimits, is_possible_count, records_outside
from millstream.formats.records.varint import MalformedRecordError
from millstream.node.storage.log.producer_state import NO_TRANSACTION, ProducerState, WrittenBatch

Header = tuple[int, ...]
"""The fields of `records.batch.BatchHeader` as plain values: naming them costs more than checking them."""

LOG_APPEND_TIME = "LogAppendTime"
_REFUSED_ATTRIBUTES = CONTROL_BIT | LOG_APPEND_TIME_BIT
_LAST_CODEC = 4
MOST_WALKED_BYTES = 64 << 10
MOST_WALKED = 10_000 if IS_COMPILED else 10
"""Uncompressed batches of up to so many bytes and records are walked over, which takes a few nanoseconds for each
record (ADR 25)."""
_NAMED = OpeningLimits(64 << 10, 500)
"""In a batch of up to this, records with a wrong timestamp are named."""
_MOST_RECORDS = MAX_DECOMPRESSED_BYTES // MINIMUM_RECORD_BYTES
_FOREVER = 1 << 64

_unpack_from = HEADER.unpack_from


def admit(
    batch: bytearray | memoryview,
    config: LogConfig,
    producers: ProducerState,
    now_ms: int,
    origin: Origin = Origin.CLIENT,
) -> tuple[Header, WrittenBatch | None]:
    """The header of a batch that may be appended; with it the batch as it was written before, when a producer repeats
    itself. Of a batch in a transaction the header alone is judged: `admit_transactional` has the rest.

    Exactly one batch, as Kafka takes it from a produce request: of several, one that is a repetition would have to be
    answered for all.
    """
    total = len(batch)
    if total < HEADER_SIZE:
        raise refusal(batch, config, now_ms)
    header = _unpack_from(batch)
    _, length, _, magic, crc, attributes, delta, base_timestamp, max_timestamp, producer_id, epoch, sequence, count = (
        header
    )
    if config.message_timestamp_type == LOG_APPEND_TIME:
        latest, earliest = _FOREVER, -_FOREVER
    else:
        latest = now_ms + config.message_timestamp_after_max_ms
        earliest = now_ms - config.message_timestamp_before_max_ms
    if (
        magic != MAGIC_V2
        or length < MINIMUM_LENGTH
        or length > config.max_message_bytes - LOG_OVERHEAD
        or length + LOG_OVERHEAD != total
        or crc32c(memoryview(batch)[CRC_START:]) != crc
        or attributes & _REFUSED_ATTRIBUTES
        or attributes & CODEC_MASK > _LAST_CODEC
        or count != delta + 1
        or count * MINIMUM_RECORD_BYTES > (length - MINIMUM_LENGTH) * MOST_GROWTH[attributes & CODEC_MASK]
        or count > _MOST_RECORDS
        or delta < 0
        or max_timestamp > latest
        or (base_timestamp < earliest and base_timestamp != NO_TIMESTAMP)
        or (producer_id >= 0 and (epoch < 0 or (sequence < 0 and (sequence != NO_SEQUENCE or origin is Origin.CLIENT))))
    ):
        raise refusal(batch, config, now_ms)
    if not attributes & CODEC_MASK and count <= MOST_WALKED and total <= MOST_WALKED_BYTES:
        _check_records(batch, total, count, delta)
    if producer_id < 0 or attributes & TRANSACTIONAL_BIT:
        return header, None
    if sequence == NO_SEQUENCE:
        producers.check_epoch(producer_id, epoch, transactional=False)
        return header, None
    return header, producers.check(producer_id, epoch, sequence, (sequence + delta) & MAX_SEQUENCE)


def _check_records(batch: bytearray | memoryview, total: int, count: int, delta: int) -> None:
    """Whether uncompressed records are what their header says: no consumer gets past a batch that is not."""
    try:
        check_records(batch, HEADER_SIZE, total, count, delta, False, 0)
    except MalformedRecordError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"the records are not what their batch says: {error}") from None


def admit_transactional(
    header: Header,
    producers: ProducerState,
    guard: VerificationGuard | None,
    needs_guard: bool,
) -> WrittenBatch | None:
    """The rest of the judgement on a batch of a transaction: as `ProducerState.check`, and whether the transaction may
    begin here."""
    delta, producer_id, epoch, sequence = header[6], header[9], header[10], header[11]
    entry = producers.entries.get(producer_id)
    if (
        entry is not None
        and entry.transaction_start != NO_TRANSACTION
        and entry.epoch == epoch
        and entry.next_sequence == sequence
    ):
        return None  # an open transaction goes on, as nearly always
    last_sequence = (sequence + delta) & MAX_SEQUENCE
    if sequence != NO_SEQUENCE:
        repeated = producers.written_before(producer_id, epoch, sequence, last_sequence)
        if repeated is not None:
            return repeated
    producers.check_epoch(producer_id, epoch, transactional=True)
    if (
        needs_guard
        and not producers.has_open_transaction(producer_id, epoch)
        and not producers.verifications.is_current(producer_id, guard)
    ):
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"producer {producer_id} has no transaction that is known to have this partition",
        )
    if sequence == NO_SEQUENCE:
        return None
    if producers.verifications:
        producers.verifications.check_sequence(
            producer_id, sequence, has_batches=entry is not None and bool(entry.batches)
        )
    return producers.check(producer_id, epoch, sequence, last_sequence, transactional=True)


def read_headers(batches: Bytes) -> list[Header]:
    """The headers of whole batches that someone else has judged; CORRUPT_MESSAGE where the framing or a checksum
    fails."""
    headers: list[Header] = []
    view = memoryview(batches)
    position, total = 0, len(batches)
    while position < total:
        if total - position < HEADER_SIZE:
            raise _corrupt("less than a batch header at the end")
        header = _unpack_from(batches, position)
        end = position + LOG_OVERHEAD + header[1]
        if header[3] != MAGIC_V2 or header[1] < MINIMUM_LENGTH or end > total:
            raise _corrupt(f"the batch at byte {position} is not whole")
        if crc32c(view[position + CRC_START : end]) != header[4]:
            raise _corrupt(f"the checksum of the batch at byte {position} does not hold")
        headers.append(header)
        position = end
    if not headers:
        raise _corrupt("no batch was sent")
    return headers


def check_order(headers: list[Header], next_offset: int) -> int:
    """The last offset of a leader's batches; OFFSET_OUT_OF_RANGE if one begins before the end of the one before."""
    for header in headers:
        if header[0] < next_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"the leader sent offset {header[0]}, the log ends at {next_offset}"
            )
        next_offset = header[0] + header[6] + 1
    return next_offset - 1


def refusal(batch: Bytes, config: LogConfig, now_ms: int) -> KafkaError:
    """The error for what a client sent, which was found not to be acceptable."""
    available = len(batch)
    if available > MAGIC_START and batch[MAGIC_START] in (0, 1):
        return KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            "message formats 0 and 1 are not supported; use a client of Kafka 0.11 or newer",
        )
    if available < HEADER_SIZE:
        return _corrupt(f"{available} bytes are less than a batch header")
    header = read_header(batch)
    if header.magic != MAGIC_V2:
        return _corrupt(f"unknown magic {header.magic}")
    if header.length < MINIMUM_LENGTH or header.size > available:
        return _corrupt(f"the batch says it has {header.size} bytes, {available} were sent")
    if header.size > config.max_message_bytes:
        return too_large(header.size, config)
    if header.size < available:
        rest = memoryview(batch)[header.size :]
        if len(rest) >= HEADER_SIZE and is_plausible(read_header(rest)):
            return KafkaError(
                ErrorCode.INVALID_RECORD, "exactly one record batch can be produced to a partition at once"
            )
        return _corrupt(f"{len(rest)} bytes after the batch are not a batch")
    if not has_valid_checksum(batch, 0, header):
        return _corrupt("the checksum does not hold")
    if header.codec > _LAST_CODEC:
        return KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {header.codec}")
    if header.is_control:
        return KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        return KafkaError(
            ErrorCode.INVALID_RECORD,
            f"the batch says {header.record_count} records and a last offset delta of {header.last_offset_delta}",
        )
    if not is_possible_count(header):
        return KafkaError(
            ErrorCode.INVALID_RECORD, f"{header.record_count} records cannot be in {header.size - HEADER_SIZE} bytes"
        )
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        return KafkaError(ErrorCode.INVALID_RECORD, "a producer id comes with an epoch and a sequence")
    if header.has_log_append_time:
        return KafkaError(ErrorCode.INVALID_TIMESTAMP, "a producer may not set the timestamp type LogAppendTime")
    return _invalid_timestamps(header, batch, config, now_ms)


def _invalid_timestamps(header: BatchHeader, batch: Bytes, config: LogConfig, now_ms: int) -> KafkaError:
    """Names the records if the batch is small: clients drop these, and keep the others. Else it is refused as a
    whole."""
    earliest, latest = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
    try:
        found = records_outside(header, batch, earliest, latest, _NAMED)
    except KafkaError:
        found = []
    if found:
        return InvalidRecordsError(
            f"{len(found)} of {header.record_count} records have timestamps out of the range that"
            f" message.timestamp.before.max.ms and message.timestamp.after.max.ms allow at {now_ms};"
            f" record {found[0][0]} is the first",
            tuple((number, f"timestamp {time} is not from {earliest} to {latest}") for number, time in found),
            ErrorCode.INVALID_TIMESTAMP,
        )
    return KafkaError(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamps {header.base_timestamp} to {header.max_timestamp} are out of the range that"
        f" message.timestamp.before.max.ms and message.timestamp.after.max.ms allow at {now_ms}",
    )


def too_large(size: int, config: LogConfig) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the batch has {size} bytes; max.message.bytes allows {config.max_message_bytes}",
    )


def _corrupt(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, reason)


PRODUCER_COMPRESSION = "producer"


def wants_conversion(config: LogConfig) -> bool:
    return config.message_timestamp_type == LOG_APPEND_TIME or config.compression_type != PRODUCER_COMPRESSION


class Recompression(NamedTuple):
    """What the topic wants its batches compressed with."""

    codec: Codec
    level: int | None


def recompression_of(config: LogConfig) -> Recompression | None:
    """None if batches stay compressed as they were sent."""
    if config.compression_type == PRODUCER_COMPRESSION:
        return None
    codec = CODEC_BY_NAME[config.compression_type]
    return Recompression(codec, _level(codec, config))


def recompress(batch: Bytes, header: BatchHeader, records: Bytes, wanted: Recompression) -> bytearray:
    """The batch with its records, which were decompressed already, in another codec; with a new checksum."""
    changed = bytearray(memoryview(batch)[:HEADER_SIZE])
    changed += compress(wanted.codec, records, wanted.level)
    PLACEMENT.pack_into(changed, 0, header.base_offset, len(changed) - LOG_OVERHEAD, header.leader_epoch)
    ATTRIBUTES.pack_into(changed, ATTRIBUTES_START, header.attributes & ~CODEC_MASK | wanted.codec)
    seal(changed, 0, len(changed))
    return changed


def convert(batch: Bytes, config: LogConfig, now_ms: int) -> bytearray:
    """The batch as the topic wants it, with a new checksum. It was validated before.

    Batches of clients have their codec already when they come here (`broker.batch_opening`): then only the time of the
    append is put in. What is recompressed here is the broker's own.
    """
    header = read_header(batch)
    wanted = recompression_of(config)
    if wanted is not None and wanted.codec != header.codec:
        try:
            with decompressed(Codec(header.codec), memoryview(batch)[HEADER_SIZE:]) as records:
                changed = recompress(batch, header, records, wanted)
        except DecompressionFailedError as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the records cannot be decompressed: {error}") from error
    else:
        changed = bytearray(batch)
    if config.message_timestamp_type == LOG_APPEND_TIME:
        (attributes,) = ATTRIBUTES.unpack_from(changed, ATTRIBUTES_START)
        ATTRIBUTES.pack_into(changed, ATTRIBUTES_START, attributes | LOG_APPEND_TIME_BIT)
        MAX_TIMESTAMP.pack_into(changed, MAX_TIMESTAMP_START, now_ms)
        seal(changed, 0, len(changed))
    return changed


def _level(codec: Codec, config: LogConfig) -> int | None:
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    return levels.get(codec)
