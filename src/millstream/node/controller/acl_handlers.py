"""Handlers for ACLs: DescribeAcls (29), CreateAcls (30), DeleteAcls (31).

Brokers and controllers serve the first, from their image. Only the active controller changes ACLs. Without an
authorizer all respond SECURITY_DISABLED, as in Kafka: ACLs that are never checked would be a false comfort.
"""

from collections.abc import Callable
from itertools import groupby
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.wire_types import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from millstream.node.controller.active_controller import ActiveController
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import AccessControlEntryRecord
from millstream.node.security.core.changes import AclBinding, AclFilter, create_acls, delete_acls, select
from millstream.node.server.request import Context

_DISABLED = "No Authorizer is configured. Set authorizer.class.name on all nodes."


class DescribeAclsHandlers:
    def __init__(self, image: Callable[[], MetadataImage], *, is_enabled: bool) -> None:
        self._image = image
        self._is_enabled = is_enabled

    def describe_acls(self, request: DescribeAclsRequest, context: Context) -> DescribeAclsResponse:
        if not self._is_enabled:
            return {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": _DISABLED, "resources": []}
        wanted = _filter(request)
        try:
            wanted.check()
        except KafkaError as error:
            return {"error_code": error.code, "error_message": error.message, "resources": []}
        found = sorted(select(self._image().acls.values(), wanted), key=_pattern)
        return {
            "error_code": ErrorCode.NONE,
            "resources": [
                {
                    "resource_type": kind,
                    "resource_name": name,
                    "pattern_type": pattern,
                    "acls": [
                        {
                            "principal": acl.principal,
                            "host": acl.host,
                            "operation": acl.operation,
                            "permission_type": acl.permission_type,
                        }
                        for acl in acls
                    ],
                }
                for (kind, name, pattern), acls in groupby(found, key=_pattern)
            ],
        }


def _pattern(acl: AccessControlEntryRecord) -> tuple[int, str, int]:
    return acl.resource_type, acl.resource_name, acl.pattern_type


class AclHandlers:
    """Changes of ACLs, by the active controller."""

    def __init__(self, controller: ActiveController, *, is_enabled: bool) -> None:
        self._controller = controller
        self._is_enabled = is_enabled

    async def create_acls(self, request: CreateAclsRequest, context: Context) -> CreateAclsResponse:
        if not self._is_enabled:
            error = {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": _DISABLED}
            return {"results": [{**error} for _ in request.creations]}  # type: ignore[typeddict-item]
        bindings = [
            AclBinding(
                row.resource_type,
                row.resource_name,
                row.resource_pattern_type,
                row.principal,
                row.host,
                row.operation,
                row.permission_type,
            )
            for row in request.creations
        ]
        results = await self._controller.decide(
            lambda image, config, randomness: create_acls(image, bindings, randomness, request.mirror_link)
        )
        return {"results": [{"error_code": row.error, "error_message": row.message} for row in results]}

    async def delete_acls(self, request: DeleteAclsRequest, context: Context) -> DeleteAclsResponse:
        if not self._is_enabled:
            return {
                "filter_results": [
                    {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": _DISABLED, "matching_acls": []}
                    for _ in request.filters
                ]
            }
        filters = [_filter(row) for row in request.filters]
        results = await self._controller.decide(lambda image, config, randomness: delete_acls(image, filters))
        return {
            "filter_results": [
                {
                    "error_code": result.error,
                    "error_message": result.message,
                    "matching_acls": [
                        {
                            "error_code": ErrorCode.NONE,
                            "error_message": None,
                            "resource_type": acl.resource_type,
                            "resource_name": acl.resource_name,
                            "pattern_type": acl.pattern_type,
                            "principal": acl.principal,
                            "host": acl.host,
                            "operation": acl.operation,
                            "permission_type": acl.permission_type,
                        }
                        for acl in result.deleted
                    ],
                }
                for result in results
            ]
        }


def _filter(row: Any) -> AclFilter:
    return AclFilter(
        row.resource_type_filter,
        row.resource_name_filter,
        row.pattern_type_filter,
        row.principal_filter,
        row.host_filter,
        row.operation,
        row.permission_type,
    )
