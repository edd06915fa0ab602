"""Registering schemas: what is there already, what may follow it, and which version and id a new one gets."""

from dataclasses import dataclass
from typing import Any

from millstream.registry.compatibility import obstacles, those_that_count
from millstream.registry.equivalence import Equivalence
from millstream.registry.errors import id_taken, incompatible, invalid_schema, not_permitted, replaces_referenced
from millstream.registry.formats.schema import ParsedSchema
from millstream.registry.formats.table import format_named
from millstream.registry.levels import Mode
from millstream.registry.log import SchemaLog
from millstream.registry.parsing import SchemaParser, referred_to
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
    same: Equivalence


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
        references = self._parser.pinned(subject, request.references)
        if normalize:
            references = tuple(sorted(references))
        content = content_of(type_, text, references, request.metadata, request.rule_set)
        return Candidate(type_, parsed, content, Equivalence(self._parser, subject, parsed, content, normalize))

    def find(self, subject: Subject, candidate: Candidate, *, deleted: bool = False) -> StoredSchema | None:
        """The version of the subject that is this schema; the newest if there are several."""
        with self._log.lock:
            versions = self._log.state.versions(subject, deleted=deleted)
        return _find(versions, candidate)

    def register(self, subject: Subject, request: SchemaRequest, normalize: bool = False) -> StoredSchema:
        """The version that is this schema now, whether it was there or not."""
        candidate = self.understand(subject, request, normalize)
        if request.id is None and request.version is None:
            there = self.find(subject, candidate)
            if there is not None:
                return there
        check_rules(candidate)
        self._parse_earlier(subject, candidate)
        registered: list[StoredSchema] = []

        def decide(state: RegistryState) -> list[Entry]:
            registered.clear()
            mode = mode_of(state, subject)
            _check_mode(subject, mode, request)
            there = _find(state.versions(subject), candidate)
            if there is not None and request.id in (None, there.id) and request.version in (None, there.version):
                registered.append(there)
                return []
            for reference in candidate.content.references:
                referred_to(state, subject, reference)  # it may have been deleted since the schema was parsed
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
            _check_users(state, subject, version, candidate)
        schema_id = request.id or _known_id(state, subject, candidate)
        # An id stands for one text: what other registries have written is kept to the letter.
        known = state.content(subject.context, schema_id) if schema_id else None
        if known is not None and not candidate.same.holds(known):
            raise id_taken(schema_id or 0)
        content = known or candidate.content
        return StoredSchema(
            subject,
            version,
            schema_id or state.next_id(subject.context),
            candidate.type,
            content.text,
            content.references,
            request.metadata or None,
            request.rule_set or None,
        )

    def _parse_earlier(self, subject: Subject, candidate: Candidate) -> None:
        """Parses before the state is locked for the decision what the decision will look at."""
        with self._log.lock:
            state = self._log.state
            earlier = those_that_count(level_of(state, subject), state.versions(subject))
            contents = state.contents(subject.context)
        candidate.same.first(contents)
        for version in earlier:
            self._parser.understands(version)


def check_rules(candidate: Candidate) -> None:
    """What is stored already may be looked up whatever it is; what is new must keep the rules of its format."""
    flaw = candidate.parsed.flaw()
    if flaw is not None:
        raise invalid_schema(flaw)


def _find(versions: list[StoredSchema], candidate: Candidate) -> StoredSchema | None:
    """The newest of them that is the candidate: to the letter if there is one."""
    exact = next((row for row in reversed(versions) if row.content == candidate.content), None)
    return exact or next((row for row in reversed(versions) if candidate.same.holds(row.content)), None)


def _known_id(state: RegistryState, subject: Subject, candidate: Candidate) -> int | None:
    exact = state.id_of(subject.context, candidate.content)
    return exact or candidate.same.first(state.contents(subject.context))


def _check_mode(subject: Subject, mode: Mode, request: SchemaRequest) -> None:
    if mode.read_only:
        raise not_permitted(f"subject {str(subject)!r} is in mode {mode}: PUT /mode/SUBJECT sets another")
    if request.id is not None and mode is not Mode.IMPORT:
        raise not_permitted(f"subject {str(subject)!r} is not in import mode: PUT /mode/SUBJECT IMPORT, or send no id")
    if request.id is None and mode is Mode.IMPORT:
        raise not_permitted(f"subject {str(subject)!r} is in import mode: send an id, or PUT /mode/SUBJECT READWRITE")


def _check_users(state: RegistryState, subject: Subject, version: int, candidate: Candidate) -> None:
    """An import may replace a version. Schemas that refer to it would mean something else from then on, also those that
    are soft deleted, which still serve requests by id. Confluent's registry does not check that."""
    replaced = state.version(subject, version)
    mine = candidate.content
    if replaced is None or candidate.same.holds(
        replaced.content._replace(metadata=mine.metadata, rule_set=mine.rule_set)
    ):
        return
    users = sorted({user.id for user in state.referencing(subject, version, deleted=True)})
    if users:
        raise replaces_referenced(str(subject), version, users)


def _entries(state: RegistryState, schema: StoredSchema) -> list[Entry]:
    entries = []
    context = schema.subject.context
    if context not in state.contexts():
        entries.append(
            Entry(Key(Kind.CONTEXT, schema.subject.whole_context), {"tenant": "default", "context": context})
        )
    entries.append(schema_entry(schema))
    # A deleted version is kept for requests by id, which the new version serves from now on. But references go by
    # version: one that another schema refers to, deleted or not, must stay.
    entries += [
        Entry(Key(Kind.SCHEMA, schema.subject, row.version), None)
        for row in state.versions(schema.subject, deleted=True)
        if row.deleted
        and row.id == schema.id
        and row.version < schema.version
        and not state.referencing(row.subject, row.version, deleted=True)
    ]
    return entries
