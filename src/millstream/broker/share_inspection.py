"""Keys and due times of records, for the groups and topics that ask for key order or delays; only these pay for it."""

import logging
from collections.abc import Iterator

from millstream.coordinator.share.in_flight import ReadRecord
from millstream.model.errors import KafkaError
from millstream.records.batch import iterate_headers
from millstream.records.record import Record, iterate_records

DELIVER_AT = "millstream-deliver-at"
"""The header with the time before which share groups do not hand the record out: milliseconds since 1970, as text."""
_LONGEST_NUMBER = 19
_LARGEST_BATCH_BYTES = 64 << 20
"""Decompressed: a batch that grows beyond is handed out as it is, neither ordered nor delayed."""

_log = logging.getLogger("millstream.share")


def inspect(batches: bytes, delay_ms: int) -> Iterator[ReadRecord]:
    """Offset, key and due time of each record; a negative delay means that nothing is delayed here."""
    for position, header in iterate_headers(batches):
        if header.is_control:
            continue
        try:
            for record in iterate_records(
                header, memoryview(batches)[position : position + header.size], _LARGEST_BATCH_BYTES
            ):
                yield record.offset, record.key, due_ms(record, delay_ms)
        except KafkaError as error:
            # The consumer will say what is wrong with it; until then it must not hold up the others.
            _log.warning("batch_not_inspected offset=%d error=%s", header.base_offset, error)
            for offset in range(header.base_offset, header.last_offset + 1):
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
