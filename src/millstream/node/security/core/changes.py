"""Changes of ACLs: CreateAcls, DescribeAcls and DeleteAcls as pure functions of the metadata image.

Filters select ACLs as Kafka's do. A pattern of type MATCH selects all ACLs that apply to a resource of that name: the
literal name, `*` and prefixes. ANY selects all patterns of that very name. The rules of ACLs are in `acls.py`.

An ACL that a mirror link copied has an id that is made from the link and the ACL itself, others have a random one. So
the metadata says which ACLs a link may remove, whichever broker asks.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from uuid import UUID, uuid5

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.access_control import (
    CLUSTER_NAME,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    parse_principal,
)
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import (
    AccessControlEntryRecord,
    Decision,
    DecisionResult,
    MetadataRecord,
    RemoveAccessControlEntryRecord,
)
from millstream.node.security.core.acls import WILDCARD, is_range

MAX_CHANGES_PER_REQUEST = 10_000
"""Kafka's limit on the records that one request may cause."""
_LONGEST_TEXT = 32_767
_MIRRORED = UUID("6d1b6f0c-5a5e-4c39-9f4e-0f6a3c1f7b52")
"""The namespace (RFC 9562) of the ids of ACLs that mirror links copied. It must never change."""


@dataclass(frozen=True, slots=True)
class AclBinding:
    """An ACL without an id, as a client names it."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


def binding_of(acl: AccessControlEntryRecord) -> AclBinding:
    return AclBinding(
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )


def mirrored_id(link: str, binding: AclBinding) -> UUID:
    """The id of an ACL that a mirror link copied."""
    return uuid5(_MIRRORED, json.dumps([link, *astuple(binding)]))


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects ACLs. None, and the number of ANY, select all."""

    resource_type: int = AclResourceType.ANY
    resource_name: str | None = None
    pattern_type: int = AclPatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = AclOperation.ANY
    permission: int = AclPermission.ANY

    def check(self) -> None:
        """Raises INVALID_REQUEST for a number that means nothing."""
        for value, kind in (
            (self.resource_type, AclResourceType),
            (self.pattern_type, AclPatternType),
            (self.operation, AclOperation),
            (self.permission, AclPermission),
        ):
            if value <= 0 or value not in kind._value2member_map_:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"the filter has {kind.__name__} {value}, which is not known"
                )

    def matches(self, acl: AccessControlEntryRecord) -> bool:
        return (
            self.resource_type in (AclResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (AclPermission.ANY, acl.permission_type)
        )

    def _matches_pattern(self, acl: AccessControlEntryRecord) -> bool:
        kind, name = self.pattern_type, self.resource_name
        if kind not in (AclPatternType.ANY, AclPatternType.MATCH, acl.pattern_type):
            return False
        if name is None:
            return True
        if kind != AclPatternType.MATCH:
            return name == acl.resource_name
        if acl.pattern_type == AclPatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, WILDCARD)


def select(acls: Iterable[AccessControlEntryRecord], wanted: AclFilter) -> Iterator[AccessControlEntryRecord]:
    return (acl for acl in acls if wanted.matches(acl))


@dataclass(frozen=True, slots=True, kw_only=True)
class AclDeletion(DecisionResult):
    """The result of one filter."""

    deleted: tuple[AccessControlEntryRecord, ...] = ()


def check_new(binding: AclBinding) -> None:
    """Raises INVALID_REQUEST for an ACL that cannot be."""
    problem = _problem(binding)
    if problem:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _problem(binding: AclBinding) -> str:
    resource_types = frozenset(AclResourceType) - {AclResourceType.UNKNOWN, AclResourceType.ANY}
    operations = frozenset(AclOperation) - {AclOperation.UNKNOWN, AclOperation.ANY}
    if binding.resource_type not in resource_types:
        return f"Invalid resourceType {binding.resource_type}"
    if binding.pattern_type not in (AclPatternType.LITERAL, AclPatternType.PREFIXED):
        return f"Invalid patternType {binding.pattern_type}: use LITERAL (3) or PREFIXED (4)"
    if binding.operation not in operations:
        return f"Invalid operation {binding.operation}"
    if binding.permission not in (AclPermission.ALLOW, AclPermission.DENY):
        return f"Invalid permissionType {binding.permission}: use DENY (2) or ALLOW (3)"
    if not binding.resource_name:
        return "Resource name should not be empty"
    if binding.resource_type == AclResourceType.CLUSTER and binding.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    for text in (binding.resource_name, binding.principal, binding.host):
        if len(text.encode(errors="surrogatepass")) > _LONGEST_TEXT:
            return f"a name of {len(text)} characters is too long; the limit is {_LONGEST_TEXT} bytes"
    try:
        parse_principal(binding.principal)
    except ValueError as error:
        return str(error)
    if not binding.host:
        return "Host should not be empty: use * for all hosts"
    if "/" in binding.host and not is_range(binding.host):
        return f"{binding.host} is not a range of addresses; write for example 10.0.0.0/8 or 2001:db8::/32"
    return ""


def create_acls(
    image: MetadataImage, bindings: Sequence[AclBinding], randomness: random.Random, mirror_link: str | None = None
) -> Decision[DecisionResult]:
    """Adds ACLs, for a mirror link if it is named. One that exists already is a success without a record."""
    if len(bindings) > MAX_CHANGES_PER_REQUEST:
        return _too_many(len(bindings), DecisionResult)
    existing = {binding_of(acl) for acl in image.acls.values()}
    records: list[MetadataRecord] = []
    results: list[DecisionResult] = []
    for binding in bindings:
        try:
            check_new(binding)
        except KafkaError as error:
            results.append(DecisionResult(error=error.code, message=error.message))
            continue
        results.append(DecisionResult())
        if binding in existing:
            continue
        existing.add(binding)
        records.append(
            AccessControlEntryRecord(
                id=mirrored_id(mirror_link, binding) if mirror_link else _new_id(image, randomness),
                resource_type=binding.resource_type,
                resource_name=binding.resource_name,
                pattern_type=binding.pattern_type,
                principal=binding.principal,
                host=binding.host,
                operation=binding.operation,
                permission_type=binding.permission,
            )
        )
    return Decision(tuple(records), tuple(results))


def _new_id(image: MetadataImage, randomness: random.Random) -> UUID:
    while (found := UUID(int=randomness.getrandbits(128), version=4)) in image.acls:
        pass
    return found


def delete_acls(image: MetadataImage, filters: Sequence[AclFilter]) -> Decision[AclDeletion]:
    """Deletes what each filter selects. An ACL that two filters select is in the results of both."""
    deleted: dict[UUID, MetadataRecord] = {}
    results: list[AclDeletion] = []
    for wanted in filters:
        try:
            wanted.check()
        except KafkaError as error:
            results.append(AclDeletion(error=error.code, message=error.message))
            continue
        found = tuple(select(image.acls.values(), wanted))
        deleted |= {acl.id: RemoveAccessControlEntryRecord(id=acl.id) for acl in found}
        results.append(AclDeletion(deleted=found))
    if len(deleted) > MAX_CHANGES_PER_REQUEST:
        message = f"the filters select {len(deleted)} ACLs; the limit is {MAX_CHANGES_PER_REQUEST} in one request"
        return Decision((), tuple(AclDeletion(error=ErrorCode.INVALID_REQUEST, message=message) for _ in filters))
    return Decision(tuple(deleted.values()), tuple(results))


def _too_many(count: int, kind: type[DecisionResult]) -> Decision[DecisionResult]:
    message = f"{count} ACLs in one request; the limit is {MAX_CHANGES_PER_REQUEST}"
    return Decision((), tuple(kind(error=ErrorCode.INVALID_REQUEST, message=message) for _ in range(count)))
