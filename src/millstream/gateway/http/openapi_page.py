"""`/docs` as a page: the whole description as plain HTML, with a curl line for each route.

Made here rather than with Swagger UI or the like: those are a megabyte and more of scripts, which would have to come
from elsewhere or be packed with us. This page needs no script and no network, and every text in it is escaped.
"""

import json
from html import escape
from typing import Any
from urllib.parse import quote

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
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag[operation["tags"][0]].append(_operation(method.upper(), path, operation, base_url))
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


def _operation(method: str, path: str, operation: dict[str, Any], base_url: str) -> str:
    parts = [f"<p>{escape(operation['description'])}</p>"] if "description" in operation else []
    parts.append(f"<pre>{escape(_curl(method, path, operation, base_url))}</pre>")
    if operation["parameters"]:
        rows = "".join(_parameter(parameter) for parameter in operation["parameters"])
        parts.append(f"<table>{rows}</table>")
    if "requestBody" in operation:
        for media_type, content in operation["requestBody"]["content"].items():
            parts.append(_schema(f"Body, {media_type}", content["schema"]))
    others = []
    for status, response in operation["responses"].items():
        content = response.get("content", {})
        if int(status) < 400:
            for media_type, shown in content.items():
                parts.append(_schema(f"Answer {status}, {media_type}", shown["schema"]))
            if not content:
                parts.append(f"<p>Answer {status}, no body.</p>")
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


def _parameter(parameter: dict[str, Any]) -> str:
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
