"""A request as a handler sees it: path, query and body, each checked when it is looked at.

A request's body as it comes: one that is cut off, or takes too long to come, is refused.

JSON objects that follow each other in one stream, told apart as the bytes come in, but not read.

The smallest are two bytes long, so that one piece of the stream may hold very many: others have their turn in between.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import Any
from urllib.parse import unquote

import orjson
from starlette.requests import ClientDisconnect, Request

from millstream.gateway.http.errors import ApiError

_TRUE, _FALSE = frozenset({"true", "1", "yes", ""}), frozenset({"false", "0", "no"})


class ApiRequest:
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
                    raise ApiError(400, f"?{name}={query[name]} is neither true nor false")
                return value in _TRUE
        return default

    def number(self, name: str, default: int) -> int:
        text = self.request.query_params.get(name)
        if text is None:
            return default
        try:
            return int(text)
        except ValueError:
            raise ApiError(400, f"?{name}={text} is not a whole number") from None

    def page(self, rows: list[Any]) -> list[Any]:
        """The part of a list that `offset` and `limit` ask for; a limit below 1 is none."""
        offset, limit = max(0, self.number("offset", 0)), self.number("limit", -1)
        return rows[offset:] if limit < 1 else rows[offset : offset + limit]

    def document(self) -> dict[str, Any]:
        """The body, which must be a JSON object."""
        document = self.json()
        if not isinstance(document, dict):
            raise ApiError(400, "the body must be a JSON object", "send {…}")
        return document

    def json(self) -> Any:
        """The body, as any JSON value."""
        try:
            return orjson.loads(self.body)
        except ValueError:  # orjson knows less than JSON allows: halves of surrogate pairs, deep nesting
            try:
                return json.loads(self.body, parse_constant=_no_constant)
            except (ValueError, RecursionError) as error:
                raise ApiError(400, f"the body is not JSON ({error})", "send a JSON object") from None

    @property
    def accepts(self) -> str:
        return self.request.headers.get("accept", "")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


BODY_TIMEOUT_S = 60.0


async def body_pieces(request: Request, within_s: float = BODY_TIMEOUT_S) -> AsyncIterator[bytes]:
    """408 when the time for all of it is up: what was set aside for a body must not wait for one that never ends."""
    pieces = request.stream()
    deadline = asyncio.get_running_loop().time() + within_s
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ApiError(
                408,
                f"the body was not complete within {within_s:g} s",
                "send it faster, or less at once",
                headers={"Connection": "close"},
            ) from None
        except ClientDisconnect:
            raise ApiError(400, "the connection was closed before the body was complete", "send it again") from None
        yield piece


_STRETCH_BYTES = 16 << 10
_STRETCH_OBJECTS = 100
"""After so much, other requests have their turn."""
_IN_STRING = re.compile(rb'["\\]')
_OUTSIDE = re.compile(rb'["{}\[\]]')
_NO_SPACE = re.compile(rb"[^ \t\r\n]")


class BrokenStreamError(ValueError):
    """What comes is no JSON object, or too large a one: where the next begins cannot be told."""


class JsonSplitter:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self._at = 0
        """Up to here it has been looked at."""
        self._depth = 0
        self._in_string = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The objects that are complete now, each found when it is asked for; BrokenStreamError in the place of one."""
        self._kept += data
        while (one := self._next()) is not None:
            yield one

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left over."""
        return _NO_SPACE.search(self._kept) is None

    def _next(self) -> bytes | None:
        kept = self._kept
        if not self._depth:
            begin = _NO_SPACE.search(kept)
            del kept[: len(kept) if begin is None else begin.start()]
            self._at = 0
            if begin is None:
                return None
            if kept[0] != 0x7B:
                raise BrokenStreamError("a record must be a JSON object")
        while (mark := (_IN_STRING if self._in_string else _OUTSIDE).search(kept, self._at)) is not None:
            byte, self._at = kept[mark.start()], mark.end()
            if byte == 0x5C:  # a backslash: whatever follows it does not count
                if self._at == len(kept):
                    self._at -= 1
                    break
                self._at += 1
            elif byte == 0x22:
                self._in_string = not self._in_string
            elif byte in b"{[":
                self._depth += 1
            else:
                self._depth -= 1
                if not self._depth:
                    self._check_size(self._at)
                    one = bytes(kept[: self._at])
                    del kept[: self._at]
                    self._at = 0
                    return one
        else:
            self._at = len(kept)
        self._check_size(len(kept))
        return None

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise BrokenStreamError(f"a record is larger than {self._max_bytes} bytes")


async def split(pieces: AsyncIterable[bytes], max_bytes: int) -> AsyncIterator[bytes]:
    """The objects of a whole stream; BrokenStreamError in the place of the first that makes no sense, or is cut off."""
    splitter, count = JsonSplitter(max_bytes), 0
    async for piece in pieces:
        for start in range(0, len(piece), _STRETCH_BYTES):
            for one in splitter.feed(piece[start : start + _STRETCH_BYTES]):
                yield one
                count += 1
                if not count % _STRETCH_OBJECTS:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
    if not splitter.is_clean:
        raise BrokenStreamError("the last record is cut off")
