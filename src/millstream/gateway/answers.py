"""JSON answers."""

import json
from typing import Any

from starlette.responses import Response

JSON = "application/json"


def json_answer(
    document: Any, *, status: int = 200, media_type: str = JSON, headers: dict[str, str] | None = None
) -> Response:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode(), status, headers, media_type)
