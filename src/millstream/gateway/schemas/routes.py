"""Schemas by id, subjects and their versions: Confluent's API.

Compatibility checks, config and mode: Confluent's API.

`/contexts/{context}/subjects/…`: the same API for one context, so that a client only needs another base address.
"""

from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import endpoint
from millstream.gateway.schemas.documents import (
    MEDIA_TYPE,
    SCHEMA_DOCS,
    read_request,
    read_subject,
    read_version,
    shown_content,
    shown_version,
)
from millstream.registry.errors import invalid_mode
from millstream.registry.records import EVERY_CONTEXT, StoredSchema, Subject, parse_subject, split_context
from millstream.registry.registering import FORMATS
from millstream.registry.registry import Registry


class SchemaRoutes:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def routes(self) -> list[BaseRoute]:
        version = "/subjects/{subject}/versions/{version}"
        table: list[tuple[str, str, Any]] = [
            ("GET", "/schemas", self.export),
            ("GET", "/schemas/types", lambda asked: list(FORMATS)),
            ("GET", "/schemas/ids/{id:int}", self.by_id),
            ("GET", "/schemas/ids/{id:int}/schema", self.text_by_id),
            ("GET", "/schemas/ids/{id:int}/subjects", self.subjects_of_id),
            ("GET", "/schemas/ids/{id:int}/versions", self.versions_of_id),
            ("GET", "/contexts", lambda asked: asked.page(self._registry.contexts())),
            ("GET", "/subjects", self.subjects),
            ("POST", "/subjects/{subject}", self.lookup),
            ("DELETE", "/subjects/{subject}", self.delete_subject),
            ("GET", "/subjects/{subject}/metadata", self.latest_with_metadata),
            ("GET", "/subjects/{subject}/versions", self.versions),
            ("POST", "/subjects/{subject}/versions", self.register),
            ("GET", version, self.version),
            ("DELETE", version, self.delete_version),
            ("GET", f"{version}/schema", self.text_of_version),
            ("GET", f"{version}/referencedby", self.referenced_by),
        ]

        return [
            endpoint(method, path, handler, doc=SCHEMA_DOCS[method, path], media_type=MEDIA_TYPE)
            for method, path, handler in table
        ]

    # By id

    def by_id(self, asked: ApiRequest) -> Any:
        schema = self._by_id(asked)
        document = shown_content(self._registry, schema, asked)
        if asked.flag("fetchMaxId"):
            document["maxId"] = self._registry.highest_id(schema.subject)
        return document

    def text_by_id(self, asked: ApiRequest) -> Response:
        return self._text(self._by_id(asked), asked)

    def subjects_of_id(self, asked: ApiRequest) -> Any:
        return asked.page(list(dict.fromkeys(str(row.subject) for row in self._places(asked))))

    def versions_of_id(self, asked: ApiRequest) -> Any:
        return asked.page([{"subject": str(row.subject), "version": row.version} for row in self._places(asked)])

    def _by_id(self, asked: ApiRequest) -> StoredSchema:
        number, subject = int(asked.path("id")), self._subject_asked_for(asked)
        return self._registry.fresh(lambda: self._registry.by_id(number, subject))

    def _places(self, asked: ApiRequest) -> list[StoredSchema]:
        number, subject, deleted = int(asked.path("id")), self._subject_asked_for(asked), asked.flag("deleted")
        return self._registry.fresh(lambda: self._registry.places(number, subject, deleted=deleted))

    @staticmethod
    def _subject_asked_for(asked: ApiRequest) -> Subject | None:
        text = asked.text("subject")
        return split_context(text) if text else None

    def _text(self, schema: StoredSchema, asked: ApiRequest) -> Response:
        text = shown_content(self._registry, schema, asked)["schema"]
        return PlainTextResponse(text, media_type=MEDIA_TYPE)

    # Subjects

    def subjects(self, asked: ApiRequest) -> Any:
        prefix = asked.text("subjectPrefix") or EVERY_CONTEXT
        deleted, only = asked.flag("deleted"), asked.flag("deletedOnly", "deleted_only")
        return asked.page(self._registry.subjects(prefix, deleted=deleted, deleted_only=only))

    def export(self, asked: ApiRequest) -> Any:
        prefix = asked.text("subjectPrefix") or EVERY_CONTEXT
        rows = self._registry.export(prefix, deleted=asked.flag("deleted"), latest_only=asked.flag("latestOnly"))
        return [shown_version(self._registry, row, asked) for row in asked.page(rows)]

    def lookup(self, asked: ApiRequest) -> Any:
        subject, request = read_subject(asked), read_request(asked)
        normalize, deleted = asked.flag("normalize"), asked.flag("deleted")
        registry = self._registry
        found = registry.fresh(lambda: registry.lookup(subject, request, normalize=normalize, deleted=deleted))
        return shown_version(registry, found, asked)

    def latest_with_metadata(self, asked: ApiRequest) -> Any:
        subject, deleted = read_subject(asked), asked.flag("deleted")
        wanted = dict(zip(asked.texts("key"), asked.texts("value"), strict=False))
        registry = self._registry
        found = registry.fresh(lambda: registry.latest_with_metadata(subject, wanted, deleted=deleted))
        return shown_version(registry, found, asked)

    def delete_subject(self, asked: ApiRequest) -> Any:
        return self._registry.deleter.delete_subject(read_subject(asked), permanent=asked.flag("permanent"))

    # Versions

    def versions(self, asked: ApiRequest) -> Any:
        subject, deleted, only = read_subject(asked), asked.flag("deleted"), asked.flag("deletedOnly", "deleted_only")
        registry = self._registry
        found = registry.fresh(lambda: registry.versions(subject, deleted=deleted, deleted_only=only))
        return asked.page([row.version for row in found])

    def register(self, asked: ApiRequest) -> Any:
        subject, request = read_subject(asked), read_request(asked)
        stored = self._registry.register(subject, request, normalize=asked.flag("normalize"))
        # No more than the id: Confluent's clients would keep the text, and have asked for no form of it yet.
        return {"id": stored.id}

    def version(self, asked: ApiRequest) -> Any:
        return shown_version(self._registry, self._version(asked), asked)

    def text_of_version(self, asked: ApiRequest) -> Response:
        return self._text(self._version(asked), asked)

    def delete_version(self, asked: ApiRequest) -> Any:
        subject, version = read_subject(asked), read_version(asked)
        return self._registry.deleter.delete_version(subject, version, permanent=asked.flag("permanent"))

    def referenced_by(self, asked: ApiRequest) -> Any:
        subject, version, deleted = read_subject(asked), read_version(asked), asked.flag("deleted")
        registry = self._registry
        return asked.page(registry.fresh(lambda: registry.referenced_by(subject, version, deleted=deleted)))

    def _version(self, asked: ApiRequest) -> StoredSchema:
        subject, version, deleted = read_subject(asked), read_version(asked), asked.flag("deleted")
        return self._registry.fresh(lambda: self._registry.version(subject, version, deleted=deleted))


class SchemaSettingRoutes:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def routes(self) -> list[BaseRoute]:
        checks = "/compatibility/subjects/{subject}/versions"
        table: list[tuple[str, str, Any]] = [
            ("POST", checks, self.check_all),
            ("POST", f"{checks}/{{version}}", self.check_one),
        ]
        for path in ("/config", "/config/{subject}"):
            table += [("GET", path, self.config), ("PUT", path, self.set_config), ("DELETE", path, self.delete_config)]
        for path in ("/mode", "/mode/{subject}"):
            table += [("GET", path, self.mode), ("PUT", path, self.set_mode), ("DELETE", path, self.delete_mode)]
        return [
            endpoint(method, path, handler, doc=SCHEMA_DOCS[method, path], media_type=MEDIA_TYPE)
            for method, path, handler in table
        ]

    def check_all(self, asked: ApiRequest) -> Any:
        return self._check(asked, "all")

    def check_one(self, asked: ApiRequest) -> Any:
        return self._check(asked, read_version(asked))

    def _check(self, asked: ApiRequest, version: int | str | None) -> Any:
        subject, request, normalize = read_subject(asked), read_request(asked), asked.flag("normalize")
        registry = self._registry
        found = registry.fresh(lambda: registry.check(subject, request, version, normalize=normalize))
        verdict: dict[str, Any] = {"is_compatible": not found}
        return verdict | {"messages": found} if asked.flag("verbose") else verdict

    def config(self, asked: ApiRequest) -> Any:
        subject, default = _scope(asked), asked.flag("defaultToGlobal")
        settings = self._registry.settings
        return self._registry.fresh(lambda: settings.config(subject, default_to_global=default))

    def set_config(self, asked: ApiRequest) -> Any:
        return self._registry.settings.set_config(_scope(asked), asked.document())

    def delete_config(self, asked: ApiRequest) -> Any:
        return self._registry.settings.delete_config(_scope(asked))

    def mode(self, asked: ApiRequest) -> Any:
        subject, default = _scope(asked), asked.flag("defaultToGlobal")
        settings = self._registry.settings
        return {"mode": self._registry.fresh(lambda: settings.mode(subject, default_to_global=default))}

    def set_mode(self, asked: ApiRequest) -> Any:
        wanted = asked.document().get("mode")
        if not isinstance(wanted, str):
            raise invalid_mode('send {"mode": "READWRITE"}, READONLY, READONLY_OVERRIDE or IMPORT')
        return {"mode": self._registry.settings.set_mode(_scope(asked), wanted, force=asked.flag("force"))}

    def delete_mode(self, asked: ApiRequest) -> Any:
        return {"mode": self._registry.settings.delete_mode(_scope(asked))}


def _scope(asked: ApiRequest) -> Subject | None:
    """None is global: no subject in the path, or the default context as a whole."""
    try:
        text = asked.path("subject")
    except KeyError:
        return None
    subject = parse_subject(text, may_be_context=True)
    return None if subject == Subject(".", "") else subject


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
