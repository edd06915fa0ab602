"""Deletion of offsets by age, topic or group; and the pending offsets of open transactions.

A group may have many offsets. They are deleted in batches that fit into the log; the records of the group itself are
deleted last. A deletion also drops the pending offsets of open transactions. Expiry by age keeps an offset or a group
that an open transaction may still change.

`PendingOffsets` has the offsets committed in open transactions. The last commit of a partition in the log wins,
whenever its transaction ends. So a plain commit, or a commit of an ended transaction, *supersedes* the pending commits
before it in the log: they have no effect when their transactions commit, but still show that a transaction is open.
Keys and values are as in the log, and are decoded only when needed.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING

from millstream.config.table import groups as settings
from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import NO_TOPIC_ID
from millstream.node.coordination.core.state_machine import Action, CoordinatorRecord, CoordinatorResult, Topic
from millstream.node.groups.core.group import Group
from millstream.node.groups.core.records import (
    NEVER,
    CommittedOffset,
    offset_key,
    offset_record,
    read_offset_key,
    read_offset_value,
)

if TYPE_CHECKING:
    from millstream.node.groups.core.shard import GroupShard


Key = bytes
Value = bytes


class PendingOffsets:
    __slots__ = ("_by_key", "_by_producer")

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[int, Value | None]] = {}
        """For each key the producers with open transactions, in log order. None marks a superseded value."""
        self._by_producer: dict[int, dict[Key, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def __contains__(self, key: Key) -> bool:
        """Whether an open transaction has committed an offset for this partition."""
        return key in self._by_key

    def __iter__(self) -> Iterator[tuple[Key, list[Value]]]:
        """Each key with its possible values; superseded values are left out."""
        for key, by_producer in self._by_key.items():
            yield key, [value for value in by_producer.values() if value is not None]

    def add(self, producer_id: int, key: Key, value: Value) -> None:
        by_producer = self._by_key.setdefault(key, {})
        by_producer.pop(producer_id, None)  # now the last in the log
        by_producer[producer_id] = value
        self._by_producer.setdefault(producer_id, {})[key] = None

    def supersede(self, key: Key) -> None:
        """A later commit replaces the pending ones."""
        by_producer = self._by_key.get(key)
        if by_producer is not None:
            for producer_id in by_producer:
                by_producer[producer_id] = None

    def drop(self, key: Key) -> None:
        """The offset was deleted, with its pending commits."""
        for producer_id in self._by_key.pop(key, ()):
            keys = self._by_producer[producer_id]
            del keys[key]
            if not keys:
                del self._by_producer[producer_id]

    def end(self, producer_id: int, *, committed: bool) -> list[tuple[Key, Value]]:
        """Ends the producer's transaction; returns the offsets that count from now on."""
        counting: list[tuple[Key, Value]] = []
        for key in self._by_producer.pop(producer_id, ()):
            by_producer = self._by_key[key]
            value = by_producer[producer_id]
            if committed and value is not None:
                counting.append((key, value))
                for earlier in by_producer:
                    if earlier == producer_id:
                        break
                    by_producer[earlier] = None
            del by_producer[producer_id]
            if not by_producer:
                del self._by_key[key]
        return counting


Partitions = dict[int, CommittedOffset]
ByGroup = dict[str, dict[str, Partitions]]
"""By group, topic and partition."""

_TOMBSTONES_PER_BATCH_BYTES = 64 << 10
"""Limit for the tombstones in one batch, far below the largest batch of a log."""
_RECORD_OVERHEAD_BYTES = 32
_PAUSE_AFTER_FAILURE_MS = 10_000


class OffsetExpiry:
    def __init__(self, shard: "GroupShard", by_group: ByGroup, pending: PendingOffsets) -> None:
        self._shard = shard
        self._by_group = by_group
        self._pending = pending

    def _only_pending(self) -> Iterator[tuple[str, str, int, list[CommittedOffset]]]:
        """Group, topic, partition and values of offsets that only open transactions have committed."""
        for key, values in self._pending:
            group_id, topic, index = read_offset_key(key)
            if index not in self._by_group.get(group_id, {}).get(topic, {}):
                yield group_id, topic, index, [read_offset_value(value) for value in values]

    # Deleted topics

    def topics_deleted(self, deleted: frozenset[str], now_ms: int) -> CoordinatorResult[None]:
        """Deletes the offsets of deleted topics."""

        def again(at_ms: int) -> CoordinatorResult[None]:
            return self.topics_deleted(deleted, at_ms)

        key = ("offsets of deleted topics", deleted)
        return self._delete_batch(self._offsets_of_deleted(deleted), key, again, now_ms)

    def _offsets_of_deleted(self, deleted: frozenset[str]) -> Iterator[CoordinatorRecord]:
        for group_id, topics in self._by_group.items():
            for name in sorted(deleted & topics.keys()):
                topic = self._shard.topics.get(name)  # there may be a new topic of this name
                for index, committed in topics[name].items():
                    if topic is None or committed.topic_id != topic.id:
                        yield offset_record(group_id, name, index, None)
        for group_id, name, index, pending in self._only_pending():
            if name in deleted:
                topic = self._shard.topics.get(name)
                if topic is None or all(committed.topic_id != topic.id for committed in pending):
                    yield offset_record(group_id, name, index, None)

    @property
    def has_orphans(self) -> bool:
        """Whether there are offsets of topics that do not exist."""
        return next(self._orphans(), None) is not None

    def begin(self, now_ms: int, *, has_orphans: bool) -> None:
        """Called when the shard is loaded. Orphans are offsets of topics that were deleted while no coordinator was
        loaded."""
        if has_orphans:
            self._shard.timers.set("orphaned offsets", now_ms, self._delete_orphans)
        self._schedule_expiry(now_ms)

    def _delete_orphans(self, now_ms: int) -> CoordinatorResult[None]:
        return self._delete_batch(self._orphans(), "orphaned offsets", self._delete_orphans, now_ms)

    def _orphans(self) -> Iterator[CoordinatorRecord]:
        """Tombstones for offsets of topics that do not exist. An offset without a topic id matches any topic of the
        name."""
        for group_id, topics in self._by_group.items():
            for name, partitions in topics.items():
                topic = self._shard.topics.get(name)
                for index, committed in partitions.items():
                    if topic is None or if_same_topic(committed, topic) is None:
                        yield offset_record(group_id, name, index, None)
        for group_id, name, index, pending in self._only_pending():
            topic = self._shard.topics.get(name)
            if topic is None or all(if_same_topic(committed, topic) is None for committed in pending):
                yield offset_record(group_id, name, index, None)

    # Deleted groups, and expiry by age

    def deletion_records(self, group_id: str) -> tuple[list[CoordinatorRecord], bool]:
        """Tombstones for the offsets of a group that fit into one batch, and whether there are more."""
        return _bounded(self._offsets_of(group_id))

    def _offsets_of(self, group_id: str) -> Iterator[CoordinatorRecord]:
        for topic, partitions in self._by_group.get(group_id, {}).items():
            for index in partitions:
                yield offset_record(group_id, topic, index, None)
        for pending_group, topic, index, _ in self._only_pending():
            if pending_group == group_id:
                yield offset_record(group_id, topic, index, None)

    def _delete_batch(
        self, tombstones: Iterator[CoordinatorRecord], key: Hashable, again: Action, now_ms: int
    ) -> CoordinatorResult[None]:
        """Deletes one batch. The rest follows shortly after, or everything again later if the write fails."""
        records, has_more = _bounded(tombstones)

        def written(error: KafkaError | None) -> None:
            if error is not None or has_more:
                self._shard.timers.set(key, now_ms + (1 if error is None else _PAUSE_AFTER_FAILURE_MS), again)

        return CoordinatorResult(None, records, written)

    def _schedule_expiry(self, now_ms: int) -> None:
        interval_ms = self._shard.config()[settings.OFFSETS_RETENTION_CHECK_INTERVAL_MS]
        self._shard.timers.set("offset expiry", now_ms + interval_ms, self._expiry_due)

    def _expiry_due(self, now_ms: int) -> CoordinatorResult[None]:
        self._schedule_expiry(now_ms)
        return self.expire(now_ms)

    def expire(self, now_ms: int) -> CoordinatorResult[None]:
        """Deletes expired offsets, and empty groups without offsets."""
        return self._delete_batch(self._expired(now_ms), "offset expiry", self._expiry_due, now_ms)

    def _expired(self, now_ms: int) -> Iterator[CoordinatorRecord]:
        in_transactions = {read_offset_key(key)[0] for key, _ in self._pending}
        for group in self._shard.groups.values():
            kept = group.group_id in in_transactions
            for record in self._expired_offsets(group, now_ms):
                if record is None:
                    kept = True
                else:
                    yield record
            if not kept and group.is_empty and group.is_deleted_without_offsets:
                yield from group.deletion_records()

    def _expired_offsets(self, group: Group, now_ms: int) -> Iterator[CoordinatorRecord | None]:
        """Tombstones of a group's expired offsets; None for each offset that is kept."""
        retention_ms = self._shard.config()[settings.OFFSETS_RETENTION_MINUTES] * 60_000
        for topic, partitions in self._by_group.get(group.group_id, {}).items():
            if group.is_subscribed_to(topic):
                yield None
                continue
            for index, committed in partitions.items():
                is_expired = _is_expired(committed, group, now_ms, retention_ms) and not (
                    self._pending and offset_key(group.group_id, topic, index) in self._pending
                )
                yield offset_record(group.group_id, topic, index, None) if is_expired else None


def if_same_topic(committed: CommittedOffset | None, topic: Topic | None) -> CommittedOffset | None:
    """The offset, or None if it was committed for another topic of the same name."""
    if committed is None or topic is None or NO_TOPIC_ID in (committed.topic_id, topic.id):
        return committed
    return committed if committed.topic_id == topic.id else None


def _is_expired(committed: CommittedOffset, group: Group, now_ms: int, retention_ms: int) -> bool:
    base_ms = group.expiry_base_ms(committed.committed_at_ms)
    if base_ms is None:
        return False
    if committed.expires_at_ms != NEVER:
        return now_ms >= committed.expires_at_ms
    return now_ms - base_ms >= retention_ms


def _bounded(tombstones: Iterable[CoordinatorRecord]) -> tuple[list[CoordinatorRecord], bool]:
    """The records that fit into one batch, and whether there are more. The state must not change before they are
    written."""
    records: list[CoordinatorRecord] = []
    size = 0
    for record in tombstones:
        if size > _TOMBSTONES_PER_BATCH_BYTES:
            return records, True
        records.append(record)
        size += len(record.key) + _RECORD_OVERHEAD_BYTES
    return records, False
