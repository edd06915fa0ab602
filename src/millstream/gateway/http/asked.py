"""A request as a handler sees it: path, query and body, each checked when it is looked at."""

import json
from typing import Any
from urllib.parse import unquote

import orjson
from starlette.requests import Request

from millstream.gateway.http.errors import BadRequestError

_TRUE, _FALSE = frozenset({"true", "1", "yes", ""}), frozenset({"false", "0", "no"})


class Asked:
    def __init__(self, request: Request, body: bytes) -> None:
        self.request = request
        self.body = body

    def path(self, name: str) -> str:
        """A part of the path. Routes are matched before decoding, so that a slash in a name stays in the name."""
        return unquote(str(self.request.path_params[name]))

    def text(self, *names: str) -> str:
        """The first of these query parameters that is given, or nothing."""
        query = self.request.query_params
        return next((query[name] for name in names if name in query), "")

    def texts(self, name: str) -> list[str]:
        return self.request.query_params.getlist(name)

    def flag(self, *names: str, default: bool = False) -> bool:
        query = self.request.query_params
        for name in names:
            if name in query:
                value = query[name].lower()
                if value not in _TRUE | _FALSE:
                    raise BadRequestError(400, f"?{name}={query[name]} is neither true nor false")
                return value in _TRUE
        return default

    def number(self, name: str, default: int) -> int:
        text = self.request.query_params.get(name)
        if text is None:
            return default
        try:
            return int(text)
        except ValueError:
            raise BadRequestError(400, f"?{name}={text} is not a whole number") from None

    def page(self, rows: list[Any]) -> list[Any]:
        """The part of a list that `offset` and `limit` ask for; a limit below 1 is none."""
        offset, limit = max(0, self.number("offset", 0)), self.number("limit", -1)
        return rows[offset:] if limit < 1 else rows[offset : offset + limit]

    def document(self) -> dict[str, Any]:
        """The body, which must be a JSON object."""
        document = self.json()
        if not isinstance(document, dict):
            raise BadRequestError(400, "the body must be a JSON object", "send {…}")
        return document

    def json(self) -> Any:
        """The body, as any JSON value."""
        try:
            return orjson.loads(self.body)
        except ValueError:  # orjson knows less than JSON allows: halves of surrogate pairs, deep nesting
            try:
                return json.loads(self.body, parse_constant=_no_constant)
            except (ValueError, RecursionError) as error:
                raise BadRequestError(400, f"the body is not JSON ({error})", "send a JSON object") from None

    @property
    def accepts(self) -> str:
        return self.request.headers.get("accept", "")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
