"""The form of REST v2: media types, error codes, and routes that are selected by media type.

`application/vnd.kafka.v2+json` is the type of metadata, `application/vnd.kafka.FORMAT.v2+json` the type of records in a
format. `GET /topics` and `GET /topics/{topic}` are also routes of our own: they are v2 if Accept names one of these
types.
"""

import re
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers

from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import Doc, DocumentedRoute, Handler, endpoint
from millstream.registry.errors import RegistryError

TAG = "Confluent REST v2"
V2 = "application/vnd.kafka.v2+json"
BINARY, JSON_FORMAT, TEXT_FORMAT = "binary", "json", "text"
SCHEMA_TYPES = {"avro": "AVRO", "jsonschema": "JSONSCHEMA", "protobuf": "PROTOBUF"}
"""Formats with a schema, and their types in REST v3."""
FORMATS = (BINARY, JSON_FORMAT, TEXT_FORMAT, *SCHEMA_TYPES)
_MEDIA_TYPE = re.compile(r"application/vnd\.kafka(?:\.(\w+))?\.v2\+json")


def media_type(format_: str) -> str:
    return f"application/vnd.kafka.{format_}.v2+json"


def format_in(header: str, default: str = BINARY) -> str | None:
    """The format that Accept or Content-Type names; None without a type of v2."""
    found = _MEDIA_TYPE.findall(header.lower())
    return None if not found else next((format_ for format_ in found if format_), default)


def accepts_v2(headers: Headers) -> bool:
    return format_in(headers.get("accept", "")) is not None


# Errors

TOPIC_NOT_FOUND, PARTITION_NOT_FOUND, CONSUMER_NOT_FOUND = 40401, 40402, 40403
FORMAT_MISMATCH = 40601
CONSUMER_EXISTS, ILLEGAL_STATE = 40902, 40903
KEY_SCHEMA_MISSING, VALUE_SCHEMA_MISSING, CONVERSION_FAILED, INVALID_CONFIG = 42201, 42202, 42203, 42204
INVALID_SCHEMA, UNREADABLE_RECORD = 42205, 42207
_KAFKA_ERROR, _RETRIABLE_ERROR = 50002, 50003
_CODES = {
    40403: (404, TOPIC_NOT_FOUND),
    40404: (404, PARTITION_NOT_FOUND),
    40406: (404, CONSUMER_NOT_FOUND),
    41001: (404, CONSUMER_NOT_FOUND),
    40904: (409, ILLEGAL_STATE),
    40906: (409, ILLEGAL_STATE),
    40907: (409, ILLEGAL_STATE),
    42206: (422, CONVERSION_FAILED),
}
"""Our own codes, and those of v2 with the same meaning."""


class V2Error(ApiError):
    """An error with a code of v2."""


def as_v2(error: ApiError | RegistryError) -> ApiError:
    """The same error with a code of v2."""
    if isinstance(error, V2Error):
        return error
    if isinstance(error, RegistryError):
        status, code, hint = (500, _RETRIABLE_ERROR, "") if error.status >= 500 else (422, INVALID_SCHEMA, "")
        return V2Error(status, error.message, hint, code=code)
    status, code = error.status, error.code
    if code in _CODES:
        status, code = _CODES[code]
    elif status in (503, 504):
        status, code = 500, _RETRIABLE_ERROR
    elif status == 502:
        status, code = 500, _KAFKA_ERROR
    found = V2Error(status, error.message, error.hint, code=code, headers=error.headers, kafka=error.kafka)
    found.extra = error.extra
    return found


def v2_endpoint(
    method: str,
    path: str,
    handler: Handler,
    doc: Doc,
    *,
    when: Callable[[Headers], bool] | None = None,
    **more: Any,
) -> DocumentedRoute:
    return endpoint(method, path, handler, doc=doc, media_type=V2, errors=as_v2, when=when, **more)


def number_in_path(req: ApiRequest, name: str) -> int:
    """40402 for text that is not a partition."""
    text = req.path(name)
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise V2Error(404, "Partition not found.", f"{text[:100]!r} is not a number", code=PARTITION_NOT_FOUND)
    return int(text)
