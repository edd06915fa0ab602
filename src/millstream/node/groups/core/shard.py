"""The state machine of one partition of `__consumer_offsets`: all its groups and offsets.

A group has one type at a time. Each type has its own operations, records and timers: `classic/`, `consumer/`,
`streams/` and `share_groups.py`. `offsets.py` serves all of them. The shard has the shared state, dispatches records by
their type, and serves requests for groups of any type.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any, Protocol

from millstream.config.broker_config import BrokerConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.primitives import MalformedMessage
from millstream.node.coordination.core.state_machine import CoordinatorResult, Timers, TopicCatalog, Writes, record_type
from millstream.node.groups.core.classic.groups import ClassicGroups
from millstream.node.groups.core.consumer.groups import ConsumerGroups
from millstream.node.groups.core.group import Group
from millstream.node.groups.core.offsets import Offsets
from millstream.node.groups.core.records import RecordType
from millstream.node.groups.core.share_groups import ShareGroups
from millstream.node.groups.core.streams.groups import StreamsGroups

_log = logging.getLogger("millstream.coordinator")

Replayer = Callable[[bytes, bytes | None], None]
"""Applies one record: key and value as in the log."""


class GroupKind(Protocol):
    """What the shard needs of each type of group."""

    def replayers(self) -> Mapping[int, Replayer]:
        """The function that applies a record, for each record type."""
        ...

    def loaded(self, now_ms: int) -> None: ...

    def topics_changed(self, deleted: Collection[str], writes: Writes, now_ms: int) -> None:
        """Topics were created, extended or deleted. `deleted` has the names of deleted ones; the catalog is already the
        new one."""
        ...


class GroupShard:
    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        topics: TopicCatalog,
        randomness: Random,
        group_settings: Callable[[str], Mapping[str, str]] = lambda group_id: {},
    ) -> None:
        """`group_settings` has the settings of one group, from IncrementalAlterConfigs (resource type GROUP)."""
        self.config = config
        self.topics = topics
        self.randomness = randomness
        self.group_settings = group_settings
        self.timers = Timers()
        self.groups: dict[str, Group] = {}
        self.live = False
        """Whether the log is replayed, so that further records come from operations of this shard."""
        self.offsets = Offsets(self)
        self.classic = ClassicGroups(self)
        self.share = ShareGroups(self)
        self.consumer = ConsumerGroups(self)
        self.streams = StreamsGroups(self)
        self._kinds: list[GroupKind] = [self.share, self.offsets, self.classic, self.consumer, self.streams]
        self._replayers: dict[int, Replayer] = {}
        for kind in self._kinds:
            self._replayers.update(kind.replayers())

    # Called by the runtime

    def replay(self, key: bytes, value: bytes | None) -> None:
        replayer = self._replayers.get(record_type(key))
        if replayer is None:
            return
        try:
            replayer(key, value)
        except MalformedMessage as error:
            # A newer Kafka may have written an unknown version; skipping it loses one group, not all.
            _log.warning("record_passed_over type=%d error=%s", record_type(key), error)

    def replay_pending(self, producer_id: int, producer_epoch: int, key: bytes, value: bytes | None) -> None:
        """Only offsets are committed in transactions. As in Kafka, other records count at once."""
        if record_type(key) not in (RecordType.OFFSET_COMMIT, RecordType.LEGACY_OFFSET_COMMIT):
            self.replay(key, value)
            return
        try:
            self.offsets.replay_pending(producer_id, key, value)
        except MalformedMessage as error:
            _log.warning("record_passed_over type=%d error=%s", record_type(key), error)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        self.offsets.end_transaction(producer_id, committed)

    def replayed(self) -> None:
        """Called after all records were replayed, in a thread: no other code uses the shard yet."""
        self.offsets.decode()
        self.consumer.learn_patterns()

    def loaded(self, now_ms: int) -> None:
        self.replayed()
        self.live = True
        for kind in self._kinds:
            kind.loaded(now_ms)

    # Groups of any type

    def find(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[dict[str, Any]]:
        """Rows of ListGroups. The filters are in lower case; empty filters match all."""
        return [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state_name,
                "group_type": group.type,
            }
            for group in self.groups.values()
            if (not states or group.state_name.lower() in states) and (not types or group.type in types)
        ]

    def delete_group(self, group_id: str, now_ms: int) -> CoordinatorResult[bool]:
        """Whether the group is deleted. If it has many offsets, one batch of them is deleted first; call this again
        then."""
        group = self.find(group_id)
        group.check_deletion()
        records, has_more = self.offsets.expiry.deletion_records(group_id)
        return CoordinatorResult(not has_more, records if has_more else [*records, *group.deletion_records()])

    def topics_changed(self, deleted: Collection[str], now_ms: int) -> CoordinatorResult[None]:
        writes = Writes()
        for kind in self._kinds:
            kind.topics_changed(deleted, writes, now_ms)
        return writes.result(None)
