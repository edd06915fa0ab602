"""JSON answers."""

import json
from typing import Any

import orjson
from starlette.responses import Response

JSON = "application/json"


def json_bytes(document: Any) -> bytes:
    try:
        return orjson.dumps(document)
    except TypeError:  # numbers beyond 64 bits and halves of surrogate pairs, which JSON can hold all the same
        return json.dumps(document, separators=(",", ":")).encode()


def json_answer(
    document: Any, *, status: int = 200, media_type: str = JSON, headers: dict[str, str] | None = None
) -> Response:
    return Response(json_bytes(document), status, headers, media_type)
