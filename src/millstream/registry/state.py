"""The state of the registry: the records of `_schemas` applied in order. Pure and deterministic.

Invariants: an id has one content in its context for good; a record that contradicts this is ignored, as in other
registries. An id is never used twice, even after its schema was deleted permanently: `highest_ids` only grows, and NOOP
records keep it through compaction.

Also the effective settings of a subject: its own, those of its context, the global ones, or the defaults.
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Any

from millstream.registry.records import (
    DEFAULT_CONTEXT,
    Content,
    Entry,
    Kind,
    Reference,
    StoredSchema,
    Subject,
    read_schema,
)

HIGHEST_IDS = "millstream.highest.ids"
"""Field of a NOOP record: the highest id of each context so far."""
LATEST = -1
"""The version of a reference to the latest version. Only other registries store it."""


class RegistryState:
    def __init__(self) -> None:
        self._subjects: dict[Subject, dict[int, StoredSchema]] = {}
        self._contents: dict[tuple[str, int], Content] = {}
        self._ids: dict[tuple[str, Content], set[int]] = {}
        """More than one only after an import."""
        self._versions_of_id: dict[tuple[str, int], dict[tuple[Subject, int], None]] = {}
        self._referenced: dict[tuple[Subject, int], dict[tuple[Subject, int], None]] = {}
        self._contexts: set[str] = {DEFAULT_CONTEXT}
        self.configs: dict[Subject | None, dict[str, Any]] = {}
        self.modes: dict[Subject | None, str] = {}
        self.highest_ids: dict[str, int] = {}

    # Reading

    def contexts(self) -> list[str]:
        return sorted(self._contexts)

    def subjects(self) -> Iterator[Subject]:
        """All subjects with a version, soft-deleted or not."""
        return (subject for subject, versions in self._subjects.items() if versions)

    def versions(self, subject: Subject, *, deleted: bool = False) -> list[StoredSchema]:
        """In order; `deleted`: with soft-deleted ones."""
        found = self._subjects.get(subject, {})
        return [found[version] for version in sorted(found) if deleted or not found[version].deleted]

    def version(self, subject: Subject, version: int) -> StoredSchema | None:
        """Soft-deleted or not."""
        return self._subjects.get(subject, {}).get(version)

    def id_of(self, context: str, content: Content) -> int | None:
        return min(self._ids.get((context, content), ()), default=None)

    def content(self, context: str, schema_id: int) -> Content | None:
        return self._contents.get((context, schema_id))

    def contents(self, context: str) -> list[tuple[int, Content]]:
        """All ids of a context with their content."""
        return [(schema_id, content) for (where, schema_id), content in self._contents.items() if where == context]

    def versions_of_id(self, context: str, schema_id: int) -> list[StoredSchema]:
        """The versions of subjects that have this id, deleted or not."""
        return [
            self._subjects[subject][version] for subject, version in self._versions_of_id.get((context, schema_id), ())
        ]

    def referred_to(self, user: Subject, reference: Reference) -> StoredSchema | None:
        """The version of a reference, soft-deleted or not, or None."""
        subject, version = resolve_reference(user, reference.subject, reference.version)
        return self._latest(subject) if version == LATEST else self.version(subject, version)

    def referencing(self, subject: Subject, version: int, *, deleted: bool = False) -> list[StoredSchema]:
        """The versions that refer to this one; `deleted`: with soft-deleted ones."""
        versions_of_id = dict(self._referenced.get((subject, version), {}))
        latest = self._latest(subject)
        if latest is not None and latest.version == version:
            versions_of_id |= self._referenced.get((subject, LATEST), {})
        users = (self._subjects[user][number] for user, number in versions_of_id)
        return [user for user in users if deleted or not user.deleted]

    def _latest(self, subject: Subject) -> StoredSchema | None:
        """The last version that is not deleted; if all are, the last one."""
        versions = self.versions(subject) or self.versions(subject, deleted=True)
        return versions[-1] if versions else None

    def next_id(self, context: str) -> int:
        return self.highest_ids.get(context, 0) + 1

    # The fold

    def apply(self, entry: Entry) -> str | None:
        """Applies the next record. Returns why it was ignored, or None."""
        key, value = entry
        if key.kind is Kind.SCHEMA:
            return self._apply_schema(entry)
        if key.kind is Kind.CONFIG:
            self._set(self.configs, key.subject, value)
        elif key.kind is Kind.MODE:
            self._set(self.modes, key.subject, None if value is None else str(value.get("mode")))
        elif key.kind is Kind.NOOP:
            for context, highest in ((value or {}).get(HIGHEST_IDS) or {}).items():
                self._note_id(context, int(highest))
        elif key.subject is not None and value is not None:
            if key.kind is Kind.CONTEXT:
                self._contexts.add(key.subject.context)
            elif key.kind is Kind.DELETE_SUBJECT:
                self._soft_delete(key.subject, int(value["version"]))
            else:
                for version in [row.version for row in self.versions(key.subject, deleted=True) if row.deleted]:
                    self._remove(key.subject, version)
        return None

    def _apply_schema(self, entry: Entry) -> str | None:
        (_, subject, version), value = entry
        assert subject is not None
        if value is None:
            self._remove(subject, version)
            return None
        schema = read_schema(entry.key, value)
        place = (subject.context, schema.id)
        known = self._contents.get(place)
        if known is not None and known != schema.content:
            return f"id {schema.id} is taken by another schema, so {subject} version {version} is not registered"
        self._remove(subject, version)
        self._subjects.setdefault(subject, {})[version] = schema
        self._contents[place] = schema.content
        self._ids.setdefault((subject.context, schema.content), set()).add(schema.id)
        self._versions_of_id.setdefault(place, {})[subject, version] = None
        for reference in schema.references:
            self._referenced.setdefault(resolve_reference(subject, reference.subject, reference.version), {})[
                subject, version
            ] = None
        self._contexts.add(subject.context)
        self._note_id(subject.context, schema.id)
        return None

    def _remove(self, subject: Subject, version: int) -> None:
        schema = self._subjects.get(subject, {}).pop(version, None)
        if schema is None:
            return
        place = (subject.context, schema.id)
        self._versions_of_id[place].pop((subject, version), None)
        for reference in schema.references:
            self._referenced[resolve_reference(subject, reference.subject, reference.version)].pop(
                (subject, version), None
            )
        if not self._versions_of_id[place]:
            del self._contents[place], self._versions_of_id[place]
            self._ids[subject.context, schema.content].discard(schema.id)
            if not self._ids[subject.context, schema.content]:
                del self._ids[subject.context, schema.content]

    def _soft_delete(self, subject: Subject, up_to: int) -> None:
        versions = self._subjects.get(subject, {})
        for version, schema in versions.items():
            if version <= up_to:
                versions[version] = replace(schema, deleted=True)

    def _note_id(self, context: str, schema_id: int) -> None:
        self.highest_ids[context] = max(schema_id, self.highest_ids.get(context, 0))

    @staticmethod
    def _set(table: dict[Subject | None, Any], subject: Subject | None, value: Any) -> None:
        if value is None:
            table.pop(subject, None)
        else:
            table[subject] = value


def resolve_reference(user: Subject, subject: str, version: int) -> tuple[Subject, int]:
    """The subject and version of a reference. A subject without a context is in the context of the referring schema."""
    if subject.startswith(":."):
        context, _, name = subject[1:].partition(":")
        return Subject(context, name), version
    return Subject(user.context, subject), version


class Level(StrEnum):
    """Compatibility level: BACKWARD, new schemas read old data; FORWARD, old schemas read new data; FULL, both."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def new_reads_old(self) -> bool:
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        return self.value.startswith(("FORWARD", "FULL"))

    @property
    def transitive(self) -> bool:
        """Compared with all earlier versions, not only the last."""
        return self.value.endswith("_TRANSITIVE")


class Mode(StrEnum):
    """Mode: which changes are allowed. IMPORT: schemas are registered with given ids."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"

    @property
    def read_only(self) -> bool:
        return self in (Mode.READONLY, Mode.READONLY_OVERRIDE)


DEFAULT_LEVEL = Level.BACKWARD
DEFAULT_MODE = Mode.READWRITE


LEVEL = "compatibilityLevel"
NORMALIZE = "normalize"


def scopes(subject: Subject | None) -> Iterator[Subject | None]:
    """The subject, its context, global (None): from the nearest to the widest."""
    if subject is not None:
        yield subject
        if subject.name and subject.context != DEFAULT_CONTEXT:
            yield subject.whole_context
    yield None


def setting(state: RegistryState, subject: Subject | None, name: str) -> Any:
    """The value in the nearest scope; None if it is not set."""
    for place in scopes(subject):
        value = state.configs.get(place, {}).get(name)
        if value is not None:
            return value
    return None


def level_of(state: RegistryState, subject: Subject | None) -> Level:
    found = setting(state, subject, LEVEL)
    return Level(found) if found in Level.__members__ else DEFAULT_LEVEL


def mode_of(state: RegistryState, subject: Subject | None) -> Mode:
    """READONLY_OVERRIDE in a wider scope overrides nearer scopes."""
    found = [state.modes[place] for place in scopes(subject) if place in state.modes]
    if Mode.READONLY_OVERRIDE in found:
        return Mode.READONLY_OVERRIDE
    return Mode(found[0]) if found and found[0] in Mode.__members__ else DEFAULT_MODE
