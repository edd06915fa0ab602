"""Errors as callers see them: JSON with a code, what happened and what to do; never a stack trace.

The paths that speak as Confluent's services do have no field for the hint, so there the message ends with it.

JSON answers.

What the cluster said no to, as HTTP: a status, a code of Confluent's REST API where it has one, and what to do.
"""

import json
from typing import Any, NamedTuple

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import RefusedError, SetupError, UnreachableError, UnreadableError, WireError
from millstream.registry.errors import RegistryError

JSON = "application/json"


def json_bytes(document: Any) -> bytes:
    try:
        return orjson.dumps(document)
    except TypeError:  # numbers beyond 64 bits and halves of surrogate pairs, which JSON can hold all the same
        return json.dumps(document, separators=(",", ":")).encode()


def json_response(
    document: Any, *, status: int = 200, media_type: str = JSON, headers: dict[str, str] | None = None
) -> Response:
    return Response(json_bytes(document), status, headers, media_type)


UNREACHABLE_HINT = "ask again in a moment; if it stays, see whether the brokers run and --bootstrap names them"


class ErrorDetails(NamedTuple):
    """Status, code, message and hint of a failed operation. As an exception it is `ApiError`."""

    status: int
    code: int
    message: str
    hint: str


_TABLE: dict[ErrorCode, tuple[int, int, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (404, 40403, "create the topic first, or look at its name and partition"),
    ErrorCode.UNKNOWN_TOPIC_ID: (404, 40403, "the topic was deleted: create it again"),
    ErrorCode.GROUP_ID_NOT_FOUND: (404, 40403, "GET /groups lists the groups there are"),
    ErrorCode.RESOURCE_NOT_FOUND: (404, 40403, "look at the name"),
    ErrorCode.TOPIC_ALREADY_EXISTS: (409, 40902, "choose another name, or use the topic as it is"),
    ErrorCode.NON_EMPTY_GROUP: (409, 40903, "stop the members of the group first"),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (409, 40903, "stop the members that read the topic first"),
    ErrorCode.UNKNOWN_MEMBER_ID: (409, 40904, "stop the members of the group first, or begin anew"),
    ErrorCode.ILLEGAL_GENERATION: (409, 40904, "stop the members of the group first, or begin anew"),
    ErrorCode.REBALANCE_IN_PROGRESS: (409, 40904, "ask again once the group has settled"),
    ErrorCode.FENCED_INSTANCE_ID: (409, 40904, "another member has this instance id: give each its own"),
    ErrorCode.OFFSET_OUT_OF_RANGE: (416, 41601, "ask for an offset between the log's start and its end"),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (400, 40002, "use letters, digits, '.', '_' and '-', at most 249 of them"),
    ErrorCode.INVALID_PARTITIONS: (400, 40002, "give at least 1, and more than there are"),
    ErrorCode.INVALID_REPLICATION_FACTOR: (400, 40002, "give at least 1 and no more than there are brokers"),
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: (400, 40002, "name brokers that there are, each once"),
    ErrorCode.INVALID_CONFIG: (400, 40002, "look at the settings' names and values: GET the configs lists them"),
    ErrorCode.INVALID_REQUEST: (400, 40002, "look at what was sent"),
    ErrorCode.INVALID_GROUP_ID: (400, 40002, "give a group id that is not empty"),
    ErrorCode.POLICY_VIOLATION: (400, 40002, "the cluster's policy forbids it: ask whoever runs it"),
    ErrorCode.TOPIC_DELETION_DISABLED: (403, 40301, "set delete.topic.enable on the brokers"),
    ErrorCode.MESSAGE_TOO_LARGE: (413, 41301, "send smaller records, or raise max.message.bytes of the topic"),
    ErrorCode.RECORD_LIST_TOO_LARGE: (413, 41301, "send fewer records at once"),
    ErrorCode.INVALID_RECORD: (422, 42206, "look at what the topic demands of its records"),
    ErrorCode.INVALID_TIMESTAMP: (422, 42206, "give a time that the topic's limits allow"),
    ErrorCode.UNSUPPORTED_VERSION: (501, 50101, "this cluster is too old for it"),
    ErrorCode.REQUEST_TIMED_OUT: (504, 50401, "ask again in a moment; it may have been done all the same"),
}
_CLOSED_HINT = "ask whoever runs the cluster to grant the gateway's user this operation"


def error_for_code(code: ErrorCode, message: str) -> ErrorDetails:
    """What a Kafka error code means to a caller; codes that pass by themselves are 503."""
    if code.name.endswith("AUTHORIZATION_FAILED"):
        return ErrorDetails(403, 40301, message, _CLOSED_HINT)
    status, number, hint = _TABLE.get(code, (0, 0, ""))
    if status:
        return ErrorDetails(status, number, message, hint)
    if code.retriable:
        return ErrorDetails(503, 50301, message, UNREACHABLE_HINT)
    return ErrorDetails(502, 50201, message, "this is the cluster's own word; its brokers' logs may say more")


def error_for_wire_error(error: WireError) -> ErrorDetails:
    if isinstance(error, UnreadableError):
        return ErrorDetails(502, 50203, str(error), "seek behind the batch")
    if isinstance(error, RefusedError):
        return error_for_code(error.code, str(error))
    if isinstance(error, UnreachableError):
        return ErrorDetails(504, 50401, str(error), UNREACHABLE_HINT) if error.late else _away(error)
    if isinstance(error, SetupError):
        return ErrorDetails(
            502, 50202, str(error), "the gateway's settings do not fit the cluster: start it with others"
        )
    return _away(error)


def _away(error: WireError) -> ErrorDetails:
    return ErrorDetails(503, 50301, str(error), UNREACHABLE_HINT)


_CONFLUENT_PATHS = frozenset({"subjects", "schemas", "contexts", "config", "mode", "compatibility", "v3", "kafka"})
_NOTHING_HERE = "there is nothing at this path", "GET /docs lists what there is"
_HINTS = {
    400: "look at what was sent; /docs describes each request",
    401: "send credentials: basic or bearer authentication",
    404: "look at the name; /docs lists what there is",
    405: "look at /docs for the methods of this path",
    413: "send less at once",
    500: "ask again; if it stays, this gateway's log says more",
    503: "ask again in a moment",
}


class ApiError(Exception):
    """The request cannot be served; the status, what happened, and what to do about it. `code` is the status unless
    there is more to say. (Every refusal of ours is one of these, also those that are nobody's fault, such as 503.)"""

    def __init__(
        self,
        status: int,
        message: str,
        hint: str = "",
        *,
        code: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint
        self.code = status if code is None else code
        self.headers = headers


def is_confluent(path: str) -> bool:
    """Whether errors at this path have the form of Confluent's, without `hint`."""
    return path.split("/", 2)[1] in _CONFLUENT_PATHS if path.startswith("/") else False


def error_document(path: str, code: int, message: str, hint: str = "") -> dict[str, Any]:
    if is_confluent(path):
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
        message, hint = _NOTHING_HERE
    elif error.status_code == 405:
        message = f"this path does not take {request.method}"
    path, status = request.scope["path"], error.status_code
    return error_response(path, status, status, message, hint, dict(error.headers or {}))


async def on_bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(request.scope["path"], error.status, error.code, error.message, error.hint, error.headers)


async def on_registry_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RegistryError)
    return error_response(request.scope["path"], error.status, error.code, error.message)


async def on_wire_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, WireError)
    found: ErrorDetails = error_for_wire_error(error)
    return error_response(request.scope["path"], found.status, found.code, found.message, found.hint)


async def on_anything_else(request: Request, error: Exception) -> Response:
    """The server behind logs the error itself."""
    return error_response(request.scope["path"], 500, 50000, "this gateway has made a mistake; its log says which")


HANDLERS: dict[Any, Any] = {
    HTTPException: on_http_exception,
    ApiError: on_bad_request,
    RegistryError: on_registry_error,
    WireError: on_wire_error,
    Exception: on_anything_else,
}
