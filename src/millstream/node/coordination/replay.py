"""A coordinator's log read back into its state: what a state machine offers for that, and how batches are taken apart.

A record of a transaction counts when the transaction's marker says so. Compaction may have left less than was written:
a marker whose records are gone, records without the rest of their transaction, a batch without any record.

A client that takes the name of a broker may have written a batch of which a few bytes become very many records. So a
batch is opened within limits, and the work is done in slices: the thread and the interpreter are free in between.
"""

import logging
import struct
from collections.abc import Callable, Generator
from functools import partial
from typing import Protocol

from millstream.formats.records.batch import BatchHeader, Bytes, iterate_headers
from millstream.formats.records.opening import OpeningLimits, iterate_key_values
from millstream.node.coordination.core.state_machine import Timers

_log = logging.getLogger("millstream.coordinator")
_MARKER_KEY = struct.Struct(">hh")
"""Version and type of a control record."""
_ABORT, _COMMIT = 0, 1
SLICE_RECORDS = 32
"""Records that are replayed before others may have the interpreter."""
_MAX_REPORTED = 5
"""Records of one batch that are reported one by one."""
DEFAULT_LIMITS = OpeningLimits(max_bytes=128 << 20, max_records=1_000_000)

Slices = Generator[None, None, int]
"""Stops after each slice of records; what it returns is the offset behind the last batch."""


class StateMachine(Protocol):
    """What the runtime needs of a coordinator's state."""

    timers: Timers

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Applies one record; must accept whatever is in the log, and pass over what it does not know."""
        ...

    def loaded(self, now_ms: int) -> None:
        """All records were replayed: set timers, begin sessions."""
        ...


class TransactionParticipant(Protocol):
    """A state machine some of whose records are written in transactions."""

    def replay_pending(self, producer_id: int, producer_epoch: int, key: bytes, value: bytes | None) -> None:
        """Takes note of one record of a transaction that is open."""
        ...

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """The producer's transaction, if one is known, is over: what is pending counts, or is dropped."""
        ...


def replay_batches(
    data: Bytes,
    position: int,
    state: StateMachine,
    participant: TransactionParticipant | None,
    limits: OpeningLimits = DEFAULT_LIMITS,
) -> Slices:
    """Replays the whole batches in `data`, slice by slice; returns the offset behind the last of them, `position` if
    there is none.

    A record that cannot be read is reported and passed over, and so is a batch that is more than the limits. It may be
    from a newer version, or a client may have written it. Without it one group or transaction may be missing; a log
    that cannot be loaded would lose all of them.
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
                # Compaction may have removed records before this one, so the offset is the lowest that it can have.
                _report(str(header.base_offset + place - 1), error)
    if failed > _MAX_REPORTED:
        _log.warning(
            "coordinator_records_passed_over offset=%d-%d count=%d", header.base_offset, header.last_offset, failed
        )


def _report(offsets: str, error: Exception) -> None:
    _log.warning("coordinator_record_passed_over offset=%s error=%s: %s", offsets, type(error).__name__, error)


def _outcome(key: bytes | None) -> bool | None:
    """Whether a marker commits; None for a control record that is no marker."""
    if key is None or len(key) < _MARKER_KEY.size:
        return None
    kind = _MARKER_KEY.unpack_from(key)[1]
    return {_ABORT: False, _COMMIT: True}.get(kind)
