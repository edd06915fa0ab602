"""The OpenAPI description of a gateway, made from what its routes say about themselves."""

import re
from collections.abc import Iterable
from typing import Any

from starlette.routing import BaseRoute

from millstream.gateway.http.described import CONFLUENT_ERROR, ERROR, Doc, Parameter
from millstream.gateway.http.endpoints import DescribedRoute
from millstream.gateway.http.errors import is_confluent
from millstream.version import VERSION

_PLACEHOLDER = re.compile(r"\{(\w+)(?::(\w+))?\}")
_WORD = re.compile(r"\w+")
_NUMBER = {"type": "integer", "minimum": 0}
_NAME = {"type": "string", "minLength": 1}
_EVERY_ROUTE = (400, 401, 403, 404, 408, 413, 421, 500, 503, 504)
_MEANINGS = {
    400: "The request makes no sense as it is.",
    401: "Credentials are needed.",
    403: "Closed to this caller, or a page of another site asks.",
    404: "There is no such thing.",
    405: "Not for this path.",
    408: "The body did not come in time.",
    409: "It does not fit the state things are in.",
    410: "It was there, and is gone.",
    413: "Too large.",
    416: "Outside of the log.",
    421: "This is another machine's name.",
    422: "Understood, and not acceptable.",
    429: "Too much at once.",
    500: "A mistake of the gateway's.",
    501: "The cluster cannot do that.",
    502: "The cluster said something that makes no sense here.",
    503: "Not now: the cluster cannot be reached.",
    504: "The cluster did not answer in time.",
}
_ABOUT = """\
Everything here is also a Kafka cluster: records that are produced here can be read with any Kafka client, and the
other way round. Errors are JSON with `error_code`, `message` and, outside of the APIs that are Confluent's, `hint`:
what to do. Every path of the schema registry is there below `/contexts/{context}` too, for one context.
"""


def undescribed(routes: Iterable[BaseRoute]) -> list[str]:
    """The paths of routes that say nothing about themselves."""
    return [str(getattr(route, "path", route)) for route in routes if not isinstance(route, DescribedRoute)]


def description(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    tags: dict[str, None] = {}
    for route in routes:
        if isinstance(route, DescribedRoute):
            path = _PLACEHOLDER.sub(r"{\1}", route.path)
            paths.setdefault(path, {})[route.method.lower()] = _operation(route, path)
            tags[route.doc.tag] = None
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millstream", "version": VERSION, "description": _ABOUT},
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR, "ConfluentError": CONFLUENT_ERROR},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{}, {"basic": []}, {"bearer": []}],
    }


def _operation(route: DescribedRoute, path: str) -> dict[str, Any]:
    doc = route.doc
    operation: dict[str, Any] = {
        "tags": [doc.tag],
        "summary": doc.summary,
        "operationId": f"{route.method.lower()}_{'_'.join(_WORD.findall(path)) or 'root'}",
        "parameters": _parameters(route.path, doc),
        "responses": _responses(doc, path),
    }
    if doc.description:
        operation["description"] = doc.description
    if doc.body is not None:
        content: dict[str, Any] = {"schema": dict(doc.body)}
        if doc.example is not None:
            content["example"] = doc.example
        operation["requestBody"] = {"required": doc.body_required, "content": {doc.body_type: content}}
    return operation


def _parameters(path: str, doc: Doc) -> list[dict[str, Any]]:
    named = {parameter.name: parameter for parameter in doc.parameters if parameter.place == "path"}
    rows = []
    for name, kind in _PLACEHOLDER.findall(path):
        parameter = named.get(name) or Parameter(name, "", _NUMBER if kind == "int" else _NAME, "path")
        rows.append(_parameter(parameter, required=True))
    return rows + [_parameter(each, required=each.required) for each in doc.parameters if each.place != "path"]


def _parameter(parameter: Parameter, *, required: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"name": parameter.name, "in": parameter.place, "required": required}
    if parameter.description:
        row["description"] = parameter.description
    return row | {"schema": dict(parameter.schema)}


def _responses(doc: Doc, path: str) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "As asked." if doc.answer is not None else "Done."}
    if doc.answer is not None:
        good["content"] = {doc.answer_type: {"schema": dict(doc.answer)}}
    answers = {str(doc.status): good}
    if doc.partial is not None:
        answers["207"] = {"description": "Done in part.", "content": {doc.answer_type: {"schema": dict(doc.partial)}}}
    name = "ConfluentError" if is_confluent(path) else "Error"
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    statuses = sorted({*_EVERY_ROUTE, *doc.errors})
    return answers | {
        str(status): {"description": _MEANINGS.get(status, "An error."), "content": error} for status in statuses
    }
