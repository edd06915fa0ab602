"""The registry as its callers see it: the answers to every question about subjects, versions, ids and compatibility."""

from collections.abc import Callable
from typing import Any, TypeVar

from millstream.registry import errors
from millstream.registry.compatibility import obstacles
from millstream.registry.deleting import Deleter
from millstream.registry.errors import NotFoundError
from millstream.registry.levels import Level
from millstream.registry.log import SchemaLog
from millstream.registry.parsing import SchemaParser
from millstream.registry.records import StoredSchema
from millstream.registry.registering import Registrar, SchemaRequest, check_rules
from millstream.registry.scope import level_of
from millstream.registry.settings import Settings
from millstream.registry.subjects import DEFAULT_CONTEXT, Subject, split_context

Answer = TypeVar("Answer")


class Registry:
    """Thread safe. Every method may raise RegistryError."""

    def __init__(self, log: SchemaLog) -> None:
        self._log = log
        self.parser = SchemaParser(log)
        self.settings = Settings(log)
        self.deleter = Deleter(log)
        self._registrar = Registrar(log, self.parser)

    @property
    def trouble(self) -> str | None:
        """Why the registry is not up to date just now, if so."""
        return self._log.trouble

    def fresh(self, ask: Callable[[], Answer]) -> Answer:
        """Asks; and once more after reading to the end of the topic if the answer was that there is no such thing."""
        try:
            return ask()
        except NotFoundError as error:
            trouble = self._log.trouble
            if trouble is not None:
                raise errors.store_timed_out(
                    f"{error.message.partition('.')[0]} as far as is known, but {trouble}"
                ) from None
            self._log.catch_up()
            return ask()

    # Writing

    def register(self, subject: Subject, request: SchemaRequest, *, normalize: bool = False) -> StoredSchema:
        return self._registrar.register(subject, request, normalize)

    # Reading

    def contexts(self) -> list[str]:
        with self._log.lock:
            return self._log.state.contexts()

    def subjects(self, prefix: str = ":*:", *, deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """In all contexts (`:*:`), or those whose whole name begins so."""
        wanted = None if prefix.startswith(":*:") else split_context(prefix)
        ending = prefix.removeprefix(":*:")
        with self._log.lock:
            state = self._log.state
            found = []
            for subject in state.subjects():
                if wanted is not None and subject.context != wanted.context:
                    continue
                if not subject.name.startswith(ending if wanted is None else wanted.name):
                    continue
                live = bool(state.versions(subject))
                if (live and not deleted_only) or (not live and (deleted or deleted_only)):
                    found.append(str(subject))
        return sorted(found)

    def versions(self, subject: Subject, *, deleted: bool = False, deleted_only: bool = False) -> list[StoredSchema]:
        """At least one, in order."""
        with self._log.lock:
            found = self._log.state.versions(subject, deleted=deleted or deleted_only)
        if deleted_only:
            found = [version for version in found if version.deleted]
        if not found:
            raise errors.subject_not_found(str(subject))
        return found

    def version(self, subject: Subject, version: int | None, *, deleted: bool = False) -> StoredSchema:
        """None is the latest."""
        with self._log.lock:
            state = self._log.state
            every, shown = state.versions(subject, deleted=True), state.versions(subject, deleted=deleted)
        if not every or not (shown or deleted):
            raise errors.subject_not_found(str(subject))
        found = [row for row in shown if version is None or row.version == version]
        if not found:
            raise errors.version_not_found("latest" if version is None else version)
        return found[-1]

    def latest_with_metadata(self, subject: Subject, wanted: dict[str, str], *, deleted: bool = False) -> StoredSchema:
        """The newest version whose metadata has these properties."""
        for row in reversed(self.versions(subject, deleted=deleted)):
            properties = (row.metadata or {}).get("properties") or {}
            if all(properties.get(name) == value for name, value in wanted.items()):
                return row
        raise errors.schema_not_found(f"of subject '{subject}' with metadata {wanted}")

    def by_id(self, schema_id: int, subject: Subject | None = None) -> StoredSchema:
        """Any version with this id, deleted or not, in the context of the subject."""
        return self._places(schema_id, subject)[0]

    def places(self, schema_id: int, subject: Subject | None = None, *, deleted: bool = False) -> list[StoredSchema]:
        """The versions that have this id."""
        found = [row for row in self._places(schema_id, subject) if deleted or not row.deleted]
        if subject is not None and subject.name:
            found = [row for row in found if row.subject == subject]
        return sorted(found, key=lambda row: (row.subject, row.version))

    def highest_id(self, subject: Subject | None = None) -> int:
        with self._log.lock:
            return self._log.state.highest_ids.get(DEFAULT_CONTEXT if subject is None else subject.context, 0)

    def _places(self, schema_id: int, subject: Subject | None) -> list[StoredSchema]:
        """In the subject's context; a subject that is not in the default one is looked for in the others as well."""
        with self._log.lock:
            state = self._log.state
            context = DEFAULT_CONTEXT if subject is None else subject.context
            found = state.places(context, schema_id)
            if not found and subject is not None and subject.name and context == DEFAULT_CONTEXT:
                for other in state.contexts():
                    rows = state.places(other, schema_id)
                    if any(row.subject.name == subject.name for row in rows):
                        return rows
        if not found:
            raise errors.schema_not_found(schema_id)
        return found

    def lookup(
        self, subject: Subject, request: SchemaRequest, *, normalize: bool = False, deleted: bool = False
    ) -> StoredSchema:
        """The version of the subject that is this schema."""
        self.versions(subject, deleted=deleted)
        found = self._registrar.find(subject, self._registrar.understand(subject, request, normalize), deleted=deleted)
        if found is None:
            raise errors.schema_not_found()
        return found

    def referenced_by(self, subject: Subject, version: int | None, *, deleted: bool = False) -> list[int]:
        """The ids of the schemas that refer to this version."""
        found = self.version(subject, version, deleted=True)
        with self._log.lock:
            users = self._log.state.referencing(subject, found.version, deleted=deleted)
        return sorted({user.id for user in users})

    def rendered(self, schema: StoredSchema, form: str) -> str:
        """The schema's text in the form that was asked for."""
        return self.parser.parse_stored(schema).rendered(form) if form else schema.text

    def check(
        self, subject: Subject, request: SchemaRequest, version: int | str | None, *, normalize: bool = False
    ) -> list[str]:
        """What stands against registering the schema: compared with one version, the latest (None), or with all that
        count at the subject's level ("all"). An unknown subject has nothing to compare with."""
        candidate = self._registrar.understand(subject, request, normalize)
        check_rules(candidate)
        with self._log.lock:
            level = level_of(self._log.state, subject)
            earlier = self._log.state.versions(subject)
        if isinstance(version, int):
            earlier = [self.version(subject, version)]
        elif version is None:
            earlier = earlier[-1:]
        return obstacles(self.parser, level, candidate.type, candidate.parsed, earlier)

    def level(self, subject: Subject | None) -> Level:
        with self._log.lock:
            return level_of(self._log.state, subject)

    def export(self, prefix: str, *, deleted: bool = False, latest_only: bool = False) -> list[StoredSchema]:
        """Every version of every subject whose name begins so."""
        rows: list[StoredSchema] = []
        for name in self.subjects(prefix, deleted=deleted):
            versions: list[Any] = self.versions(split_context(name), deleted=deleted)
            rows += versions[-1:] if latest_only else versions
        return rows
