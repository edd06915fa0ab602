"""Confluent's REST v3: ACLs. Search, create one or several, delete what a search selects."""

from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

from msgspec import Meta, Struct
from starlette.responses import Response
from starlette.routing import BaseRoute

from millstream.admin.acls import Acl, AclAdmin, AclSelection
from millstream.formats.model.access_control import AclOperation, AclPatternType, AclPermission, AclResourceType
from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import Doc, endpoint
from millstream.gateway.identity.caller import caller_cluster
from millstream.gateway.identity.missing_acl import Needs
from millstream.gateway.rest_v3.resources import BASE, TAG, Collection, Links

_MAX_AT_ONCE = 1_000
_READING, _CHANGING = Needs(cluster="Describe"), Needs(cluster="Alter")
_PARAMETERS = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")

Named = TypeVar("Named", bound=IntEnum)


class NewAcl(Struct, forbid_unknown_fields=True):
    """An ACL to create."""

    resource_type: Annotated[str, Meta(description="TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER.")]
    resource_name: str
    pattern_type: Annotated[str, Meta(description="LITERAL or PREFIXED.")]
    principal: Annotated[str, Meta(description="User:NAME, Group:NAME, or User:* for all.")]
    host: Annotated[str, Meta(description="An address, a network in CIDR notation, or * for all.")]
    operation: str
    permission: Annotated[str, Meta(description="ALLOW or DENY.")]


class NewAcls(Struct, forbid_unknown_fields=True):
    """ACLs to create."""

    data: Annotated[list[NewAcl], Meta(min_length=1, max_length=_MAX_AT_ONCE)]


class DeletedAcls(Struct):
    """The ACLs that were deleted."""

    data: list[dict[str, Any]]


_LIST_DOC = Doc(tag=TAG, summary="Search ACLs", response=Collection)
_CREATE_DOC = Doc(tag=TAG, summary="Create an ACL", body=NewAcl, response=None, status=201)
_BATCH_DOC = Doc(tag=TAG, summary="Create several ACLs", body=NewAcls, response=None, status=201)
_DELETE_DOC = Doc(
    tag=TAG,
    summary="Delete ACLs",
    description="resource_type, pattern_type, operation and permission are required, ANY selects all; without another "
    "parameter, its values are not restricted.",
    response=DeletedAcls,
)


class AclRoutes:
    def __init__(self, links: Callable[[ApiRequest], Links]) -> None:
        self._links = links

    @property
    def _admin(self) -> AclAdmin:
        return AclAdmin(caller_cluster())

    def routes(self) -> list[BaseRoute]:
        path = BASE + "/{cluster_id}/acls"
        return [
            endpoint("GET", path, self.search, doc=_LIST_DOC, needs=_READING),
            endpoint("POST", path, self.create, doc=_CREATE_DOC, needs=_CHANGING),
            endpoint("POST", path + ":batch", self.create_several, doc=_BATCH_DOC, needs=_CHANGING),
            endpoint("DELETE", path, self.delete, doc=_DELETE_DOC, needs=_CHANGING),
        ]

    def search(self, req: ApiRequest) -> Any:
        links = self._links(req)
        return links.collection(
            "KafkaAclList", ("acls",), [_shown(links, acl) for acl in self._admin.list(_wanted(req))]
        )

    def create(self, req: ApiRequest) -> Response:
        links, acl = self._links(req), _acl(req.read(NewAcl))
        self._admin.add([acl])
        return Response(status_code=201, headers={"location": _address(links, acl)})

    def create_several(self, req: ApiRequest) -> Response:
        self._links(req)
        self._admin.add([_acl(row) for row in req.read(NewAcls).data])
        return Response(status_code=201)

    def delete(self, req: ApiRequest) -> Any:
        links, wanted = self._links(req), _wanted(req)
        missing = [name for name in ("resource_type", "pattern_type", "operation", "permission") if not req.text(name)]
        if missing:
            raise ApiError(400, f"{', '.join(missing)} is required to delete ACLs", "give ANY to select all values")
        found = self._admin.list(wanted)
        self._admin.remove([wanted])
        return {"data": [_shown(links, acl) for acl in found]}


def _member(kind: type[Named], name: str, text: str, *, concrete: bool) -> Named:
    """`concrete`: for an ACL itself, which cannot have a value that only a search can."""
    searching = {"UNKNOWN"} | ({"ANY", "MATCH"} if concrete else set())
    known = [each for each in kind.__members__ if each not in searching]
    if text.upper() not in known:
        raise ApiError(400, f"{name} {text!r} is unknown", f"give one of {', '.join(known)}")
    return kind[text.upper()]


def _acl(row: NewAcl) -> Acl:
    if ":" not in row.principal:
        raise ApiError(400, f"principal {row.principal!r} has no type", "give User:NAME or Group:NAME")
    return Acl(
        row.principal,
        _member(AclResourceType, "resource_type", row.resource_type, concrete=True),
        row.resource_name,
        _member(AclPatternType, "pattern_type", row.pattern_type, concrete=True),
        _member(AclOperation, "operation", row.operation, concrete=True),
        _member(AclPermission, "permission", row.permission, concrete=True),
        row.host,
    )


def _wanted(req: ApiRequest) -> AclSelection:
    def one(kind: type[Named], name: str) -> Named:
        return _member(kind, name, req.text(name) or "ANY", concrete=False)

    return AclSelection(
        one(AclResourceType, "resource_type"),
        req.text("resource_name") or None,
        one(AclPatternType, "pattern_type"),
        req.text("principal") or None,
        req.text("host") or None,
        one(AclOperation, "operation"),
        one(AclPermission, "permission"),
    )


def _fields(acl: Acl) -> dict[str, str]:
    values = (
        acl.resource.name,
        acl.name,
        acl.pattern.name,
        acl.principal,
        acl.host,
        acl.operation.name,
        acl.permission.name,
    )
    return dict(zip(_PARAMETERS, values, strict=True))


def _address(links: Links, acl: Acl) -> str:
    """An ACL has no name of its own: its address is the search that finds only this one."""
    return f"{links.to('acls')}?{urlencode(_fields(acl))}"


def _shown(links: Links, acl: Acl) -> dict[str, Any]:
    shown = links.resource("KafkaAcl", ("acls",), (), _fields(acl))
    shown["metadata"] = {"self": _address(links, acl)}
    return shown
