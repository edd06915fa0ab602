"""JSON responses and errors: every error has a status, a code, a message and a hint, and never a stack trace.

Paths that follow Confluent's APIs have no field for the hint: there it ends the message.
"""

import json
from typing import Any

import msgspec
import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import RefusedError, SetupError, UnreachableError, UnreadableError, WireError
from millstream.registry.errors import RegistryError

JSON = "application/json"
UNREACHABLE_HINT = "retry in a moment; if it persists, check that the brokers run and that --bootstrap names them"
INTERNAL_ERROR = "internal error of the gateway; its log has the details"
_CONFLUENT_PATHS = frozenset({"subjects", "schemas", "contexts", "config", "mode", "compatibility", "v3", "kafka"})


def json_bytes(document: Any) -> bytes:
    try:
        return orjson.dumps(document, default=_fields)
    except TypeError:  # numbers beyond 64 bits and unpaired surrogates, which JSON can hold
        return json.dumps(document, separators=(",", ":"), default=_fields).encode()


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a Struct that are set."""
    if not isinstance(value, msgspec.Struct):
        raise TypeError(f"{type(value).__name__} has no form in JSON")
    pairs = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    return {name: each for name, field in pairs if (each := getattr(value, field)) is not msgspec.UNSET}


def json_response(
    document: Any, *, status: int = 200, media_type: str = JSON, headers: dict[str, str] | None = None
) -> Response:
    return Response(json_bytes(document), status, headers, media_type)


class ApiError(Exception):
    """An error response: status, message, and a hint what to do. `code` is the status unless a longer code says more.

    It is raised by handlers, or used as a value where each record of a request has its own result.
    """

    def __init__(
        self,
        status: int,
        message: str,
        hint: str = "",
        *,
        code: int | None = None,
        headers: dict[str, str] | None = None,
        kafka: ErrorCode | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint
        self.code = status if code is None else code
        self.headers = headers
        self.kafka = kafka
        """The error code of the cluster, if it refused for lack of rights."""
        self.extra: dict[str, Any] = {}
        """More fields of the document."""
        self.is_confluent = False
        """The document has Confluent's form, at any path."""


# Errors of the cluster

_TABLE: dict[ErrorCode, tuple[int, int, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (404, 40403, "create the topic first, or check its name and partition"),
    ErrorCode.UNKNOWN_TOPIC_ID: (404, 40403, "the topic was deleted: create it again"),
    ErrorCode.GROUP_ID_NOT_FOUND: (404, 40403, "GET /groups lists all groups"),
    ErrorCode.RESOURCE_NOT_FOUND: (404, 40403, "check the name"),
    ErrorCode.TOPIC_ALREADY_EXISTS: (409, 40902, "choose another name, or use the existing topic"),
    ErrorCode.NON_EMPTY_GROUP: (409, 40903, "stop the members of the group first"),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (409, 40903, "stop the members that read the topic first"),
    ErrorCode.UNKNOWN_MEMBER_ID: (409, 40904, "stop the members of the group first, or join again"),
    ErrorCode.ILLEGAL_GENERATION: (409, 40904, "stop the members of the group first, or join again"),
    ErrorCode.REBALANCE_IN_PROGRESS: (409, 40904, "retry when the rebalance is complete"),
    ErrorCode.FENCED_INSTANCE_ID: (409, 40904, "another member has this instance id: use a different one"),
    ErrorCode.OFFSET_OUT_OF_RANGE: (416, 41601, "use an offset between log start and log end"),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (400, 40002, "use letters, digits, '.', '_' and '-', at most 249 of them"),
    ErrorCode.INVALID_PARTITIONS: (400, 40002, "give at least 1, and more than the topic has"),
    ErrorCode.INVALID_REPLICATION_FACTOR: (400, 40002, "give at least 1 and at most the number of brokers"),
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: (400, 40002, "name existing brokers, each once"),
    ErrorCode.INVALID_CONFIG: (400, 40002, "check the names and values of the settings: GET the configs lists them"),
    ErrorCode.INVALID_REQUEST: (400, 40002, "check the request"),
    ErrorCode.INVALID_GROUP_ID: (400, 40002, "give a group id that is not empty"),
    ErrorCode.POLICY_VIOLATION: (400, 40002, "a policy of the cluster forbids it: contact its operator"),
    ErrorCode.SECURITY_DISABLED: (400, 40002, "set authorizer.class.name on the brokers, then restart them"),
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: (400, 40002, "set delegation.token.secret.key, then restart the nodes"),
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: (400, 40002, "use a login by SASL or TLS that is not a token"),
    ErrorCode.TOPIC_DELETION_DISABLED: (403, 40301, "set delete.topic.enable on the brokers"),
    ErrorCode.MESSAGE_TOO_LARGE: (413, 41301, "send smaller records, or raise max.message.bytes of the topic"),
    ErrorCode.RECORD_LIST_TOO_LARGE: (413, 41301, "send fewer records in one request"),
    ErrorCode.INVALID_RECORD: (422, 42206, "check what the topic requires of its records"),
    ErrorCode.INVALID_TIMESTAMP: (422, 42206, "use a timestamp within the topic's limits"),
    ErrorCode.UNSUPPORTED_VERSION: (501, 50101, "this cluster is too old for it"),
    ErrorCode.REQUEST_TIMED_OUT: (504, 50401, "retry in a moment; the change may have been made"),
}
_UNAUTHORIZED_HINT = "grant the gateway's user this operation on the cluster"


def error_for_code(code: ErrorCode, message: str) -> ApiError:
    """The response for a Kafka error code. Retriable errors are 503."""
    if code.name.endswith("AUTHORIZATION_FAILED"):
        return ApiError(403, message, _UNAUTHORIZED_HINT, code=40301, kafka=code)
    if code is ErrorCode.SASL_AUTHENTICATION_FAILED:
        return ApiError(502, message, "check the credentials of the connection to the cluster", code=50202, kafka=code)
    status, number, hint = _TABLE.get(code, (0, 0, ""))
    if status:
        return ApiError(status, message, hint, code=number)
    if code.retriable:
        return ApiError(503, message, UNREACHABLE_HINT, code=50301)
    return ApiError(502, message, "this error comes from the cluster; the brokers' logs may say more", code=50201)


def error_for_wire_error(error: WireError) -> ApiError:
    """The response for an error of the client to the cluster."""
    if isinstance(error, UnreadableError):
        return ApiError(502, str(error), "seek past the batch", code=50203)
    if isinstance(error, RefusedError):
        return error_for_code(error.code, str(error))
    if isinstance(error, UnreachableError) and error.late:
        return ApiError(504, str(error), UNREACHABLE_HINT, code=50401)
    if isinstance(error, SetupError):
        hint = "the gateway's settings do not fit the cluster: start it with others"
        return ApiError(502, str(error), hint, code=50202)
    return ApiError(503, str(error), UNREACHABLE_HINT, code=50301)


# Error responses

_NO_SUCH_PATH = "there is no such path", "GET /docs lists all paths"
_HINTS = {
    400: "check the request; /docs describes each one",
    401: "send credentials: basic or bearer authentication",
    404: "check the name; /docs lists all paths",
    405: "/docs lists the methods of this path",
    413: "send less in one request",
    500: "retry; if it persists, the gateway's log says more",
    503: "retry in a moment",
}


def is_confluent(path: str) -> bool:
    """Whether errors at this path have Confluent's form, without `hint`."""
    return path.split("/", 2)[1] in _CONFLUENT_PATHS if path.startswith("/") else False


def error_document(path: str, code: int, message: str, hint: str = "", *, confluent: bool = False) -> dict[str, Any]:
    if confluent or is_confluent(path):
        return {"error_code": code, "message": f"{message}: {hint}" if hint else message}
    status = int(str(code)[:3])
    return {"error_code": code, "message": message, "hint": hint or _HINTS.get(status, _HINTS[400])}


def error_response(
    path: str, status: int, code: int, message: str, hint: str = "", headers: dict[str, str] | None = None
) -> Response:
    return json_response(error_document(path, code, message, hint), status=status, headers=headers)


async def on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message, hint = str(error.detail), ""
    if error.status_code == 404:
        message, hint = _NO_SUCH_PATH
    elif error.status_code == 405:
        message = f"this path does not support {request.method}"
    path, status = request.scope["path"], error.status_code
    return error_response(path, status, status, message, hint, dict(error.headers or {}))


async def on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    path = request.scope["path"]
    document = error_document(path, error.code, error.message, error.hint, confluent=error.is_confluent) | error.extra
    return json_response(document, status=error.status, headers=error.headers)


async def on_registry_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RegistryError)
    return error_response(request.scope["path"], error.status, error.code, error.message)


async def on_wire_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, WireError)
    return await on_api_error(request, error_for_wire_error(error))


async def on_unexpected_error(request: Request, error: Exception) -> Response:
    """The ASGI server logs the error."""
    return error_response(request.scope["path"], 500, 50000, INTERNAL_ERROR)


HANDLERS: dict[Any, Any] = {
    HTTPException: on_http_exception,
    ApiError: on_api_error,
    RegistryError: on_registry_error,
    WireError: on_wire_error,
    Exception: on_unexpected_error,
}
