"""Registry routes (Confluent's API): schemas, subjects, versions, compatibility, config and mode, also by context.

`/contexts/{context}/subjects/…` is the same API for one context, so a client only needs another base URL.
"""

from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.access.roles import Role
from millstream.admin.topics import TopicAdmin
from millstream.gateway.context import caller_registry
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import endpoint
from millstream.gateway.identity.caller import caller_cluster
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
from millstream.version import VERSION

_ROLES = {
    ("POST", "/subjects/{subject}"): Role.VIEWER,
    ("POST", "/compatibility/subjects/{subject}/versions"): Role.VIEWER,
    ("POST", "/compatibility/subjects/{subject}/versions/{version}"): Role.VIEWER,
    ("POST", "/subjects/{subject}/versions"): Role.OPERATOR,
}
"""Other than the usual ones: a POST may be a question."""


class SchemaRoutes:
    def __init__(self, registry: Registry) -> None:
        self._whole = registry

    @property
    def _registry(self) -> Registry:
        """As the caller may use it."""
        return caller_registry(self._whole)

    def routes(self) -> list[BaseRoute]:
        version = "/subjects/{subject}/versions/{version}"
        table: list[tuple[str, str, Any]] = [
            ("GET", "/schemas", self.export),
            ("GET", "/schemas/types", lambda req: list(FORMATS)),
            ("GET", "/schemas/ids/{id:int}", self.by_id),
            ("GET", "/schemas/ids/{id:int}/schema", self.text_by_id),
            ("GET", "/schemas/ids/{id:int}/subjects", self.subjects_of_id),
            ("GET", "/schemas/ids/{id:int}/versions", self.versions_of_id),
            ("GET", "/v1/metadata/id", self.server_id),
            ("GET", "/v1/metadata/version", lambda req: {"version": VERSION, "commitId": ""}),
            ("GET", "/contexts", lambda req: req.page(self._registry.contexts())),
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
            endpoint(
                method,
                path,
                handler,
                doc=SCHEMA_DOCS[method, path],
                media_type=MEDIA_TYPE,
                role=_ROLES.get((method, path)),
            )
            for method, path, handler in table
        ]

    def server_id(self, req: ApiRequest) -> Any:
        clusters = {
            "kafka-cluster": TopicAdmin(caller_cluster()).cluster().cluster_id,
            "schema-registry-cluster": "schema-registry",
        }
        return {"id": "", "scope": {"path": [], "clusters": clusters}}

    # By id

    def by_id(self, req: ApiRequest) -> Any:
        schema = self._by_id(req)
        document = shown_content(self._registry, schema, req)
        if req.flag("fetchMaxId"):
            document["maxId"] = self._registry.highest_id(schema.subject)
        return document

    def text_by_id(self, req: ApiRequest) -> Response:
        return self._text(self._by_id(req), req)

    def subjects_of_id(self, req: ApiRequest) -> Any:
        return req.page(list(dict.fromkeys(str(row.subject) for row in self._versions_of_id(req))))

    def versions_of_id(self, req: ApiRequest) -> Any:
        return req.page([{"subject": str(row.subject), "version": row.version} for row in self._versions_of_id(req)])

    def _by_id(self, req: ApiRequest) -> StoredSchema:
        number, subject = int(req.path("id")), self._requested_subject(req)
        return self._registry.retry_if_missing(lambda: self._registry.by_id(number, subject))

    def _versions_of_id(self, req: ApiRequest) -> list[StoredSchema]:
        number, subject, deleted = int(req.path("id")), self._requested_subject(req), req.flag("deleted")
        return self._registry.retry_if_missing(lambda: self._registry.versions_of_id(number, subject, deleted=deleted))

    @staticmethod
    def _requested_subject(req: ApiRequest) -> Subject | None:
        text = req.text("subject")
        return split_context(text) if text else None

    def _text(self, schema: StoredSchema, req: ApiRequest) -> Response:
        text = shown_content(self._registry, schema, req)["schema"]
        return PlainTextResponse(text, media_type=MEDIA_TYPE)

    # Subjects

    def subjects(self, req: ApiRequest) -> Any:
        prefix = req.text("subjectPrefix") or EVERY_CONTEXT
        deleted, only = req.flag("deleted"), req.flag("deletedOnly", "deleted_only")
        return req.page(self._registry.subjects(prefix, deleted=deleted, deleted_only=only))

    def export(self, req: ApiRequest) -> Any:
        prefix = req.text("subjectPrefix") or EVERY_CONTEXT
        rows = self._registry.export(prefix, deleted=req.flag("deleted"), latest_only=req.flag("latestOnly"))
        return [shown_version(self._registry, row, req) for row in req.page(rows)]

    def lookup(self, req: ApiRequest) -> Any:
        subject, request = read_subject(req), read_request(req)
        normalize, deleted = req.flag("normalize"), req.flag("deleted")
        registry = self._registry
        found = registry.retry_if_missing(
            lambda: registry.lookup(subject, request, normalize=normalize, deleted=deleted)
        )
        return shown_version(registry, found, req)

    def latest_with_metadata(self, req: ApiRequest) -> Any:
        subject, deleted = read_subject(req), req.flag("deleted")
        wanted = dict(zip(req.texts("key"), req.texts("value"), strict=False))
        registry = self._registry
        found = registry.retry_if_missing(lambda: registry.latest_with_metadata(subject, wanted, deleted=deleted))
        return shown_version(registry, found, req)

    def delete_subject(self, req: ApiRequest) -> Any:
        return self._registry.deleter.delete_subject(read_subject(req), permanent=req.flag("permanent"))

    # Versions

    def versions(self, req: ApiRequest) -> Any:
        subject, deleted, only = read_subject(req), req.flag("deleted"), req.flag("deletedOnly", "deleted_only")
        registry = self._registry
        found = registry.retry_if_missing(lambda: registry.versions(subject, deleted=deleted, deleted_only=only))
        return req.page([row.version for row in found])

    def register(self, req: ApiRequest) -> Any:
        subject, request = read_subject(req), read_request(req)
        stored = self._registry.register(subject, request, normalize=req.flag("normalize"))
        # Only the id: Confluent's clients would cache the text, which may not be in the format they request later.
        return {"id": stored.id}

    def version(self, req: ApiRequest) -> Any:
        return shown_version(self._registry, self._version(req), req)

    def text_of_version(self, req: ApiRequest) -> Response:
        return self._text(self._version(req), req)

    def delete_version(self, req: ApiRequest) -> Any:
        subject, version = read_subject(req), read_version(req)
        return self._registry.deleter.delete_version(subject, version, permanent=req.flag("permanent"))

    def referenced_by(self, req: ApiRequest) -> Any:
        subject, version, deleted = read_subject(req), read_version(req), req.flag("deleted")
        registry = self._registry
        return req.page(registry.retry_if_missing(lambda: registry.referenced_by(subject, version, deleted=deleted)))

    def _version(self, req: ApiRequest) -> StoredSchema:
        subject, version, deleted = read_subject(req), read_version(req), req.flag("deleted")
        return self._registry.retry_if_missing(lambda: self._registry.version(subject, version, deleted=deleted))


class SchemaSettingRoutes:
    def __init__(self, registry: Registry) -> None:
        self._whole = registry

    @property
    def _registry(self) -> Registry:
        """As the caller may use it."""
        return caller_registry(self._whole)

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
            endpoint(
                method,
                path,
                handler,
                doc=SCHEMA_DOCS[method, path],
                media_type=MEDIA_TYPE,
                role=_ROLES.get((method, path)),
            )
            for method, path, handler in table
        ]

    def check_all(self, req: ApiRequest) -> Any:
        return self._check(req, "all")

    def check_one(self, req: ApiRequest) -> Any:
        return self._check(req, read_version(req))

    def _check(self, req: ApiRequest, version: int | str | None) -> Any:
        subject, request, normalize = read_subject(req), read_request(req), req.flag("normalize")
        registry = self._registry
        found = registry.retry_if_missing(lambda: registry.check(subject, request, version, normalize=normalize))
        verdict: dict[str, Any] = {"is_compatible": not found}
        return verdict | {"messages": found} if req.flag("verbose") else verdict

    def config(self, req: ApiRequest) -> Any:
        subject, default = _scope(req), req.flag("defaultToGlobal")
        settings = self._registry.settings
        return self._registry.retry_if_missing(lambda: settings.config(subject, default_to_global=default))

    def set_config(self, req: ApiRequest) -> Any:
        return self._registry.settings.set_config(_scope(req), req.document())

    def delete_config(self, req: ApiRequest) -> Any:
        return self._registry.settings.delete_config(_scope(req))

    def mode(self, req: ApiRequest) -> Any:
        subject, default = _scope(req), req.flag("defaultToGlobal")
        settings = self._registry.settings
        return {"mode": self._registry.retry_if_missing(lambda: settings.mode(subject, default_to_global=default))}

    def set_mode(self, req: ApiRequest) -> Any:
        wanted = req.document().get("mode")
        if not isinstance(wanted, str):
            raise invalid_mode('send {"mode": "READWRITE"}, READONLY, READONLY_OVERRIDE or IMPORT')
        return {"mode": self._registry.settings.set_mode(_scope(req), wanted, force=req.flag("force"))}

    def delete_mode(self, req: ApiRequest) -> Any:
        return {"mode": self._registry.settings.delete_mode(_scope(req))}


def _scope(req: ApiRequest) -> Subject | None:
    """None is global: no subject in the path, or the whole default context."""
    try:
        text = req.path("subject")
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
    """Rewrites the path of a context into one with qualified subjects, and `/kafka/v3`, where Confluent Server has REST
    v3, into `/v3`. Paths stay encoded."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw = scope.get("raw_path") or quote(scope["path"]).encode()
            parts = raw.decode("latin-1").partition("?")[0].split("/")
            query = scope.get("query_string", b"")
            if len(parts) > 3 and parts[1] == "contexts":
                parts, query = _qualified(unquote(parts[2]), parts[3:], query)
            elif parts[1:3] == ["kafka", "v3"]:
                parts = ["", *parts[2:]]
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
