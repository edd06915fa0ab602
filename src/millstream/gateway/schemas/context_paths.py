"""`/contexts/{context}/subjects/…`: the same API for one context, so that a client only needs another base address."""

from urllib.parse import parse_qsl, quote, unquote, urlencode

from starlette.types import ASGIApp, Receive, Scope, Send

_BEFORE_SUBJECT = {
    ("subjects",): 1,
    ("config",): 1,
    ("mode",): 1,
    ("compatibility", "subjects"): 2,
}


class ContextPaths:
    """Rewrites a request for a context into one whose subjects name it. Paths stay encoded for the routes behind."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw = scope.get("raw_path") or quote(scope["path"]).encode()
            parts = raw.decode("latin-1").partition("?")[0].split("/")
            query = scope.get("query_string", b"")
            if len(parts) > 3 and parts[1] == "contexts":
                parts, query = _qualified(unquote(parts[2]), parts[3:], query)
            path = "/".join(parts)
            scope = dict(scope) | {"path": path.rstrip("/") or "/", "query_string": query}
        await self._app(scope, receive, send)


def _qualified(context: str, rest: list[str], query: bytes) -> tuple[list[str], bytes]:
    prefix = f":{context if context.startswith('.') else '.' + context}:"
    for before, count in _BEFORE_SUBJECT.items():
        if tuple(rest[:count]) == before:
            if len(rest) > count:
                name = unquote(rest[count])
                rest = [
                    *rest[:count],
                    quote(name if name.startswith(":.") else prefix + name, safe=""),
                    *rest[count + 1 :],
                ]
            elif before in (("config",), ("mode",)):
                rest = [*rest, quote(prefix, safe="")]
            break
    pairs = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    name = (
        "subjectPrefix" if rest in (["subjects"], ["schemas"]) else "subject" if rest[:2] == ["schemas", "ids"] else ""
    )
    if name and not pairs.get(name, "").startswith(":."):
        query = urlencode(pairs | {name: prefix + pairs.get(name, "")}).encode()
    return ["", *rest], query
