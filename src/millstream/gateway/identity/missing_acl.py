"""The response for a request that the cluster does not authorize: 403 with the ACL that is missing.

A broker says only which kind of resource was refused. Which operation and which name it was follows from the route, so
each route declares what it needs (`Needs`).
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.gateway.http.errors import ApiError

_RESOURCES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional-id",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "delegation-token",
}
_OPTIONS = {
    "topic": "--topic",
    "group": "--group",
    "cluster": "--cluster",
    "transactional-id": "--transactional-id",
    "delegation-token": "--token",
}
_QUOTED_TOPIC = re.compile("topic '([a-zA-Z0-9._-]{1,249})'")
_NAMES = {"topic": ("topic", "topic_name"), "group": ("group", "consumer_group_id")}


@dataclass(frozen=True, slots=True)
class Needs:
    """The operations that a route needs, by kind of resource; empty: it never touches one."""

    topic: str = "Describe"
    group: str = "Describe"
    cluster: str = "Describe"

    def operation(self, resource: str) -> str:
        return str(getattr(self, resource, "Write"))


def missing_acl(
    code: ErrorCode, needs: Needs, path_parameters: Mapping[str, Any], user: str, message: str
) -> "ForbiddenError":
    resource = _RESOURCES[code]
    operation = needs.operation(resource)
    name = next((str(path_parameters[each]) for each in _NAMES.get(resource, ()) if each in path_parameters), "")
    if resource == "topic" and not name:  # the name is in the body; errors of the client quote it
        quoted = _QUOTED_TOPIC.search(message)
        name = quoted[1] if quoted else ""
    if resource == "cluster":
        name = "kafka-cluster"
    return ForbiddenError(resource, name, operation, f"User:{user}", message)


class ForbiddenError(ApiError):
    """403 that names the missing ACL."""

    def __init__(self, resource: str, name: str, operation: str, principal: str, message: str) -> None:
        shown = name or f"the {resource}"
        target = (
            _OPTIONS[resource]
            if resource == "cluster"
            else f"{_OPTIONS[resource]} {shlex.quote(name) if name else 'NAME'}"
        )
        words = re.sub("(?<=[a-z])(?=[A-Z])", "_", operation).lower()
        command = f"millstream acl add {shlex.quote(principal)} {words} {target}"
        super().__init__(
            403,
            f"{principal} is not allowed to {operation} on {resource} {shown}" if name else message,
            f"an administrator can allow it: {command}",
            code=40301,
        )
        self.extra = {
            "missing_acl": {
                "principal": principal,
                "operation": operation,
                "resource_type": resource,
                "resource_name": name or None,
                "command": command,
            }
        }
