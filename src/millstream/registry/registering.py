"""Registering schemas: what is there already, what may follow it, and which version and id a new one gets."""

from dataclasses import dataclass
from typing import Any

from millstream.registry.compatibility import obstacles
from millstream.registry.errors import id_taken, incompatible, invalid_schema, not_permitted
from millstream.registry.formats.schema import ParsedSchema
from millstream.registry.formats.table import format_named
from millstream.registry.levels import Mode
from millstream.registry.log import SchemaLog
from millstream.registry.parsing import SchemaParser
from millstream.registry.records import Content, Entry, Key, Kind, Reference, StoredSchema, content_of, schema_entry
from millstream.registry.scope import NORMALIZE, level_of, mode_of, setting
from millstream.registry.state import RegistryState
from millstream.registry.subjects import Subject


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A schema as somebody sends it."""

    text: str
    type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    id: int | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request understood: what would be stored of it."""

    type: str
    parsed: ParsedSchema
    content: Content


class Registrar:
    def __init__(self, log: SchemaLog, parser: SchemaParser) -> None:
        self._log = log
        self._parser = parser

    def understand(self, subject: Subject, request: SchemaRequest, normalize: bool) -> Candidate:
        type_ = format_named(request.type).name
        if not request.text.strip():
            raise invalid_schema("the schema is empty: send its text in the field 'schema'")
        parsed = self._parser.parse(subject, type_, request.text, request.references)
        with self._log.lock:
            normalize = normalize or bool(setting(self._log.state, subject, NORMALIZE))
        text = parsed.normalized() if normalize else parsed.canonical
        references = tuple(sorted(request.references)) if normalize else request.references
        return Candidate(type_, parsed, content_of(type_, text, references, request.metadata, request.rule_set))

    def find(self, subject: Subject, candidate: Candidate, *, deleted: bool = False) -> StoredSchema | None:
        """The version of the subject that is this schema; the newest if there are several."""
        with self._log.lock:
            return find_version(self._log.state, subject, candidate.content, deleted=deleted)

    def register(self, subject: Subject, request: SchemaRequest, normalize: bool = False) -> StoredSchema:
        """The version that is this schema now, whether it was there or not."""
        candidate = self.understand(subject, request, normalize)
        if request.id is None and request.version is None:
            there = self.find(subject, candidate)
            if there is not None:
                return there
        self._parse_earlier(subject)
        registered: list[StoredSchema] = []

        def decide(state: RegistryState) -> list[Entry]:
            registered.clear()
            mode = mode_of(state, subject)
            _check_mode(subject, mode, request)
            there = find_version(state, subject, candidate.content)
            if there is not None and request.id in (None, there.id) and request.version in (None, there.version):
                registered.append(there)
                return []
            schema = self._new_version(state, subject, request, candidate, mode)
            registered.append(schema)
            return _entries(state, schema)

        self._log.write(decide)
        return registered[0]

    def _new_version(
        self, state: RegistryState, subject: Subject, request: SchemaRequest, candidate: Candidate, mode: Mode
    ) -> StoredSchema:
        every = state.versions(subject, deleted=True)
        if mode is not Mode.IMPORT:
            live = [version for version in every if not version.deleted]
            found = obstacles(self._parser, level_of(state, subject), candidate.type, candidate.parsed, live)
            if found:
                raise incompatible(found)
        version = every[-1].version + 1 if every else 1
        if request.version is not None:
            if mode is not Mode.IMPORT and request.version != version:
                raise invalid_schema(f"version {request.version} is not one more than the last: leave it out")
            version = request.version
        schema_id = request.id
        if schema_id is None:
            schema_id = state.id_of(subject.context, candidate.content) or state.next_id(subject.context)
        elif state.content(subject.context, schema_id) not in (None, candidate.content):
            raise id_taken(schema_id)
        return StoredSchema(
            subject,
            version,
            schema_id,
            candidate.type,
            candidate.content.text,
            candidate.content.references,
            request.metadata or None,
            request.rule_set or None,
        )

    def _parse_earlier(self, subject: Subject) -> None:
        """Parses before the state is locked for the decision what the decision will look at."""
        with self._log.lock:
            earlier = self._log.state.versions(subject)
        for version in earlier:
            self._parser.understands(version)


def find_version(
    state: RegistryState, subject: Subject, content: Content, *, deleted: bool = False
) -> StoredSchema | None:
    return next((row for row in reversed(state.versions(subject, deleted=deleted)) if row.content == content), None)


def _check_mode(subject: Subject, mode: Mode, request: SchemaRequest) -> None:
    if mode.read_only:
        raise not_permitted(f"subject {str(subject)!r} is in mode {mode}: PUT /mode/SUBJECT sets another")
    if request.id is not None and mode is not Mode.IMPORT:
        raise not_permitted(f"subject {str(subject)!r} is not in import mode: PUT /mode/SUBJECT IMPORT, or send no id")
    if request.id is None and mode is Mode.IMPORT:
        raise not_permitted(f"subject {str(subject)!r} is in import mode: send an id, or PUT /mode/SUBJECT READWRITE")


def _entries(state: RegistryState, schema: StoredSchema) -> list[Entry]:
    entries = []
    context = schema.subject.context
    if context not in state.contexts():
        entries.append(
            Entry(Key(Kind.CONTEXT, schema.subject.whole_context), {"tenant": "default", "context": context})
        )
    entries.append(schema_entry(schema))
    # A deleted version with the same id is there for those who ask by id; the new one answers them from now on.
    entries += [
        Entry(Key(Kind.SCHEMA, schema.subject, row.version), None)
        for row in state.versions(schema.subject, deleted=True)
        if row.deleted and row.id == schema.id and row.version < schema.version
    ]
    return entries
