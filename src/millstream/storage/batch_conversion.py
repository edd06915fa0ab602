"""Changing a batch on its way in, for topics that ask for it: LogAppendTime, or a codec of the topic's own.

This is off the usual path: `message.timestamp.type=CreateTime` with `compression.type=producer` never comes here. Base
offsets and leader epoch are stamped later, by the append itself.
"""

from millstream.config.log_config import LogConfig
from millstream.model.errors import ErrorCode, KafkaError
from millstream.records.batch import (
    ATTRIBUTES,
    ATTRIBUTES_START,
    CODEC_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAX_TIMESTAMP,
    MAX_TIMESTAMP_START,
    PLACEMENT,
    Bytes,
    read_header,
    seal,
)
from millstream.records.compression import CODEC_BY_NAME, Codec, DecompressionFailedError, compress, decompress
from millstream.storage.batch_admission import LOG_APPEND_TIME

PRODUCER_COMPRESSION = "producer"


def wants_conversion(config: LogConfig) -> bool:
    return config.message_timestamp_type == LOG_APPEND_TIME or config.compression_type != PRODUCER_COMPRESSION


def convert(batch: Bytes, config: LogConfig, now_ms: int) -> bytearray:
    """The batch as the topic wants it, its checksum made anew. It was validated before."""
    header = read_header(batch)
    attributes = header.attributes
    codec = attributes & CODEC_MASK
    changed = bytearray(batch)
    wanted = codec if config.compression_type == PRODUCER_COMPRESSION else CODEC_BY_NAME[config.compression_type]
    if wanted != codec:
        try:
            records = decompress(Codec(codec), memoryview(batch)[HEADER_SIZE:])
        except DecompressionFailedError as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the records cannot be decompressed: {error}") from error
        changed[HEADER_SIZE:] = compress(Codec(wanted), records, _level(Codec(wanted), config))
        attributes = attributes & ~CODEC_MASK | wanted
        PLACEMENT.pack_into(changed, 0, header.base_offset, len(changed) - LOG_OVERHEAD, header.leader_epoch)
    if config.message_timestamp_type == LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME_BIT
        MAX_TIMESTAMP.pack_into(changed, MAX_TIMESTAMP_START, now_ms)
    ATTRIBUTES.pack_into(changed, ATTRIBUTES_START, attributes)
    seal(changed, 0, len(changed))
    return changed


def _level(codec: Codec, config: LogConfig) -> int | None:
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    return levels.get(codec)
