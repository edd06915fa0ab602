"""Errors as callers see them: JSON with a code, what happened and what to do; never a stack trace.

The paths that speak as Confluent's services do have no field for the hint, so there the message ends with it.
"""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from millstream.gateway.http.answers import json_answer
from millstream.gateway.http.kafka_errors import Trouble, trouble_of
from millstream.raw_client import WireError
from millstream.registry.errors import RegistryError

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


class BadRequestError(Exception):
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


def error_answer(
    path: str, status: int, code: int, message: str, hint: str = "", headers: dict[str, str] | None = None
) -> Response:
    return json_answer(error_document(path, code, message, hint), status=status, headers=headers)


async def on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message, hint = str(error.detail), ""
    if error.status_code == 404:
        message, hint = _NOTHING_HERE
    elif error.status_code == 405:
        message = f"this path does not take {request.method}"
    path, status = request.scope["path"], error.status_code
    return error_answer(path, status, status, message, hint, dict(error.headers or {}))


async def on_bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequestError)
    return error_answer(request.scope["path"], error.status, error.code, error.message, error.hint, error.headers)


async def on_registry_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RegistryError)
    return error_answer(request.scope["path"], error.status, error.code, error.message)


async def on_wire_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, WireError)
    found: Trouble = trouble_of(error)
    return error_answer(request.scope["path"], found.status, found.code, found.message, found.hint)


async def on_anything_else(request: Request, error: Exception) -> Response:
    """The server behind logs the error itself."""
    return error_answer(request.scope["path"], 500, 50000, "this gateway has made a mistake; its log says which")


HANDLERS: dict[Any, Any] = {
    HTTPException: on_http_exception,
    BadRequestError: on_bad_request,
    RegistryError: on_registry_error,
    WireError: on_wire_error,
    Exception: on_anything_else,
}
