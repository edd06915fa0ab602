"""A request: its path, query and body, and a stream of JSON objects split as its bytes arrive."""

import asyncio
import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
import orjson
from starlette.requests import ClientDisconnect, Request

from millstream.gateway.http.errors import ApiError

BODY_TIMEOUT_SECONDS = 60.0
_TRUE, _FALSE = frozenset({"true", "1", "yes", ""}), frozenset({"false", "0", "no"})
_SLICE_BYTES = 16 << 10
_SLICE_OBJECTS = 100
"""After so much of a stream, other requests get a turn of the event loop."""
_IN_STRING = re.compile(rb'["\\]')
_OUTSIDE = re.compile(rb'["{}\[\]]')
_NO_SPACE = re.compile(rb"[^ \t\r\n]")

Body = TypeVar("Body")
_DECODERS: "dict[Any, msgspec.json.Decoder[Any]]" = {}


class ApiRequest:
    """A request as a handler sees it. Each part is checked when it is read."""

    def __init__(self, request: Request, body: bytes) -> None:
        self.request = request
        self.body = body

    def path(self, name: str) -> str:
        """A part of the path. Routes are matched before decoding, so a name may contain an encoded slash."""
        return unquote(str(self.request.path_params[name]))

    def text(self, *names: str) -> str:
        """The first of these query parameters that is given, or the empty string."""
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
            raise ApiError(400, f"?{name}={text} is not an integer") from None

    def number_within(self, name: str, default: int, low: int, high: int) -> int:
        number = self.number(name, default)
        if not low <= number <= high:
            raise ApiError(400, f"?{name}={number} is out of bounds", f"give a number from {low} to {high}")
        return number

    def page(self, rows: list[Any]) -> list[Any]:
        """The part of a list that `offset` and `limit` select. A limit below 1 means no limit."""
        offset, limit = max(0, self.number("offset", 0)), self.number("limit", -1)
        return rows[offset:] if limit < 1 else rows[offset : offset + limit]

    def read(self, kind: type[Body], status: int = 400) -> Body:
        """The body as a value of this type. `status`: of the error for JSON that does not fit the type."""
        decoder = _DECODERS.get(kind)
        if decoder is None:
            decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
        try:
            found: Body = read_json(self.body, decoder, status)
        except ApiError:
            self.document()  # 400 if it is not an object
            raise
        return found

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
        except ValueError:  # orjson refuses JSON with unpaired surrogates or deep nesting
            try:
                return json.loads(self.body, parse_constant=_no_constant)
            except (ValueError, RecursionError) as error:
                raise ApiError(400, f"the body is not JSON ({error})", "send a JSON object") from None

    @property
    def accepts(self) -> str:
        return self.request.headers.get("accept", "")


def read_json(data: bytes, decoder: "msgspec.json.Decoder[Body]", status: int = 400) -> Body:
    """ApiError with this status if the JSON does not fit the type, with 400 if it is not JSON."""
    try:
        if not data.isascii():
            data.decode()  # raw JSON is passed on unread, and must be valid UTF-8
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "'")
        raise ApiError(status, reason, "/docs describes the body") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if _is_json(data):  # msgspec refuses it for its text, with a message that says something else
            message = "the body has an unpaired surrogate, which is not valid text"
            raise ApiError(400, message, "send whole characters") from None
        raise ApiError(400, f"the body is not JSON: {error}", "send a JSON object") from None


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


async def body_pieces(request: Request, within_s: float = BODY_TIMEOUT_SECONDS) -> AsyncIterator[bytes]:
    """The body as it arrives. 408 after the timeout: memory reserved for a body must not be held without end."""
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
                "send it faster, or send less in one request",
                headers={"Connection": "close"},
            ) from None
        except ClientDisconnect:
            raise ApiError(400, "the connection was closed before the body was complete", "send it again") from None
        yield piece


async def read_body(request: Request, max_bytes: int) -> bytes:
    """413 as soon as the body exceeds the limit; the rest is not read."""
    too_large = ApiError(413, f"the body is larger than {max_bytes} bytes", "send less in one request")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise too_large
    body = bytearray()
    async for piece in body_pieces(request):
        body += piece
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)


class BrokenStreamError(ValueError):
    """The stream has something other than a JSON object, or one that is too large: the next one cannot be found."""


class JsonSplitter:
    """Finds the JSON objects in a stream of bytes without parsing them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self._at = 0
        """How far the kept bytes were scanned."""
        self._depth = 0
        self._in_string = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The objects that are complete now, found one by one. BrokenStreamError instead of an invalid one."""
        self._kept += data
        while (one := self._next()) is not None:
            yield one

    @property
    def is_clean(self) -> bool:
        """Whether nothing but white space is left."""
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
            if byte == 0x5C:  # a backslash: the next character is skipped
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
    """The objects of a whole stream. BrokenStreamError instead of the first one that is invalid or cut off.

    An object may be two bytes long, so one piece can hold very many: the event loop gets a turn in between.
    """
    splitter, count = JsonSplitter(max_bytes), 0
    async for piece in pieces:
        for start in range(0, len(piece), _SLICE_BYTES):
            for one in splitter.feed(piece[start : start + _SLICE_BYTES]):
                yield one
                count += 1
                if not count % _SLICE_OBJECTS:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
    if not splitter.is_clean:
        raise BrokenStreamError("the last record is cut off")
