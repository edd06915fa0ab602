"""A member of a consumer group, as the log tells of it. Members are values: a change makes a new one."""

from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from millstream.formats.protocol.schema import Message
from millstream.node.groups.core.consumer.assignment import Owned, owned_rows, read_owned

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""The member is away and will come back; its partitions wait for it."""

NOTHING: Owned = MappingProxyType({})


class MemberState(IntEnum):
    """How far it is on the way to its target, with the numbers of the record."""

    STABLE = 0
    UNREVOKED = 1
    """It must give partitions up, and has not said yet that it did."""
    UNRELEASED = 2
    """It waits for partitions that others still have."""
    UNKNOWN = 127
    """Written by a version that knows more states than we do."""

    @classmethod
    def _missing_(cls, value: object) -> "MemberState":
        return cls.UNKNOWN


class Protocol(NamedTuple):
    """What a member of the classic protocol can do, from its JoinGroup."""

    name: str
    metadata: bytes


class ClassicSide(NamedTuple):
    """What is known of a member that speaks JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    """Names it subscribed to."""
    pattern: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicSide | None = None
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=lambda: NOTHING)
    revoking: Owned = field(default_factory=lambda: NOTHING)
    """What it was told to give up and has not confirmed; nobody else may have these."""

    @property
    def is_away(self) -> bool:
        return self.epoch == LEAVE_STATIC_EPOCH

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def metadata_value(self) -> dict[str, Any]:
        """The record of what it said of itself."""
        return {
            "instance_id": self.instance_id,
            "rack_id": self.rack,
            "client_id": self.client_id,
            "client_host": self.client_host,
            "subscribed_topic_names": sorted(self.topics),
            "subscribed_topic_regex": self.pattern or "",
            "rebalance_timeout_ms": self.rebalance_timeout_ms,
            "server_assignor": self.assignor,
            "classic_member_metadata": None
            if self.classic is None
            else {
                "session_timeout_ms": self.classic.session_timeout_ms,
                "supported_protocols": [each._asdict() for each in self.classic.protocols],
            },
        }

    def assignment_value(self) -> dict[str, Any]:
        """The record of what it has."""
        return {
            "member_epoch": self.epoch,
            "previous_member_epoch": self.previous_epoch,
            "state": self.state,
            "assigned_partitions": owned_rows(self.assigned),
            "partitions_pending_revocation": owned_rows(self.revoking),
        }


def metadata_fields(value: Message) -> dict[str, Any]:
    """The fields of `Member` that the record of its metadata holds."""
    classic = value.classic_member_metadata
    return {
        "instance_id": value.instance_id,
        "rack": value.rack_id,
        "client_id": value.client_id,
        "client_host": value.client_host,
        "topics": frozenset(value.subscribed_topic_names),
        "pattern": value.subscribed_topic_regex or None,
        "rebalance_timeout_ms": value.rebalance_timeout_ms,
        "assignor": value.server_assignor,
        "classic": None
        if classic is None
        else ClassicSide(
            classic.session_timeout_ms, tuple(Protocol(p.name, p.metadata) for p in classic.supported_protocols)
        ),
    }


def assignment_fields(value: Message) -> dict[str, Any]:
    """The fields of `Member` that the record of its assignment holds."""
    return {
        "epoch": value.member_epoch,
        "previous_epoch": value.previous_member_epoch,
        "state": MemberState(value.state),
        "assigned": read_owned(value.assigned_partitions, value.member_epoch),
        "revoking": read_owned(value.partitions_pending_revocation, value.member_epoch),
    }
