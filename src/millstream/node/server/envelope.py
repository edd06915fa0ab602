"""Requests and responses inside other messages: an Envelope (58) carries header and body, without a size."""

import struct

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.protocol.primitives import MAX_TEXT_BYTES, Cursor, MalformedMessage, skip_tags
from millstream.formats.protocol.schema import Message, request_schema, response_schema
from millstream.formats.protocol.steps import read_in_steps
from millstream.node.server.dispatch import encode_in_turns
from millstream.node.server.long_requests import Turnstile, most_items
from millstream.node.server.request import Response

_REQUEST_HEAD = struct.Struct(">hhih")
_CORRELATION_BYTES = 4


@dataclass(frozen=True, slots=True)
class RequestHead:
    api_key: int
    version: int
    correlation_id: int
    client_id: str
    end: int
    """Position after the header: tagged fields, if the version has them, and the body follow."""


def read_head(frame: bytes) -> RequestHead:
    if len(frame) < _REQUEST_HEAD.size:
        raise MalformedMessage("an embedded request is shorter than a header")
    key, version, correlation_id, length = _REQUEST_HEAD.unpack_from(frame)
    end = _REQUEST_HEAD.size + max(length, 0)
    if end > len(frame):
        raise MalformedMessage("the client id of an embedded request runs past its end")
    client_id = frame[_REQUEST_HEAD.size : end].decode(errors="replace")
    return RequestHead(key, version, correlation_id, client_id, end)


async def read_body(api: str, frame: bytes, head: RequestHead, turnstile: Turnstile) -> Message:
    schema = request_schema(api)
    position = head.end
    if schema.is_flexible(head.version):
        position = _skip_tags(frame, position)
    cursor = Cursor(frame, position, most_items=most_items(api), longest_text=MAX_TEXT_BYTES)
    return await turnstile.through(read_in_steps(schema, cursor, head.version))


async def write_response(api: str, values: Response, head: RequestHead, turnstile: Turnstile) -> bytes:
    """The response to an embedded request, to be embedded too."""
    parts = await encode_in_turns(api, values, head.version, head.correlation_id, turnstile)
    return b"".join(part for part in parts if isinstance(part, bytes | bytearray))[4:]


def response_body(api: str, response: bytes, version: int) -> bytes:
    """The body of an embedded response, without its header."""
    if len(response) < _CORRELATION_BYTES:
        raise MalformedMessage("an embedded response is shorter than a header")
    position = _CORRELATION_BYTES
    if response_schema(api).is_flexible(version):
        position = _skip_tags(response, position)
    return response[position:]


def _skip_tags(data: bytes, position: int) -> int:
    try:
        return skip_tags(data, position, len(data))
    except IndexError:
        raise MalformedMessage("an embedded message ends in its header") from None
