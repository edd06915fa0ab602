"""Roles of callers: viewer, operator, admin; and the rules that give them to users and groups.

Each role includes the ones before it. Without rules every caller is admin, because the cluster (its ACLs) or the
operator (the credentials file) has already decided who gets in.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import IntEnum

from millstream.common.lazy_dataclass import dataclass


class Role(IntEnum):
    NONE = 0
    """Signed in, but without access."""
    VIEWER = 1
    """Reads: topics, records, groups, schemas, the cluster."""
    OPERATOR = 2
    """Produces, consumes in a group, moves offsets, sends dead letters back, registers schemas."""
    ADMIN = 3
    """Creates and deletes topics, groups and subjects, and changes settings."""

    def __str__(self) -> str:
        return self.name.lower()


def parse_role(text: object) -> Role:
    """ValueError names the roles."""
    name = str(text).strip().upper()
    if name not in Role.__members__:
        raise ValueError(f"{text!r} is not a role: give {', '.join(str(role) for role in Role)}")
    return Role[name]


@dataclass(frozen=True, slots=True)
class RoleRules:
    """Roles by user and by group. A caller has the highest role of all rules that name it."""

    users: Mapping[str, Role] = field(default_factory=dict)
    groups: Mapping[str, Role] = field(default_factory=dict)
    default: Role = Role.ADMIN
    """The role of callers that no rule names."""

    def role_of(self, user: str, groups: Iterable[str] = ()) -> Role:
        named = [self.groups[group] for group in groups if group in self.groups]
        if user in self.users:
            named.append(self.users[user])
        return max(named, default=self.default)
