"""The registry: reads and changes of subjects, versions, ids, compatibility, config and mode.

Deletion has two steps: soft deletion, after which data can still be read by id, then permanent deletion.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from millstream.access.subjects import SubjectPermissions
from millstream.common.close_match import did_you_mean
from millstream.registry import errors
from millstream.registry.errors import NotFoundError
from millstream.registry.log import SchemaLog, noop
from millstream.registry.records import (
    DEFAULT_CONTEXT,
    Entry,
    Key,
    Kind,
    StoredSchema,
    Subject,
    schema_entry,
    split_context,
)
from millstream.registry.registering import Registrar, SchemaParser, SchemaRequest, check_rules, incompatibilities
from millstream.registry.state import LEVEL, NORMALIZE, Level, Mode, RegistryState, level_of, mode_of, scopes, setting


class Deleter:
    def __init__(self, log: SchemaLog) -> None:
        self._log = log

    def delete_subject(self, subject: Subject, *, permanent: bool) -> list[int]:
        """The versions that were deleted."""
        gone: list[int] = []

        def decide(state: RegistryState) -> list[Entry]:
            gone.clear()
            _check_mode(state, subject)
            every, live = state.versions(subject, deleted=True), state.versions(subject)
            if not every:
                raise errors.subject_not_found(str(subject))
            if permanent and live:
                raise errors.subject_not_soft_deleted(str(subject))
            if not permanent and not live:
                raise errors.subject_soft_deleted(str(subject))
            going = every if permanent else live
            for version in going:
                _check_references(state, version, permanent=permanent, others_than=subject)
            gone.extend(version.version for version in going)
            if permanent:
                return _tombstones(state, going)
            value = {"subject": str(subject), "version": live[-1].version}
            return [Entry(Key(Kind.DELETE_SUBJECT, subject), value), *_forget_settings(state, subject)]

        self._log.write(decide)
        return gone

    def delete_version(self, subject: Subject, version: int | None, *, permanent: bool) -> int:
        """The version that was deleted; None is the latest."""
        gone: list[int] = []

        def decide(state: RegistryState) -> list[Entry]:
            gone.clear()
            _check_mode(state, subject)
            every, live = state.versions(subject, deleted=True), state.versions(subject)
            if not every or (version is None and not live):
                raise errors.subject_not_found(str(subject))
            found = live[-1] if version is None else state.version(subject, version)
            if found is None:
                raise errors.version_not_found(version)
            if permanent and not found.deleted:
                raise errors.version_not_soft_deleted(str(subject), found.version)
            if not permanent and found.deleted:
                raise errors.version_soft_deleted(str(subject), found.version)
            _check_references(state, found, permanent=permanent)
            gone.append(found.version)
            if permanent:
                return _tombstones(state, [found])
            entries = [schema_entry(replace(found, deleted=True))]
            return entries + (_forget_settings(state, subject) if live == [found] else [])

        self._log.write(decide)
        return gone[0]


def _check_mode(state: RegistryState, subject: Subject) -> None:
    mode = mode_of(state, subject)
    if mode.read_only:
        raise errors.not_permitted(f"subject {str(subject)!r} is in mode {mode}: PUT /mode/SUBJECT sets another")


def _check_references(
    state: RegistryState, version: StoredSchema, *, permanent: bool, others_than: Subject | None = None
) -> None:
    """A soft-deleted schema is still served by id, so a schema that it references is not deleted permanently."""
    users = state.referencing(version.subject, version.version, deleted=permanent)
    users = [user for user in users if user.subject != others_than]
    live, gone = (sorted({user.id for user in users if user.deleted is deleted}) for deleted in (False, True))
    if live:
        raise errors.referenced(str(version.subject), version.version, live)
    if gone:
        raise errors.referenced_by_deleted(str(version.subject), version.version, gone)


def _tombstones(state: RegistryState, going: Iterable[StoredSchema]) -> list[Entry]:
    """With a record of the highest ids: compaction removes the schemas, and their ids must not be used again."""
    return [noop(state), *(Entry(Key(Kind.SCHEMA, row.subject, row.version), None) for row in going)]


def _forget_settings(state: RegistryState, subject: Subject) -> list[Entry]:
    tables = ((Kind.CONFIG, state.configs), (Kind.MODE, state.modes))
    return [Entry(Key(kind, subject), None) for kind, table in tables if subject in table]


_SETTABLE = {"compatibility", LEVEL, NORMALIZE}


class Settings:
    def __init__(self, log: SchemaLog) -> None:
        self._log = log

    def config(self, subject: Subject | None, *, default_to_global: bool) -> dict[str, Any]:
        with self._log.lock:
            state = self._log.state
            if subject is not None and not default_to_global and subject not in state.configs:
                raise errors.no_config_of_its_own(str(subject))
            normalize = setting(state, subject, NORMALIZE)
            level = {LEVEL: str(level_of(state, subject))}
        return level if normalize is None else level | {NORMALIZE: bool(normalize)}

    def set_config(self, subject: Subject | None, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Fields that are not given stay unchanged. Returns the request."""
        changes = _checked(wanted)

        def decide(state: RegistryState) -> list[Entry]:
            _check_not_overridden(state, subject)
            named = {} if subject is None else {"subject": str(subject)}
            return [Entry(Key(Kind.CONFIG, subject), named | state.configs.get(subject, {}) | changes)]

        self._log.write(decide)
        return dict(wanted)

    def delete_config(self, subject: Subject | None) -> dict[str, Any]:
        """The previous setting."""
        before: list[dict[str, Any]] = []

        def decide(state: RegistryState) -> list[Entry]:
            _check_not_overridden(state, subject)
            if subject is not None and subject not in state.configs:
                raise errors.subject_not_found(str(subject))
            level = state.configs.get(subject, {}).get(LEVEL) or str(level_of(state, subject))
            before[:] = [{LEVEL: level}]
            return [Entry(Key(Kind.CONFIG, subject), None)] if subject in state.configs else []

        self._log.write(decide)
        return before[0]

    def mode(self, subject: Subject | None, *, default_to_global: bool) -> Mode:
        with self._log.lock:
            if subject is not None and not default_to_global and subject not in self._log.state.modes:
                raise errors.no_mode_of_its_own(str(subject))
            return mode_of(self._log.state, subject)

    def set_mode(self, subject: Subject | None, wanted: str, *, force: bool) -> Mode:
        mode: Mode = _named(Mode, wanted, errors.invalid_mode)

        def decide(state: RegistryState) -> list[Entry]:
            _check_not_overridden(state, subject, lifting=mode)
            if mode is Mode.IMPORT and not force and mode_of(state, subject) is not Mode.IMPORT:
                _check_nothing_there(state, subject)
            named = {} if subject is None else {"subject": str(subject)}
            return [Entry(Key(Kind.MODE, subject), named | {"mode": str(mode)})]

        self._log.write(decide)
        return mode

    def delete_mode(self, subject: Subject | None) -> Mode:
        """The previous mode."""
        before: list[Mode] = []

        def decide(state: RegistryState) -> list[Entry]:
            if subject is not None and subject not in state.modes:
                raise errors.subject_not_found(str(subject))
            before[:] = [mode_of(state, subject)]
            return [Entry(Key(Kind.MODE, subject), None)] if subject in state.modes else []

        self._log.write(decide)
        return before[0]


def _checked(wanted: Mapping[str, Any]) -> dict[str, Any]:
    for name in wanted:
        if name not in _SETTABLE:
            raise errors.invalid_level(f"setting {name!r} is unknown: {_nearest(name, _SETTABLE)}")
    changes: dict[str, Any] = {}
    for name in ("compatibility", LEVEL):  # clients use both names
        if wanted.get(name) is not None:
            changes[LEVEL] = str(_named(Level, wanted[name], errors.invalid_level))
    if wanted.get(NORMALIZE) is not None:
        if not isinstance(wanted[NORMALIZE], bool):
            raise errors.invalid_level("'normalize' must be true or false")
        changes[NORMALIZE] = wanted[NORMALIZE]
    if not changes:
        raise errors.invalid_level('no setting is given: send {"compatibility": "BACKWARD"} or another level')
    return changes


def _named(kind: Any, text: Any, refusal: Any) -> Any:
    name = str(text).upper()
    if name not in kind.__members__:
        raise refusal(f"{text!r} is unknown: {_nearest(name, kind.__members__)}")
    return kind[name]


def _nearest(name: str, known: Iterable[str]) -> str:
    return did_you_mean(name, known, otherwise=f"give one of {', '.join(sorted(known))}", quoted=False)


def _check_not_overridden(state: RegistryState, subject: Subject | None, lifting: Mode | None = None) -> None:
    """READONLY_OVERRIDE also forbids changes of settings, until it is replaced in its own scope."""
    holders = [place for place in scopes(subject) if state.modes.get(place) == Mode.READONLY_OVERRIDE]
    if holders and not (lifting is not None and holders == [subject]):
        raise errors.not_permitted("mode READONLY_OVERRIDE is set: PUT /mode with another mode first")


def _check_nothing_there(state: RegistryState, subject: Subject | None) -> None:
    for there in state.subjects():
        concerned = subject is None or there == subject or (not subject.name and there.context == subject.context)
        if concerned and state.versions(there):
            raise errors.not_permitted(
                f"cannot import: subject {str(there)!r} has schemas: delete them, or add ?force=true"
            )


Result = TypeVar("Result")


class Registry:
    """Thread safe. Every method may raise RegistryError."""

    def __init__(self, log: SchemaLog) -> None:
        self._log = log
        self.parser = SchemaParser(log)
        self.settings = Settings(log)
        self.deleter = Deleter(log)
        self._registrar = Registrar(log, self.parser)

    def limited_to(self, permissions: SubjectPermissions) -> "Registry":
        """The same registry with the permissions of one caller."""
        if permissions.is_unlimited:
            return self
        from millstream.registry.limited import LimitedRegistry  # it derives from this class

        return LimitedRegistry(self, permissions)

    @property
    def not_ready_reason(self) -> str | None:
        """Why the registry is not up to date, or None."""
        return self._log.not_ready_reason

    def retry_if_missing(self, ask: Callable[[], Result]) -> Result:
        """Runs a read. If it finds nothing, reads to the end of the topic and runs it again."""
        try:
            return ask()
        except NotFoundError as error:
            not_ready_reason = self._log.not_ready_reason
            if not_ready_reason is not None:
                raise errors.store_timed_out(
                    f"{error.message.partition('.')[0]} in the records read so far, but {not_ready_reason}"
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
        """In all contexts (`:*:`), or those whose qualified name begins with the prefix."""
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
        """The latest version whose metadata has these properties."""
        for row in reversed(self.versions(subject, deleted=deleted)):
            properties = (row.metadata or {}).get("properties") or {}
            if all(properties.get(name) == value for name, value in wanted.items()):
                return row
        raise errors.schema_not_found(f"of subject '{subject}' with metadata {wanted}")

    def by_id(self, schema_id: int, subject: Subject | None = None) -> StoredSchema:
        """A version with this id, soft-deleted or not, in the context of the subject."""
        return self._versions_of_id(schema_id, subject)[0]

    def versions_of_id(
        self, schema_id: int, subject: Subject | None = None, *, deleted: bool = False
    ) -> list[StoredSchema]:
        """The versions with this id."""
        found = [row for row in self._versions_of_id(schema_id, subject) if deleted or not row.deleted]
        if subject is not None and subject.name:
            found = [row for row in found if row.subject == subject]
        return sorted(found, key=lambda row: (row.subject, row.version))

    def highest_id(self, subject: Subject | None = None) -> int:
        with self._log.lock:
            return self._log.state.highest_ids.get(DEFAULT_CONTEXT if subject is None else subject.context, 0)

    def _versions_of_id(self, schema_id: int, subject: Subject | None) -> list[StoredSchema]:
        """In the context of the subject; an unqualified subject is looked up in the other contexts as well."""
        with self._log.lock:
            state = self._log.state
            context = DEFAULT_CONTEXT if subject is None else subject.context
            found = state.versions_of_id(context, schema_id)
            if not found and subject is not None and subject.name and context == DEFAULT_CONTEXT:
                for other in state.contexts():
                    rows = state.versions_of_id(other, schema_id)
                    if any(row.subject.name == subject.name for row in rows):
                        return rows
        if not found:
            raise errors.schema_not_found(schema_id)
        return found

    def lookup(
        self, subject: Subject, request: SchemaRequest, *, normalize: bool = False, deleted: bool = False
    ) -> StoredSchema:
        """The version of the subject with this schema."""
        self.versions(subject, deleted=deleted)
        found = self._registrar.find(
            subject, self._registrar.parse_request(subject, request, normalize), deleted=deleted
        )
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
        """The text of the schema in this form."""
        return self.parser.parse_stored(schema).rendered(form) if form else schema.text

    def check(
        self, subject: Subject, request: SchemaRequest, version: int | str | None, *, normalize: bool = False
    ) -> list[str]:
        """Why the schema is not compatible with one version, the latest (None), or all versions that the level of the
        subject requires ("all"). An unknown subject has no versions to compare with."""
        candidate = self._registrar.parse_request(subject, request, normalize)
        check_rules(candidate)
        with self._log.lock:
            level = level_of(self._log.state, subject)
            earlier = self._log.state.versions(subject)
        if isinstance(version, int):
            earlier = [self.version(subject, version)]
        elif version is None:
            earlier = earlier[-1:]
        return incompatibilities(self.parser, level, candidate.type, candidate.parsed, earlier)

    def level(self, subject: Subject | None) -> Level:
        with self._log.lock:
            return level_of(self._log.state, subject)

    def export(self, prefix: str, *, deleted: bool = False, latest_only: bool = False) -> list[StoredSchema]:
        """All versions of all subjects whose names begin with the prefix."""
        rows: list[StoredSchema] = []
        for name in self.subjects(prefix, deleted=deleted):
            versions: list[Any] = self.versions(split_context(name), deleted=deleted)
            rows += versions[-1:] if latest_only else versions
        return rows
