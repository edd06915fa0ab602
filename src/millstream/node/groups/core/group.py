"""What all kinds of groups have in common, as offsets and admin requests need it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

from millstream.node.coordination.core.state_machine import CoordinatorRecord

MAX_TEXT_LENGTH = 8000
"""Of ids, names and expressions: records hold texts of up to 32,767 bytes, and a character has up to four."""
ALL_GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""Bits of AclOperation for one who may do everything with a group: read, delete, describe, and its configs."""


class GroupType(StrEnum):
    """As ListGroups names them."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


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
        """As DescribeGroups and ListGroups show it: Empty, Stable, …"""

    @property
    @abstractmethod
    def protocol_type(self) -> str:
        """As ListGroups shows it: "consumer", "share", "" for a group that only has offsets."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """No members."""

    @property
    def is_simple(self) -> bool:
        """It only holds offsets, nobody ever joined: a group of any other kind may take its place (and offsets)."""
        return False

    @abstractmethod
    def check_offset_commit(self, member_id: str, instance_id: str | None, generation: int, version: int) -> None:
        """KafkaError if this member may not commit in this generation (or member epoch)."""

    @abstractmethod
    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """KafkaError if a producer may not commit for this member (KIP-447); old producers name none."""

    def may_commit_late(self, member_id: str, generation: int, topic_id: UUID, partition: int) -> bool:
        """Whether a commit that `check_offset_commit` refused is right for this partition all the same."""
        return False

    @abstractmethod
    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None: ...

    @abstractmethod
    def check_offset_delete(self) -> None: ...

    @abstractmethod
    def check_deletion(self) -> None:
        """NON_EMPTY_GROUP if it cannot be deleted now."""

    @abstractmethod
    def is_subscribed_to(self, topic: str) -> bool:
        """Whether its offsets of this topic must be kept, since a member reads it."""

    @abstractmethod
    def expiry_base_ms(self, committed_at_ms: int) -> int | None:
        """From when on an offset committed at that time ages; None while it does not age."""

    @abstractmethod
    def deletion_records(self) -> list[CoordinatorRecord]:
        """Tombstones for all records of the group, without its offsets."""

    def record_activity(self, member_id: str, now_ms: int) -> None:
        """A member committed, so it lives; counts where Kafka says that a commit is a sign of life."""
        return
