"""OpenAPI: `/openapi.json` describes all routes for programs, `/docs` is a page for people.

The JSON Schemas of bodies are derived from their msgspec types, so they cannot differ from what is decoded.

The page is written here, because Swagger UI and the like are a megabyte of scripts that would have to be downloaded or
packaged. This page needs no script and no network, and every text in it is escaped.
"""

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from millstream.gateway.http.errors import is_confluent
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import (
    ANYTHING,
    BodyType,
    ConfluentError,
    Doc,
    DocumentedRoute,
    Error,
    Parameter,
    endpoint,
    mapping,
    text,
)
from millstream.version import VERSION

_REFERENCE = "#/components/schemas/"
_PLACEHOLDER = re.compile(r"\{(\w+)(?::(\w+))?\}")
_WORD = re.compile(r"\w+")
_NUMBER = {"type": "integer", "minimum": 0}
_NAME = {"type": "string", "minLength": 1}
_EVERY_ROUTE = (400, 401, 403, 404, 408, 413, 421, 500, 503, 504)
_MEANINGS = {
    400: "The request is malformed.",
    401: "Credentials are missing or wrong.",
    403: "The caller may not do this, or the request comes from a page of another site.",
    404: "Not found.",
    405: "The path does not support this method.",
    406: "The consumer was opened with another format.",
    408: "The body did not arrive in time.",
    409: "The request conflicts with the current state.",
    410: "The resource existed, and is gone.",
    413: "The body or a record is too large.",
    415: "The Content-Type is not one of those of this route.",
    416: "The offset is outside of the log.",
    421: "The Host header does not match this server.",
    422: "The request is well formed, but not acceptable.",
    429: "Too many requests, bytes or consumers at the same time.",
    500: "Internal error of the gateway.",
    501: "The cluster does not support this.",
    502: "The cluster returned an error that the gateway cannot resolve.",
    503: "The cluster cannot be reached, or is not ready.",
    504: "The cluster did not respond in time.",
}
_ABOUT = """\
HTTP access to a Kafka cluster: records produced here can be read with any Kafka client, and the reverse. Errors are
JSON with `error_code`, `message` and, except in Confluent's APIs, `hint`: what to do. Every path of the schema registry
also exists below `/contexts/{context}`, for one context.
"""


def undocumented(routes: Iterable[BaseRoute]) -> list[str]:
    """The paths of routes without a Doc."""
    return [str(getattr(route, "path", route)) for route in routes if not isinstance(route, DocumentedRoute)]


class _Schemas:
    """The JSON Schemas of all types of some routes. Structs become components."""

    def __init__(self, docs: Iterable[Doc]) -> None:
        kinds: list[BodyType] = [Error, ConfluentError]
        for doc in docs:
            given = (doc.body, doc.response, doc.partial, *(parameter.schema for parameter in doc.parameters))
            kinds += [kind for kind in given if kind is not None and not isinstance(kind, dict) and kind not in kinds]
        schemas, components = msgspec.json.schema_components(kinds, ref_template=f"{_REFERENCE}{{name}}")
        self._schemas = list(zip(kinds, schemas, strict=True))
        self.components: dict[str, Any] = components

    def of(self, kind: BodyType) -> dict[str, Any]:
        if isinstance(kind, dict):
            return dict(kind)
        return next(schema for known, schema in self._schemas if known is kind or known == kind)


def description(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    documented = [route for route in routes if isinstance(route, DocumentedRoute)]
    schemas = _Schemas(route.doc for route in documented)
    paths: dict[str, dict[str, Any]] = {}
    tags: dict[str, None] = {}
    for route in documented:
        path = _PLACEHOLDER.sub(r"{\1}", route.path)
        operation, methods = _operation(route, path, schemas), paths.setdefault(path, {})
        if route.method.lower() in methods:  # another route for other media types
            _add_media_types(methods[route.method.lower()], operation)
        else:
            methods[route.method.lower()] = operation
        tags[route.doc.tag] = None
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millstream", "version": VERSION, "description": _ABOUT},
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{}, {"basic": []}, {"bearer": []}],
    }


def _operation(route: DocumentedRoute, path: str, schemas: _Schemas) -> dict[str, Any]:
    doc = route.doc
    operation: dict[str, Any] = {
        "tags": [doc.tag],
        "summary": doc.summary,
        "operationId": f"{route.method.lower()}_{'_'.join(_WORD.findall(path)) or 'root'}",
        "parameters": _parameters(route.path, doc, schemas),
        "responses": _responses(doc, route.is_confluent or is_confluent(path), schemas),
    }
    if doc.description:
        operation["description"] = doc.description
    if doc.body is not None:
        content: dict[str, Any] = {"schema": schemas.of(doc.body)}
        if doc.example is not None:
            content["example"] = doc.example
        types = (doc.body_type, *doc.more_body_types)
        operation["requestBody"] = {"required": doc.body_required, "content": dict.fromkeys(types, content)}
    return operation


def _add_media_types(operation: dict[str, Any], other: dict[str, Any]) -> None:
    """Adds the successful responses of another route with the same path and method."""
    for status, response in other["responses"].items():
        if status.startswith("2"):
            operation["responses"].setdefault(status, {"description": response["description"]})
            operation["responses"][status].setdefault("content", {}).update(response.get("content", {}))


def _parameters(path: str, doc: Doc, schemas: _Schemas) -> list[dict[str, Any]]:
    named = {parameter.name: parameter for parameter in doc.parameters if parameter.place == "path"}
    rows = []
    for name, kind in _PLACEHOLDER.findall(path):
        parameter = named.get(name) or Parameter(name, "", _NUMBER if kind == "int" else _NAME, "path")
        rows.append(_parameter(parameter, schemas, required=True))
    others = (parameter for parameter in doc.parameters if parameter.place != "path")
    return rows + [_parameter(each, schemas, required=each.required) for each in others]


def _parameter(parameter: Parameter, schemas: _Schemas, *, required: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"name": parameter.name, "in": parameter.place, "required": required}
    if parameter.description:
        row["description"] = parameter.description
    return row | {"schema": schemas.of(parameter.schema)}


def _responses(doc: Doc, confluent: bool, schemas: _Schemas) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Success." if doc.response is not None else "Success, without a body."}
    if doc.response is not None:
        good["content"] = {doc.response_type: {"schema": schemas.of(doc.response)}}
    responses = {str(doc.status): good}
    if doc.partial is not None:
        content = {doc.response_type: {"schema": schemas.of(doc.partial)}}
        responses["207"] = {"description": "Partial success.", "content": content}
    error = {"application/json": {"schema": schemas.of(ConfluentError if confluent else Error)}}
    statuses = sorted({*_EVERY_ROUTE, *doc.errors})
    return responses | {
        str(status): {"description": _MEANINGS.get(status, "An error."), "content": error} for status in statuses
    }


_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --accent: #2563eb; }
@media (prefers-color-scheme: dark) { :root { --accent: #7aa2ff; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem 1.5rem 5rem; }
h1 { margin: .5rem 0 0; } h2 { margin: 2.2rem 0 .4rem; border-bottom: 1px solid var(--line); }
nav a { margin-right: 1rem; } a { color: var(--accent); }
details { border-bottom: 1px solid var(--line); } summary { padding: .4rem 0; cursor: pointer; }
summary:focus-visible { outline: 2px solid var(--accent); }
code, pre { font: 13px/1.45 ui-monospace, monospace; } pre { background: var(--soft); padding: .6rem .8rem;
  overflow-x: auto; border-radius: 6px; }
.method { display: inline-block; width: 4.2rem; font-weight: 700; }
.GET { color: #15803d; } .POST, .PUT, .PATCH { color: #b45309; } .DELETE { color: #dc2626; }
.what { opacity: .75; margin-left: .6rem; } .body { padding: 0 0 1rem 4.2rem; }
table { border-collapse: collapse; } td { padding: .15rem 1rem .15rem 0; vertical-align: top; }
"""


def page(document: dict[str, Any], base_url: str) -> str:
    by_tag: dict[str, list[str]] = {tag["name"]: [] for tag in document["tags"]}
    components = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = _inlined(operation, components)
            by_tag[operation["tags"][0]].append(_operation_html(method.upper(), path, shown, base_url))
    info = document["info"]
    links = "".join(f'<a href="#{quote(tag)}">{escape(tag)}</a>' for tag in by_tag)
    sections = "".join(
        f'<h2 id="{quote(tag)}">{escape(tag)}</h2>{"".join(operations)}' for tag, operations in by_tag.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}: HTTP</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} over HTTP</h1>"
        f'<p>Version {escape(info["version"])}. For programs: <a href="/openapi.json">openapi.json</a>.</p>'
        f"<p>{escape(info['description'])}</p><nav>{links}</nav>{sections}</body></html>"
    )


def _inlined(node: Any, components: dict[str, Any]) -> Any:
    """With the components in place of the references to them: the page shows each schema whole."""
    if isinstance(node, list):
        return [_inlined(each, components) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(components[node["$ref"].removeprefix(_REFERENCE)], components)
    return {name: _inlined(value, components) for name, value in node.items()}


def _operation_html(method: str, path: str, operation: dict[str, Any], base_url: str) -> str:
    parts = [f"<p>{escape(operation['description'])}</p>"] if "description" in operation else []
    parts.append(f"<pre>{escape(_curl(method, path, operation, base_url))}</pre>")
    if operation["parameters"]:
        rows = "".join(_parameter_html(parameter) for parameter in operation["parameters"])
        parts.append(f"<table>{rows}</table>")
    if "requestBody" in operation:
        for media_type, content in operation["requestBody"]["content"].items():
            parts.append(_schema(f"Body, {media_type}", content["schema"]))
    others = []
    for status, response in operation["responses"].items():
        content = response.get("content", {})
        if int(status) < 400:
            for media_type, shown in content.items():
                parts.append(_schema(f"Response {status}, {media_type}", shown["schema"]))
            if not content:
                parts.append(f"<p>Response {status}, no body.</p>")
        else:
            others.append(f"<tr><td>{status}</td><td>{escape(response['description'])}</td></tr>")
    parts.append(f"<details><summary>Errors</summary><table>{''.join(others)}</table></details>")
    return (
        f'<details id="{escape(operation["operationId"])}"><summary><span class="method {method}">{method}</span>'
        f'<code>{escape(path)}</code><span class="what">{escape(operation["summary"])}</span></summary>'
        f'<div class="body">{"".join(parts)}</div></details>'
    )


def _curl(method: str, path: str, operation: dict[str, Any], base_url: str) -> str:
    line = "curl" if method == "GET" else f"curl -X {method}"
    line += f" '{base_url}{path}'"
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        line += f" -H 'Content-Type: {media_type}'"
        if "example" in content:
            line += f" -d '{json.dumps(content['example'], ensure_ascii=False)}'"
    return line


def _parameter_html(parameter: dict[str, Any]) -> str:
    needed = ", required" if parameter["required"] else ""
    schema = parameter["schema"]
    choices = f" ({', '.join(map(str, schema['enum']))})" if "enum" in schema else ""
    return (
        f"<tr><td><code>{escape(parameter['name'])}</code></td><td>{escape(parameter['in'])}{needed}</td>"
        f"<td>{escape(parameter.get('description', '') + choices)}</td></tr>"
    )


def _schema(title: str, schema: dict[str, Any]) -> str:
    text = json.dumps(schema, indent=2, ensure_ascii=False)
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


_TAG = "Documentation"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"
_DOCUMENT = Doc(tag=_TAG, summary="This documentation as OpenAPI 3.1", response=mapping(ANYTHING))
_PAGE = Doc(tag=_TAG, summary="This documentation as a page", response=text("An HTML page."), response_type="text/html")


def openapi_routes(routes: Sequence[BaseRoute]) -> list[BaseRoute]:
    """The documentation routes, for these routes and themselves."""

    def page_of(req: ApiRequest) -> Response:
        base_url = str(req.request.base_url).rstrip("/")
        return HTMLResponse(page(document, base_url), headers={"Content-Security-Policy": _POLICY})

    own: list[BaseRoute] = [
        endpoint("GET", "/openapi.json", lambda req: document, doc=_DOCUMENT, at_once=True),
        endpoint("GET", "/docs", page_of, doc=_PAGE, at_once=True),
    ]
    document = description([*routes, *own])
    return own
