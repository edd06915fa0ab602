"""ACLs of a cluster: list, add, remove. The rules by which they are applied are the broker's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millstream.admin.errors import check
from millstream.formats.model.access_control import AclOperation, AclPatternType, AclPermission, AclResourceType
from millstream.raw_client import Cluster


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


class AclAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def list(self, wanted: AclSelection = AclSelection()) -> list[Acl]:
        """The selected ACLs, sorted."""
        response = self._cluster.call("describe_acls", **wanted.fields())
        check("ACLs", response)
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
            check(f"ACL '{acl}'", row)

    def remove(self, selections: Sequence[AclSelection]) -> int:
        """Removes the selected ACLs; returns how many. Raises the first error."""
        response = self._cluster.call("delete_acls", filters=[each.fields() for each in selections])
        for row in response.filter_results:
            check("ACLs", row)
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
