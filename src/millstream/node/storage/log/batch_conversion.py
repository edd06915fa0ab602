"""Changing a batch on its way in, for topics that ask for it: LogAppendTime, or a codec of the topic's own.

This is off the usual path: `message.timestamp.type=CreateTime` with `compression.type=producer` never comes here. Base
offsets and leader epoch are stamped later, by the append itself.
"""

from typing import NamedTuple

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import (
    ATTRIBUTES,
    ATTRIBUTES_START,
    CODEC_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAX_TIMESTAMP,
    MAX_TIMESTAMP_START,
    PLACEMENT,
    BatchHeader,
    Bytes,
    read_header,
    seal,
)
from millstream.formats.records.compression import (
    CODEC_BY_NAME,
    Codec,
    DecompressionFailedError,
    compress,
    decompressed,
)
from millstream.node.storage.log.batch_admission import LOG_APPEND_TIME

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
