"""Keys and due times of records, for the groups and topics that ask for key order or delays; only these pay for it."""

import logging
from collections.abc import Iterator

from millstream.formats.model.errors import KafkaError
from millstream.formats.records.batch import iterate_headers
from millstream.formats.records.opening import OpeningLimits, records_between
from millstream.formats.records.record import Record
from millstream.node.queues.core.in_flight import ReadRecord

DELIVER_AT = "millstream-deliver-at"
"""The header with the time before which share groups do not hand the record out: milliseconds since 1970, as text."""
_LONGEST_NUMBER = 19
MOST_INSPECTED = 2000
"""Offsets that are looked at in one go: what becomes of each is worked out on the event loop."""

_log = logging.getLogger("millstream.share")


def inspect(batches: bytes, delay_ms: int, first: int, last: int, limits: OpeningLimits) -> Iterator[ReadRecord]:
    """Offset, key and due time of each record from offset `first` to `last`; a negative delay means that nothing is
    delayed here. For a thread: passing over what lies before `first` takes time."""
    for position, header in iterate_headers(batches):
        low, high = max(first, header.base_offset), min(last, header.last_offset)
        if header.is_control or low > high:
            continue
        try:
            batch = memoryview(batches)[position : position + header.size]
            for record in records_between(header, batch, low, high, limits):
                yield record.offset, record.key, due_ms(record, delay_ms)
        except KafkaError as error:
            # The consumer will say what is wrong with it; until then it must not hold up the others.
            _log.warning("batch_not_inspected offset=%d error=%s", header.base_offset, error)
            for offset in range(low, high + 1):
                yield offset, None, 0


def due_ms(record: Record, delay_ms: int) -> int:
    if delay_ms < 0:
        return 0
    for name, value in record.headers:
        if name == DELIVER_AT and value is not None:
            text = value.strip()
            if text.isdigit() and len(text) <= _LONGEST_NUMBER:
                return int(text)
    return record.timestamp + delay_ms if delay_ms and record.timestamp >= 0 else 0
