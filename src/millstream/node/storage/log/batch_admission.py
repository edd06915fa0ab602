"""Validation of a batch before it is appended, and its conversion for topics with LogAppendTime or their own codec.

Checked are header and checksum, the topic's limits and the producer's sequence. The good case is one expression,
because every append comes here; the reason of a refusal is worked out only when there is one. Order and codes are those
of Kafka's LogValidator, as far as headers can tell.

With `message.timestamp.type=CreateTime` and `compression.type=producer`, the defaults, no batch is converted.
"""

from typing import Final, NamedTuple

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
"""The fields of `records.batch.BatchHeader` as a plain tuple: a named tuple would cost more than the checks."""

LOG_APPEND_TIME: Final = "LogAppendTime"
_REFUSED_ATTRIBUTES: Final = CONTROL_BIT | LOG_APPEND_TIME_BIT
_LAST_CODEC: Final = 4
MAX_WALKED_BYTES: Final = 64 << 10
MAX_WALKED_RECORDS = 10_000 if IS_COMPILED else 10
"""In uncompressed batches of up to this size and count the records are checked too, in a few nanoseconds each
(ADR 25)."""
MAX_NAMED_RECORDS: Final = 500
_NAMED = OpeningLimits(64 << 10, MAX_NAMED_RECORDS)
"""In a batch of up to this, the error names the records with a wrong timestamp."""
_MAX_RECORDS: Final = MAX_DECOMPRESSED_BYTES // MINIMUM_RECORD_BYTES
_FOREVER: Final = 1 << 64

_unpack_from: Final = HEADER.unpack_from


def admit(
    batch: bytearray | memoryview,
    config: LogConfig,
    producers: ProducerState,
    now_ms: int,
    origin: Origin = Origin.CLIENT,
) -> tuple[Header, WrittenBatch | None]:
    """The header of a batch that may be appended; with it the batch as it was written before, if this is a repetition.
    Of a batch in a transaction only the header is checked: `admit_transactional` does the rest.

    Exactly one batch is accepted, as in Kafka: of several batches, only some could be repetitions.
    """
    total = len(batch)
    if total < HEADER_SIZE:
        raise refusal(batch, config, now_ms)
    header: Header = _unpack_from(batch)  # with its type, compiled code compares plain numbers
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
        or count > _MAX_RECORDS
        or (count > config.batch_max_records and origin is Origin.CLIENT)
        or delta < 0
        or max_timestamp > latest
        or (base_timestamp < earliest and base_timestamp != NO_TIMESTAMP)
        or (producer_id >= 0 and (epoch < 0 or (sequence < 0 and (sequence != NO_SEQUENCE or origin is Origin.CLIENT))))
    ):
        raise refusal(batch, config, now_ms)
    if not attributes & CODEC_MASK and count <= MAX_WALKED_RECORDS and total <= MAX_WALKED_BYTES:
        _check_records(batch, total, count, delta)
    if producer_id < 0 or attributes & TRANSACTIONAL_BIT:
        return header, None
    if sequence == NO_SEQUENCE:
        producers.check_epoch(producer_id, epoch, transactional=False)
        return header, None
    return header, producers.check(producer_id, epoch, sequence, (sequence + delta) & MAX_SEQUENCE)


def _check_records(batch: bytearray | memoryview, total: int, count: int, delta: int) -> None:
    """Raises INVALID_RECORD if uncompressed records do not fit their header: no consumer could read past such a
    batch."""
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
    """The remaining checks of a batch in a transaction: as `ProducerState.check`, and whether the transaction may begin
    here."""
    delta, producer_id, epoch, sequence = header[6], header[9], header[10], header[11]
    entry = producers.entries.get(producer_id)
    if (
        entry is not None
        and entry.transaction_start != NO_TRANSACTION
        and entry.epoch == epoch
        and entry.next_sequence == sequence
    ):
        return None  # the usual case: the transaction is open
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
            f"producer {producer_id} has no verified transaction with this partition",
        )
    if sequence == NO_SEQUENCE:
        return None
    if producers.verifications:
        producers.verifications.check_sequence(
            producer_id, sequence, has_batches=entry is not None and bool(entry.batches)
        )
    return producers.check(producer_id, epoch, sequence, last_sequence, transactional=True)


def read_headers(batches: Bytes) -> list[Header]:
    """The headers of whole batches that the leader has validated; CORRUPT_MESSAGE if the framing or a checksum is
    wrong."""
    headers: list[Header] = []
    view = memoryview(batches)
    position, total = 0, len(batches)
    while position < total:
        if total - position < HEADER_SIZE:
            raise _corrupt("less than a batch header at the end")
        header: Header = _unpack_from(batches, position)
        end = position + LOG_OVERHEAD + header[1]
        if header[3] != MAGIC_V2 or header[1] < MINIMUM_LENGTH or end > total:
            raise _corrupt(f"the batch at byte {position} is not whole")
        if crc32c(view[position + CRC_START : end]) != header[4]:
            raise _corrupt(f"the checksum of the batch at byte {position} is wrong")
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
    """The error for a batch of a client that was refused."""
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
        return _corrupt("the checksum is wrong")
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
    if header.record_count > config.batch_max_records:
        # Java clients split the batch after this error. Other clients do not send so many records in one batch.
        return KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.record_count} records; {config.batch_max_records} are allowed"
            " (millstream.batch.max.records): send smaller batches",
        )
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        return KafkaError(ErrorCode.INVALID_RECORD, "a batch with a producer id needs an epoch and a sequence")
    if header.has_log_append_time:
        return KafkaError(ErrorCode.INVALID_TIMESTAMP, "a producer may not set the timestamp type LogAppendTime")
    return KafkaError(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamps {header.base_timestamp} to {header.max_timestamp} are out of the range that"
        f" message.timestamp.before.max.ms and message.timestamp.after.max.ms allow at {now_ms}",
    )


def invalid_timestamps(batch: Bytes, config: LogConfig, now_ms: int) -> InvalidRecordsError | None:
    """The error for a batch that was refused for its timestamps, with the records that are the reason: clients drop
    these, and keep the others. None if the batch is not small."""
    header = read_header(batch)
    earliest, latest = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
    try:
        found = records_outside(header, batch, earliest, latest, _NAMED)
    except KafkaError:
        return None
    if not found:
        return None
    return InvalidRecordsError(
        f"{len(found)} of {header.record_count} records have timestamps out of the range that"
        f" message.timestamp.before.max.ms and message.timestamp.after.max.ms allow at {now_ms};"
        f" record {found[0][0]} is the first",
        tuple((number, f"timestamp {time} is not from {earliest} to {latest}") for number, time in found),
        ErrorCode.INVALID_TIMESTAMP,
    )


def too_large(size: int, config: LogConfig) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the batch has {size} bytes; max.message.bytes allows {config.max_message_bytes}",
    )


def _corrupt(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, reason)


PRODUCER_COMPRESSION: Final = "producer"


def wants_conversion(config: LogConfig) -> bool:
    return config.message_timestamp_type == LOG_APPEND_TIME or config.compression_type != PRODUCER_COMPRESSION


class Recompression(NamedTuple):
    """The compression that the topic sets for its batches."""

    codec: Codec
    level: int | None


def recompression_of(config: LogConfig) -> Recompression | None:
    """None if batches keep the compression of the producer."""
    if config.compression_type == PRODUCER_COMPRESSION:
        return None
    codec = CODEC_BY_NAME[config.compression_type]
    return Recompression(codec, _level(codec, config))


def recompress(batch: Bytes, header: BatchHeader, records: Bytes, wanted: Recompression) -> bytearray:
    """The batch with its decompressed records in another codec, and with a new checksum."""
    changed = bytearray(memoryview(batch)[:HEADER_SIZE])
    changed += compress(wanted.codec, records, wanted.level)
    PLACEMENT.pack_into(changed, 0, header.base_offset, len(changed) - LOG_OVERHEAD, header.leader_epoch)
    ATTRIBUTES.pack_into(changed, ATTRIBUTES_START, header.attributes & ~CODEC_MASK | wanted.codec)
    seal(changed, 0, len(changed))
    return changed


def convert(batch: Bytes, config: LogConfig, now_ms: int) -> bytearray:
    """A validated batch with the timestamp type and the codec of the topic, and with a new checksum.

    Batches of clients were recompressed before (`data.batch_opening`): here they only get the time of the append. Only
    batches of the broker are recompressed here.
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
