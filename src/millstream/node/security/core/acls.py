"""ACLs, compiled: what a principal at an address may do with a resource, after Kafka's StandardAuthorizer.

An ACL names a principal, a host, an operation, a permission and a pattern of resources. The rules:

- A super user may do everything.
- A denial wins over every permission.
- READ, WRITE, DELETE and ALTER permit DESCRIBE too; ALTER_CONFIGS permits DESCRIBE_CONFIGS; ALL permits all. A denial
  denies only what it names.
- A resource without any ACL is denied, or allowed with `allow.everyone.if.no.acl.found`.
- `User:*` is every principal, the host `*` every address, the literal name `*` every resource of the type.
- ACLs of the client's groups (`Group:…`) apply like its own. A host may also be a range (`10.0.0.0/8`). Both are
  additions to Kafka.

`AclTable` is made once for each change of the ACLs, `Access` once for each principal and address. It keeps the decision
for each resource as a bit mask, so that a check is one look-up in a dictionary. Changes of ACLs, and the log in which
they are, are elsewhere (`changes.py`).
"""

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.access_control import (
    ANY_USER,
    OPERATIONS,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    Principal,
    mask_of,
)
from millstream.node.metadata.records import AccessControlEntryRecord

WILDCARD = "*"
_MOST_KEPT = 10_000
"""The maximum number of kept decisions of a resource type for one principal. Names come from clients."""
_MOST_ACCESSES = 10_000
"""The maximum number of principals with addresses that are kept."""

_IMPLIED: Mapping[AclOperation, tuple[AclOperation, ...]] = {
    AclOperation.READ: (AclOperation.DESCRIBE,),
    AclOperation.WRITE: (AclOperation.DESCRIBE,),
    AclOperation.DELETE: (AclOperation.DESCRIBE,),
    AclOperation.ALTER: (AclOperation.DESCRIBE,),
    AclOperation.ALTER_CONFIGS: (AclOperation.DESCRIBE_CONFIGS,),
}
_ALL_OPERATIONS = sum(1 << operation for operation in AclOperation if operation > AclOperation.ALL)


def permitted(operation: int) -> int:
    """The operations that an ACL with this operation permits, as bits."""
    if operation == AclOperation.ALL:
        return _ALL_OPERATIONS
    if operation not in AclOperation._value2member_map_:
        return 0
    return 1 << operation | mask_of(_IMPLIED.get(AclOperation(operation), ()))


def denied(operation: int) -> int:
    """The operations that a denial with this operation denies, as bits."""
    return _ALL_OPERATIONS if operation == AclOperation.ALL else 1 << operation


@dataclass(frozen=True, slots=True)
class AuthorizerSettings:
    super_users: frozenset[Principal] = frozenset()
    allows_without_acls: bool = False
    """`allow.everyone.if.no.acl.found`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision, and what it is based on."""

    is_allowed: bool
    rule: AccessControlEntryRecord | None = None
    reason: str = ""


@lru_cache(maxsize=4096)
def _network(host: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(host, strict=False)
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


def is_range(host: str) -> bool:
    """Whether the host of an ACL is a valid range of addresses."""
    return "/" in host and _network(host) is not None


def host_matches(pattern: str, host: str) -> bool:
    """Whether the host of an ACL is that of a client. Addresses are compared by value: `::1` is `0:0:0:0:0:0:0:1`."""
    if pattern in (WILDCARD, host):
        return True
    address = _address(host)
    if address is None:
        return False
    if "/" in pattern:
        network = _network(pattern)
        return network is not None and address.version == network.version and address in network
    return address == _address(pattern)


class _Patterns:
    """The ACLs of one resource type, found by the name of a resource."""

    __slots__ = ("_prefixes", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, list[AccessControlEntryRecord]] = {}
        self.prefixed: dict[str, list[AccessControlEntryRecord]] = {}
        self._prefixes: list[int] | None = None

    def add(self, acl: AccessControlEntryRecord) -> None:
        patterns = self.prefixed if acl.pattern_type == AclPatternType.PREFIXED else self.literal
        patterns.setdefault(acl.resource_name, []).append(acl)
        self._prefixes = None

    def matching(self, name: str) -> list[AccessControlEntryRecord]:
        """All ACLs whose pattern has the name: a look-up for the name, `*`, and each length of a prefix."""
        if self._prefixes is None:
            self._prefixes = sorted({len(prefix) for prefix in self.prefixed})
        found = list(self.literal.get(name, ()))
        if name != WILDCARD:
            found += self.literal.get(WILDCARD, ())
        for length in self._prefixes:
            if length > len(name):
                break
            found += self.prefixed.get(name[:length], ())
        return found

    def has_any(self, name: str) -> bool:
        return bool(self.matching(name))


class _Masks(dict[str, int]):
    """The permitted operations of each resource of one type, computed when they are first needed."""

    __slots__ = ("_compute",)

    def __init__(self, compute: Callable[[str], int]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, name: str) -> int:
        if len(self) >= _MOST_KEPT:
            self.clear()
        mask = self[name] = self._compute(name)
        return mask


class Access:
    """What one principal may do from one address."""

    __slots__ = ("_is_super", "_masks", "_own", "_table", "scratch")

    def __init__(self, table: "AclTable", principals: tuple[Principal, ...], host: str) -> None:
        self._table = table
        self._is_super = any(each in table.settings.super_users for each in principals)
        self._own: dict[int, _Patterns] = {}
        for acl in table.of_principals(principals):
            if host_matches(acl.host, host):
                self._own.setdefault(acl.resource_type, _Patterns()).add(acl)
        self._masks = {kind: _Masks(self._computing(kind)) for kind in AclResourceType}
        self.scratch: dict[object, object] = {}
        """For callers: whatever they derive from this access. It goes when the ACLs change."""

    def _computing(self, kind: AclResourceType) -> Callable[[str], int]:
        return lambda name: self._compute(kind, name)

    def _compute(self, kind: int, name: str) -> int:
        if self._is_super:
            return _ALL_OPERATIONS
        allows = denies = 0
        for acl in self._matching(kind, name):
            if acl.permission_type == AclPermission.DENY:
                denies |= denied(acl.operation)
            elif acl.permission_type == AclPermission.ALLOW:
                allows |= permitted(acl.operation)
        if self._table.settings.allows_without_acls and not self._table.has_acls(kind, name):
            allows = _ALL_OPERATIONS
        return allows & ~denies

    def _matching(self, kind: int, name: str) -> list[AccessControlEntryRecord]:
        patterns = self._own.get(kind)
        return patterns.matching(name) if patterns is not None else []

    def allows(self, operation: AclOperation, kind: AclResourceType, name: str) -> bool:
        return bool(self._masks[kind][name] >> operation & 1)

    def operations(self, kind: AclResourceType, name: str) -> int:
        """The permitted operations of a resource as bits, of those that its type has."""
        return self._masks[kind][name] & mask_of(OPERATIONS[kind])

    def explain(self, operation: AclOperation, kind: AclResourceType, name: str) -> Verdict:
        """The decision with the ACL that it is based on."""
        if self._is_super:
            return Verdict(True, None, "a super user (super.users) may do everything")
        matching = self._matching(kind, name)
        for acl in matching:
            if acl.permission_type == AclPermission.DENY and denied(acl.operation) >> operation & 1:
                return Verdict(False, acl, "this ACL denies it; a denial wins over every permission")
        for acl in matching:
            if acl.permission_type == AclPermission.ALLOW and permitted(acl.operation) >> operation & 1:
                return Verdict(True, acl, "this ACL permits it")
        if not self._table.has_acls(kind, name):
            if self._table.settings.allows_without_acls:
                return Verdict(True, None, "the resource has no ACL, and allow.everyone.if.no.acl.found=true")
            return Verdict(False, None, "the resource has no ACL")
        return Verdict(False, None, "no ACL of the resource permits it for this principal from this host")

    def allows_some(self, operation: AclOperation, kind: AclResourceType) -> bool:
        """Whether it may do this with at least one resource of the type, existing or not (authorizeByResourceType)."""
        if self.allows(operation, kind, "hardcode"):  # a super user, or an ACL for all names
            return True
        patterns = self._own.get(kind)
        if patterns is None:
            return False
        literal = _allowed_and_denied(patterns.literal, operation)
        prefixed = _allowed_and_denied(patterns.prefixed, operation)
        if WILDCARD in literal.denied:
            return False
        if WILDCARD in literal.allowed:
            return True
        denied_prefixes = prefixed.denied
        return any(
            name not in literal.denied and not _has_prefix(name, denied_prefixes) for name in literal.allowed
        ) or any(not _has_prefix(prefix, denied_prefixes) for prefix in prefixed.allowed)


@dataclass(frozen=True, slots=True)
class _Names:
    allowed: frozenset[str]
    denied: frozenset[str]


def _allowed_and_denied(patterns: Mapping[str, Sequence[AccessControlEntryRecord]], operation: AclOperation) -> _Names:
    names: dict[int, set[str]] = {AclPermission.ALLOW: set(), AclPermission.DENY: set()}
    for name, acls in patterns.items():
        for acl in acls:
            if acl.operation in (operation, AclOperation.ALL) and acl.permission_type in names:
                names[acl.permission_type].add(name)
    return _Names(frozenset(names[AclPermission.ALLOW]), frozenset(names[AclPermission.DENY]))


def _has_prefix(name: str, prefixes: frozenset[str]) -> bool:
    return any(name.startswith(prefix) for prefix in prefixes)


class AclTable:
    """All ACLs, by principal. Immutable: a change of the ACLs makes a new one."""

    def __init__(self, acls: Iterable[AccessControlEntryRecord], settings: AuthorizerSettings) -> None:
        self.settings = settings
        self._by_principal: dict[str, list[AccessControlEntryRecord]] = {}
        self._by_resource: dict[int, _Patterns] = {}
        for acl in acls:
            self._by_principal.setdefault(acl.principal, []).append(acl)
            self._by_resource.setdefault(acl.resource_type, _Patterns()).add(acl)
        self._accesses: dict[tuple[tuple[Principal, ...], str], Access] = {}

    def of_principals(self, principals: Iterable[Principal]) -> list[AccessControlEntryRecord]:
        names = dict.fromkeys([*map(str, principals), str(ANY_USER)])
        return [acl for name in names for acl in self._by_principal.get(name, ())]

    def has_acls(self, kind: int, name: str) -> bool:
        """Whether any ACL, of any principal, is for this resource."""
        patterns = self._by_resource.get(kind)
        return patterns is not None and patterns.has_any(name)

    def access(self, principals: tuple[Principal, ...], host: str) -> Access:
        """The access of a client: its principal and its groups."""
        key = principals, host
        found = self._accesses.get(key)
        if found is None:
            if len(self._accesses) >= _MOST_ACCESSES:
                self._accesses.clear()
            found = self._accesses[key] = Access(self, principals, host)
        return found
