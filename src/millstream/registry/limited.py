"""The registry as one caller may use it: every read and change is checked against permissions on subjects.

It shares the log, the parser and the caches of the registry. What a caller may not read is left out of lists, and
refused (40301) where it is named. A schema that refers to others needs the right to read those.
"""

from collections.abc import Mapping
from typing import Any

from millstream.access.subjects import SubjectOperation, SubjectPermissions
from millstream.registry import errors
from millstream.registry.records import StoredSchema, Subject, split_context
from millstream.registry.registering import SchemaRequest
from millstream.registry.registry import Deleter, Registry, Settings
from millstream.registry.state import Level, Mode

_READ, _WRITE = SubjectOperation.READ, SubjectOperation.WRITE
_DELETE, _COMPAT = SubjectOperation.DELETE, SubjectOperation.COMPAT


class _Guard:
    def __init__(self, permissions: SubjectPermissions) -> None:
        self._permissions = permissions

    def may_read(self, subject: Subject) -> bool:
        return self._permissions.allows(_READ, str(subject))

    def check(self, operation: SubjectOperation, subject: Subject | None) -> None:
        if not self._permissions.allows(operation, None if subject is None else str(subject)):
            raise errors.denied(operation.value, None if subject is None else str(subject))

    def check_references(self, request: SchemaRequest) -> None:
        for reference in request.references:
            self.check(_READ, split_context(reference.subject))


class LimitedRegistry(Registry):
    def __init__(self, whole: Registry, permissions: SubjectPermissions) -> None:
        self._log = whole._log
        self.parser = whole.parser
        self._registrar = whole._registrar
        self._guard = _Guard(permissions)
        self.settings = _LimitedSettings(whole.settings, self._guard)
        self.deleter = _LimitedDeleter(whole.deleter, self._guard)

    def limited_to(self, permissions: SubjectPermissions) -> Registry:
        raise AssertionError("limited already")

    def register(self, subject: Subject, request: SchemaRequest, *, normalize: bool = False) -> StoredSchema:
        self._guard.check(_WRITE, subject)
        self._guard.check_references(request)
        return super().register(subject, request, normalize=normalize)

    def contexts(self) -> list[str]:
        seen = {split_context(name).context for name in self.subjects(deleted=True)}
        return [context for context in super().contexts() if context in seen]

    def subjects(self, prefix: str = ":*:", *, deleted: bool = False, deleted_only: bool = False) -> list[str]:
        found = super().subjects(prefix, deleted=deleted, deleted_only=deleted_only)
        return [name for name in found if self._guard.may_read(split_context(name))]

    def versions(self, subject: Subject, *, deleted: bool = False, deleted_only: bool = False) -> list[StoredSchema]:
        self._guard.check(_READ, subject)
        return super().versions(subject, deleted=deleted, deleted_only=deleted_only)

    def version(self, subject: Subject, version: int | None, *, deleted: bool = False) -> StoredSchema:
        self._guard.check(_READ, subject)
        return super().version(subject, version, deleted=deleted)

    def _versions_of_id(self, schema_id: int, subject: Subject | None) -> list[StoredSchema]:
        found = super()._versions_of_id(schema_id, subject)
        readable = [row for row in found if self._guard.may_read(row.subject)]
        if not readable:
            raise errors.denied(_READ.value, None)
        return readable

    def lookup(
        self, subject: Subject, request: SchemaRequest, *, normalize: bool = False, deleted: bool = False
    ) -> StoredSchema:
        self._guard.check_references(request)
        return super().lookup(subject, request, normalize=normalize, deleted=deleted)

    def check(
        self, subject: Subject, request: SchemaRequest, version: int | str | None, *, normalize: bool = False
    ) -> list[str]:
        self._guard.check(_READ, subject)
        self._guard.check_references(request)
        return super().check(subject, request, version, normalize=normalize)

    def level(self, subject: Subject | None) -> Level:
        if subject is not None:
            self._guard.check(_READ, subject)
        return super().level(subject)


class _LimitedDeleter(Deleter):
    def __init__(self, whole: Deleter, guard: _Guard) -> None:
        super().__init__(whole._log)
        self._guard = guard

    def delete_subject(self, subject: Subject, *, permanent: bool) -> list[int]:
        self._guard.check(_DELETE, subject)
        return super().delete_subject(subject, permanent=permanent)

    def delete_version(self, subject: Subject, version: int | None, *, permanent: bool) -> int:
        self._guard.check(_DELETE, subject)
        return super().delete_version(subject, version, permanent=permanent)


class _LimitedSettings(Settings):
    """Global settings may be read by all; those of a subject by its readers."""

    def __init__(self, whole: Settings, guard: _Guard) -> None:
        super().__init__(whole._log)
        self._guard = guard

    def config(self, subject: Subject | None, *, default_to_global: bool) -> dict[str, Any]:
        self._check_read(subject)
        return super().config(subject, default_to_global=default_to_global)

    def set_config(self, subject: Subject | None, wanted: Mapping[str, Any]) -> dict[str, Any]:
        self._guard.check(_COMPAT, subject)
        return super().set_config(subject, wanted)

    def delete_config(self, subject: Subject | None) -> dict[str, Any]:
        self._guard.check(_COMPAT, subject)
        return super().delete_config(subject)

    def mode(self, subject: Subject | None, *, default_to_global: bool) -> Mode:
        self._check_read(subject)
        return super().mode(subject, default_to_global=default_to_global)

    def set_mode(self, subject: Subject | None, wanted: str, *, force: bool) -> Mode:
        self._guard.check(_COMPAT, subject)
        return super().set_mode(subject, wanted, force=force)

    def delete_mode(self, subject: Subject | None) -> Mode:
        self._guard.check(_COMPAT, subject)
        return super().delete_mode(subject)

    def _check_read(self, subject: Subject | None) -> None:
        if subject is not None:
            self._guard.check(_READ, subject)
