"""Schemas by id, subjects and their versions: Confluent's API."""

from typing import Any

from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute

from millstream.gateway.http.asked import Asked
from millstream.gateway.http.endpoints import endpoint
from millstream.gateway.schemas.docs import SCHEMA_DOCS
from millstream.gateway.schemas.documents import (
    MEDIA_TYPE,
    read_request,
    read_subject,
    read_version,
    shown_content,
    shown_version,
)
from millstream.registry.formats.table import FORMATS
from millstream.registry.records import StoredSchema
from millstream.registry.registry import Registry
from millstream.registry.subjects import EVERY_CONTEXT, Subject, split_context


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

    def by_id(self, asked: Asked) -> Any:
        schema = self._by_id(asked)
        document = shown_content(self._registry, schema, asked)
        if asked.flag("fetchMaxId"):
            document["maxId"] = self._registry.highest_id(schema.subject)
        return document

    def text_by_id(self, asked: Asked) -> Response:
        return self._text(self._by_id(asked), asked)

    def subjects_of_id(self, asked: Asked) -> Any:
        return asked.page(list(dict.fromkeys(str(row.subject) for row in self._places(asked))))

    def versions_of_id(self, asked: Asked) -> Any:
        return asked.page([{"subject": str(row.subject), "version": row.version} for row in self._places(asked)])

    def _by_id(self, asked: Asked) -> StoredSchema:
        number, subject = int(asked.path("id")), self._subject_asked_for(asked)
        return self._registry.fresh(lambda: self._registry.by_id(number, subject))

    def _places(self, asked: Asked) -> list[StoredSchema]:
        number, subject, deleted = int(asked.path("id")), self._subject_asked_for(asked), asked.flag("deleted")
        return self._registry.fresh(lambda: self._registry.places(number, subject, deleted=deleted))

    @staticmethod
    def _subject_asked_for(asked: Asked) -> Subject | None:
        text = asked.text("subject")
        return split_context(text) if text else None

    def _text(self, schema: StoredSchema, asked: Asked) -> Response:
        text = shown_content(self._registry, schema, asked)["schema"]
        return PlainTextResponse(text, media_type=MEDIA_TYPE)

    # Subjects

    def subjects(self, asked: Asked) -> Any:
        prefix = asked.text("subjectPrefix") or EVERY_CONTEXT
        deleted, only = asked.flag("deleted"), asked.flag("deletedOnly", "deleted_only")
        return asked.page(self._registry.subjects(prefix, deleted=deleted, deleted_only=only))

    def export(self, asked: Asked) -> Any:
        prefix = asked.text("subjectPrefix") or EVERY_CONTEXT
        rows = self._registry.export(prefix, deleted=asked.flag("deleted"), latest_only=asked.flag("latestOnly"))
        return [shown_version(self._registry, row, asked) for row in asked.page(rows)]

    def lookup(self, asked: Asked) -> Any:
        subject, request = read_subject(asked), read_request(asked)
        normalize, deleted = asked.flag("normalize"), asked.flag("deleted")
        registry = self._registry
        found = registry.fresh(lambda: registry.lookup(subject, request, normalize=normalize, deleted=deleted))
        return shown_version(registry, found, asked)

    def latest_with_metadata(self, asked: Asked) -> Any:
        subject, deleted = read_subject(asked), asked.flag("deleted")
        wanted = dict(zip(asked.texts("key"), asked.texts("value"), strict=False))
        registry = self._registry
        found = registry.fresh(lambda: registry.latest_with_metadata(subject, wanted, deleted=deleted))
        return shown_version(registry, found, asked)

    def delete_subject(self, asked: Asked) -> Any:
        return self._registry.deleter.delete_subject(read_subject(asked), permanent=asked.flag("permanent"))

    # Versions

    def versions(self, asked: Asked) -> Any:
        subject, deleted, only = read_subject(asked), asked.flag("deleted"), asked.flag("deletedOnly", "deleted_only")
        registry = self._registry
        found = registry.fresh(lambda: registry.versions(subject, deleted=deleted, deleted_only=only))
        return asked.page([row.version for row in found])

    def register(self, asked: Asked) -> Any:
        subject, request = read_subject(asked), read_request(asked)
        stored = self._registry.register(subject, request, normalize=asked.flag("normalize"))
        # No more than the id: Confluent's clients would keep the text, and have asked for no form of it yet.
        return {"id": stored.id}

    def version(self, asked: Asked) -> Any:
        return shown_version(self._registry, self._version(asked), asked)

    def text_of_version(self, asked: Asked) -> Response:
        return self._text(self._version(asked), asked)

    def delete_version(self, asked: Asked) -> Any:
        subject, version = read_subject(asked), read_version(asked)
        return self._registry.deleter.delete_version(subject, version, permanent=asked.flag("permanent"))

    def referenced_by(self, asked: Asked) -> Any:
        subject, version, deleted = read_subject(asked), read_version(asked), asked.flag("deleted")
        registry = self._registry
        return asked.page(registry.fresh(lambda: registry.referenced_by(subject, version, deleted=deleted)))

    def _version(self, asked: Asked) -> StoredSchema:
        subject, version, deleted = read_subject(asked), read_version(asked), asked.flag("deleted")
        return self._registry.fresh(lambda: self._registry.version(subject, version, deleted=deleted))
