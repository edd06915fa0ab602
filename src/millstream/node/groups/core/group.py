"""The base class of all types of groups, as offsets and admin requests use it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

from millstream.node.coordination.core.state_machine import CoordinatorRecord, Topic

MAX_TEXT_LENGTH = 8000
"""The limit for ids, names and expressions. A record holds texts of up to 32,767 bytes, and a character has up to four.
"""
ALL_GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""Bits of AclOperation for a group: read, delete, describe, and its configs."""


class GroupType(StrEnum):
    """The names in ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class Group(ABC):
    type: ClassVar[GroupType]
    is_deleted_without_offsets: ClassVar[bool] = True
    """Whether an empty group is deleted when its last offset has expired."""

    group_id: str
    members: Mapping[str, Any]
    """By id."""

    @property
    @abstractmethod
    def state_name(self) -> str:
        """The state in DescribeGroups and ListGroups: Empty, Stable, …"""

    @property
    @abstractmethod
    def protocol_type(self) -> str:
        """The type in ListGroups: "consumer", "share", "streams", or "" for a group that only has offsets."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether the group has no members."""

    @property
    def is_simple(self) -> bool:
        """Whether the group only has offsets and never had a member. Any other type of group may replace it."""
        return False

    @abstractmethod
    def check_offset_commit(self, member_id: str, instance_id: str | None, generation: int, version: int) -> None:
        """KafkaError if the member may not commit in this generation (or member epoch)."""

    @abstractmethod
    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """KafkaError if a producer may not commit for this member (KIP-447). Old producers do not name a member."""

    def may_commit_late(self, member_id: str, generation: int, topic: Topic, partition: int) -> bool:
        """Whether a commit that `check_offset_commit` refused is allowed for this partition."""
        return False

    @abstractmethod
    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None: ...

    @abstractmethod
    def check_offset_delete(self) -> None: ...

    @abstractmethod
    def check_deletion(self) -> None:
        """NON_EMPTY_GROUP if it cannot be deleted."""

    @abstractmethod
    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads the topic, so that its offsets must be kept."""

    @abstractmethod
    def expiry_base_ms(self, committed_at_ms: int) -> int | None:
        """The time from which an offset ages that was committed at the given time; None while it does not age."""

    @abstractmethod
    def deletion_records(self) -> list[CoordinatorRecord]:
        """Tombstones for all records of the group except its offsets."""

    def record_activity(self, member_id: str, now_ms: int) -> None:
        """Extends the session of a member that commits, for group types where a commit does that in Kafka."""
        return
