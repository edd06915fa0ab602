"""Replays the log of a coordinator's partition into its state machine.

Records of a transaction count when the marker commits them. Compaction may have removed records: there may be a marker
without its records, records without the rest of their transaction, or a batch without records.

A client may have written a batch of few bytes that holds very many records. So a batch is opened within limits. Replay
runs in slices, and other threads run between them.
"""

import logging
import struct
from collections.abc import Callable, Generator
from functools import partial

from millstream.formats.records.batch import BatchHeader, Bytes, iterate_headers
from millstream.formats.records.opening import OpeningLimits, iterate_key_values
from millstream.node.coordination.core.state_machine import StateMachine, TransactionParticipant

_log = logging.getLogger("millstream.coordinator")
_MARKER_KEY = struct.Struct(">hh")
"""Version and type of a control record."""
_ABORT, _COMMIT = 0, 1
SLICE_RECORDS = 32
"""Records in one slice of the replay."""
_MAX_REPORTED = 5
"""Records of one batch that are logged one by one."""
DEFAULT_LIMITS = OpeningLimits(max_bytes=128 << 20, max_records=1_000_000)

Slices = Generator[None, None, int]
"""Yields after each slice of records; returns the offset after the last batch."""


def replay_batches(
    data: Bytes,
    position: int,
    state: StateMachine,
    participant: TransactionParticipant | None,
    limits: OpeningLimits = DEFAULT_LIMITS,
) -> Slices:
    """Replays the whole batches in `data`, slice by slice. Returns the offset after the last batch, or `position` if
    there is no batch.

    A record that cannot be read is logged and skipped. So is a batch above the limits. A newer version may have written
    it, or a client. Then one group or transaction may be missing; without skipping, all of them would be.
    """
    view = memoryview(data)
    for at, header in iterate_headers(view):
        position = header.last_offset + 1
        if not header.record_count:
            continue
        try:
            yield from _replay_batch(header, view[at : at + header.size], state, participant, limits)
        except Exception as error:
            _report(f"{header.base_offset}-{header.last_offset}", error)
        yield
    return position


def _replay_batch(
    header: BatchHeader,
    batch: Bytes,
    state: StateMachine,
    participant: TransactionParticipant | None,
    limits: OpeningLimits,
) -> Generator[None, None, None]:
    if header.is_control:
        if participant is not None:
            outcome = _outcome(next(iterate_key_values(header, batch, limits))[0])
            if outcome is not None:
                participant.end_transaction(header.producer_id, outcome)
        return
    replay: Callable[[bytes, bytes | None], None]
    if not header.is_transactional:
        replay = state.replay
    elif participant is not None:
        replay = partial(participant.replay_pending, header.producer_id, header.producer_epoch)
    else:
        return
    failed = 0
    for place, (key, value) in enumerate(iterate_key_values(header, batch, limits), 1):
        if place % SLICE_RECORDS == 0:
            yield
        if key is None:
            continue
        try:
            replay(key, value)
        except Exception as error:
            failed += 1
            if failed <= _MAX_REPORTED:
                # Compaction may have removed earlier records of the batch, so this is the lowest possible offset.
                _report(str(header.base_offset + place - 1), error)
    if failed > _MAX_REPORTED:
        _log.warning(
            "coordinator_records_passed_over offset=%d-%d count=%d", header.base_offset, header.last_offset, failed
        )


def _report(offsets: str, error: Exception) -> None:
    _log.warning("coordinator_record_passed_over offset=%s error=%s: %s", offsets, type(error).__name__, error)


def _outcome(key: bytes | None) -> bool | None:
    """Whether a marker commits; None for a control record that is not a marker."""
    if key is None or len(key) < _MARKER_KEY.size:
        return None
    kind = _MARKER_KEY.unpack_from(key)[1]
    return {_ABORT: False, _COMMIT: True}.get(kind)
