"""Why a batch from a client is refused. The append path tests all of this in one expression; only a failure comes here.

Order and codes are those of Kafka's LogValidator, as far as the header can tell.
"""

from millstream.config.log_config import LogConfig
from millstream.model.errors import ErrorCode, KafkaError
from millstream.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    MAGIC_START,
    MAGIC_V2,
    MINIMUM_LENGTH,
    NO_TIMESTAMP,
    Bytes,
    has_valid_checksum,
    read_header,
)

LAST_CODEC = 4


def refusal(batches: Bytes, position: int, config: LogConfig, now_ms: int) -> KafkaError:
    """The error for the batch at `position`, which was found not to be acceptable."""
    available = len(batches) - position
    if available > MAGIC_START and batches[position + MAGIC_START] in (0, 1):
        return KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            "message formats 0 and 1 are not supported; use a client of Kafka 0.11 or newer",
        )
    if available < HEADER_SIZE:
        return _corrupt(f"{available} bytes are less than a batch header")
    header = read_header(batches, position)
    if header.magic != MAGIC_V2:
        return _corrupt(f"unknown magic {header.magic}")
    if header.length < MINIMUM_LENGTH or header.size > available:
        return _corrupt(f"the batch says it has {header.size} bytes, {available} were sent")
    if header.size > config.max_message_bytes:
        return KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.size} bytes; max.message.bytes allows {config.max_message_bytes}",
        )
    if not has_valid_checksum(batches, position, header):
        return _corrupt("the checksum does not hold")
    if header.codec > LAST_CODEC:
        return KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {header.codec}")
    if header.attributes & CONTROL_BIT:
        return KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        return KafkaError(
            ErrorCode.INVALID_RECORD,
            f"the batch says it has {header.record_count} records, and a last offset delta of {header.last_offset_delta}",
        )
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        return KafkaError(ErrorCode.INVALID_RECORD, "a producer id comes with an epoch and a sequence")
    if header.attributes & LOG_APPEND_TIME_BIT:
        return KafkaError(ErrorCode.INVALID_TIMESTAMP, "a producer may not set the timestamp type LogAppendTime")
    return KafkaError(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamps {header.base_timestamp} to {header.max_timestamp} are out of the range that"
        f" message.timestamp.before.max.ms and message.timestamp.after.max.ms allow at {now_ms}",
    )


def is_too_old(base_timestamp: int, config: LogConfig, now_ms: int) -> bool:
    return base_timestamp != NO_TIMESTAMP and now_ms - base_timestamp > config.message_timestamp_before_max_ms


def codec_of(attributes: int) -> int:
    return attributes & CODEC_MASK


def _corrupt(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, reason)
