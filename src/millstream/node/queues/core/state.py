"""The share coordinator's state machine: the persisted state of share-partitions, in `__share_group_state`.

The state of a share-partition is a snapshot and the updates after it. The leader writes an update with each
acknowledgement. After a number of updates, a new snapshot replaces them, and all earlier records of the share-partition
are redundant. The coordinator only stores the batches; the leader decides what they mean.

`checkpoint` writes snapshots of all states; after that the log before them can be deleted. The records are those of
Kafka (`share.schema`).
"""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.coordination.core.state_machine import (
    CoordinatorRecord,
    CoordinatorResult,
    RecordFormats,
    Timers,
    record_type,
)
from millstream.node.queues.core.runs import RecordState, RunList, StateBatch

SHARE_RECORDS = RecordFormats("millstream.node.queues.core", "share.schema")
SNAPSHOT, UPDATE = 0, 1

_MAX_EPOCH = (1 << 31) - 1
UNINITIALIZED = -1
"""A start offset that the group's settings have not decided yet."""


def next_epoch(state_epoch: int) -> int:
    """For a new state in place of an earlier one. The largest epoch is its own successor, so that no request can make
    the state impossible to replace."""
    return min(state_epoch + 1, _MAX_EPOCH)


class ShareKey(NamedTuple):
    group_id: str
    topic_id: UUID
    partition: int


@dataclass(slots=True)
class ShareState:
    """The state of one share-partition."""

    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = UNINITIALIZED
    complete_count: int = -1
    create_timestamp: int = 0
    runs: RunList = field(default_factory=RunList)
    updates: int = 0
    """Since the last snapshot."""

    @property
    def batches(self) -> list[StateBatch]:
        return self.runs.batches()


class ShareStateShard:
    def __init__(self, updates_per_snapshot: int = 500) -> None:
        self.timers = Timers()
        self.states: dict[ShareKey, ShareState] = {}
        self.records_since_checkpoint = 0
        self._updates_per_snapshot = updates_per_snapshot

    # Operations

    def initialize(
        self, key: ShareKey, state_epoch: int, start_offset: int, now_ms: int, batches: Sequence[StateBatch] = ()
    ) -> CoordinatorResult[None]:
        """Starts a new state, at a start offset or where the group's settings will decide, with these batches only."""
        if not 0 <= state_epoch <= _MAX_EPOCH or start_offset < UNINITIALIZED:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"invalid state epoch {state_epoch} or start offset {start_offset}"
            )
        state = self.states.get(key)
        if state is not None and state.state_epoch > state_epoch:
            raise KafkaError(
                ErrorCode.FENCED_STATE_EPOCH,
                f"state epoch {state_epoch} is outdated; the current one is {state.state_epoch}",
            )
        snapshot_epoch = 0 if state is None else state.snapshot_epoch + 1
        created = now_ms if state is None else state.create_timestamp
        fresh = ShareState(snapshot_epoch, state_epoch, 0, start_offset, 0, created)
        _merge(fresh, batches)
        fresh.complete_count = sum(
            each.last - each.first + 1 for each in fresh.batches if RecordState(each.state).final
        )
        return CoordinatorResult(None, [_snapshot(key, fresh, now_ms)])

    def read(self, key: ShareKey, leader_epoch: int, now_ms: int) -> CoordinatorResult[ShareState]:
        """For a new leader: writes of earlier leaders are refused from now on."""
        state = self._known(key)
        if leader_epoch < state.leader_epoch:
            raise _fenced_leader(leader_epoch, state)
        if leader_epoch <= state.leader_epoch:
            return CoordinatorResult(state)
        update = _update(key, state, leader_epoch, UNINITIALIZED, -1, ())
        return CoordinatorResult(state, [update])

    def write(
        self,
        key: ShareKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        complete_count: int,
        batches: Sequence[StateBatch],
        now_ms: int,
    ) -> CoordinatorResult[None]:
        state = self._known(key)
        if start_offset < UNINITIALIZED:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"invalid start offset {start_offset}")
        if 0 <= leader_epoch < state.leader_epoch:
            raise _fenced_leader(leader_epoch, state)
        if state_epoch < state.state_epoch:
            raise KafkaError(
                ErrorCode.FENCED_STATE_EPOCH,
                f"state epoch {state_epoch} is outdated; the current one is {state.state_epoch}",
            )
        if state_epoch > state.state_epoch:
            # It would refuse the writes of the real leader. Only `initialize` raises the epoch.
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"state epoch {state_epoch} is not known; the current one is {state.state_epoch}",
            )
        leader_epoch = max(leader_epoch, state.leader_epoch)
        if UNINITIALIZED < start_offset < state.start_offset:
            # A later write arrived before this one: final records stay final.
            start_offset = complete_count = UNINITIALIZED
        if state.updates < self._updates_per_snapshot:
            return CoordinatorResult(None, [_update(key, state, leader_epoch, start_offset, complete_count, batches)])
        merged = ShareState(
            state.snapshot_epoch + 1,
            state_epoch,
            leader_epoch,
            state.start_offset if start_offset == UNINITIALIZED else start_offset,
            state.complete_count if complete_count < 0 else complete_count,
            state.create_timestamp,
        )
        for batch in state.batches:
            merged.runs.put(batch)
        _merge(merged, batches)
        return CoordinatorResult(None, [_snapshot(key, merged, now_ms)])

    def delete(self, key: ShareKey) -> CoordinatorResult[None]:
        if key not in self.states:
            return CoordinatorResult(None)
        return CoordinatorResult(None, [SHARE_RECORDS.encode(SNAPSHOT, key._asdict(), None)])

    def summary(self, key: ShareKey) -> ShareState | None:
        return self.states.get(key)

    def checkpoint(self, now_ms: int) -> CoordinatorResult[None]:
        """A snapshot of every share-partition. When it is written, no earlier record is needed."""
        return CoordinatorResult(
            None,
            [
                _snapshot(key, replace(state, snapshot_epoch=state.snapshot_epoch + 1), now_ms)
                for key, state in self.states.items()
            ],
        )

    def _known(self, key: ShareKey) -> ShareState:
        state = self.states.get(key)
        if state is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"group {key.group_id!r} has no state for partition {key.partition}"
            )
        return state

    # Records

    def replay(self, key: bytes, value: bytes | None) -> None:
        if not SHARE_RECORDS.is_known(key, value):
            return
        kind, about = record_type(key), SHARE_RECORDS.read_key(key)
        content = None if value is None else SHARE_RECORDS.read_value(kind, value)
        self.records_since_checkpoint += 1
        share_key = ShareKey(about.group_id, about.topic_id, about.partition)
        if content is None:
            self.states.pop(share_key, None)
        elif kind == SNAPSHOT:
            self.states[share_key] = _from_snapshot(content)
        else:
            state = self.states.get(share_key)
            if state is not None and content.snapshot_epoch == state.snapshot_epoch:
                _apply(state, content)

    def loaded(self, now_ms: int) -> None:
        """Nothing to do: state changes only by requests."""


def _fenced_leader(leader_epoch: int, state: ShareState) -> KafkaError:
    return KafkaError(
        ErrorCode.FENCED_LEADER_EPOCH,
        f"leader epoch {leader_epoch} is outdated; the current one is {state.leader_epoch}",
    )


def _apply(state: ShareState, update: Message) -> None:
    state.updates += 1
    state.leader_epoch = update.leader_epoch
    state.start_offset = max(state.start_offset, update.start_offset)
    if update.delivery_complete_count >= 0:
        state.complete_count = update.delivery_complete_count
    _merge(state, [_batch(row) for row in update.state_batches])


def _merge(state: ShareState, batches: Sequence[StateBatch]) -> None:
    """Newer batches replace older ones; batches before the start are removed."""
    for batch in batches:
        if batch.last >= state.start_offset:
            state.runs.put(batch)
    if state.start_offset > 0:
        state.runs.drop_before(state.start_offset)


def _from_snapshot(content: Message) -> ShareState:
    state = ShareState(
        content.snapshot_epoch,
        content.state_epoch,
        content.leader_epoch,
        content.start_offset,
        content.delivery_complete_count,
        content.create_timestamp,
    )
    _merge(state, [_batch(row) for row in content.state_batches])
    return state


def _batch(row: Message) -> StateBatch:
    return StateBatch(row.first_offset, row.last_offset, RecordState(row.delivery_state), row.delivery_count)


def _rows(batches: Sequence[StateBatch]) -> list[dict[str, Any]]:
    return [
        {"first_offset": first, "last_offset": last, "delivery_state": state, "delivery_count": deliveries}
        for first, last, state, deliveries in batches
    ]


def _snapshot(key: ShareKey, state: ShareState, now_ms: int) -> CoordinatorRecord:
    value = {
        "snapshot_epoch": state.snapshot_epoch,
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
        "delivery_complete_count": state.complete_count,
        "create_timestamp": state.create_timestamp,
        "write_timestamp": now_ms,
        "state_batches": _rows(state.batches),
    }
    return SHARE_RECORDS.encode(SNAPSHOT, key._asdict(), value)


def _update(
    key: ShareKey,
    state: ShareState,
    leader_epoch: int,
    start_offset: int,
    complete_count: int,
    batches: Sequence[StateBatch],
) -> CoordinatorRecord:
    value = {
        "snapshot_epoch": state.snapshot_epoch,
        "leader_epoch": leader_epoch,
        "start_offset": start_offset,
        "delivery_complete_count": complete_count,
        "state_batches": _rows(batches),
    }
    return SHARE_RECORDS.encode(UPDATE, key._asdict(), value)
