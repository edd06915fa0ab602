"""Kafka's end-of-transaction marker: a control batch of one record, whose key says commit or abort.

Key: version, type (0 abort, 1 commit). Value: version, epoch of the coordinator that decided. Both versions are 0; a
later version begins with the same fields. Other control batches (of the metadata log) are none of ours.
"""

from struct import Struct
from typing import NamedTuple

from millstream.formats.records.batch import HEADER_SIZE, Bytes
from millstream.formats.records.record import Record, build_batch
from millstream.formats.records.varint import MAX_LONG_BYTES, read_varint

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION = 0
_ABORT, _COMMIT = 0, 1


class EndMarker(NamedTuple):
    committed: bool
    coordinator_epoch: int


def build_marker(
    marker: EndMarker, producer_id: int, producer_epoch: int, timestamp: int, *, log_append_time: bool
) -> bytearray:
    """The control batch, to be stamped by a log."""
    key = _KEY.pack(_VERSION, _COMMIT if marker.committed else _ABORT)
    record = Record(key, _VALUE.pack(_VERSION, marker.coordinator_epoch), timestamp=timestamp)
    return build_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        log_append_time=timestamp if log_append_time else None,
    )


def read_marker(batch: Bytes) -> EndMarker | None:
    """What a control batch says; None if it is not the end of a transaction, or the cleaner has emptied it."""
    try:
        _, position = read_varint(batch, HEADER_SIZE)
        _, position = read_varint(batch, position + 1, MAX_LONG_BYTES)  # past the attributes: the timestamp delta
        _, position = read_varint(batch, position)  # the offset delta
        key_size, position = read_varint(batch, position)
        _, kind = _KEY.unpack_from(batch, position)
        _, position = read_varint(batch, position + key_size)
        _, coordinator_epoch = _VALUE.unpack_from(batch, position)
    except Exception:  # of another kind, or of a format that we do not know
        return None
    return EndMarker(kind == _COMMIT, coordinator_epoch) if kind in (_ABORT, _COMMIT) else None
