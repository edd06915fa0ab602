"""ACLs of a cluster: list, add, remove, and explain which ACL decides. The rules are the broker's own."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.admin.errors import AdminError, InvalidArgumentError, check
from millstream.common.close_match import did_you_mean
from millstream.formats.model.access_control import (
    CLUSTER_NAME,
    OPERATIONS,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    Principal,
    parse_principal,
)
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client import Cluster

if TYPE_CHECKING:
    from millstream.node.metadata.records import AccessControlEntryRecord

RESOURCES = {each.name.lower().replace("_", "-"): each for each in OPERATIONS}
"""Resource types by the names that users write."""


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    principal: str
    resource: AclResourceType
    name: str
    pattern: AclPatternType
    operation: AclOperation
    permission: AclPermission
    host: str

    def __str__(self) -> str:
        prefix = "*" if self.pattern is AclPatternType.PREFIXED else ""
        return (
            f"{self.permission.name} {self.principal} {self.operation.name} {self.resource.name}:{self.name}{prefix}"
            f" from {self.host}"
        )


@dataclass(frozen=True, slots=True)
class AclSelection:
    """Selects ACLs; None selects all. `pattern` MATCH selects all ACLs that apply to a resource of this name."""

    resource: AclResourceType = AclResourceType.ANY
    name: str | None = None
    pattern: AclPatternType = AclPatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    def fields(self) -> dict[str, Any]:
        return {
            "resource_type_filter": self.resource,
            "resource_name_filter": self.name,
            "pattern_type_filter": self.pattern,
            "principal_filter": self.principal,
            "host_filter": self.host,
            "operation": self.operation,
            "permission_type": self.permission,
        }


def exactly(acl: Acl) -> AclSelection:
    return AclSelection(acl.resource, acl.name, acl.pattern, acl.principal, acl.host, acl.operation, acl.permission)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a principal may do something, or may not."""

    is_allowed: bool
    reason: str
    acl: Acl | None
    """The ACL that decides. None: there is none, or a setting decides."""
    command: str | None
    """The command that would permit it. None: it is permitted."""


def make_acl(
    principal: str,
    operation: str,
    resource: str,
    name: str,
    *,
    prefixed: bool = False,
    deny: bool = False,
    host: str = "*",
) -> Acl:
    """An ACL from texts. InvalidArgumentError says which one is wrong."""
    who = str(read_principal(principal.strip()))
    kind, named, wanted = read_resource(resource, name, operation)
    pattern = AclPatternType.PREFIXED if prefixed and kind is not AclResourceType.CLUSTER else AclPatternType.LITERAL
    permission = AclPermission.DENY if deny else AclPermission.ALLOW
    return Acl(who, kind, named, pattern, wanted, permission, host.strip() or "*")


def read_principal(text: str) -> Principal:
    try:
        return parse_principal(text)
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None


def read_operation(text: str) -> AclOperation:
    name = text.upper().replace("-", "_")
    known = [operation.name for operation in AclOperation if operation >= AclOperation.ALL]
    if name not in known:
        hint = did_you_mean(text.lower(), [each.lower() for each in known])
        raise InvalidArgumentError(
            f"there is no operation {text!r}: {hint or 'give one of ' + ', '.join(known).lower()}"
        )
    return AclOperation[name]


def read_resource(resource: str, name: str, operation: str) -> tuple[AclResourceType, str, AclOperation]:
    """Type and name of a resource, and an operation that it has."""
    kind = RESOURCES.get(resource.lower().replace("_", "-"))
    if kind is None:
        raise InvalidArgumentError(f"there is no resource type {resource!r}: give one of {', '.join(RESOURCES)}")
    wanted = read_operation(operation)
    if wanted is not AclOperation.ALL and wanted not in OPERATIONS[kind]:
        fitting = ", ".join(each.name.lower() for each in OPERATIONS[kind])
        raise InvalidArgumentError(f"{resource} has no operation {wanted.name.lower()}: give all, {fitting}")
    named = CLUSTER_NAME if kind is AclResourceType.CLUSTER else name.strip()
    if not named:
        raise InvalidArgumentError("the name of the resource is missing: give a name, or * for all")
    return kind, named, wanted


class AclsAreOffError(AdminError):
    """The brokers have no authorizer."""

    error = ErrorCode.SECURITY_DISABLED

    def __init__(self) -> None:
        super().__init__(
            "ACLs are off: authorizer.class.name is not set on the brokers, so every client may do everything. "
            "Set it to org.apache.kafka.metadata.authorizer.StandardAuthorizer and restart them"
        )


class AclAdmin:
    """Every method raises AclsAreOffError if the brokers have no authorizer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def list(self, wanted: AclSelection = AclSelection()) -> list[Acl]:
        """The selected ACLs, sorted."""
        response = self._cluster.call("describe_acls", **wanted.fields())
        _check("ACLs", response)
        return sorted(
            Acl(
                row.principal,
                AclResourceType(resource.resource_type),
                resource.resource_name,
                AclPatternType(resource.pattern_type),
                AclOperation(row.operation),
                AclPermission(row.permission_type),
                row.host,
            )
            for resource in response.resources
            for row in resource.acls
        )

    def add(self, acls: Sequence[Acl]) -> None:
        """Adds ACLs; those that exist stay. Raises the first error."""
        rows = [
            {
                "resource_type": acl.resource,
                "resource_name": acl.name,
                "resource_pattern_type": acl.pattern,
                "principal": acl.principal,
                "host": acl.host,
                "operation": acl.operation,
                "permission_type": acl.permission,
            }
            for acl in acls
        ]
        response = self._cluster.call("create_acls", creations=rows)
        for acl, row in zip(acls, response.results, strict=True):
            _check(f"ACL '{acl}'", row)

    def remove(self, selections: Sequence[AclSelection]) -> int:
        """Removes the selected ACLs; returns how many. Raises the first error."""
        response = self._cluster.call("delete_acls", filters=[each.fields() for each in selections])
        for row in response.filter_results:
            _check("ACLs", row)
        return sum(len(row.matching_acls) for row in response.filter_results)

    def authorizer_settings(self) -> tuple[str, bool]:
        """`super.users` and `allow.everyone.if.no.acl.found` of a broker."""
        node = self._cluster.brokers()[0].node_id
        names = ["super.users", "allow.everyone.if.no.acl.found"]
        wanted = {"resource_type": 4, "resource_name": str(node), "configuration_keys": names}
        response = self._cluster.call("describe_configs", node=node, resources=[wanted])
        check(f"settings of broker {node}", response.results[0])
        values = {row.name: row.value or "" for row in response.results[0].configs}
        return values.get(names[0], ""), values.get(names[1], "false") == "true"

    def explain(
        self,
        principals: Sequence[Principal],
        operation: AclOperation,
        resource: AclResourceType,
        name: str,
        host: str = "127.0.0.1",
    ) -> Explanation:
        """The decision by the broker's own rules, with the ACLs and settings of the cluster. `principals`: the client,
        and then its groups."""
        from millstream.node.metadata.records import AccessControlEntryRecord
        from millstream.node.security.core.acls import AclTable, AuthorizerSettings

        acls = self.list()
        users, everyone = self.authorizer_settings()
        super_users = frozenset(parse_principal(text.strip()) for text in users.split(";") if text.strip())
        records = [
            AccessControlEntryRecord(
                id=UUID(int=number),
                resource_type=acl.resource,
                resource_name=acl.name,
                pattern_type=acl.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for number, acl in enumerate(acls)
        ]
        table = AclTable(records, AuthorizerSettings(super_users, everyone))
        verdict = table.access(tuple(principals), host).explain(operation, resource, name)
        rule = None if verdict.rule is None else _as_acl(verdict.rule)
        command = None if verdict.is_allowed else _command(principals[0], operation, resource, name, rule)
        return Explanation(verdict.is_allowed, verdict.reason, rule, command)


def _check(what: str, row: Message) -> None:
    if row.error_code == ErrorCode.SECURITY_DISABLED:
        raise AclsAreOffError
    check(what, row)


def _as_acl(rule: "AccessControlEntryRecord") -> Acl:
    return Acl(
        rule.principal,
        AclResourceType(rule.resource_type),
        rule.resource_name,
        AclPatternType(rule.pattern_type),
        AclOperation(rule.operation),
        AclPermission(rule.permission_type),
        rule.host,
    )


_OPTIONS = {
    AclResourceType.TOPIC: "--topic",
    AclResourceType.GROUP: "--group",
    AclResourceType.TRANSACTIONAL_ID: "--transactional-id",
    AclResourceType.DELEGATION_TOKEN: "--token",
    AclResourceType.USER: "--user",
}


def _command(
    principal: Principal, operation: AclOperation, resource: AclResourceType, name: str, denial: Acl | None
) -> str:
    """The command that permits it: the missing ACL, or the removal of the denial."""
    verb, who, what = (
        ("add", str(principal), operation) if denial is None else ("remove", denial.principal, denial.operation)
    )
    words = ["millstream", "acl", verb, who, what.name.lower()]
    if resource is AclResourceType.CLUSTER:
        words += ["--cluster"]
    else:
        words += [_OPTIONS[resource], name if denial is None else denial.name]
    if denial is not None:
        words += ["--prefixed"] if denial.pattern is AclPatternType.PREFIXED else []
        words += ["--deny"] + ([] if denial.host == "*" else ["--host", denial.host])
    return shlex.join(words)
