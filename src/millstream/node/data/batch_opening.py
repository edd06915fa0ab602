"""What a topic wants to know of a batch before it takes it, and the opening that finds it out.

Compacted topics want a key in every record, topics with `millstream.*.schema.validation` a registered schema id, topics
with a `compression.type` of their own another codec. No other topic has its batches opened. The functions touch nothing
but their arguments, so that they may run in a thread.
"""

from typing import NamedTuple

from millstream.config.log_config import LogConfig
from millstream.formats.model.errors import InvalidRecordsError, KafkaError
from millstream.formats.records.batch import HEADER_SIZE, Bytes, has_valid_checksum, is_plausible, read_header
from millstream.formats.records.opening import BeyondLimitsError, OpeningLimits, check, opened
from millstream.node.data.schema_guard import MOST_TOLD, WantedSchemas, schema_fault
from millstream.node.storage.log.batch_admission import refusal
from millstream.node.storage.log.batch_conversion import Recompression, recompress, recompression_of

_NO_KEY = "a compacted topic takes only records with a key"


class Wanted(NamedTuple):
    keys: bool
    schemas: WantedSchemas | None
    recompression: Recompression | None


class Opened(NamedTuple):
    """What became of a batch."""

    fault: KafkaError | None = None
    """Why it cannot be taken."""
    converted: bytearray | None = None
    """The batch as the topic wants it, if that is not as it was sent."""


def wanted_of(config: LogConfig, schemas: WantedSchemas | None) -> Wanted | None:
    """None if batches for a log with these settings stay closed."""
    keys = "compact" in config.cleanup_policy
    recompression = recompression_of(config)
    if not keys and schemas is None and recompression is None:
        return None
    return Wanted(keys, schemas, recompression)


def open_batch(batch: Bytes, wanted: Wanted, limits: OpeningLimits) -> Opened:
    """Opens a batch whose header and checksum the log has found to be right. Raises BeyondLimitsError; everything else
    that is wrong is the result."""
    header = read_header(batch)
    converted: bytearray | None = None
    try:
        with opened(header, batch, limits) as records:
            keyless = check(header, records, needs_keys=wanted.keys, most=MOST_TOLD)
            if keyless:
                return Opened(_without_keys(keyless, header.record_count))
            if wanted.schemas is not None:
                fault = schema_fault(header, records, wanted.schemas)
                if fault is not None:
                    return Opened(fault)
            if wanted.recompression is not None and wanted.recompression.codec != header.codec:
                converted = recompress(batch, header, records, wanted.recompression)
    except BeyondLimitsError:
        raise
    except KafkaError as error:
        return Opened(error)
    return Opened(None, converted)


def _without_keys(keyless: list[int], count: int) -> InvalidRecordsError:
    least = "at least " if len(keyless) == MOST_TOLD else ""
    message = (
        f"{least}{len(keyless)} of {count} records have no key, record {keyless[0]} is the first: {_NO_KEY}. "
        "Send the others again without them"
    )
    return InvalidRecordsError(message, tuple((number, _NO_KEY) for number in keyless))


def framing_fault(batch: Bytes, config: LogConfig, now_ms: int) -> KafkaError | None:
    """What is wrong with a batch before it can be opened at all: its header, its size, its checksum."""
    if len(batch) >= HEADER_SIZE:
        header = read_header(batch)
        if (
            is_plausible(header)
            and header.size == len(batch)
            and header.record_count > 0
            and header.record_count == header.last_offset_delta + 1
            and has_valid_checksum(batch, 0, header)
        ):
            return None
    return refusal(batch, config, now_ms)
