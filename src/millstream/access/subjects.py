"""Permissions on subjects of the schema registry: read, write, delete, and compat (its compatibility level and mode).

Without rules everything is allowed. With rules, what no rule allows is denied. Rules about global settings and mode
have the subject pattern `*` itself: only a rule for all subjects covers them.
"""

from collections.abc import Iterable
from enum import Enum

from millstream.access.patterns import any_matches
from millstream.common.lazy_dataclass import dataclass


class SubjectOperation(Enum):
    READ = "Read"
    WRITE = "Write"
    DELETE = "Delete"
    COMPAT = "Compatibility"


EVERY_SUBJECT = "*"


@dataclass(frozen=True, slots=True)
class SubjectRule:
    principals: tuple[str, ...]
    """`User:ann`, `Group:analysts`, or `*` for all."""
    subjects: tuple[str, ...]
    """Patterns of names, qualified (`:.context:name`) outside of the default context."""
    operations: frozenset[SubjectOperation]


@dataclass(frozen=True, slots=True)
class SubjectRules:
    rules: tuple[SubjectRule, ...] | None = None
    """None: everything is allowed."""

    def of(self, user: str, groups: Iterable[str]) -> "SubjectPermissions":
        if self.rules is None:
            return ALL_SUBJECTS
        names = {"*", f"User:{user}", *(f"Group:{group}" for group in groups)}
        return SubjectPermissions(user, tuple(rule for rule in self.rules if names.intersection(rule.principals)))


@dataclass(frozen=True, slots=True)
class SubjectPermissions:
    """Of one caller."""

    user: str
    rules: tuple[SubjectRule, ...] | None

    def allows(self, operation: SubjectOperation, subject: str | None) -> bool:
        """None as subject: global settings."""
        if self.rules is None:
            return True
        granted = (rule for rule in self.rules if operation in rule.operations)
        if subject is None:
            return any(EVERY_SUBJECT in rule.subjects for rule in granted)
        return any(any_matches(rule.subjects, subject) for rule in granted)

    @property
    def is_unlimited(self) -> bool:
        return self.rules is None


ALL_SUBJECTS = SubjectPermissions("", None)
