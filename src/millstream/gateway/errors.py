"""Errors as callers see them: JSON with a code, a message, and in it what to do; never a stack trace."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from millstream.gateway.answers import json_answer
from millstream.registry.errors import RegistryError

_HINTS = {
    404: "there is nothing at this path: GET / lists what there is",
    405: "this path does not take this method",
}


class BadRequestError(Exception):
    """The request cannot be understood; the status and what to do about it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def error_answer(status: int, code: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return json_answer({"error_code": code, "message": message}, status=status, headers=headers)


async def on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = _HINTS.get(error.status_code, str(error.detail))
    return error_answer(error.status_code, error.status_code, message, dict(error.headers or {}))


async def on_bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequestError)
    return error_answer(error.status, error.status, error.message)


async def on_registry_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RegistryError)
    return error_answer(error.status, error.code, error.message)


async def on_anything_else(request: Request, error: Exception) -> Response:
    """The server behind logs the error itself."""
    return error_answer(500, 50000, "this gateway has made a mistake; its log says which. Asking again may help")


HANDLERS: dict[Any, Any] = {
    HTTPException: on_http_exception,
    BadRequestError: on_bad_request,
    RegistryError: on_registry_error,
    Exception: on_anything_else,
}
