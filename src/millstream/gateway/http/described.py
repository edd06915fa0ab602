"""What a route says about itself: from this the OpenAPI description is made, so no route is without one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from millstream.gateway.http.answers import JSON

JsonSchema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of the query or a header. Those of the path are found in the path; list one here only to say more of it."""

    name: str
    description: str
    schema: JsonSchema
    place: Literal["query", "header", "path"] = "query"
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Doc:
    tag: str
    """The heading it stands under."""
    summary: str
    """One line, as in a table of contents."""
    description: str = ""
    parameters: Sequence[Parameter] = ()
    body: JsonSchema | None = None
    """None: takes no body."""
    body_type: str = JSON
    answer: JsonSchema | None = None
    """None: the answer has no body."""
    answer_type: str = JSON
    status: int = 200
    """Of an answer that is no error."""
    partial: JsonSchema | None = None
    """The answer when only some of what was asked could be done (207), if that can be."""
    errors: Sequence[int] = ()
    """Statuses that need naming, besides those that every route may give (`openapi` has them)."""
    body_required: bool = True
    example: Any = None
    """Of the body."""


# JSON Schema, briefly

ANYTHING: JsonSchema = {}
TEXT: JsonSchema = {"type": "string"}
FLAG: JsonSchema = {"type": "boolean"}
INT32: JsonSchema = {"type": "integer", "format": "int32"}
INT64: JsonSchema = {"type": "integer", "format": "int64"}


def text(description: str, **more: Any) -> JsonSchema:
    return {"type": "string", "description": description} | more


def whole(description: str = "", minimum: int | None = None, maximum: int | None = None) -> JsonSchema:
    bounds = {"description": description or None, "minimum": minimum, "maximum": maximum}
    return {"type": "integer"} | {name: value for name, value in bounds.items() if value is not None}


def nullable(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, {"type": "null"}]}


def array(of: JsonSchema, **more: Any) -> JsonSchema:
    return {"type": "array", "items": of} | more


def mapping(of: JsonSchema) -> JsonSchema:
    return {"type": "object", "additionalProperties": of}


def record(
    required: Mapping[str, JsonSchema], optional: Mapping[str, JsonSchema] | None = None, *, closed: bool = False
) -> JsonSchema:
    """An object with these fields; others may be there too, unless it is closed."""
    schema: dict[str, Any] = {"type": "object", "properties": {**required, **(optional or {})}}
    if required:
        schema["required"] = list(required)
    if closed:
        schema["additionalProperties"] = False
    return schema


ERROR: JsonSchema = record(
    {
        "error_code": whole("The HTTP status, or a number that begins with it and says more."),
        "message": text("What happened."),
        "hint": text("What to do."),
    }
)
CONFLUENT_ERROR: JsonSchema = record(
    {"error_code": whole("The HTTP status, or a number that begins with it and says more."), "message": TEXT}
)
"""Of the paths that speak as Confluent's services do (see errors.is_confluent)."""
