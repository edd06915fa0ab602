"""A coordinator's log read back into its state: what a state machine offers for that, and how batches are taken apart.

A record of a transaction counts when the transaction's marker says so. Compaction may have left less than was written:
a marker whose records are gone, records without the rest of their transaction, a batch without any record.
"""

import struct
from typing import Protocol

from millstream.coordinator.timers import Timers
from millstream.records.batch import Bytes, iterate_headers
from millstream.records.key_values import iterate_key_values

_MARKER_KEY = struct.Struct(">hh")
"""Version and type of a control record."""
_ABORT, _COMMIT = 0, 1


class StateMachine(Protocol):
    """What the shell needs of a coordinator's state."""

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


def replay_batches(data: Bytes, position: int, state: StateMachine, participant: TransactionParticipant | None) -> int:
    """Replays the whole batches in `data`; returns the offset behind the last of them, `position` if there is none."""
    view = memoryview(data)
    replay = state.replay
    for at, header in iterate_headers(view):
        position = header.last_offset + 1
        if not header.record_count:
            continue
        batch = view[at : at + header.size]
        if header.is_control:
            if participant is not None:
                outcome = _outcome(next(iterate_key_values(header, batch))[0])
                if outcome is not None:
                    participant.end_transaction(header.producer_id, outcome)
        elif not header.is_transactional:
            for key, value in iterate_key_values(header, batch):
                if key is not None:
                    replay(key, value)
        elif participant is not None:
            producer_id, epoch = header.producer_id, header.producer_epoch
            for key, value in iterate_key_values(header, batch):
                if key is not None:
                    participant.replay_pending(producer_id, epoch, key, value)
    return position


def _outcome(key: bytes | None) -> bool | None:
    """Whether a marker commits; None for a control record that is no marker."""
    if key is None or len(key) < _MARKER_KEY.size:
        return None
    kind = _MARKER_KEY.unpack_from(key)[1]
    return {_ABORT: False, _COMMIT: True}.get(kind)
