"""Compatibility checks, config and mode: Confluent's API."""

from typing import Any

from starlette.routing import BaseRoute

from millstream.gateway.http.asked import Asked
from millstream.gateway.http.endpoints import endpoint
from millstream.gateway.schemas.docs import SCHEMA_DOCS
from millstream.gateway.schemas.documents import MEDIA_TYPE, read_request, read_subject, read_version
from millstream.registry.errors import invalid_mode
from millstream.registry.registry import Registry
from millstream.registry.subjects import Subject, parse_subject


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

    def check_all(self, asked: Asked) -> Any:
        return self._check(asked, "all")

    def check_one(self, asked: Asked) -> Any:
        return self._check(asked, read_version(asked))

    def _check(self, asked: Asked, version: int | str | None) -> Any:
        subject, request, normalize = read_subject(asked), read_request(asked), asked.flag("normalize")
        registry = self._registry
        found = registry.fresh(lambda: registry.check(subject, request, version, normalize=normalize))
        verdict: dict[str, Any] = {"is_compatible": not found}
        return verdict | {"messages": found} if asked.flag("verbose") else verdict

    def config(self, asked: Asked) -> Any:
        subject, default = _scope(asked), asked.flag("defaultToGlobal")
        settings = self._registry.settings
        return self._registry.fresh(lambda: settings.config(subject, default_to_global=default))

    def set_config(self, asked: Asked) -> Any:
        return self._registry.settings.set_config(_scope(asked), asked.document())

    def delete_config(self, asked: Asked) -> Any:
        return self._registry.settings.delete_config(_scope(asked))

    def mode(self, asked: Asked) -> Any:
        subject, default = _scope(asked), asked.flag("defaultToGlobal")
        settings = self._registry.settings
        return {"mode": self._registry.fresh(lambda: settings.mode(subject, default_to_global=default))}

    def set_mode(self, asked: Asked) -> Any:
        wanted = asked.document().get("mode")
        if not isinstance(wanted, str):
            raise invalid_mode('send {"mode": "READWRITE"}, READONLY, READONLY_OVERRIDE or IMPORT')
        return {"mode": self._registry.settings.set_mode(_scope(asked), wanted, force=asked.flag("force"))}

    def delete_mode(self, asked: Asked) -> Any:
        return {"mode": self._registry.settings.delete_mode(_scope(asked))}


def _scope(asked: Asked) -> Subject | None:
    """None is global: no subject in the path, or the default context as a whole."""
    try:
        text = asked.path("subject")
    except KeyError:
        return None
    subject = parse_subject(text, may_be_context=True)
    return None if subject == Subject(".", "") else subject
