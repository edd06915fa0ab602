"""Users, delegation tokens, client quotas and explanations of ACLs over HTTP. ACLs themselves are at /v3.

A password is in the body of a request only: no response, log or audit event has it. The HMAC of a token, by which
clients log in, is never sent.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response
from starlette.routing import BaseRoute

from millstream.access.roles import Role
from millstream.admin.acls import AclAdmin, read_principal, read_resource
from millstream.admin.quotas import DEFAULT_NAME, Entity, QuotaAdmin, check_key, make_entity
from millstream.admin.users import DEFAULT_ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS, UserAdmin
from millstream.gateway.context import GatewayContext
from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import (
    FLAG,
    INT64,
    TEXT,
    Doc,
    Parameter,
    array,
    endpoint,
    mapping,
    nullable,
    record,
    text,
)
from millstream.gateway.identity.caller import caller_cluster
from millstream.gateway.identity.missing_acl import Needs

_USERS, _QUOTAS = "Users", "Quotas"
_ALTER, _DESCRIBE = Needs(cluster="Alter"), Needs(cluster="Describe")
_ALTER_CONFIGS, _DESCRIBE_CONFIGS = Needs(cluster="AlterConfigs"), Needs(cluster="DescribeConfigs")

PasswordText = Annotated[str, Meta(min_length=1, max_length=1000, description="It is salted and hashed here.")]
Iterations = Annotated[int, Meta(ge=MIN_ITERATIONS, le=MAX_ITERATIONS)]


class NewUser(Struct, forbid_unknown_fields=True):
    """A user that logs in by SCRAM."""

    name: Annotated[str, Meta(min_length=1, max_length=1000)]
    password: PasswordText
    mechanisms: Annotated[list[str], Meta(max_length=2, description="SCRAM-SHA-256, SCRAM-SHA-512; empty: both.")] = []
    iterations: Iterations = DEFAULT_ITERATIONS


class NewPassword(Struct, forbid_unknown_fields=True):
    password: PasswordText
    iterations: Iterations = DEFAULT_ITERATIONS


class QuotaEntity(Struct, forbid_unknown_fields=True, rename={"client_id": "client-id"}):
    """A user, a client id, both, or an address; null is the default."""

    user: str | UnsetType | None = UNSET
    client_id: str | UnsetType | None = UNSET
    ip: str | UnsetType | None = UNSET


class QuotaChange(Struct, forbid_unknown_fields=True):
    entity: QuotaEntity
    values: Annotated[dict[str, float | None], Meta(min_length=1, description="By name of the quota; null removes.")]
    dry_run: bool = False


_USER = record({"name": TEXT, "iterations": mapping({"type": "integer"})})
_TOKEN = record(
    {
        "token_id": TEXT,
        "owner": TEXT,
        "requester": TEXT,
        "renewers": array(TEXT),
        "issued_ms": INT64,
        "expires_ms": INT64,
        "max_ms": INT64,
    }
)
_ROW = record({"entity": mapping(nullable(TEXT)), "quotas": mapping({"type": "number"})})
_NAMES = tuple(
    Parameter(name, f"Only of this {word}; {DEFAULT_NAME} for the default.", TEXT)
    for name, word in (("user", "user"), ("client_id", "client id"), ("ip", "address"))
)
_LIST_USERS = Doc(tag=_USERS, summary="List the users that log in by SCRAM", response=record({"users": array(_USER)}))
_ADD_USER = Doc(
    tag=_USERS,
    summary="Add a user that logs in by SCRAM",
    body=NewUser,
    status=201,
    example={"name": "alice", "password": "…"},
)
_PASSWORD = Doc(tag=_USERS, summary="Change the password of a user", body=NewPassword, status=204, errors=(404,))
_DELETE_USER = Doc(tag=_USERS, summary="Delete a user", status=204, errors=(404,))
_LIST_TOKENS = Doc(
    tag=_USERS,
    summary="List delegation tokens",
    description="Those that the cluster shows to the caller, without their HMACs.",
    response=record({"tokens": array(_TOKEN)}),
)
_EXPIRE = Doc(tag=_USERS, summary="Expire a delegation token", status=204, errors=(404,))
_LIST_QUOTAS = Doc(
    tag=_QUOTAS, summary="List client quotas", parameters=_NAMES, response=record({"quotas": array(_ROW)})
)
_CHANGE_QUOTAS = Doc(
    tag=_QUOTAS,
    summary="Set and remove quotas of an entity",
    body=QuotaChange,
    status=204,
    example={"entity": {"user": "alice"}, "values": {"producer_byte_rate": 1048576, "consumer_byte_rate": None}},
)
_EXPLAIN = Doc(
    tag=_USERS,
    summary="Explain which ACL decides",
    description="By the rules of the broker, with the ACLs and settings of the cluster.",
    parameters=(
        Parameter("principal", "User:NAME.", TEXT, required=True),
        Parameter("operation", "READ, WRITE, …", TEXT, required=True),
        Parameter("resource_type", "topic, group, cluster, transactional-id, …", TEXT, required=True),
        Parameter("resource_name", "Not for cluster.", TEXT),
        Parameter("host", "Address of the client. Default 127.0.0.1.", TEXT),
        Parameter("groups", "Groups of the client, separated by commas: Group:NAME.", TEXT),
    ),
    response=record(
        {
            "allowed": FLAG,
            "reason": TEXT,
            "acl": nullable(text("The ACL that decides.")),
            "command": nullable(text("The command that would permit it.")),
        }
    ),
)


def access_routes(context: GatewayContext) -> Sequence[BaseRoute]:
    admin, viewer = Role.ADMIN, Role.VIEWER
    return [
        endpoint("GET", "/users", _list_users, doc=_LIST_USERS, role=viewer, needs=_DESCRIBE),
        endpoint("POST", "/users", _add_user, doc=_ADD_USER, role=admin, needs=_ALTER),
        endpoint("PUT", "/users/{user}/password", _change_password, doc=_PASSWORD, role=admin, needs=_ALTER),
        endpoint("DELETE", "/users/{user}", _delete_user, doc=_DELETE_USER, role=admin, needs=_ALTER),
        endpoint("GET", "/tokens", _list_tokens, doc=_LIST_TOKENS, role=viewer, needs=_DESCRIBE),
        endpoint("DELETE", "/tokens/{token_id}", _expire_token, doc=_EXPIRE, role=admin, needs=_ALTER),
        endpoint("GET", "/quotas", _list_quotas, doc=_LIST_QUOTAS, role=viewer, needs=_DESCRIBE_CONFIGS),
        endpoint("PATCH", "/quotas", _change_quotas, doc=_CHANGE_QUOTAS, role=admin, needs=_ALTER_CONFIGS),
        endpoint("GET", "/acls/explain", _explain, doc=_EXPLAIN, role=viewer, needs=_DESCRIBE),
    ]


def _list_users(req: ApiRequest) -> Any:
    return {
        "users": [{"name": user.name, "iterations": user.iterations} for user in UserAdmin(caller_cluster()).users()]
    }


def _add_user(req: ApiRequest) -> Response:
    body = req.read(NewUser)
    UserAdmin(caller_cluster()).add(body.name, body.password, body.mechanisms, body.iterations)
    return Response(status_code=201)


def _change_password(req: ApiRequest) -> None:
    body = req.read(NewPassword)
    UserAdmin(caller_cluster()).change_password(req.path("user"), body.password, body.iterations)


def _delete_user(req: ApiRequest) -> None:
    UserAdmin(caller_cluster()).remove(req.path("user"))


def _list_tokens(req: ApiRequest) -> Any:
    return {
        "tokens": [
            {
                "token_id": token.token_id,
                "owner": token.owner,
                "requester": token.requester,
                "renewers": list(token.renewers),
                "issued_ms": token.issued_ms,
                "expires_ms": token.expires_ms,
                "max_ms": token.max_ms,
            }
            for token in UserAdmin(caller_cluster()).tokens()
        ]
    }


def _expire_token(req: ApiRequest) -> None:
    UserAdmin(caller_cluster()).remove_token(req.path("token_id"))


def _list_quotas(req: ApiRequest) -> Any:
    entity = make_entity(*(req.text(name) or None for name in ("user", "client_id", "ip")))
    rows = QuotaAdmin(caller_cluster()).quotas(entity)
    return {"quotas": [{"entity": dict(row.entity), "quotas": dict(row.values)} for row in rows]}


def _change_quotas(req: ApiRequest) -> None:
    body = req.read(QuotaChange)
    for key in body.values:
        check_key(key)
    QuotaAdmin(caller_cluster()).alter(_entity(body.entity), body.values, validate_only=body.dry_run)


def _entity(given: QuotaEntity) -> Entity:
    def name(value: str | UnsetType | None) -> str | None:
        return None if value is UNSET else DEFAULT_NAME if value is None else str(value)

    entity = make_entity(name(given.user), name(given.client_id), name(given.ip))
    if not entity:
        raise ApiError(400, "'entity' is empty", 'send {"user": "alice"}, {"client-id": "app"}, both, or {"ip": …}')
    return entity


def _explain(req: ApiRequest) -> Any:
    wanted = ("principal", "operation", "resource_type")
    missing = [name for name in wanted if not req.text(name)]
    if missing:
        raise ApiError(400, f"?{missing[0]}= is missing", "give principal, operation, resource_type and resource_name")
    kind, name, operation = read_resource(req.text("resource_type"), req.text("resource_name"), req.text("operation"))
    texts = [req.text("principal"), *(each.strip() for each in req.text("groups").split(",") if each.strip())]
    principals = [read_principal(each) for each in texts]
    host = req.text("host") or "127.0.0.1"
    found = AclAdmin(caller_cluster()).explain(principals, operation, kind, name, host)
    return {
        "allowed": found.is_allowed,
        "reason": found.reason,
        "acl": None if found.acl is None else str(found.acl),
        "command": found.command,
    }
